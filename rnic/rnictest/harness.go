package rnictest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// patience bounds every wait of the suite. It is never reached when the provider is right.
const patience = 60 * time.Second

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// allRights is every right of a region.
const allRights = rnic.LocalWrite | rnic.RemoteWrite | rnic.RemoteRead

// end is one side of a connection with all that a consumer has.
type end struct {
	t   testing.TB
	dev rnic.Device
	pd  rnic.PD
	cq  rnic.CQ
	mr  rnic.MR
	qp  rnic.QP

	info   rnic.ConnInfo // of Connect
	events chan rnic.Event

	mu     sync.Mutex
	posted map[uint64]int // IDs of work requests that owe a completion
}

// endConfig varies what newEnd makes.
type endConfig struct {
	params               rnic.ConnParams
	opts                 *rnic.LinkOptions
	sendDepth, recvDepth int
	cqDepth              int
	handler              func(*end, []rnic.Completion)
	srq                  rnic.SRQ
	pd                   rnic.PD
	cq                   rnic.CQ
	memory               int
}

// memorySize is the size of each end's region unless a test asks for more.
const memorySize = 64 << 10

func newEnd(t testing.TB, dev rnic.Device, cfg endConfig) *end {
	t.Helper()
	e := &end{t: t, dev: dev, pd: cfg.pd, cq: cfg.cq, events: make(chan rnic.Event, 8), posted: make(map[uint64]int)}
	var err error
	if e.pd == nil {
		e.pd, err = dev.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.pd.Close()) })
	}
	if e.cq == nil {
		c := rnic.CQConfig{Depth: cfg.cqDepth}
		if cfg.handler != nil {
			c.Handler = func(wc []rnic.Completion) { cfg.handler(e, wc) }
		}
		e.cq, err = dev.CreateCQ(c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.cq.Close()) })
	}
	if cfg.memory == 0 {
		cfg.memory = memorySize
	}
	access := allRights
	if dev.Attributes().Caps.Has(rnic.CapAtomics) {
		access |= rnic.RemoteAtomic
	}
	e.mr, err = e.pd.AllocMR(cfg.memory, access)
	require.NoError(t, err)
	mr := e.mr // a test may replace the end's
	t.Cleanup(func() { require.NoError(t, mr.Deregister()) })
	return e
}

func (e *end) qpConfig(cfg endConfig) rnic.QPConfig {
	return rnic.QPConfig{
		PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SRQ: cfg.srq, SendDepth: cfg.sendDepth, RecvDepth: cfg.recvDepth,
		OnEvent: func(ev rnic.Event) { e.events <- ev },
	}
}

// pair is a connection between two ends.
type pair struct {
	client, server *end
	request        rnic.ConnInfo // what the server saw of the request
}

// pairConfig varies newPair.
type pairConfig struct {
	client, server endConfig
	// raw leaves out the client's first message, so that the server may not send yet.
	raw bool
	// depths keeps IRD and ORD of 0 as they are; else both ends get eight of each.
	depths bool
}

// newPair connects two ends. Unless raw, the client's first message has arrived when it returns, so
// that both ends may send (RFC 5044, section 7.1.2).
func newPair(t testing.TB, p Provider, cfg pairConfig) *pair {
	t.Helper()
	if cfg.client.opts == nil {
		cfg.client.opts = p.Options
	}
	if cfg.server.opts == nil {
		cfg.server.opts = p.Options
	}
	ln, err := p.Server.Listen(bounded(t), p.Addr, cfg.server.opts)
	require.NoError(t, err)
	defer ln.Close()
	return connect(t, p, ln, cfg)
}

// connect makes a pair over a listener.
func connect(t testing.TB, p Provider, ln rnic.Listener, cfg pairConfig) *pair {
	t.Helper()
	ctx := bounded(t)
	if c, s := &cfg.client.params, &cfg.server.params; !cfg.depths && c.IRD+c.ORD+s.IRD+s.ORD == 0 {
		c.IRD, c.ORD, s.IRD, s.ORD = 8, 8, 8, 8
	}
	pr := &pair{client: newEnd(t, p.Client, cfg.client), server: newEnd(t, p.Server, cfg.server)}
	c, err := p.Client.Dial(ctx, ln.Addr().String(), cfg.client.opts)
	require.NoError(t, err)
	pr.client.qp, err = c.CreateQP(pr.client.qpConfig(cfg.client))
	require.NoError(t, err)

	served := make(chan error, 1)
	go func() { served <- pr.serve(ctx, ln, cfg.server, cfg.raw || cfg.server.srq != nil) }()
	pr.client.info, err = c.Connect(ctx, cfg.client.params)
	require.NoError(t, <-served)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, pr.client.qp.Close())
		require.NoError(t, pr.server.qp.Close())
		pr.client.settle()
		pr.server.settle()
	})
	if cfg.raw {
		return pr
	}
	if cfg.server.srq != nil {
		return pr
	}
	// A Send whose completions the harness takes itself: it opens the server's direction.
	require.NoError(t, pr.client.qp.PostSend(&rnic.SendWR{ID: openID, Op: rnic.OpSend, Flags: rnic.Signaled}))
	if cfg.client.handler == nil {
		require.Equal(t, openID, pr.client.next().ID)
	}
	if cfg.server.handler == nil {
		require.Equal(t, openID, pr.server.next().ID)
	}
	require.Equal(t, rnic.Established, pr.server.event().Kind)
	require.Equal(t, rnic.Established, pr.client.event().Kind)
	return pr
}

// openID marks the work requests of newPair's first message; handlers of tests ignore it.
const openID = ^uint64(0)

func (pr *pair) serve(ctx context.Context, ln rnic.Listener, cfg endConfig, raw bool) error {
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	pr.request = req.Info()
	if pr.server.qp, err = req.CreateQP(pr.server.qpConfig(cfg)); err != nil {
		return err
	}
	if !raw {
		if err = pr.server.qp.PostRecv(&rnic.RecvWR{ID: openID}); err != nil {
			return err
		}
	}
	if err = req.Accept(ctx, cfg.params); err != nil {
		req.Reject(nil) // so that the client need not wait
	}
	return err
}

// event waits for the next event.
func (e *end) event() rnic.Event {
	e.t.Helper()
	select {
	case ev := <-e.events:
		return ev
	case <-bounded(e.t).Done():
		e.t.Fatal("no event")
		return rnic.Event{}
	}
}

// end waits for the event that ends the connection.
func (e *end) last() rnic.Event {
	e.t.Helper()
	for {
		if ev := e.event(); ev.Kind != rnic.Established {
			return ev
		}
	}
}

// send posts a chain of work requests given one by one and notes what it owes.
func (e *end) send(wrs ...rnic.SendWR) {
	e.t.Helper()
	for i := range wrs {
		if i+1 < len(wrs) {
			wrs[i].Next = &wrs[i+1]
		}
		e.owe(wrs[i].ID)
	}
	require.NoError(e.t, e.qp.PostSend(&wrs[0]))
}

func (e *end) recv(wrs ...rnic.RecvWR) {
	e.t.Helper()
	for i := range wrs {
		if i+1 < len(wrs) {
			wrs[i].Next = &wrs[i+1]
		}
		e.owe(wrs[i].ID)
	}
	require.NoError(e.t, e.qp.PostRecv(&wrs[0]))
}

func (e *end) owe(id uint64) {
	e.mu.Lock()
	e.posted[id]++
	e.mu.Unlock()
}

// paid notes a completion and says whether its work request was due.
func (e *end) paid(c rnic.Completion) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.ID == openID {
		return true
	}
	if e.posted[c.ID] == 0 {
		return false
	}
	if e.posted[c.ID]--; e.posted[c.ID] == 0 {
		delete(e.posted, c.ID)
	}
	return true
}

// next waits for one completion.
func (e *end) next() rnic.Completion {
	e.t.Helper()
	var wc [1]rnic.Completion
	for {
		n, err := e.cq.Poll(wc[:])
		require.NoError(e.t, err)
		if n == 1 {
			require.True(e.t, e.paid(wc[0]), "completion of a work request that was not outstanding: %+v", wc[0])
			return wc[0]
		}
		require.NoError(e.t, e.cq.Wait(bounded(e.t)), "waiting for a completion")
	}
}

// ok waits for the completion of the work request id and wants it to have succeeded.
func (e *end) ok(id uint64) rnic.Completion {
	e.t.Helper()
	c := e.next()
	require.NoError(e.t, c.Err)
	require.Equal(e.t, rnic.StatusOK, c.Status)
	require.Equal(e.t, id, c.ID)
	require.Same(e.t, e.qp, c.QP)
	return c
}

// fails waits for the completion of the work request id and wants it to have failed.
func (e *end) fails(id uint64) rnic.Completion {
	e.t.Helper()
	c := e.next()
	require.Equal(e.t, id, c.ID)
	require.NotEqual(e.t, rnic.StatusOK, c.Status, "the work request should have failed")
	require.Error(e.t, c.Err)
	return c
}

// settle checks after Close that what is left in the queue are completions of work that was
// posted, each once, and that none is missing. Unsignaled work that succeeded owes nothing: tests
// that post such work take it off themselves.
func (e *end) settle() {
	e.t.Helper()
	var wc [64]rnic.Completion
	for {
		n, err := e.cq.Poll(wc[:])
		if errors.Is(err, rnic.ErrState) || errors.Is(err, rnic.ErrClosed) {
			break // a queue with a handler, whose test counts; or of a device that was closed
		}
		require.NoError(e.t, err)
		if n == 0 {
			break
		}
		for _, c := range wc[:n] {
			require.True(e.t, e.paid(c), "completion of a work request that was not outstanding: %+v", c)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Empty(e.t, e.posted, "work requests without a completion")
}

// forget takes unsignaled work off the list of what is owed.
func (e *end) forget(ids ...uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		delete(e.posted, id)
	}
}

// sge names n octets of the end's region.
func (e *end) sge(off, n int) []rnic.SGE { return []rnic.SGE{{MR: e.mr, Off: off, Len: n}} }

// at is the Tagged Offset of the region's octet off.
func (e *end) at(off int) uint64 { return e.mr.Addr() + uint64(off) }

// fill writes a pattern that differs at every offset into mem and returns it.
func fill(mem []byte, seed byte) []byte {
	x := uint32(seed)*2654435761 + 1
	for i := range mem {
		x = x*1664525 + 1013904223
		mem[i] = byte(x >> 24)
	}
	return mem
}

// wantUnsupported asserts the refusal of an operation that is not claimed.
func wantUnsupported(t testing.TB, err error) {
	t.Helper()
	var u *rnic.UnsupportedError
	require.ErrorAs(t, err, &u)
	require.NotEmpty(t, u.Op)
	require.NotEmpty(t, u.Device)
}
