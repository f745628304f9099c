package rnictest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// write lets the client write its first n octets to a place of the server, and waits until the
// server has seen a message behind it.
func (pr *pair) write(t testing.TB, n int, stag rnic.STag, to uint64) {
	t.Helper()
	pr.server.recv(rnic.RecvWR{ID: 901})
	pr.client.send(
		rnic.SendWR{ID: 902, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: pr.client.sge(0, n), RemoteSTag: stag, RemoteAddr: to},
		rnic.SendWR{ID: 903, Op: rnic.OpSend, Flags: rnic.Signaled},
	)
	pr.client.ok(902)
	pr.client.ok(903)
	pr.server.ok(901)
}

// refuses lets the client write to an STag that the server must refuse.
func (pr *pair) refuses(t testing.TB, stag rnic.STag, to uint64) {
	t.Helper()
	pr.client.send(rnic.SendWR{ID: 911, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: pr.client.sge(0, 1), RemoteSTag: stag, RemoteAddr: to})
	require.Equal(t, rnic.StatusRemoteAccess, pr.client.fails(911).Status)
	require.Equal(t, rnic.Failed, pr.client.last().Kind)
	require.Equal(t, rnic.Failed, pr.server.last().Kind)
}

func testWindowBind(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows)
	pr := newPair(t, p, pairConfig{})
	s := pr.server
	w, err := s.pd.AllocWindow()
	require.NoError(t, err)
	defer w.Free()
	require.Zero(t, w.STag(), "a window begins unbound")

	for name, c := range map[string]struct {
		off, n int
		want   error
	}{
		"negative offset": {-1, 1, rnic.ErrBounds},
		"no octets":       {0, 0, rnic.ErrBounds},
		"too long":        {1, memorySize, rnic.ErrBounds},
		"behind":          {memorySize, 1, rnic.ErrBounds},
	} {
		_, err := w.Bind(s.mr, c.off, c.n, rnic.RemoteWrite)
		require.ErrorIs(t, err, c.want, name)
	}
	ro, err := s.pd.AllocMR(64, 0)
	require.NoError(t, err)
	defer ro.Deregister()
	_, err = w.Bind(ro, 0, 64, rnic.RemoteWrite)
	require.ErrorIs(t, err, rnic.ErrAccess, "a window grants no more than its region")
	require.Zero(t, w.STag())

	fill(pr.client.mr.Bytes()[:100], 3)
	var last rnic.STag
	for i := range 3 {
		stag, err := w.Bind(s.mr, 1000, 100, rnic.RemoteWrite)
		require.NoError(t, err)
		require.Equal(t, stag, w.STag())
		require.Equal(t, s.at(1000), w.Addr())
		if i > 0 {
			require.Equal(t, last>>8, stag>>8, "the index stays")
			require.NotEqual(t, last, stag, "the key changes with each Bind")
		}
		last = stag
		_, err = w.Bind(s.mr, 0, 1, rnic.RemoteWrite)
		require.ErrorIs(t, err, rnic.ErrBound)
		clear(s.mr.Bytes())
		pr.write(t, 100, stag, w.Addr())
		require.Equal(t, pr.client.mr.Bytes()[:100], s.mr.Bytes()[1000:1100])
		require.NoError(t, w.Invalidate())
		require.Zero(t, w.STag())
		require.NoError(t, w.Invalidate(), "invalidating again is harmless")
	}
	// A region that is withdrawn takes its windows along.
	mr, err := s.pd.AllocMR(64, allRights)
	require.NoError(t, err)
	stag, err := w.Bind(mr, 0, 64, rnic.RemoteRead)
	require.NoError(t, err)
	to := w.Addr()
	require.NoError(t, mr.Deregister())
	pr.refuses(t, stag, to)
	_, err = w.Bind(mr, 0, 64, rnic.RemoteRead)
	require.ErrorIs(t, err, rnic.ErrClosed)
}

func testWindowBytes(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows|rnic.CapAnyMemory)
	pr := newPair(t, p, pairConfig{})
	w, err := pr.server.pd.AllocWindow()
	require.NoError(t, err)
	defer w.Free()
	_, err = w.BindBytes(nil, rnic.RemoteWrite)
	require.ErrorIs(t, err, rnic.ErrBounds)
	mem := make([]byte, 5000)
	stag, err := w.BindBytes(mem, rnic.RemoteWrite)
	require.NoError(t, err)
	require.Equal(t, uint64(uintptr(unsafe.Pointer(&mem[0]))), w.Addr())
	_, err = w.BindBytes(mem, rnic.RemoteWrite)
	require.ErrorIs(t, err, rnic.ErrBound)
	fill(pr.client.mr.Bytes()[:5000], 4)
	pr.write(t, 5000, stag, w.Addr())
	require.NoError(t, w.Invalidate())
	require.Equal(t, pr.client.mr.Bytes()[:5000], mem)
}

func testWindowInvalidate(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows)
	for name, withdraw := range map[string]func(rnic.Window) error{
		"Invalidate": rnic.Window.Invalidate,
		"Free":       rnic.Window.Free,
		"Rebind": func(w rnic.Window) error {
			if err := w.Invalidate(); err != nil {
				return err
			}
			mem := make([]byte, 64)
			_, err := w.BindBytes(mem, rnic.RemoteRead)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Rebind" {
				need(t, p, rnic.CapAnyMemory)
			}
			pr := newPair(t, p, pairConfig{})
			w, err := pr.server.pd.AllocWindow()
			require.NoError(t, err)
			defer w.Free()
			stag, err := w.Bind(pr.server.mr, 0, 64, rnic.RemoteRead|rnic.RemoteWrite)
			require.NoError(t, err)
			to := w.Addr()
			pr.write(t, 64, stag, to)
			require.NoError(t, withdraw(w))
			pr.refuses(t, stag, to)
		})
	}
}

func testRemoteInvalidate(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows|rnic.CapSendInvalidate)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	w, err := s.pd.AllocWindow()
	require.NoError(t, err)
	defer w.Free()
	for range 3 {
		stag, err := w.Bind(s.mr, 0, 64, rnic.RemoteRead|rnic.RemoteWrite)
		require.NoError(t, err)
		pr.write(t, 64, stag, w.Addr())
		s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(128, 10)})
		c.send(rnic.SendWR{ID: 2, Op: rnic.OpSendInvalidate, Flags: rnic.Signaled, SGE: c.sge(0, 10), RemoteSTag: stag})
		c.ok(2)
		wc := s.ok(1)
		require.Equal(t, stag, wc.InvalidatedSTag)
		require.Equal(t, 10, wc.Len)
		require.Zero(t, w.STag(), "the window is unbound when the completion says so")
		require.NoError(t, w.Invalidate(), "harmless on what the peer has invalidated")
	}
	stag, err := w.Bind(s.mr, 0, 64, rnic.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, w.Invalidate())
	// An STag that is not valid cannot be invalidated (RFC 5040, section 7.2).
	s.recv(rnic.RecvWR{ID: 3})
	c.send(rnic.SendWR{ID: 4, Op: rnic.OpSendInvalidate, Flags: rnic.Signaled, RemoteSTag: stag})
	c.next()
	s.fails(3)
	require.Equal(t, rnic.Failed, c.last().Kind)
	require.Equal(t, rnic.Failed, s.last().Kind)
}

func testLocalInvalidate(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows|rnic.CapLocalInvalidate)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	w, err := s.pd.AllocWindow()
	require.NoError(t, err)
	defer w.Free()
	stag, err := w.Bind(s.mr, 0, 64, rnic.RemoteRead)
	require.NoError(t, err)
	to := w.Addr()
	// In order with the Send before it and the one behind it.
	c.recv(rnic.RecvWR{ID: 1}, rnic.RecvWR{ID: 2})
	s.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled},
		rnic.SendWR{ID: 2, Op: rnic.OpLocalInvalidate, Flags: rnic.Signaled, RemoteSTag: stag},
		rnic.SendWR{ID: 3, Op: rnic.OpSend, Flags: rnic.Signaled})
	s.ok(1)
	s.ok(2)
	s.ok(3)
	c.ok(1)
	c.ok(2)
	require.Zero(t, w.STag())
	require.ErrorIs(t, s.qp.PostSend(&rnic.SendWR{Op: rnic.OpLocalInvalidate, RemoteSTag: stag}), rnic.ErrBadWR)
	pr.refuses(t, stag, to)
}

func testZeroBased(t *testing.T, p Provider) {
	need(t, p, rnic.CapZeroBased)
	pr := newPair(t, p, pairConfig{})
	mr, err := pr.server.pd.AllocMR(128, allRights|rnic.ZeroBased)
	require.NoError(t, err)
	defer mr.Deregister()
	require.Zero(t, mr.Addr())
	fill(pr.client.mr.Bytes()[:28], 5)
	pr.write(t, 28, mr.STag(), 100)
	require.Equal(t, pr.client.mr.Bytes()[:28], mr.Bytes()[100:])
	if p.Server.Attributes().Caps.Has(rnic.CapWindows) {
		w, err := pr.server.pd.AllocWindow()
		require.NoError(t, err)
		defer w.Free()
		stag, err := w.Bind(mr, 50, 28, rnic.RemoteWrite|rnic.ZeroBased)
		require.NoError(t, err)
		require.Zero(t, w.Addr())
		pr.write(t, 28, stag, 0)
		require.Equal(t, pr.client.mr.Bytes()[:28], mr.Bytes()[50:78])
	}
	pr.refuses(t, mr.STag(), 128)
}

// testWindowSink reads into a window: the right to write lies in the window alone, and what is
// outside of it stays as it was.
func testWindowSink(t *testing.T, p Provider) {
	need(t, p, rnic.CapWindows|rnic.CapWindowSGE)
	pr := newPair(t, p, pairConfig{})
	c, s := pr.client, pr.server
	mr, err := c.pd.AllocMR(4096, rnic.LocalWrite)
	require.NoError(t, err)
	defer mr.Deregister()
	w, err := c.pd.AllocWindow()
	require.NoError(t, err)
	defer w.Free()
	read := func(g rnic.SGE) rnic.SendWR {
		return rnic.SendWR{ID: 7, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: []rnic.SGE{g}, RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)}
	}
	refused := func(g rnic.SGE, want error) {
		t.Helper()
		wr := read(g)
		require.ErrorIs(t, c.qp.PostSend(&wr), want)
	}
	refused(rnic.SGE{Window: w, Len: 8}, rnic.ErrClosed)
	_, err = w.Bind(mr, 100, 1000, rnic.LocalWrite)
	require.NoError(t, err)
	refused(rnic.SGE{Window: w, Len: 1001}, rnic.ErrBounds)
	refused(rnic.SGE{Window: w, Off: -1, Len: 1}, rnic.ErrBounds)
	if c.dev.Attributes().Caps.Has(rnic.CapReadSinkNeedsRemoteWrite) {
		refused(rnic.SGE{Window: w, Len: 8}, rnic.ErrAccess)
	}
	require.NoError(t, w.Invalidate())
	_, err = w.Bind(mr, 100, 1000, rnic.LocalWrite|rnic.RemoteWrite)
	require.NoError(t, err)
	want := make([]byte, 4096)
	copy(want[110:], fill(s.mr.Bytes()[:990], 3))
	c.send(read(rnic.SGE{Window: w, Off: 10, Len: 990}))
	require.Equal(t, 990, c.ok(7).Len)
	require.Equal(t, want, mr.Bytes())
	require.NoError(t, w.Invalidate())
}
