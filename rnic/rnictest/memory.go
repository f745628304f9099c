package rnictest

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

func testAttributes(t *testing.T, p Provider) {
	for _, d := range []rnic.Device{p.Client, p.Server} {
		a := d.Attributes()
		require.NotEmpty(t, a.Name)
		require.NotEmpty(t, a.Provider)
		require.Positive(t, a.MaxSendSGE)
		require.Positive(t, a.MaxRecvSGE)
		require.Positive(t, a.MaxReadSGE)
		require.Positive(t, a.MaxPrivate)
		require.Positive(t, a.PageSizeHint)
		if a.Caps.Has(rnic.CapInline) {
			require.Positive(t, a.MaxInline)
		}
		_, upgrades := d.(rnic.StreamUpgrader)
		if a.Caps.Has(rnic.CapStreamUpgrade) {
			require.True(t, upgrades, "a device that claims CapStreamUpgrade is a StreamUpgrader")
		}
	}
}

// testUnclaimed asks for everything that the devices do not claim.
func testUnclaimed(t *testing.T, p Provider) {
	caps := p.Client.Attributes().Caps
	pr := newPair(t, p, pairConfig{})
	c := pr.client
	post := func(wr rnic.SendWR) {
		t.Helper()
		wr.Flags |= rnic.Signaled
		wantUnsupported(t, c.qp.PostSend(&wr))
	}
	if !caps.Has(rnic.CapWindows) {
		_, err := c.pd.AllocWindow()
		wantUnsupported(t, err)
	} else if !caps.Has(rnic.CapAnyMemory) {
		w, err := c.pd.AllocWindow()
		require.NoError(t, err)
		_, err = w.BindBytes(make([]byte, 8), rnic.RemoteRead)
		wantUnsupported(t, err)
		require.NoError(t, w.Free())
	}
	if !caps.Has(rnic.CapSRQ) {
		_, err := c.dev.CreateSRQ(c.pd, rnic.SRQConfig{})
		wantUnsupported(t, err)
	}
	if !caps.Has(rnic.CapZeroBased) {
		_, err := c.pd.AllocMR(16, rnic.ZeroBased)
		wantUnsupported(t, err)
		_, err = c.pd.RegisterMR(make([]byte, 16), rnic.ZeroBased)
		wantUnsupported(t, err)
	}
	if !caps.Has(rnic.CapImmediate) {
		post(rnic.SendWR{Op: rnic.OpImmediate})
	}
	if !caps.Has(rnic.CapAtomics) {
		post(rnic.SendWR{Op: rnic.OpFetchAdd, SGE: c.sge(0, 8)})
		post(rnic.SendWR{Op: rnic.OpCmpSwap, SGE: c.sge(0, 8)})
		_, err := c.pd.AllocMR(16, rnic.RemoteAtomic)
		wantUnsupported(t, err)
	}
	if !caps.Has(rnic.CapInline) {
		post(rnic.SendWR{Op: rnic.OpSend, Inline: []byte{1}})
	}
	if !caps.Has(rnic.CapSendInvalidate) {
		post(rnic.SendWR{Op: rnic.OpSendInvalidate, RemoteSTag: 0x100})
	}
	if !caps.Has(rnic.CapLocalInvalidate) {
		post(rnic.SendWR{Op: rnic.OpLocalInvalidate, RemoteSTag: c.mr.STag()})
		post(rnic.SendWR{Op: rnic.OpRead, Flags: rnic.InvalidateSink, SGE: c.sge(0, 8), RemoteSTag: pr.server.mr.STag()})
	}
	// The refusals did nothing: the connection still works.
	pr.server.recv(rnic.RecvWR{ID: 1})
	c.send(rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(2)
	pr.server.ok(1)
}

func testRegister(t *testing.T, p Provider) {
	pd, err := p.Client.AllocPD()
	require.NoError(t, err)
	require.Same(t, p.Client, pd.Device())
	mem := make([]byte, 4096)
	mr, err := pd.RegisterMR(mem, rnic.LocalWrite|rnic.RemoteRead)
	require.NoError(t, err)
	require.NotZero(t, mr.STag())
	require.NotZero(t, mr.STag()>>8, "index 0 names no region")
	require.Equal(t, uint64(uintptr(unsafe.Pointer(&mem[0]))), mr.Addr(), "the Tagged Offset is the virtual address")
	require.Equal(t, rnic.LocalWrite|rnic.RemoteRead, mr.Access())
	require.Same(t, &mem[0], &mr.Bytes()[0])
	require.Len(t, mr.Bytes(), 4096)

	again, err := pd.RegisterMR(mem[100:200], rnic.LocalWrite)
	require.NoError(t, err, "regions may overlap")
	require.NotEqual(t, mr.STag(), again.STag())
	require.NoError(t, again.Deregister())
	require.NoError(t, mr.Deregister())
	require.NoError(t, mr.Deregister(), "deregistering again is harmless")

	_, err = pd.RegisterMR(nil, rnic.LocalWrite)
	require.Error(t, err, "a region has at least one octet")
	require.NoError(t, pd.Close())
	_, err = pd.RegisterMR(mem, rnic.LocalWrite)
	require.ErrorIs(t, err, rnic.ErrClosed)
}

func testAlloc(t *testing.T, p Provider) {
	pd, err := p.Client.AllocPD()
	require.NoError(t, err)
	page := p.Client.Attributes().PageSizeHint
	for _, size := range []int{1, 4095, 4096, 4097, 1 << 20} {
		mr, err := pd.AllocMR(size, allRights)
		require.NoError(t, err)
		mem := mr.Bytes()
		require.Len(t, mem, size)
		require.Zero(t, uintptr(unsafe.Pointer(&mem[0]))%uintptr(page), "alignment")
		for i := range mem {
			if mem[i] != 0 {
				t.Fatalf("octet %d is not zero", i)
			}
		}
		mem[0], mem[size-1] = 1, 2
		require.NoError(t, mr.Deregister())
		require.NoError(t, mr.Deregister())
	}
	for _, size := range []int{0, -1} {
		_, err = pd.AllocMR(size, allRights)
		require.Error(t, err)
	}
	require.NoError(t, pd.Close())
}

func testLocalBounds(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	c := pr.client
	for _, s := range []rnic.SGE{
		{MR: c.mr, Off: -1, Len: 1},
		{MR: c.mr, Off: 0, Len: -1},
		{MR: c.mr, Off: 0, Len: memorySize + 1},
		{MR: c.mr, Off: memorySize, Len: 1},
		{MR: c.mr, Off: math.MaxInt, Len: 1},
		{MR: c.mr, Off: 1, Len: math.MaxInt},
	} {
		require.ErrorIs(t, c.qp.PostRecv(&rnic.RecvWR{SGE: []rnic.SGE{s}}), rnic.ErrBounds)
		require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{s}}), rnic.ErrBounds)
		require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, SGE: []rnic.SGE{s}}), rnic.ErrBounds)
	}
	// The last octet, and nothing behind it, is within the region.
	pr.server.recv(rnic.RecvWR{ID: 1, SGE: pr.server.sge(memorySize-1, 1)})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: c.mr, Off: memorySize - 1, Len: 1}, {MR: c.mr, Off: memorySize}}})
	c.ok(1)
	require.Equal(t, 1, pr.server.ok(1).Len)
}

func testLocalRights(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	c := pr.client
	ro, err := c.pd.AllocMR(64, rnic.RemoteRead)
	require.NoError(t, err)
	defer ro.Deregister()
	sge := []rnic.SGE{{MR: ro, Len: 8}}
	require.ErrorIs(t, c.qp.PostRecv(&rnic.RecvWR{SGE: sge}), rnic.ErrAccess)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, SGE: sge, RemoteSTag: pr.server.mr.STag()}), rnic.ErrAccess)
	if c.dev.Attributes().Caps.Has(rnic.CapReadSinkNeedsRemoteWrite) {
		lw, err := c.pd.AllocMR(64, rnic.LocalWrite)
		require.NoError(t, err)
		defer lw.Deregister()
		err = c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, SGE: []rnic.SGE{{MR: lw, Len: 8}}, RemoteSTag: pr.server.mr.STag(), RemoteAddr: pr.server.at(0)})
		require.ErrorIs(t, err, rnic.ErrAccess)
	}
	// It can be sent from.
	pr.server.recv(rnic.RecvWR{ID: 1, SGE: pr.server.sge(0, 8)})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: sge})
	c.ok(1)
	pr.server.ok(1)
}

func testOtherDomain(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	other, err := p.Client.AllocPD()
	require.NoError(t, err)
	defer other.Close()
	foreign, err := other.AllocMR(64, allRights)
	require.NoError(t, err)
	defer foreign.Deregister()
	sge := []rnic.SGE{{MR: foreign, Len: 8}}
	require.ErrorIs(t, pr.client.qp.PostRecv(&rnic.RecvWR{SGE: sge}), rnic.ErrAccess)
	require.ErrorIs(t, pr.client.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: sge}), rnic.ErrAccess)

	// Nor can the peer use a region of another domain: RFC 5041, section 7.2, "not associated".
	srv, err := p.Server.AllocPD()
	require.NoError(t, err)
	defer srv.Close()
	hidden, err := srv.AllocMR(64, allRights)
	require.NoError(t, err)
	defer hidden.Deregister()
	pr.client.send(rnic.SendWR{ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: pr.client.sge(0, 8), RemoteSTag: hidden.STag(), RemoteAddr: hidden.Addr()})
	wantStatus(t, p, rnic.StatusRemoteAccess, pr.client.fails(1))
	wantFailed(t, p, pr.client)
	wantFailed(t, p, pr.server)
}

func testDomainInUse(t *testing.T, p Provider) {
	pd, err := p.Client.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(64, allRights)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Close(), rnic.ErrBusy)
	require.NoError(t, mr.Deregister())
	if p.Client.Attributes().Caps.Has(rnic.CapWindows) {
		w, err := pd.AllocWindow()
		require.NoError(t, err)
		require.ErrorIs(t, pd.Close(), rnic.ErrBusy)
		require.NoError(t, w.Free())
	}
	if p.Client.Attributes().Caps.Has(rnic.CapSRQ) {
		s, err := p.Client.CreateSRQ(pd, rnic.SRQConfig{})
		require.NoError(t, err)
		require.ErrorIs(t, pd.Close(), rnic.ErrBusy)
		require.NoError(t, s.Close())
	}
	require.NoError(t, pd.Close())
	pr := newPair(t, p, pairConfig{})
	require.ErrorIs(t, pr.client.pd.Close(), rnic.ErrBusy)
}

// testDeregisterInUse withdraws a region under work that names it: the work completes with an
// error, the peer's access is refused, nobody waits.
func testDeregisterInUse(t *testing.T, p Provider) {
	t.Run("receive", func(t *testing.T) {
		deviation(t, p)
		pr := newPair(t, p, pairConfig{})
		s, c := pr.server, pr.client
		mr, err := s.pd.AllocMR(4096, allRights)
		require.NoError(t, err)
		s.recv(rnic.RecvWR{ID: 1, SGE: []rnic.SGE{{MR: mr, Len: 4096}}})
		require.NoError(t, mr.Deregister())
		c.send(rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 100)})
		wantStatus(t, p, rnic.StatusLocalProtect, s.fails(1))
		wantFailed(t, p, s)
		wantFailed(t, p, c)
	})
	t.Run("post", func(t *testing.T) {
		pr := newPair(t, p, pairConfig{})
		mr, err := pr.client.pd.AllocMR(4096, allRights)
		require.NoError(t, err)
		require.NoError(t, mr.Deregister())
		err = pr.client.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: mr, Len: 8}}})
		require.ErrorIs(t, err, rnic.ErrClosed)
	})
	t.Run("remote", func(t *testing.T) {
		deviation(t, p)
		pr := newPair(t, p, pairConfig{})
		s, c := pr.server, pr.client
		mr, err := s.pd.AllocMR(4096, allRights)
		require.NoError(t, err)
		stag, addr := mr.STag(), mr.Addr()
		require.NoError(t, mr.Deregister())
		c.send(rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, 100), RemoteSTag: stag, RemoteAddr: addr},
			rnic.SendWR{ID: 2, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: c.sge(0, 100), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)})
		c.next() // the Write may be done before the peer's answer arrives
		require.NotEqual(t, rnic.StatusOK, c.fails(2).Status)
		wantFailed(t, p, c)
		wantFailed(t, p, s)
	})
}

// testDeregisterUnderWrites withdraws a region while the peer writes it as fast as it can: after
// Deregister returns not one octet changes any more.
func testDeregisterUnderWrites(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	mem := make([]byte, 32<<10)
	mr, err := s.pd.RegisterMR(mem, allRights)
	require.NoError(t, err)
	fill(c.mr.Bytes()[:len(mem)], 1)
	const n = 64
	wrs := make([]rnic.SendWR, n)
	for i := range wrs {
		wrs[i] = rnic.SendWR{ID: uint64(i), Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, len(mem)), RemoteSTag: mr.STag(), RemoteAddr: mr.Addr()}
	}
	c.send(wrs...)
	c.ok(0)
	require.NoError(t, mr.Deregister())
	seen := make([]byte, len(mem))
	copy(seen, mem)
	// All of them may have arrived before; one more cannot.
	wr := rnic.SendWR{ID: n, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, len(mem)), RemoteSTag: wrs[0].RemoteSTag, RemoteAddr: wrs[0].RemoteAddr}
	c.owe(n)
	if err := c.qp.PostSend(&wr); err != nil {
		require.ErrorIs(t, err, rnic.ErrClosed)
		c.forget(n)
	}
	wantFailed(t, p, s)
	require.Equal(t, seen, mem, "written after Deregister had returned")
}

func testRemoteRights(t *testing.T, p Provider) {
	caps := p.Client.Attributes().Caps
	for _, c := range []struct {
		name   string
		access rnic.Access
		op     rnic.Opcode
		cap    rnic.Capability
		good   bool
	}{
		{"write", rnic.LocalWrite | rnic.RemoteWrite, rnic.OpWrite, 0, true},
		{"write/without", rnic.LocalWrite | rnic.RemoteRead, rnic.OpWrite, 0, false},
		{"read", rnic.RemoteRead, rnic.OpRead, 0, true},
		{"read/without", rnic.LocalWrite | rnic.RemoteWrite, rnic.OpRead, 0, false},
		{"atomic", rnic.LocalWrite | rnic.RemoteAtomic, rnic.OpFetchAdd, rnic.CapAtomics, true},
		{"atomic/without", allRights, rnic.OpFetchAdd, rnic.CapAtomics, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			deviation(t, p)
			if !caps.Has(c.cap) {
				t.Skip("not claimed")
			}
			pr := newPair(t, p, pairConfig{})
			mr, err := pr.server.pd.AllocMR(64, c.access)
			require.NoError(t, err)
			defer mr.Deregister()
			cl := pr.client
			// A Read behind it tells when the peer has handled it.
			cl.send(rnic.SendWR{ID: 1, Op: c.op, Flags: rnic.Signaled, SGE: cl.sge(0, 8), RemoteSTag: mr.STag(), RemoteAddr: mr.Addr(), Add: 5},
				rnic.SendWR{ID: 2, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: cl.sge(64, 8), RemoteSTag: pr.server.mr.STag(), RemoteAddr: pr.server.at(0)})
			first := cl.next()
			if c.good {
				require.NoError(t, first.Err)
				cl.ok(2)
				return
			}
			if c.op != rnic.OpWrite {
				wantStatus(t, p, rnic.StatusRemoteAccess, first)
			}
			cl.fails(2)
			wantFailed(t, p, cl)
			wantFailed(t, p, pr.server)
			require.Equal(t, make([]byte, 64), mr.Bytes(), "a refused access changes nothing")
		})
	}
}

func testRemoteBounds(t *testing.T, p Provider) {
	for _, c := range []struct {
		name string
		off  int64
		n    int
		good bool
	}{
		{"whole", 0, 128, true},
		{"last", 127, 1, true},
		{"before", -1, 1, false},
		{"behind", 128, 1, false},
		{"across", 100, 29, false},
		{"wrap", math.MaxInt64, 64, false},
		{"nothing anywhere", math.MaxInt64, 0, true}, // RFC 5041, section 5.2: a zero-length message is not checked
	} {
		for _, op := range []rnic.Opcode{rnic.OpWrite, rnic.OpRead} {
			t.Run(c.name+map[rnic.Opcode]string{rnic.OpWrite: "/write", rnic.OpRead: "/read"}[op], func(t *testing.T) {
				deviation(t, p)
				pr := newPair(t, p, pairConfig{})
				mr, err := pr.server.pd.AllocMR(128, allRights)
				require.NoError(t, err)
				defer mr.Deregister()
				cl := pr.client
				fill(cl.mr.Bytes()[:256], 9)
				cl.send(rnic.SendWR{ID: 1, Op: op, Flags: rnic.Signaled, SGE: cl.sge(0, c.n), RemoteSTag: mr.STag(), RemoteAddr: mr.Addr() + uint64(c.off)},
					rnic.SendWR{ID: 2, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: cl.sge(512, 8), RemoteSTag: pr.server.mr.STag(), RemoteAddr: pr.server.at(0)})
				first := cl.next()
				if c.good {
					require.NoError(t, first.Err)
					cl.ok(2)
					return
				}
				if op == rnic.OpRead {
					wantStatus(t, p, rnic.StatusRemoteAccess, first)
				}
				cl.fails(2)
				wantFailed(t, p, cl)
				require.Equal(t, make([]byte, 128), mr.Bytes())
			})
		}
	}
}
