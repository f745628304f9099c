package rnictest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// testOrder: completions come in the order of posting, and only for what asked for them.
func testOrder(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	const n = 100
	rng := rand.New(rand.NewPCG(1, 2))
	recvs := make([]rnic.RecvWR, 0, n)
	var wrs []rnic.SendWR
	var signaled, silent []uint64
	for i := range uint64(n) {
		wr := rnic.SendWR{ID: i, SGE: c.sge(0, rng.IntN(3000)), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(8192)}
		switch rng.IntN(3) {
		case 0:
			wr.Op = rnic.OpSend
			recvs = append(recvs, rnic.RecvWR{ID: i, SGE: s.sge(0, 3000)})
		case 1:
			wr.Op = rnic.OpWrite
		case 2:
			wr.Op = rnic.OpRead
		}
		if rng.IntN(2) == 0 || i == n-1 {
			wr.Flags = rnic.Signaled
			signaled = append(signaled, i)
		} else {
			silent = append(silent, i)
		}
		wrs = append(wrs, wr)
	}
	s.recv(recvs...)
	c.send(wrs...)
	for _, id := range signaled {
		c.ok(id)
	}
	for _, r := range recvs {
		s.ok(r.ID)
	}
	var wc [1]rnic.Completion
	k, err := c.cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, k, "unsignaled work that succeeded does not complete")
	c.forget(silent...)
}

// testSendFull fills the send queue of a connection that does not send yet.
func testSendFull(t *testing.T, p Provider) {
	needSilence(t, p)
	pr := newPair(t, p, pairConfig{raw: true, server: endConfig{sendDepth: 4, recvDepth: 8}})
	s, c := pr.server, pr.client
	for i := range uint64(4) {
		s.send(rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: s.sge(0, 10)})
	}
	require.ErrorIs(t, s.qp.PostSend(&rnic.SendWR{ID: 4, Op: rnic.OpSend}), rnic.ErrQueue)
	for i := range uint64(5) {
		c.recv(rnic.RecvWR{ID: i, SGE: c.sge(0, 10)})
	}
	s.recv(rnic.RecvWR{ID: 90})
	c.send(rnic.SendWR{ID: 91, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.settleOne(t, 91, 0, 1, 2, 3)
	for range 5 {
		s.next()
	}
	// Completed work makes room.
	s.send(rnic.SendWR{ID: 5, Op: rnic.OpSend, Flags: rnic.Signaled})
	s.ok(5)
	c.ok(4)
}

// settleOne waits for completions of the given work requests in any order.
func (e *end) settleOne(t testing.TB, ids ...uint64) {
	t.Helper()
	want := make(map[uint64]bool)
	for _, id := range ids {
		want[id] = true
	}
	for range ids {
		c := e.next()
		require.NoError(t, c.Err)
		require.True(t, want[c.ID], "completion of %d", c.ID)
		delete(want, c.ID)
	}
}

func testRecvFull(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{server: endConfig{recvDepth: 4}})
	s, c := pr.server, pr.client
	for i := range uint64(4) {
		s.recv(rnic.RecvWR{ID: i, SGE: s.sge(0, 10)})
	}
	require.ErrorIs(t, s.qp.PostRecv(&rnic.RecvWR{ID: 9}), rnic.ErrQueue)
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(1)
	s.ok(0)
	s.recv(rnic.RecvWR{ID: 4})
	for i := range uint64(4) {
		c.send(rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled})
		c.ok(i)
		s.ok(i + 1)
	}
}

// testChainAtomic: one bad work request, or too many, and nothing of the chain is taken.
func testChainAtomic(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{server: endConfig{recvDepth: 4}, client: endConfig{sendDepth: 4}})
	s, c := pr.server, pr.client
	good := func(id uint64) *rnic.RecvWR { return &rnic.RecvWR{ID: id, SGE: s.sge(0, 10)} }
	chain := good(1)
	chain.Next = &rnic.RecvWR{ID: 2, SGE: s.sge(0, memorySize+1)}
	require.ErrorIs(t, s.qp.PostRecv(chain), rnic.ErrBounds)
	chain = good(0)
	for w, i := chain, uint64(1); i < 5; i++ {
		w.Next = good(i)
		w = w.Next
	}
	require.ErrorIs(t, s.qp.PostRecv(chain), rnic.ErrQueue)
	wr := &rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled}
	wr.Next = &rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, memorySize+1)}
	require.ErrorIs(t, c.qp.PostSend(wr), rnic.ErrBounds)
	wr = nil
	for i := range uint64(5) {
		wr = &rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled, Next: wr}
	}
	require.ErrorIs(t, c.qp.PostSend(wr), rnic.ErrQueue)
	loop := &rnic.SendWR{Op: rnic.OpSend}
	loop.Next = loop
	require.ErrorIs(t, c.qp.PostSend(loop), rnic.ErrQueue, "a chain that never ends")
	// Nothing was taken: the only receive meets the only Send.
	s.recv(*good(7))
	c.send(rnic.SendWR{ID: 8, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(8)
	s.ok(7)
}

func testMalformed(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	c := pr.client
	require.ErrorIs(t, c.qp.PostSend(nil), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostRecv(nil), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{}), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRecv}), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: 200}), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{Len: 1}}}), rnic.ErrBadWR, "an element without a region")
	_, err := c.dev.CreateCQ(rnic.CQConfig{Depth: -1})
	require.ErrorIs(t, err, rnic.ErrBadWR)
}

func testPollWait(t *testing.T, p Provider) {
	cq, err := p.Client.CreateCQ(rnic.CQConfig{})
	require.NoError(t, err)
	var wc [8]rnic.Completion
	n, err := cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n)
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan error, 1)
	go func() { waited <- cq.Wait(ctx) }()
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	go func() { waited <- cq.Wait(context.Background()) }()
	require.NoError(t, cq.Close())
	require.ErrorIs(t, <-waited, rnic.ErrClosed)
	require.ErrorIs(t, cq.Wait(context.Background()), rnic.ErrClosed)
	_, err = cq.Poll(wc[:])
	require.ErrorIs(t, err, rnic.ErrClosed)

	// Several waiters all hear of completions.
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	for range 2 {
		go func() { waited <- s.cq.Wait(bounded(t)) }()
	}
	s.recv(rnic.RecvWR{ID: 1}, rnic.RecvWR{ID: 2})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(1)
	require.NoError(t, <-waited)
	require.NoError(t, <-waited)
	s.ok(1)
	c.send(rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(2)
	s.ok(2)
	n, err = s.cq.Poll(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

// echo is a handler that answers each message and posts its receive again.
type echo struct {
	fail   func(error)
	inside atomic.Int32
	sends  atomic.Int32
	recvs  atomic.Int32
}

func (h *echo) handle(e *end, wc []rnic.Completion) {
	if h.inside.Add(1) != 1 {
		h.fail(errors.New("two goroutines run the handler at once"))
	}
	defer h.inside.Add(-1)
	for _, c := range wc {
		switch {
		case c.ID == openID || c.Status == rnic.StatusFlushed:
		case c.Err != nil:
			h.fail(c.Err)
		case c.Op == rnic.OpSend:
			h.sends.Add(1)
		case c.Op == rnic.OpRecv:
			h.recvs.Add(1)
			off := int(c.ID) * 64
			if err := c.QP.PostRecv(&rnic.RecvWR{ID: c.ID, SGE: e.sge(off, 64)}); err != nil {
				h.fail(err)
			}
			if err := c.QP.PostSend(&rnic.SendWR{ID: c.ID, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: e.sge(off, c.Len)}); err != nil {
				h.fail(err)
			}
		}
	}
}

// testHandler runs an echo in a handler, over two connections that share the queue.
func testHandler(t *testing.T, p Provider) {
	h := &echo{fail: func(err error) { t.Error(err) }}
	var shared *end
	cq, err := p.Server.CreateCQ(rnic.CQConfig{Handler: func(wc []rnic.Completion) { h.handle(shared, wc) }})
	require.NoError(t, err)
	defer func() { require.NoError(t, cq.Close()) }()
	_, err = cq.Poll(make([]rnic.Completion, 1))
	require.ErrorIs(t, err, rnic.ErrState)
	require.ErrorIs(t, cq.Wait(context.Background()), rnic.ErrState)

	t.Run("connections", func(t *testing.T) {
		pd, err := p.Server.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pd.Close()) })
		shared = newEnd(t, p.Server, endConfig{pd: pd, cq: cq})
		const conns, window, rounds = 2, 8, 200
		var prs []*pair
		for range conns {
			pr := newPair(t, p, pairConfig{server: endConfig{pd: pd, cq: cq, handler: h.handle}})
			for i := range uint64(window) {
				require.NoError(t, pr.server.qp.PostRecv(&rnic.RecvWR{ID: i, SGE: shared.sge(int(i)*64, 64)}))
			}
			prs = append(prs, pr)
		}
		var wg sync.WaitGroup
		for _, pr := range prs {
			wg.Go(func() {
				c := pr.client
				for i := range uint64(window) {
					c.recv(rnic.RecvWR{ID: 1000 + i, SGE: c.sge(4096+int(i)*64, 64)})
				}
				for i := range uint64(window) {
					c.send(rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 64)})
				}
				for got := 0; got < window*rounds; {
					wc := c.next()
					if wc.Err != nil {
						t.Error(wc.Err)
						return
					}
					if wc.Op != rnic.OpRecv {
						continue
					}
					got++
					if got <= window*(rounds-1) {
						c.recv(rnic.RecvWR{ID: wc.ID, SGE: c.sge(4096+int(wc.ID-1000)*64, 64)})
						c.send(rnic.SendWR{ID: wc.ID, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 64)})
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, conns*window*rounds, h.recvs.Load())
	})
}

// testHandlerNotUnderPost holds a lock while posting that the handler takes too.
func testHandlerNotUnderPost(t *testing.T, p Provider) {
	var mu sync.Mutex
	done := make(chan uint64, 1024)
	pr := newPair(t, p, pairConfig{client: endConfig{handler: func(_ *end, wc []rnic.Completion) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range wc {
			if c.ID != openID {
				done <- c.ID
			}
		}
	}}})
	s, c := pr.server, pr.client
	for i := range uint64(100) {
		mu.Lock()
		err := c.qp.PostSend(&rnic.SendWR{ID: i, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, 100), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)})
		mu.Unlock()
		require.NoError(t, err)
		require.Equal(t, i, <-done)
	}
}

// testOverrun: a queue that is too small fails its connection, but loses nothing.
func testOverrun(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{server: endConfig{cqDepth: 2, recvDepth: 8}})
	s, c := pr.server, pr.client
	for i := range uint64(6) {
		s.recv(rnic.RecvWR{ID: i})
	}
	for i := range uint64(6) {
		if err := c.qp.PostSend(&rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled}); err != nil {
			require.ErrorIs(t, err, rnic.ErrClosed) // the connection may have failed already
			break
		}
		c.owe(i)
	}
	ev := s.last()
	require.Equal(t, rnic.Failed, ev.Kind)
	require.ErrorIs(t, ev.Err, rnic.ErrQueue)
	for range 6 {
		s.next()
	}
}

func testCQInUse(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	require.ErrorIs(t, pr.client.cq.Close(), rnic.ErrBusy)
}

// testSRQ lets two connections draw from one queue.
func testSRQ(t *testing.T, p Provider) {
	need(t, p, rnic.CapSRQ)
	pd, err := p.Server.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	srq, err := p.Server.CreateSRQ(pd, rnic.SRQConfig{Depth: 8})
	require.NoError(t, err)
	defer func() { require.NoError(t, srq.Close()) }()
	mr, err := pd.AllocMR(4096, rnic.LocalWrite)
	require.NoError(t, err)
	defer mr.Deregister()
	slot := func(i uint64) *rnic.RecvWR {
		return &rnic.RecvWR{ID: i, SGE: []rnic.SGE{{MR: mr, Off: int(i) * 64, Len: 64}}}
	}
	for i := range uint64(8) {
		require.NoError(t, srq.PostRecv(slot(i)))
	}
	require.ErrorIs(t, srq.PostRecv(slot(8)), rnic.ErrQueue)
	require.ErrorIs(t, srq.PostRecv(nil), rnic.ErrBadWR)
	require.ErrorIs(t, srq.PostRecv(&rnic.RecvWR{SGE: []rnic.SGE{{MR: mr, Len: 4097}}}), rnic.ErrBounds)

	t.Run("connections", func(t *testing.T) {
		var prs []*pair
		for range 2 {
			prs = append(prs, newPair(t, p, pairConfig{server: endConfig{pd: pd, srq: srq}}))
		}
		require.ErrorIs(t, srq.Close(), rnic.ErrBusy)
		require.ErrorIs(t, prs[0].server.qp.PostRecv(&rnic.RecvWR{}), rnic.ErrState)
		next := uint64(0)
		for i := range 20 {
			pr := prs[i%3%2]
			fill(pr.client.mr.Bytes()[:64], byte(i))
			pr.client.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: pr.client.sge(0, 64)})
			pr.client.ok(1)
			pr.server.owe(next)
			wc := pr.server.ok(next) // in the order of posting, whoever takes it
			require.Equal(t, pr.client.mr.Bytes()[:64], mr.Bytes()[next*64:next*64+64])
			require.Equal(t, 64, wc.Len)
			require.NoError(t, srq.PostRecv(slot(next)))
			next = (next + 1) % 8
		}
	})
}

func testSRQLimit(t *testing.T, p Provider) {
	need(t, p, rnic.CapSRQ)
	pd, err := p.Server.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	low := make(chan struct{}, 16)
	srq, err := p.Server.CreateSRQ(pd, rnic.SRQConfig{Depth: 16, Limit: 3, OnLimit: func() { low <- struct{}{} }})
	require.NoError(t, err)
	defer func() { require.NoError(t, srq.Close()) }()
	t.Run("connection", func(t *testing.T) {
		pr := newPair(t, p, pairConfig{server: endConfig{pd: pd, srq: srq}})
		id := uint64(0)
		post := func(n int) {
			for range n {
				require.NoError(t, srq.PostRecv(&rnic.RecvWR{ID: id}))
				pr.server.owe(id)
				id++
			}
		}
		take := func() {
			pr.client.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled})
			pr.client.ok(1)
			require.NoError(t, pr.server.next().Err)
		}
		post(5)
		take()
		take()
		require.Empty(t, low, "three are left")
		take()
		require.Len(t, low, 1, "two are left")
		take()
		require.Len(t, low, 1, "told once")
		<-low
		post(1)
		take()
		require.Empty(t, low, "not armed again below the limit")
		post(4)
		take()
		take()
		take()
		require.Len(t, low, 1)
		for pr.server.left() > 0 {
			take()
		}
	})
}

// left is the number of completions owed.
func (e *end) left() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.posted)
}
