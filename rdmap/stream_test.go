package rdmap

import (
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// inBubble runs f where time is virtual and synctest.Wait tells when all goroutines wait.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// links are the kinds of connection that the tests of operations run over.
var links = []struct {
	name string
	opts mpa.Options
}{
	{"crc", mpa.Options{}},
	{"plain", mpa.Options{CRC: mpa.Off}},
	{"markers", mpa.Options{Markers: mpa.On}},
	{"large", mpa.Options{MaxFPDU: 65535}},
	{"large plain", mpa.Options{MaxFPDU: 65535, CRC: mpa.Off}},
}

func overLinks(t *testing.T, f func(t *testing.T, a, b *side)) {
	t.Helper()
	for _, l := range links {
		t.Run(l.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b := pair(t, Config{}, l.opts)
				f(t, a, b)
			})
		})
	}
}

func TestSendForms(t *testing.T) { // RFC 5040, section 5.3
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(0, 20000, 4)
		w, err := b.domain.Reserve()
		require.NoError(t, err)
		var ops []*Op
		for i := range 4 {
			op := &Op{Code: Send, User: uint64(i), Segs: []Seg{a.seg(i*20000, 5000*i)}, Flags: Signaled}
			pattern(a.mem[i*20000:][:5000*i], i)
			if i&1 != 0 {
				op.Flags |= Solicited
			}
			ops = append(ops, op)
		}
		stag, err := w.Bind(b.mem[90000:], 0, ddp.RemoteRead|ddp.ClaimOnUse, 0)
		require.NoError(t, err)
		ops[3].Flags |= Invalidate
		ops[3].RemoteSTag = stag
		a.post(ops...)
		synctest.Wait()
		msgs, _ := b.rec.snapshot()
		require.Len(t, msgs, 4)
		for i, m := range msgs {
			require.NoError(t, m.Err)
			assert.Equal(t, 5000*i, m.Len)
			assert.Equal(t, i&1 != 0, m.Solicited)
			assert.Equal(t, string(a.mem[i*20000:][:5000*i]), string(m.data))
		}
		assert.Equal(t, stag, msgs[3].Invalidated)
		assert.Zero(t, w.STag())
		_, done := a.rec.snapshot()
		require.Len(t, done, 4)
		for i, d := range done {
			assert.NoError(t, d.err)
			assert.EqualValues(t, i, d.op.User)
		}
		assert.EqualValues(t, 4, a.Stats().SendsSent)
		assert.EqualValues(t, 1, b.Stats().InvalidatesRecv)
	})
}

func TestWriteThenSend(t *testing.T) { // RFC 5040, section 5.5, rules 5 and 10
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(0, 64, 1)
		pattern(a.mem[:300000], 5)
		a.post(
			&Op{Code: Write, Segs: []Seg{a.seg(0, 100001), a.seg(100001, 199999)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(4096)},
			&Op{Code: Send, Inline: []byte("done")},
		)
		synctest.Wait()
		msgs, _ := b.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.Equal(t, "done", string(msgs[0].data))
		assert.Equal(t, string(a.mem[:300000]), string(b.mem[4096:][:300000]))
		assert.EqualValues(t, 1, b.Stats().WritesReceived)
		assert.EqualValues(t, 300004, b.Stats().OctetsReceived)
	})
}

func TestReadInOrder(t *testing.T) { // RFC 5040, section 5.2 and 5.5, rules 15, 19 and 20
	overLinks(t, func(t *testing.T, a, b *side) {
		pattern(b.mem[:500000], 9)
		var ops []*Op
		for i := range 40 { // more than ORD
			ops = append(ops, &Op{Code: Read, User: uint64(i), Segs: []Seg{a.seg(i*10000, 9999)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(i * 10000)})
		}
		a.post(ops...)
		synctest.Wait()
		_, done := a.rec.snapshot()
		require.Len(t, done, 40)
		for i, d := range done {
			require.NoError(t, d.err)
			assert.EqualValues(t, i, d.op.User)
			assert.Equal(t, string(b.mem[i*10000:][:9999]), string(a.mem[i*10000:][:9999]))
		}
		assert.EqualValues(t, 40, b.Stats().ReadsReceived)
	})
}

func TestZeroLength(t *testing.T) { // RFC 5041, section 5.2; RFC 5040, sections 5.2.1 and 5.3
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(0, 0, 1)
		a.post(
			&Op{Code: Write, RemoteSTag: 0xdead00, RemoteTO: 1 << 63},
			&Op{Code: Read, RemoteSTag: 0xdead00, RemoteTO: 1 << 62},
			&Op{Code: Read, Segs: []Seg{a.seg(10, 0)}, RemoteSTag: 0xdead00},
			&Op{Code: Send},
		)
		synctest.Wait()
		msgs, _ := b.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.NoError(t, msgs[0].Err)
		assert.Zero(t, msgs[0].Len)
		_, done := a.rec.snapshot()
		require.Len(t, done, 4)
		for _, d := range done {
			assert.NoError(t, d.err)
		}
	})
}

func TestImmediate(t *testing.T) { // RFC 7306, section 6
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(0, 64, 2)
		a.post(&Op{Code: Immediate, Imm: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}, &Op{Code: Immediate, Flags: Solicited, Imm: [8]byte{9}})
		synctest.Wait()
		msgs, _ := b.rec.snapshot()
		require.Len(t, msgs, 2)
		assert.True(t, msgs[0].HasImm)
		assert.Equal(t, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, msgs[0].Imm)
		assert.False(t, msgs[0].Solicited)
		assert.True(t, msgs[1].Solicited)
	})
}

func TestAtomics(t *testing.T) { // RFC 7306, section 5
	overLinks(t, func(t *testing.T, a, b *side) {
		word := func(m []byte, off int) uint64 { return binary.NativeEndian.Uint64(m[off:]) }
		binary.NativeEndian.PutUint64(b.mem[64:], 40)
		stag, to := b.region.STag(), b.to(64)
		ops := []*Op{
			{Code: FetchAdd, Add: 2, RemoteSTag: stag, RemoteTO: to, Segs: []Seg{a.seg(8, 8)}},
			{Code: CmpSwap, Compare: 42, CompareMask: ^uint64(0), Swap: 7, SwapMask: ^uint64(0), RemoteSTag: stag, RemoteTO: to},
			{Code: CmpSwap, Compare: 42, CompareMask: ^uint64(0), Swap: 8, SwapMask: ^uint64(0), RemoteSTag: stag, RemoteTO: to}, // fails
			{Code: CmpSwap, Compare: 0x100000007, CompareMask: 0xff, Swap: 0xffff, SwapMask: 0xf0, RemoteSTag: stag, RemoteTO: to},
			{Code: Read, Segs: []Seg{a.seg(16, 8)}, RemoteSTag: stag, RemoteTO: to},
			{Code: FetchAdd, Add: 0x8000000000000009, AddMask: 0x8000000000000080, RemoteSTag: stag, RemoteTO: to},
			{Code: FetchAdd, RemoteSTag: stag, RemoteTO: to},
		}
		a.post(ops...)
		synctest.Wait()
		_, done := a.rec.snapshot()
		require.Len(t, done, len(ops))
		for _, d := range done {
			require.NoError(t, d.err)
		}
		assert.EqualValues(t, 40, ops[0].Original)
		assert.EqualValues(t, 40, word(a.mem, 8))
		assert.EqualValues(t, 42, ops[1].Original)
		assert.EqualValues(t, 7, ops[2].Original)
		assert.EqualValues(t, 7, ops[3].Original)
		assert.EqualValues(t, 0xf7, word(a.mem, 16))
		assert.EqualValues(t, 0xf7, ops[5].Original)
		// Fields of 8, 56: 0xf7+0x09 loses its carry, the top bit is added alone.
		assert.EqualValues(t, uint64(0x8000000000000000), ops[6].Original)
		assert.EqualValues(t, 6, b.Stats().AtomicsReceived)
	})
}

func TestFenceAndLocalInvalidate(t *testing.T) { // RFC 5040, section 5.5, rule 12
	overLinks(t, func(t *testing.T, a, b *side) {
		pattern(b.mem[:1000], 1)
		want := string(b.mem[:1000])
		w, err := a.domain.Register(a.mem[4096:8192], 0, ddp.RemoteWrite|ddp.LocalWrite, 0)
		require.NoError(t, err)
		a.post(
			&Op{Code: Read, Segs: []Seg{{Region: w, Off: 5, Len: 1000}}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
			&Op{Code: Write, Flags: Fence, Segs: []Seg{a.seg(0, 1000)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
			&Op{Code: LocalInvalidate, LocalInv: w},
		)
		synctest.Wait()
		_, done := a.rec.snapshot()
		require.Len(t, done, 3)
		assert.Equal(t, want, string(a.mem[4101:][:1000]))
		assert.Equal(t, string(a.mem[:1000]), string(b.mem[:1000]))
		assert.Zero(t, w.STag())
	})
}

func TestBothDirectionsLoaded(t *testing.T) { // no deadlock, whatever the buffers
	for _, l := range links {
		t.Run(l.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				ca, cb := memLink(t, 700, 1460, l.opts)
				a, b := pairOver(t, ca, cb, Config{Depth: 1000})
				for _, x := range []*side{a, b} { // before the first Read, which may come to read either's
					x.expect(900000, 4, 10)
					pattern(x.mem[:200000], 3)
				}
				for _, p := range [][2]*side{{a, b}, {b, a}} {
					x, y := p[0], p[1]
					for range 10 {
						x.post(
							&Op{Code: Write, Segs: []Seg{x.seg(0, 200000)}, RemoteSTag: y.region.STag(), RemoteTO: y.to(200000)},
							&Op{Code: Read, Segs: []Seg{x.seg(400000, 100000)}, RemoteSTag: y.region.STag(), RemoteTO: y.to(0)},
							&Op{Code: Send, Inline: []byte("ping")},
						)
					}
				}
				synctest.Wait()
				for _, x := range []*side{a, b} {
					m, d := x.rec.count()
					assert.Equal(t, 10, m)
					assert.Equal(t, 30, d)
					assert.Equal(t, string(x.mem[:200000]), string(x.mem[200000:400000]))
					assert.Equal(t, string(x.mem[:100000]), string(x.mem[400000:500000]))
				}
			})
		})
	}
}

func TestResponderSendsNothingBeforeFirstFPDU(t *testing.T) { // RFC 5044, section 7.1.2, rule 4
	inBubble(t, func(t *testing.T) {
		a, b := pair(t, Config{NudgeDelay: -1}, mpa.Options{})
		a.expect(0, 16, 1)
		b.post(&Op{Code: Send, Inline: []byte("early")})
		synctest.Wait()
		m, _ := a.rec.count()
		assert.Zero(t, m)
		assert.Zero(t, b.rec.establish)
		assert.Zero(t, b.c.Stats().FPDUsOut)
		a.post(&Op{Code: Write})
		synctest.Wait()
		m, _ = a.rec.count()
		assert.Equal(t, 1, m)
		assert.Equal(t, 1, b.rec.establish)
		assert.Equal(t, 1, a.rec.establish)
	})
}

func TestGracefulClose(t *testing.T) { // RFC 5040, section 6.2
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(0, 200000, 1)
		pattern(a.mem[:200000], 2)
		a.post(
			&Op{Code: Read, Segs: []Seg{a.seg(300000, 100000)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(300000)},
			&Op{Code: Send, Segs: []Seg{a.seg(0, 200000)}},
		)
		a.Disconnect()
		require.ErrorIs(t, a.Post(&Op{Code: Send}), ErrClosed)
		assert.NoError(t, a.rec.reason())
		assert.NoError(t, b.rec.reason())
		msgs, _ := b.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.NoError(t, msgs[0].Err)
		_, done := a.rec.snapshot()
		require.Len(t, done, 2)
		for _, d := range done {
			assert.NoError(t, d.err)
		}
	})
}

func TestAbortFlushes(t *testing.T) {
	overLinks(t, func(t *testing.T, a, b *side) {
		boom := fmt.Errorf("boom")
		b.expect(0, 1000, 1)
		a.post(&Op{Code: Send})
		synctest.Wait()
		var ops []*Op
		for i := range 50 {
			ops = append(ops, &Op{Code: Read, User: uint64(i), Segs: []Seg{a.seg(0, 500000)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)})
		}
		require.NoError(t, a.Post(chain(ops...)))
		a.Abort(boom)
		assert.ErrorIs(t, a.rec.reason(), boom)
		assert.Error(t, b.rec.reason())
		_, done := a.rec.snapshot()
		require.Len(t, done, 51)
		last := done[50]
		assert.ErrorIs(t, last.err, ErrFlushed)
		assert.ErrorIs(t, last.err, boom)
		for i, d := range done[1:] {
			assert.EqualValues(t, i, d.op.User)
		}
	})
}
