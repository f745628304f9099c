package rnictest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// testDisconnect: what was posted before a Disconnect is sent first, then both ends hear of a graceful end.
func testDisconnect(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	fill(c.mr.Bytes(), 1)
	s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(0, memorySize/2)}, rnic.RecvWR{ID: 2}, rnic.RecvWR{ID: 3})
	c.recv(rnic.RecvWR{ID: 5})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, memorySize/2)},
		rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
	require.NoError(t, c.qp.Disconnect())
	c.ok(1)
	c.ok(2)
	require.Equal(t, rnic.StatusFlushed, c.fails(5).Status)
	s.ok(1)
	s.ok(2)
	require.Equal(t, rnic.StatusFlushed, s.fails(3).Status)
	require.Equal(t, rnic.Event{Kind: rnic.Disconnected}, c.last())
	require.Equal(t, rnic.Event{Kind: rnic.Disconnected}, s.last())
	require.Equal(t, c.mr.Bytes()[:memorySize/2], s.mr.Bytes()[:memorySize/2])
}

// testCloseFlushes: Close with work outstanding completes all of it, once, in order, before it returns.
func testCloseFlushes(t *testing.T, p Provider) {
	needSilence(t, p)
	pr := newPair(t, p, pairConfig{server: endConfig{sendDepth: 256, recvDepth: 256}, raw: true})
	s, c := pr.server, pr.client
	// Not established: nothing of this can have gone out.
	const n = 200
	for i := range uint64(n) {
		s.recv(rnic.RecvWR{ID: 1000 + i, SGE: s.sge(0, 64)})
		wr := rnic.SendWR{ID: i, Op: rnic.OpSend, SGE: s.sge(0, 64)}
		if i%2 == 0 {
			wr.Flags = rnic.Signaled // failures complete whether or not they were signaled
		}
		if i%5 == 0 {
			wr.Op, wr.RemoteSTag, wr.RemoteAddr = rnic.OpRead, c.mr.STag(), c.at(0)
		}
		s.send(wr)
	}
	require.NoError(t, s.qp.Close())
	sends, recvs := uint64(0), uint64(1000)
	for range 2 * n {
		wc := s.next()
		require.Equal(t, rnic.StatusFlushed, wc.Status)
		require.Error(t, wc.Err)
		if wc.Op == rnic.OpRecv {
			require.Equal(t, recvs, wc.ID)
			recvs++
		} else {
			require.Equal(t, sends, wc.ID)
			sends++
		}
	}
	s.settle()
	c.last()
	require.NoError(t, s.qp.Close(), "closing again is harmless")
}

// testPeerDeath: the peer dies under load in both directions; every work request completes once.
func testPeerDeath(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{client: endConfig{sendDepth: 512, recvDepth: 64}, server: endConfig{recvDepth: 512}})
	s, c := pr.server, pr.client
	const n = 400
	for i := range uint64(n / 2) {
		s.recv(rnic.RecvWR{ID: i, SGE: s.sge(0, 4096)})
	}
	for i := range uint64(50) {
		c.recv(rnic.RecvWR{ID: 1000 + i, SGE: c.sge(0, 64)})
	}
	posted := 0
	for i := range uint64(n) {
		wr := rnic.SendWR{ID: i, Flags: rnic.Signaled, SGE: c.sge(0, 4096), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)}
		switch i % 4 {
		case 0:
			wr.Op = rnic.OpSend
		case 1, 2:
			wr.Op = rnic.OpWrite
		case 3:
			wr.Op = rnic.OpRead
		}
		c.owe(i)
		if err := c.qp.PostSend(&wr); err != nil {
			require.ErrorIs(t, err, rnic.ErrClosed)
			c.forget(i)
			break
		}
		posted++
		if i == 40 {
			go s.qp.Close()
		}
	}
	next := uint64(0)
	failed := false
	for range posted + 50 {
		wc := c.next()
		if wc.Op == rnic.OpRecv {
			require.Equal(t, rnic.StatusFlushed, wc.Status)
			continue
		}
		require.Equal(t, next, wc.ID, "completions in the order of posting")
		next++
		if failed {
			require.Error(t, wc.Err, "nothing succeeds behind a failure")
		}
		failed = wc.Err != nil
	}
	require.EqualValues(t, posted, next)
	c.last()
	require.Equal(t, 0, c.left())
}

func testPostAfter(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	require.NoError(t, s.qp.Close())
	c.last()
	for _, e := range []*end{c, s} {
		require.ErrorIs(t, e.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend}), rnic.ErrClosed)
		require.ErrorIs(t, e.qp.PostRecv(&rnic.RecvWR{}), rnic.ErrClosed)
	}
	require.NoError(t, c.qp.Disconnect(), "harmless on a connection that has ended")
	require.NotNil(t, c.qp.Info().RemoteAddr, "it still tells what it was")
}

// testDeviceClose closes the devices under a live connection.
func testDeviceClose(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	ln, err := p.Server.Listen(bounded(t), p.Addr, p.Options)
	require.NoError(t, err)
	s.recv(rnic.RecvWR{ID: 1})
	c.recv(rnic.RecvWR{ID: 1})
	accepted := make(chan error, 1)
	go func() {
		_, err := ln.Accept(bounded(t))
		accepted <- err
	}()
	require.NoError(t, p.Server.Close())
	require.ErrorIs(t, <-accepted, rnic.ErrClosed)
	require.NotZero(t, s.last().Kind)
	require.NotZero(t, c.last().Kind)
	require.Equal(t, rnic.StatusFlushed, s.fails(1).Status)
	require.Equal(t, rnic.StatusFlushed, c.fails(1).Status)
	_, err = p.Server.AllocPD()
	require.ErrorIs(t, err, rnic.ErrClosed)
	_, err = p.Server.CreateCQ(rnic.CQConfig{})
	require.ErrorIs(t, err, rnic.ErrClosed)
	require.NoError(t, p.Client.Close())
	require.NoError(t, p.Client.Close())
}
