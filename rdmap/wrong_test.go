package rdmap

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

func TestFirstErrorIsReported(t *testing.T) { // RFC 5040, section 7.1, rule 4
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{}, mpa.Options{}, allRights)
		s.run()
		first := tagged(true, OpWrite, 0x123400, 0, []byte("x"))
		r.send(first, untagged(true, 13, 0, 0, 1, 0, nil), untagged(true, OpSend, 0, 9, 1, 0, nil))
		assert.Equal(t, quote(1, 1, 0, first, false), r.terminate())
		assert.Nil(t, r.next(), "the Terminate Message is the last")
		require.NoError(t, r.c.CloseWrite())
		assert.ErrorIs(t, s.rec.reason(), dErr(ddp.TaggedBuffer, ddp.CodeInvalidSTag))
	})
}

func TestTerminateIsTheLastThing(t *testing.T) { // RFC 5040, section 5.4; the peer may take its time
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 4, ORD: 4}, mpa.Options{}, allRights)
		s.run()
		r.send(tagged(true, OpWrite, 1, 0, nil))
		synctest.Wait()
		s.post(&Op{Code: Write, Segs: []Seg{s.seg(0, 1<<20)}, RemoteSTag: 0x700, RemoteTO: 0}, &Op{Code: Send, Inline: []byte("never")})
		r.send(untagged(true, OpSend, 0, 9, 1, 0, nil))
		var last []byte
		for u := r.next(); u != nil; u = r.next() {
			last = u
		}
		require.NotNil(t, last)
		assert.Equal(t, OpTerminate, Control(last[1]).Opcode())
		require.NoError(t, r.c.CloseWrite())
		assert.ErrorIs(t, s.rec.reason(), dErr(ddp.UntaggedBuffer, ddp.CodeInvalidQN))
		_, done := s.rec.snapshot()
		require.Len(t, done, 2)
		assert.ErrorIs(t, done[1].err, ErrFlushed)
	})
}

func TestBadCRC(t *testing.T) { // RFC 5044, section 8, error 2
	inBubble(t, func(t *testing.T) {
		a, b := mpa.MemPipe(64 << 10)
		tap := &wire{Socket: a, split: 1 << 20, flipAt: -1, cutAt: -1}
		ca, cb := link(t, tap, b, mpa.Options{})
		s := newSide(t, cb, Config{Role: Responder}, allRights, sideMem)
		s.expect(0, 64, 4)
		s.run()
		r := &raw{t, ca}
		r.send(untagged(true, OpSend, 0, 0, 1, 0, []byte("good")))
		synctest.Wait()
		tap.flipAt = tap.n + 40
		r.send(untagged(true, OpSend, 0, 0, 2, 0, repeat('b', 60)))
		assert.Equal(t, "20020000", hex.EncodeToString(r.terminate()))
		require.NoError(t, r.c.CloseWrite())
		assert.ErrorIs(t, s.rec.reason(), mpa.ErrCRC)
		msgs, _ := s.rec.snapshot()
		require.Len(t, msgs, 1)
	})
}

func TestOutOfOrderOffsets(t *testing.T) { // RFC 5041, section 5.3: any order within a message
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{}, mpa.Options{}, allRights)
		s.expect(0, 64, 2)
		s.run()
		r.send(
			untagged(true, OpSend, 0, 0, 1, 8, []byte("IJKL")),
			untagged(false, OpSend, 0, 0, 1, 4, []byte("EFGH")),
			untagged(false, OpSend, 0, 0, 1, 4, []byte("EFGH")), // again
		)
		synctest.Wait()
		m, _ := s.rec.count()
		assert.Zero(t, m)
		r.send(untagged(false, OpSend, 0, 0, 1, 0, []byte("ABCD")), untagged(true, OpSend, 0, 0, 2, 0, []byte("next")))
		synctest.Wait()
		msgs, _ := s.rec.snapshot()
		require.Len(t, msgs, 2)
		assert.Equal(t, "ABCDEFGHIJKL", string(msgs[0].data))
		assert.Equal(t, "next", string(msgs[1].data))
	})
}

func TestInterleavedMessages(t *testing.T) { // one untagged and any number of tagged messages open at once
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 1}, mpa.Options{}, allRights)
		s.expect(0, 64, 1)
		s.run()
		stag := s.region.STag()
		copy(s.mem[500:], "read me!")
		r.send(
			untagged(false, OpSend, 0, 0, 1, 0, []byte("first ")),
			tagged(false, OpWrite, stag, s.to(100), []byte("aa")),
			tagged(true, OpWrite, 0, 0, nil),
			tagged(false, OpWrite, stag, s.to(200), []byte("bb")),
			readRequest(1, ReadRequestFields{SinkSTag: 0x700, SinkTO: 5, Size: 8, SourceSTag: stag, SourceTO: s.to(500)}),
			tagged(true, OpWrite, stag, s.to(102), []byte("AA")),
			untagged(true, OpSend, 0, 0, 1, 6, []byte("last")),
			tagged(true, OpWrite, stag, s.to(202), []byte("BB")),
		)
		assert.Equal(t, tagged(true, OpReadResponse, 0x700, 5, []byte("read me!")), r.next())
		synctest.Wait()
		msgs, _ := s.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.Equal(t, "first last", string(msgs[0].data))
		assert.Equal(t, "aaAA", string(s.mem[100:104]))
		assert.Equal(t, "bbBB", string(s.mem[200:204]))
	})
}

func TestMSNWraps(t *testing.T) { // RFC 5041, section 4.3
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{}, mpa.Options{}, allRights)
		s.expect(0, 64, 3)
		s.rx.queues[QueueSend] = queueAt(1<<32 - 1)
		s.run()
		r.send(untagged(true, OpSend, 0, 0, 1<<32-1, 0, nil), untagged(true, OpSend, 0, 0, 0, 0, nil), untagged(true, OpSend, 0, 0, 1, 0, nil))
		synctest.Wait()
		m, _ := s.rec.count()
		assert.Equal(t, 3, m)
	})
}

// queueAt is a queue whose next message has the given number.
func queueAt(msn uint32) ddp.Queue {
	q := ddp.NewQueue()
	q.Skip(msn)
	return q
}

func TestReadResponseFaults(t *testing.T) { // the reader's side: RFC 5040, section 5.2.2
	cases := []struct {
		name string
		resp func(req ReadRequestFields) []byte
		want error
	}{
		{"wrong sink STag", func(q ReadRequestFields) []byte {
			return tagged(true, OpReadResponse, q.SinkSTag+1, q.SinkTO, repeat('x', 100))
		}, dErr(ddp.TaggedBuffer, ddp.CodeInvalidSTag)},
		{"before the sink", func(q ReadRequestFields) []byte {
			return tagged(true, OpReadResponse, q.SinkSTag, q.SinkTO-1, repeat('x', 100))
		}, dErr(ddp.TaggedBuffer, ddp.CodeBaseBounds)},
		{"beyond the sink", func(q ReadRequestFields) []byte {
			return tagged(true, OpReadResponse, q.SinkSTag, q.SinkTO, repeat('x', 101))
		}, dErr(ddp.TaggedBuffer, ddp.CodeBaseBounds)},
		{"too little", func(q ReadRequestFields) []byte {
			return tagged(true, OpReadResponse, q.SinkSTag, q.SinkTO, repeat('x', 99))
		}, rErr(RemoteOperation, CodeUnspecified)},
		{"nothing", func(q ReadRequestFields) []byte { return tagged(true, OpReadResponse, q.SinkSTag, q.SinkTO, nil) }, rErr(RemoteOperation, CodeUnspecified)},
		{"a hole", func(q ReadRequestFields) []byte {
			return tagged(true, OpReadResponse, q.SinkSTag, q.SinkTO+1, repeat('x', 99))
		}, rErr(RemoteOperation, CodeUnspecified)},
		{"atomic instead", func(q ReadRequestFields) []byte {
			return untagged(true, OpAtomicResponse, 0, 3, 1, 0, make([]byte, AtomicResponseLen))
		}, rErr(RemoteOperation, CodeUnexpectedOpcode)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r, s := rawPair(t, Config{ORD: 1}, mpa.Options{}, allRights)
				s.run()
				r.send(tagged(true, OpWrite, 1, 0, nil))
				s.post(&Op{Code: Read, Segs: []Seg{s.seg(1000, 100)}, RemoteSTag: 0xabc, RemoteTO: 3})
				req := r.next()
				require.Len(t, req, ddp.UntaggedLen+ReadRequestLen)
				q := ReadRequest(req[ddp.UntaggedLen:]).Fields()
				assert.Equal(t, ReadRequestFields{s.region.STag(), s.to(1000), 100, 0xabc, 3}, q)
				r.send(c.resp(q))
				l, ty, code := codeOf(c.want)
				term := r.terminate()
				require.NotEmpty(t, term)
				assert.Equal(t, []byte{l<<4 | ty, code}, term[:2])
				require.NoError(t, r.c.CloseWrite())
				assert.ErrorIs(t, s.rec.reason(), c.want)
				_, done := s.rec.snapshot()
				require.Len(t, done, 1)
				assert.ErrorIs(t, done[0].err, ErrFlushed)
			})
		})
	}
}

func TestORDIsKept(t *testing.T) { // RFC 5040, section 6.1
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{ORD: 2}, mpa.Options{}, allRights)
		s.run()
		r.send(tagged(true, OpWrite, 1, 0, nil))
		var ops []*Op
		for i := range 5 {
			ops = append(ops, &Op{Code: Read, Segs: []Seg{s.seg(i, 1)}, RemoteSTag: 9})
		}
		ops = append(ops, &Op{Code: Send})
		s.post(ops...)
		for i := range 5 {
			if i == 0 {
				require.Equal(t, OpReadRequest, Control(r.next()[1]).Opcode())
			}
			if i < 4 {
				require.Equal(t, OpReadRequest, Control(r.next()[1]).Opcode())
			}
			synctest.Wait()
			require.Equal(t, i > 2, r.c.Buffered(), "the Send alone may overtake Reads")
			r.send(tagged(true, OpReadResponse, s.region.STag(), s.to(i), []byte{byte(i)}))
		}
		synctest.Wait()
		require.Equal(t, OpSend, Control(r.next()[1]).Opcode())
		_, d := s.rec.count()
		assert.Equal(t, 6, d)
		assert.ErrorIs(t, func() error {
			_, s := rawPair(t, Config{}, mpa.Options{}, allRights)
			defer s.run()
			return s.Post(&Op{Code: Read})
		}(), ErrNoORD)
	})
}

func TestPeerTerminates(t *testing.T) { // both layouts of the control word
	bodies := map[string]struct {
		body string
		want error
	}{
		"RFC, tagged":       {"1100 c000 000e c140 00de ad00 0000 0000 0000 0000", &ddp.Error{Type: ddp.TaggedBuffer, Code: ddp.CodeInvalidSTag, Remote: true}},
		"siw, tagged":       {"1100 0300 0008 c140 00de ad00 0000 0000 0000 0000", &ddp.Error{Type: ddp.TaggedBuffer, Code: ddp.CodeInvalidSTag, Remote: true}},
		"siw, no buffer":    {"2102 0300 0010 4143 0000 0000 0000 0000 0000 0005 0000 0000", &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeNoBuffer, Remote: true}},
		"RFC, no buffer":    {"1202 c000 0022 4143 0000 0000 0000 0000 0000 0005 0000 0000", &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeNoBuffer, Remote: true}},
		"siw, CRC":          {"0202 0000", mpa.ErrCRC},
		"RFC, CRC":          {"2002 0000", mpa.ErrCRC},
		"siw, too short":    {"0203 0000", mpa.ErrMarker},
		"siw, version":      {"2106 0000", &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeUntaggedVersion, Remote: true}},
		"siw, opcode":       {"2006 0000", &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Remote: true}},
		"siw, Reads":        {"2007 0000", &Error{Type: RemoteOperation, Code: CodeCatastrophicStream, Remote: true}},
		"siw, invalidate":   {"2009 0300 0010 4144 1234 5600 0000 0000 0000 0001 0000 0000", &Error{Type: RemoteOperation, Code: CodeCannotInvalidate, Remote: true}},
		"RFC, local":        {"0000 0000", &Error{Type: LocalCatastrophic, Remote: true}},
		"RFC, with garbage": {"0106 0000 ffff ffff", nil},
		"short header":      {"1202 c000 0022 4143", &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeNoBuffer, Remote: true}},
		"no such layer":     {"7001 0000", nil},
	}
	for name, c := range bodies {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r, s := rawPair(t, Config{ORD: 1}, mpa.Options{}, allRights)
				s.run()
				r.send(tagged(true, OpWrite, 1, 0, nil))
				s.post(&Op{Code: Read, Segs: []Seg{s.seg(1000, 100)}})
				r.send(untagged(true, OpTerminate, 0, 2, 1, 0, unhex(t, c.body)))
				err := s.rec.reason()
				var te *TerminateError
				require.ErrorAs(t, err, &te)
				assert.True(t, te.Remote)
				if c.want != nil {
					assert.ErrorIs(t, err, c.want)
				}
				assert.NotContains(t, err.Error(), "\n")
				_, done := s.rec.snapshot()
				require.Len(t, done, 1)
				assert.ErrorIs(t, done[0].err, ErrFlushed)
			})
		})
	}
}

func TestTerminateNamesTheCulprit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := pair(t, Config{}, mpa.Options{})
		a.post(
			&Op{Code: Read, Segs: []Seg{a.seg(0, 100)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
			&Op{Code: Read, Segs: []Seg{a.seg(0, 100)}, RemoteSTag: b.region.STag() + 1<<9, RemoteTO: b.to(0)},
			&Op{Code: Read, Segs: []Seg{a.seg(0, 100)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
		)
		err := a.rec.reason()
		want := &Error{Type: RemoteProtection, Code: CodeInvalidSTag, Remote: true}
		assert.ErrorIs(t, err, want)
		_, done := a.rec.snapshot()
		require.Len(t, done, 3)
		assert.ErrorIs(t, done[1].err, want)
		assert.NotErrorIs(t, done[1].err, ErrFlushed)
		assert.ErrorIs(t, done[2].err, ErrFlushed)
	})
}

func TestSourceInvalidatedDuringRead(t *testing.T) { // RFC 5040, section 4.8: the header tells how far it came
	inBubble(t, func(t *testing.T) {
		ca, cb := memLink(t, 4096, 1460, mpa.Options{})
		s := newSide(t, cb, Config{Role: Responder, IRD: 4}, allRights, 8<<20)
		r := &raw{t, ca}
		w, err := s.domain.Register(s.mem[:4<<20], 0, ddp.RemoteRead, 0)
		require.NoError(t, err)
		s.run()
		r.send(readRequest(1, ReadRequestFields{SinkSTag: 0x700, SinkTO: 1000, Size: 4 << 20, SourceSTag: w.STag(), SourceTO: 0}))
		synctest.Wait()
		stag := w.STag()
		w.Invalidate()
		sent := uint64(0)
		var term []byte
		for {
			u := r.next()
			require.NotNil(t, u)
			if u[0]&0x80 == 0 {
				term = u[ddp.UntaggedLen:]
				break
			}
			require.Equal(t, 1000+sent, ddp.Tagged(u).TO())
			sent += uint64(len(u) - ddp.TaggedLen)
		}
		tm, err := ParseTerminate(term, true)
		require.NoError(t, err)
		assert.Equal(t, []uint8{Layer, uint8(RemoteProtection), uint8(CodeInvalidSTag)}, []uint8{tm.Layer, tm.Type, tm.Code})
		require.NotNil(t, tm.ReadRequest)
		assert.Equal(t, ReadRequestFields{0x700, 1000 + sent, uint32(4<<20 - sent), stag, sent}, ReadRequest(tm.ReadRequest).Fields())
		require.NoError(t, r.c.CloseWrite())
		assert.Error(t, s.rec.reason())
	})
}

func TestAtomicWireForm(t *testing.T) { // RFC 7306, section 5.2: big-endian on the wire, host order in memory
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 1}, mpa.Options{}, allRights)
		s.run()
		binary.NativeEndian.PutUint64(s.mem[8:], 0x0102030405060708)
		r.send(atomicRequest(1, AtomicFields{ID: 0xcafe, STag: s.region.STag(), TO: s.to(8), Data: 1, CompareMask: ^uint64(0)}))
		assert.Equal(t, "414b 0000 0000 0000 0003 0000 0001 0000 0000 0000 cafe 0102 0304 0506 0708", grouped(r.next()))
		synctest.Wait()
		assert.EqualValues(t, 0x0102030405060709, binary.NativeEndian.Uint64(s.mem[8:]))
	})
}

// grouped prints octets as dumps do.
func grouped(b []byte) string {
	h := hex.EncodeToString(b)
	var s []string
	for i := 0; i < len(h); i += 4 {
		s = append(s, h[i:min(i+4, len(h))])
	}
	return strings.Join(s, " ")
}

// TestNoTerminateBeforeAValidFPDU: a responder whose first FPDU is damaged may send none of its own, so that it only closes.
func TestNoTerminateBeforeAValidFPDU(t *testing.T) { // RFC 5044, section 7.1.2, rule 4
	inBubble(t, func(t *testing.T) {
		a, b := mpa.MemPipe(64 << 10)
		tap := &wire{Socket: a, split: 1 << 20, flipAt: -1, cutAt: -1}
		ca, cb := link(t, tap, b, mpa.Options{})
		s := newSide(t, cb, Config{Role: Responder}, allRights, sideMem)
		s.expect(0, 64, 1)
		s.run()
		tap.flipAt = tap.n + 30
		r := &raw{t, ca}
		r.send(untagged(true, OpSend, 0, 0, 1, 0, repeat('b', 60)))
		assert.Nil(t, r.next())
		assert.ErrorIs(t, s.rec.reason(), mpa.ErrCRC)
		assert.Zero(t, cb.Stats().FPDUsOut)
		m, _ := s.rec.count()
		assert.Zero(t, m)
	})
}
