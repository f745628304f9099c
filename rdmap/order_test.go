package rdmap

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

func TestReservedBitsAreIgnored(t *testing.T) { // RFC 5040, section 4.1; RFC 5041, section 4.1
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 1}, mpa.Options{}, allRights)
		s.expect(0, 64, 1)
		s.run()
		send := untagged(true, OpSend, uint32(s.region.STag()), 0, 1, 0, []byte("hi")) // a plain Send invalidates nothing
		send[0] |= 0x3c
		send[1] |= 0x30
		write := tagged(true, OpWrite, s.region.STag(), s.to(100), []byte("there"))
		write[0] |= 0x3c
		write[1] |= 0x30
		atomic := atomicRequest(1, AtomicFields{STag: s.region.STag(), TO: s.to(8)})
		copy(atomic[ddp.UntaggedLen:], []byte{0xff, 0xff, 0xff, 0xf0})
		r.send(send, write, atomic)
		synctest.Wait()
		msgs, _ := s.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.Equal(t, "hi", string(msgs[0].data))
		assert.Zero(t, msgs[0].Invalidated)
		assert.NotZero(t, s.region.STag())
		assert.Equal(t, "there", string(s.mem[100:105]))
		assert.Equal(t, OpAtomicResponse, Control(r.next()[1]).Opcode())
	})
}

// TestSentHeaders: what goes out has its reserved fields zero and the same values in all segments of a message.
func TestSentHeaders(t *testing.T) { // RFC 5040, sections 4.1 and 4.2; RFC 5041, section 4
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 1, ORD: 4}, mpa.Options{}, allRights)
		s.run()
		r.send(tagged(true, OpWrite, 1, 0, nil))
		s.post(
			&Op{Code: Send, Segs: []Seg{s.seg(0, 4000)}, RemoteSTag: 0x123},
			&Op{Code: Send, Segs: []Seg{s.seg(0, 4000)}, Flags: Invalidate | Solicited, RemoteSTag: 0x456},
			&Op{Code: Write, Segs: []Seg{s.seg(0, 4000)}, RemoteSTag: 0x789, RemoteTO: 1 << 40},
			&Op{Code: Read, Segs: []Seg{s.seg(8, 8)}, RemoteSTag: 0xabc},
			&Op{Code: FetchAdd, Add: 3, AddMask: 4, RemoteSTag: 0xdef, RemoteTO: 16},
			&Op{Code: Immediate, Flags: Solicited, Imm: [8]byte{7}},
		)
		for i, want := range []ddp.UntaggedFields{
			{ULP: 0x43, MSN: 1}, {ULP: 0x46, ULPWord: 0x456, MSN: 2},
		} {
			for mo := uint32(0); ; {
				u := r.next()
				want.MO, want.Last = mo, len(u) < 1454
				require.Equal(t, want, ddp.Untagged(u).Fields(), "message %d", i)
				mo += uint32(len(u) - ddp.UntaggedLen)
				if want.Last {
					break
				}
			}
		}
		for to := uint64(1 << 40); ; {
			u := r.next()
			last := len(u) < 1454
			require.Equal(t, ddp.TaggedFields{ULP: 0x40, STag: 0x789, TO: to, Last: last}, ddp.Tagged(u).Fields())
			to += uint64(len(u) - ddp.TaggedLen)
			if last {
				break
			}
		}
		u := r.next()
		require.Equal(t, ddp.UntaggedFields{ULP: 0x41, QN: 1, MSN: 1, Last: true}, ddp.Untagged(u).Fields())
		require.Len(t, u, ddp.UntaggedLen+ReadRequestLen)
		u = r.next()
		require.Equal(t, ddp.UntaggedFields{ULP: 0x4a, QN: 1, MSN: 2, Last: true}, ddp.Untagged(u).Fields())
		require.Equal(t, AtomicFields{ID: 2, STag: 0xdef, TO: 16, Data: 3, Mask: 4, CompareMask: ^uint64(0)}, AtomicRequest(u[ddp.UntaggedLen:]).Fields())
		u = r.next()
		require.Equal(t, ddp.UntaggedFields{ULP: 0x49, MSN: 3, Last: true}, ddp.Untagged(u).Fields())
		require.Len(t, u, ddp.UntaggedLen+ImmediateLen)
	})
}

// TestReadSeesWhatCameBefore: a Read that follows a Write, a Send or an Atomic brings what they left.
func TestReadSeesWhatCameBefore(t *testing.T) { // RFC 5040, section 5.5, rules 12 and 17; RFC 7306, section 7
	overLinks(t, func(t *testing.T, a, b *side) {
		b.expect(2000, 8, 1)
		stag := b.region.STag()
		a.post(
			&Op{Code: Write, Inline: []byte("12345678"), RemoteSTag: stag, RemoteTO: b.to(1000)},
			&Op{Code: Read, Segs: []Seg{a.seg(0, 8)}, RemoteSTag: stag, RemoteTO: b.to(1000)},
			&Op{Code: Send, Inline: []byte("abcdefgh")},
			&Op{Code: Read, Segs: []Seg{a.seg(8, 8)}, RemoteSTag: stag, RemoteTO: b.to(2000)},
			&Op{Code: FetchAdd, Add: 5, RemoteSTag: stag, RemoteTO: b.to(3000)},
			&Op{Code: Read, Segs: []Seg{a.seg(16, 8)}, RemoteSTag: stag, RemoteTO: b.to(3000)},
			&Op{Code: FetchAdd, Add: 6, Segs: []Seg{a.seg(24, 8)}, RemoteSTag: stag, RemoteTO: b.to(3000)},
		)
		synctest.Wait()
		assert.Equal(t, "12345678abcdefgh", string(a.mem[:16]))
		assert.EqualValues(t, 5, binary.NativeEndian.Uint64(a.mem[16:]))
		assert.EqualValues(t, 5, binary.NativeEndian.Uint64(a.mem[24:]))
	})
}

// TestResponsesInOrder: Reads and Atomics are answered in the order of the requests, messages are not interleaved.
func TestResponsesInOrder(t *testing.T) { // RFC 5040, section 5.5, rule 20; RFC 7306, sections 5.4 and 7
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 4}, mpa.Options{}, allRights)
		s.run()
		stag := s.region.STag()
		req := func(msn uint32) []byte {
			return readRequest(msn, ReadRequestFields{SinkSTag: ddp.STag(msn), Size: 5000, SourceSTag: stag, SourceTO: s.to(0)})
		}
		r.send(
			req(1), atomicRequest(2, AtomicFields{ID: 77, STag: stag, TO: s.to(8), Data: 1}),
			req(3), atomicRequest(4, AtomicFields{ID: 78, STag: stag, TO: s.to(8), Data: 1}), req(5),
			readRequest(6, ReadRequestFields{SinkSTag: 0xffffffff, SinkTO: 99}),
		)
		// IRD 4 holds four Reads and, apart from them, four Atomics.
		var got []uint32
		for len(got) < 6 {
			u := r.next()
			require.NotNil(t, u)
			if !ddp.Control(u).Tagged() {
				require.Equal(t, OpAtomicResponse, Control(u[1]).Opcode())
				a := AtomicResponse(u[ddp.UntaggedLen:])
				require.EqualValues(t, a.ID()-77, a.Original())
				got = append(got, a.ID())
				continue
			}
			require.Equal(t, OpReadResponse, Control(u[1]).Opcode())
			if ddp.Control(u).Last() {
				got = append(got, uint32(ddp.Tagged(u).STag()))
			}
		}
		assert.Equal(t, []uint32{1, 77, 3, 78, 5, 0xffffffff}, got)
	})
}

// TestZeroLengthReadCopiesItsSink: nothing of the request is checked, the sink's fields come back.
func TestZeroLengthReadCopiesItsSink(t *testing.T) { // RFC 5040, sections 4.4 and 5.2.1
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 1}, mpa.Options{}, allRights)
		s.run()
		r.send(readRequest(1, ReadRequestFields{SinkSTag: 0xfedcba98, SinkTO: 1<<64 - 1, SourceSTag: 0xdead, SourceTO: 1<<64 - 1}))
		assert.Equal(t, tagged(true, OpReadResponse, 0xfedcba98, 1<<64-1, nil), r.next())
		m, _ := s.rec.count()
		assert.Zero(t, m, "the consumer hears nothing of it")
	})
}

// TestAtomicsAcrossStreams adds to one word over two streams at once: no addition is lost.
func TestAtomicsAcrossStreams(t *testing.T) { // RFC 7306, sections 5.3 and 5.4
	const each = 300
	var targets [2]*side
	var initiators [2]*side
	for i := range targets {
		ca, cb := tcpLink(t, mpa.Options{})
		initiators[i] = newSide(t, ca, Config{ORD: 8, NudgeDelay: -1, Depth: each}, allRights, 4096)
		targets[i] = newSide(t, cb, Config{Role: Responder, IRD: 8}, allRights, 4096)
	}
	// The second target's stream works on the first one's domain and memory.
	ca, cb := tcpLink(t, mpa.Options{})
	second := &side{t: t, domain: targets[0].domain, mem: targets[0].mem, region: targets[0].region, rec: &recorder{t: t, over: make(chan struct{})}}
	second.Stream = NewStream(cb, Config{Domain: second.domain, Handler: second.rec, Role: Responder, IRD: 8})
	other := newSide(t, ca, Config{ORD: 8, NudgeDelay: -1, Depth: each}, allRights, 4096)
	sides := []*side{initiators[0], targets[0], initiators[1], targets[1], other, second}
	for _, s := range sides {
		s.run()
	}
	var wait sync.WaitGroup
	seen := make(chan uint64, 2*each)
	for _, s := range []*side{initiators[0], other} {
		wait.Add(1)
		n := 0
		s.rec.onDone = func(op *Op, err error) {
			if err != nil {
				t.Error(err)
			}
			seen <- op.Original
			if n++; n == each {
				wait.Done()
			}
		}
	}
	for range each {
		for _, s := range []*side{initiators[0], other} {
			s.post(&Op{Code: FetchAdd, Add: 1, RemoteSTag: targets[0].region.STag(), RemoteTO: targets[0].to(64)})
		}
	}
	wait.Wait()
	close(seen)
	values := map[uint64]bool{}
	for v := range seen {
		assert.False(t, values[v], "%d was seen twice", v)
		values[v] = true
	}
	targets[0].domain.LockAtomics() // for the race detector, which does not see through sockets
	defer targets[0].domain.UnlockAtomics()
	assert.EqualValues(t, 2*each, binary.NativeEndian.Uint64(targets[0].mem[64:]))
}

func TestMaskedAdd(t *testing.T) { // RFC 7306, section 5.1.1: against addition field by field
	byFields := func(a, b, mask uint64) (sum uint64) {
		for low := 0; low < 64; {
			high := low
			for high < 63 && mask>>high&1 == 0 {
				high++
			}
			n := high - low + 1
			field := ^uint64(0) >> (64 - n)
			sum |= ((a>>low + b>>low) & field) << low
			low = high + 1
		}
		return sum
	}
	for _, mask := range []uint64{0, 1, 0x8000000000000000, 0x8080808080808080, ^uint64(0), 0x00010000_80000001, 0x0123456789abcdef} {
		for _, a := range []uint64{0, 1, 0x7fffffffffffffff, ^uint64(0), 0xfedcba9876543210, 0x8080808080808080} {
			for _, b := range []uint64{0, 1, 0xff, ^uint64(0), 0x8080808080808080, 0x1111111111111111} {
				assert.Equal(t, byFields(a, b, mask), maskedAdd(a, b, mask), "%x + %x mask %x", a, b, mask)
			}
		}
	}
}
