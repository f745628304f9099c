package rnictest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

func testReadSizes(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	ends := []*end{pr.client, pr.server}
	for i, reader := range ends {
		source := ends[1-i]
		for k, n := range sizes {
			fill(source.mr.Bytes()[100:100+n], byte(k+1))
			clear(reader.mr.Bytes())
			reader.send(rnic.SendWR{ID: 5, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: reader.sge(50, n), RemoteSTag: source.mr.STag(), RemoteAddr: source.at(100)})
			wc := reader.ok(5)
			require.Equal(t, n, wc.Len)
			require.Equal(t, rnic.OpRead, wc.Op)
			require.Equal(t, source.mr.Bytes()[100:100+n], reader.mr.Bytes()[50:50+n])
			require.Equal(t, make([]byte, 50), reader.mr.Bytes()[:50])
			require.Equal(t, make([]byte, 50), reader.mr.Bytes()[50+n:100+n])
		}
	}
}

func testSGELimits(t *testing.T, p Provider) {
	limit := p.Client.Attributes().MaxReadSGE
	depths := rnic.ConnParams{IRD: 2, ORD: 2} // fewer than the sinks
	pr := newPair(t, p, pairConfig{client: endConfig{params: depths}, server: endConfig{params: depths}})
	s, c := pr.server, pr.client
	fill(s.mr.Bytes(), 6)
	var sge []rnic.SGE
	total := 0
	for i := range limit {
		n := 10 * (i % 4)
		sge = append(sge, rnic.SGE{MR: c.mr, Off: i * 100, Len: n})
		total += n
	}
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: sge, RemoteSTag: s.mr.STag(), RemoteAddr: s.at(17)})
	require.Equal(t, total, c.ok(1).Len)
	at := 17
	for _, g := range sge {
		require.Equal(t, s.mr.Bytes()[at:at+g.Len], c.mr.Bytes()[g.Off:g.Off+g.Len])
		at += g.Len
	}
	sge = append(sge, rnic.SGE{MR: c.mr, Len: 1})
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, SGE: sge}), rnic.ErrTooLarge)
}

// testReadsORD1: many Reads make progress through one credit, in order.
func testReadsORD1(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{client: endConfig{params: rnic.ConnParams{ORD: 1}}, server: endConfig{params: rnic.ConnParams{IRD: 1}}})
	require.Equal(t, 1, pr.client.info.ORD)
	pr.readMany(t, 32, 1000)
}

// testReadsIRD: what was promised is served, and more Reads than that wait at their sender.
func testReadsIRD(t *testing.T, p Provider) {
	depth := min(16, p.Client.Attributes().MaxORD, p.Server.Attributes().MaxIRD)
	params := rnic.ConnParams{IRD: depth, ORD: depth}
	pr := newPair(t, p, pairConfig{client: endConfig{params: params}, server: endConfig{params: params}})
	pr.readMany(t, depth, 1500)
	pr.readMany(t, 4*depth, 700)
	pr.client, pr.server = pr.server, pr.client
	pr.readMany(t, 4*depth, 700)
	pr.client, pr.server = pr.server, pr.client
}

// readMany posts count Reads of n octets in one chain and checks their data and order.
func (pr *pair) readMany(t testing.TB, count, n int) {
	t.Helper()
	s, c := pr.server, pr.client
	fill(s.mr.Bytes(), byte(count))
	clear(c.mr.Bytes())
	wrs := make([]rnic.SendWR, count)
	for i := range wrs {
		wrs[i] = rnic.SendWR{ID: uint64(i), Op: rnic.OpRead, Flags: rnic.Signaled, SGE: c.sge(i*n, n), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(i * n)}
	}
	c.send(wrs...)
	for i := range wrs {
		require.Equal(t, n, c.ok(uint64(i)).Len)
	}
	require.Equal(t, s.mr.Bytes()[:count*n], c.mr.Bytes()[:count*n])
}

// testReadsORD0: without credits a Read is refused at once, and everything else works.
func testReadsORD0(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{depths: true})
	s, c := pr.server, pr.client
	require.Zero(t, c.info.ORD)
	err := c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, SGE: c.sge(0, 8), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)})
	require.ErrorIs(t, err, rnic.ErrState)
	pr.write(t, 100, s.mr.STag(), s.at(0))
}

// testFence: a fenced Write must not be placed before an earlier Read has taken its data.
func testFence(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	const n = 20000
	for i := range 20 {
		old := fill(make([]byte, n), byte(i))
		copy(s.mr.Bytes(), old)
		fill(c.mr.Bytes()[n:2*n], byte(i+100))
		s.recv(rnic.RecvWR{ID: 1})
		c.send(rnic.SendWR{ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: c.sge(0, n), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)},
			rnic.SendWR{ID: 2, Op: rnic.OpWrite, Flags: rnic.Signaled | rnic.Fence, SGE: c.sge(n, n), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)},
			rnic.SendWR{ID: 3, Op: rnic.OpSend, Flags: rnic.Signaled})
		c.ok(1)
		c.ok(2)
		c.ok(3)
		s.ok(1)
		require.Equal(t, old, c.mr.Bytes()[:n], "the Read saw the fenced Write")
		require.Equal(t, c.mr.Bytes()[n:2*n], s.mr.Bytes()[:n])
	}
}

func testInvalidateSink(t *testing.T, p Provider) {
	need(t, p, rnic.CapLocalInvalidate)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	sink, err := c.pd.AllocMR(4096, allRights)
	require.NoError(t, err)
	fill(s.mr.Bytes()[:4096], 8)
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled | rnic.InvalidateSink, SGE: []rnic.SGE{{MR: sink, Len: 4096}}, RemoteSTag: s.mr.STag(), RemoteAddr: s.at(0)})
	c.ok(1)
	require.Equal(t, s.mr.Bytes()[:4096], sink.Bytes())
	// The peer's hold on the sink ended with the Read.
	s.send(rnic.SendWR{ID: 2, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: s.sge(0, 8), RemoteSTag: sink.STag(), RemoteAddr: sink.Addr()})
	require.Equal(t, rnic.StatusRemoteAccess, s.fails(2).Status)
	require.NoError(t, sink.Deregister())
}

// atomic runs one atomic on the server's octets [at, at+8) and returns the value before it.
func (pr *pair) atomic(t testing.TB, wr rnic.SendWR) uint64 {
	t.Helper()
	c := pr.client
	wr.ID, wr.Flags, wr.SGE = 77, rnic.Signaled, c.sge(8, 8)
	wr.RemoteSTag, wr.RemoteAddr = pr.server.mr.STag(), pr.server.at(64)
	c.send(wr)
	require.Equal(t, 8, c.ok(77).Len)
	return host(c.mr.Bytes()[8:])
}

func testFetchAdd(t *testing.T, p Provider) {
	need(t, p, rnic.CapAtomics)
	pr := newPair(t, p, pairConfig{})
	value := pr.server.mr.Bytes()[64:]
	for _, c := range []struct {
		name                  string
		old, add, mask, value uint64
	}{
		{"plain", 40, 2, 0, 42},
		{"wrap", ^uint64(0), 1, 0, 0},
		{"minus one", 5, ^uint64(0), 0, 4},
		{"probe", 7, 0, 0, 7}, // RFC 7306, section 1.1
		// Each bit of the mask is the top of a field whose carry is dropped (RFC 7306, section 5.1.1).
		{"two halves", 0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0x0000_0002_0000_0000},
		{"octets", 0xff01_ff01_ff01_ff01, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080, 0x0002_0002_0002_0002},
		{"single bits", 0b1010, 0b0110, ^uint64(0), 0b1100},
	} {
		putHost(value, c.old)
		require.Equal(t, c.old, pr.atomic(t, rnic.SendWR{Op: rnic.OpFetchAdd, Add: c.add, AddMask: c.mask}), c.name)
		require.Equal(t, c.value, host(value), c.name)
	}
}

func testCmpSwap(t *testing.T, p Provider) {
	need(t, p, rnic.CapAtomics)
	pr := newPair(t, p, pairConfig{})
	value := pr.server.mr.Bytes()[64:]
	const all = ^uint64(0)
	for _, c := range []struct {
		name                                       string
		old, compare, cmask, swap, smask, expected uint64
	}{
		{"equal", 5, 5, all, 9, all, 9},
		{"different", 5, 6, all, 9, all, 5},
		{"equal where compared", 0xff05, 0x0005, 0x00ff, 9, all, 9},
		{"swap in part", 0x1234_5678, 0x1234_5678, all, 0xaaaa_bbbb, 0x0000_ffff, 0x1234_bbbb},
		{"compare nothing", 77, 0, 0, 1, all, 1},
		{"swap nothing", 77, 77, all, 1, 0, 77},
	} {
		putHost(value, c.old)
		wr := rnic.SendWR{Op: rnic.OpCmpSwap, Compare: c.compare, CompareMask: c.cmask, Swap: c.swap, Mask: c.smask}
		require.Equal(t, c.old, pr.atomic(t, wr), c.name)
		require.Equal(t, c.expected, host(value), c.name)
	}
}

// testAtomicConcurrent: additions through several connections lose nothing.
func testAtomicConcurrent(t *testing.T, p Provider) {
	need(t, p, rnic.CapAtomics)
	first := newPair(t, p, pairConfig{})
	second := newPair(t, p, pairConfig{server: endConfig{pd: first.server.pd}})
	second.server.mr = first.server.mr
	const rounds = 200
	var wg sync.WaitGroup
	for _, pr := range []*pair{first, second} {
		wg.Go(func() {
			c := pr.client
			for i := range uint64(rounds) {
				c.send(rnic.SendWR{ID: i, Op: rnic.OpFetchAdd, Flags: rnic.Signaled, SGE: c.sge(0, 8), RemoteSTag: first.server.mr.STag(), RemoteAddr: first.server.at(64), Add: 1})
				c.next()
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(2*rounds), first.atomic(t, rnic.SendWR{Op: rnic.OpFetchAdd}))
}

func testAtomicMisaligned(t *testing.T, p Provider) {
	need(t, p, rnic.CapAtomics)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	fill(s.mr.Bytes()[:128], 3)
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpFetchAdd, Flags: rnic.Signaled, SGE: c.sge(0, 8), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(65), Add: 1})
	require.Equal(t, rnic.StatusRemoteOp, c.fails(1).Status) // RFC 7306, section 8.2
	require.Equal(t, rnic.Failed, s.last().Kind)
	require.Equal(t, fill(make([]byte, 128), 3), s.mr.Bytes()[:128])
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpFetchAdd, SGE: c.sge(0, 4)}), rnic.ErrBadWR)
}
