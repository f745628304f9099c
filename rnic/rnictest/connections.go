package rnictest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

func testPrivateData(t *testing.T, p Provider) {
	limit := min(p.Client.Attributes().MaxPrivate, p.Server.Attributes().MaxPrivate)
	for _, n := range []int{0, 1, 4, limit} {
		req, rep := fill(make([]byte, n), 1), fill(make([]byte, n), 2)
		pr := newPair(t, p, pairConfig{
			client: endConfig{params: rnic.ConnParams{PrivateData: req}},
			server: endConfig{params: rnic.ConnParams{PrivateData: rep}},
		})
		wantPrivate(t, p, req, pr.request.PrivateData)
		wantPrivate(t, p, rep, pr.client.info.PrivateData)
		wantPrivate(t, p, req, pr.server.qp.Info().PrivateData)
		wantPrivate(t, p, rep, pr.client.qp.Info().PrivateData)
		require.NotNil(t, pr.request.RemoteAddr)
		require.NotNil(t, pr.client.info.LocalAddr)
		require.Equal(t, pr.client.info.LocalAddr.String(), pr.request.RemoteAddr.String())
		require.NotEmpty(t, pr.client.info.Link)
		require.NotEmpty(t, pr.server.qp.Info().Link)
	}
}

// wantPrivate compares private data, with zeros behind it where the devices add some.
func wantPrivate(t testing.TB, p Provider, want, got []byte) {
	t.Helper()
	if n := len(want); p.Client.Attributes().PrivatePadded && len(got) > n {
		require.Equal(t, make([]byte, len(got)-n), got[n:], "padding")
		got = got[:n]
	}
	require.Equal(t, want, append([]byte{}, got...))
}

// listen listens at the server's side until the test ends.
func listen(t testing.TB, p Provider) rnic.Listener {
	t.Helper()
	ln, err := p.Server.Listen(bounded(t), p.Addr, p.Options)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// dialRequest brings a request to ln, which is the server's.
func dialRequest(t testing.TB, ln rnic.Listener, p Provider, params rnic.ConnParams) (*end, rnic.Connector, rnic.Request, <-chan error) {
	t.Helper()
	ctx := bounded(t)
	c := newEnd(t, p.Client, endConfig{})
	k, err := p.Client.Dial(ctx, ln.Addr().String(), p.Options)
	require.NoError(t, err)
	c.qp, err = k.CreateQP(c.qpConfig(endConfig{}))
	require.NoError(t, err)
	connected := make(chan error, 1)
	go func() {
		_, err := k.Connect(ctx, params)
		connected <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	return c, k, req, connected
}

func testReject(t *testing.T, p Provider) {
	// Linux's siw dies of a Reply with more private data than it takes: the smaller limit counts.
	limit := min(p.Client.Attributes().MaxPrivate, p.Server.Attributes().MaxPrivate)
	for _, n := range []int{0, 1, limit} {
		c, k, req, connected := dialRequest(t, listen(t, p), p, rnic.ConnParams{})
		c.recv(rnic.RecvWR{ID: 1})
		why := fill(make([]byte, n), 9)
		require.ErrorIs(t, req.Reject(make([]byte, p.Server.Attributes().MaxPrivate+1)), rnic.ErrTooLarge)
		require.NoError(t, req.Reject(why))
		var r *rnic.RejectedError
		err := <-connected
		require.ErrorAs(t, err, &r)
		wantPrivate(t, p, why, r.PrivateData)
		require.NoError(t, k.Close())
		require.Equal(t, rnic.StatusFlushed, c.fails(1).Status)
		require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend}), rnic.ErrClosed)
		require.NoError(t, c.qp.Close())
		require.Empty(t, c.events, "a refused Connect has no event")
		c.settle()
	}
}

// testDepths: RFC 6581, section 9.1.
func testDepths(t *testing.T, p Provider) {
	for _, c := range []struct {
		client, server       rnic.ConnParams
		clientIRD, clientORD int
		serverIRD, serverORD int
		peerIRD, peerORD     int // what the server saw of the request
	}{
		{client: rnic.ConnParams{IRD: 4, ORD: 8}, server: rnic.ConnParams{IRD: 8, ORD: 4}, clientIRD: 4, clientORD: 8, serverIRD: 8, serverORD: 4, peerIRD: 4, peerORD: 8},
		{client: rnic.ConnParams{IRD: 2, ORD: 8}, server: rnic.ConnParams{IRD: 4, ORD: 8}, clientIRD: 2, clientORD: 4, serverIRD: 4, serverORD: 2, peerIRD: 2, peerORD: 8},
		{client: rnic.ConnParams{IRD: 0, ORD: 0}, server: rnic.ConnParams{IRD: 8, ORD: 8}, serverIRD: -1},
	} {
		pr := newPair(t, p, pairConfig{client: endConfig{params: c.client}, server: endConfig{params: c.server}, depths: true})
		require.Equal(t, c.peerIRD, pr.request.PeerIRD)
		require.Equal(t, c.peerORD, pr.request.PeerORD)
		require.LessOrEqual(t, pr.client.info.ORD, pr.server.qp.Info().IRD, "never more Reads than are served")
		require.LessOrEqual(t, pr.server.qp.Info().ORD, pr.client.info.IRD)
		require.Equal(t, c.clientORD, pr.client.info.ORD)
		require.Equal(t, c.serverORD, pr.server.qp.Info().ORD)
		require.GreaterOrEqual(t, pr.client.info.IRD, c.clientIRD)
		if c.serverIRD >= 0 {
			require.Equal(t, c.serverIRD, pr.server.qp.Info().IRD)
		}
	}
	a := p.Client.Attributes()
	if a.MaxORD > 0 && a.MaxORD < 16000 {
		pr := newUnconnected(t, p)
		_, err := pr.k.Connect(bounded(t), rnic.ConnParams{ORD: a.MaxORD + 1})
		require.ErrorIs(t, err, rnic.ErrTooLarge)
		_, err = pr.k.Connect(bounded(t), rnic.ConnParams{PrivateData: make([]byte, a.MaxPrivate+1)})
		require.ErrorIs(t, err, rnic.ErrTooLarge)
	}
}

// unconnected is a connector with its QP towards a listener that accepts nothing.
type unconnected struct {
	*end
	k  rnic.Connector
	ln rnic.Listener
}

func newUnconnected(t testing.TB, p Provider) *unconnected {
	t.Helper()
	ctx := bounded(t)
	ln, err := p.Server.Listen(ctx, p.Addr, p.Options)
	require.NoError(t, err)
	u := &unconnected{end: newEnd(t, p.Client, endConfig{}), ln: ln}
	u.k, err = p.Client.Dial(ctx, ln.Addr().String(), p.Options)
	require.NoError(t, err)
	u.qp, err = u.k.CreateQP(u.qpConfig(endConfig{}))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, u.qp.Close())
		require.NoError(t, u.k.Close())
		require.NoError(t, ln.Close())
		u.settle()
	})
	return u
}

// testConnectTimeout: the context ends a Connect that nobody answers.
func testConnectTimeout(t *testing.T, p Provider) {
	u := newUnconnected(t, p)
	u.recv(rnic.RecvWR{ID: 1})
	u.send(rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
	ctx, cancel := context.WithCancel(context.Background())
	connected := make(chan error, 1)
	go func() {
		_, err := u.k.Connect(ctx, rnic.ConnParams{})
		connected <- err
	}()
	_, err := u.ln.Accept(bounded(t)) // the request is there, and stays without an answer
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-connected, context.Canceled)
	seen := map[uint64]bool{}
	for range 2 {
		wc := u.next()
		require.Equal(t, rnic.StatusFlushed, wc.Status)
		seen[wc.ID] = true
	}
	require.Len(t, seen, 2)
	require.ErrorIs(t, u.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend}), rnic.ErrClosed)

	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = u.ln.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func testConnectRefused(t *testing.T, p Provider) {
	ln, err := p.Server.Listen(bounded(t), p.Addr, p.Options)
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	k, err := p.Client.Dial(bounded(t), addr, p.Options)
	if err == nil { // a device may notice only when it connects
		c := newEnd(t, p.Client, endConfig{})
		c.qp, err = k.CreateQP(c.qpConfig(endConfig{}))
		require.NoError(t, err)
		_, err = k.Connect(bounded(t), rnic.ConnParams{})
		require.NoError(t, c.qp.Close())
	}
	require.Error(t, err)
}

// testConnectStates asks for things at the wrong time.
func testConnectStates(t *testing.T, p Provider) {
	ctx := bounded(t)
	ln := listen(t, p)
	c := newEnd(t, p.Client, endConfig{})
	k, err := p.Client.Dial(ctx, ln.Addr().String(), p.Options)
	require.NoError(t, err)
	_, err = k.Connect(ctx, rnic.ConnParams{})
	require.ErrorIs(t, err, rnic.ErrState, "Connect before CreateQP")
	require.NotNil(t, k.LocalAddr())
	require.Equal(t, ln.Addr().String(), k.RemoteAddr().String())
	_, err = k.CreateQP(rnic.QPConfig{})
	require.ErrorIs(t, err, rnic.ErrBadWR)
	c.qp, err = k.CreateQP(c.qpConfig(endConfig{}))
	require.NoError(t, err)
	_, err = k.CreateQP(c.qpConfig(endConfig{}))
	require.ErrorIs(t, err, rnic.ErrState, "a second QP")
	require.ErrorIs(t, c.qp.Disconnect(), rnic.ErrState)
	cl, later, req, connected := dialRequest(t, ln, p, rnic.ConnParams{})
	// Only now, since the listener has taken the first connection before the later one: siw takes the end of one that it has not taken
	// yet for the listener's own, and dies when that is closed.
	require.NoError(t, k.Close())
	require.NoError(t, k.Close())
	_, err = k.Connect(ctx, rnic.ConnParams{})
	require.ErrorIs(t, err, rnic.ErrClosed)
	require.NoError(t, c.qp.Close())
	require.NoError(t, c.qp.Close())

	require.ErrorIs(t, req.Accept(ctx, rnic.ConnParams{}), rnic.ErrState, "Accept before CreateQP")
	require.NoError(t, req.Reject(nil))
	require.ErrorIs(t, req.Reject(nil), rnic.ErrState)
	require.ErrorIs(t, req.Accept(ctx, rnic.ConnParams{}), rnic.ErrState)
	require.Error(t, <-connected)
	require.NoError(t, cl.qp.Close())
	require.NoError(t, later.Close())
}

// testPassiveWaits: what the passive side posts before the peer's first message arrived waits
// (RFC 5044, section 7.1.2, rule 4), and goes out then, in order.
func testPassiveWaits(t *testing.T, p Provider) {
	needSilence(t, p)
	pr := newPair(t, p, pairConfig{raw: true})
	s, c := pr.server, pr.client
	fill(s.mr.Bytes()[:100], 1)
	for i := range uint64(3) {
		c.recv(rnic.RecvWR{ID: i, SGE: c.sge(int(i)*100, 100)})
	}
	s.recv(rnic.RecvWR{ID: 9})
	for i := range uint64(3) {
		s.send(rnic.SendWR{ID: i, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: s.sge(0, 100)})
	}
	require.Equal(t, rnic.Established, c.event().Kind)
	require.Empty(t, s.events, "the passive side is not established yet")
	var wc [1]rnic.Completion
	n, err := s.cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = c.cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n)

	c.send(rnic.SendWR{ID: 8, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.settleOne(t, 0, 1, 2, 8)
	s.settleOne(t, 9, 0, 1, 2)
	require.Equal(t, rnic.Established, s.event().Kind)
	require.Equal(t, s.mr.Bytes()[:100], c.mr.Bytes()[200:300])
}

func testListenerClose(t *testing.T, p Provider) {
	ln, err := p.Server.Listen(bounded(t), p.Addr, p.Options)
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() {
		_, err := ln.Accept(context.Background())
		accepted <- err
	}()
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-accepted, rnic.ErrClosed)
	_, err = ln.Accept(context.Background())
	require.ErrorIs(t, err, rnic.ErrClosed)
	require.NoError(t, ln.Close())
	_, err = p.Server.Listen(bounded(t), "nonsense", p.Options)
	require.Error(t, err)
}

// testManyConnections runs many connections at once through one listener.
func testManyConnections(t *testing.T, p Provider) {
	ln, err := p.Server.Listen(bounded(t), p.Addr, p.Options)
	require.NoError(t, err)
	defer ln.Close()
	const n = 32
	var prs []*pair
	for range n {
		prs = append(prs, connect(t, p, ln, pairConfig{client: endConfig{opts: p.Options}, server: endConfig{opts: p.Options}}))
	}
	errs := make(chan error, n)
	for i, pr := range prs {
		go func() {
			errs <- func() error {
				c, s := pr.client, pr.server
				fill(c.mr.Bytes()[:5000], byte(i))
				for r := range uint64(10) {
					s.recv(rnic.RecvWR{ID: r, SGE: s.sge(0, 5000)})
					c.send(rnic.SendWR{ID: r, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 5000)})
					if wc := c.next(); wc.Err != nil {
						return wc.Err
					}
					if wc := s.next(); wc.Err != nil || wc.Len != 5000 {
						return fmt.Errorf("received %d octets: %w", wc.Len, wc.Err)
					}
				}
				if string(c.mr.Bytes()[:5000]) != string(s.mr.Bytes()[:5000]) {
					return errors.New("data of another connection")
				}
				return nil
			}()
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
}
