package rdmap

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

func TestReadyToReceive(t *testing.T) { // RFC 6581, section 9.2
	for form, what := range map[RTR]Opcode{RTRSend: OpSend, RTRWrite: OpWrite, RTRRead: OpReadRequest} {
		t.Run(what.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				ca, cb := memLink(t, 64<<10, 1460, mpa.Options{})
				a := newSide(t, ca, Config{RTR: form, IRD: 1, ORD: 1}, allRights, sideMem)
				b := newSide(t, cb, Config{Role: Responder, RTR: form, ORD: 1}, allRights, sideMem)
				b.expect(0, 64, 2)
				a.expect(0, 64, 1)
				require.NoError(t, a.Post(&Op{Code: Send, Inline: []byte("posted early"), Flags: Signaled}))
				require.NoError(t, b.Post(&Op{Code: Send, Inline: []byte("the passive side speaks"), Flags: Signaled}))
				a.run()
				b.run()
				synctest.Wait()
				msgs, _ := b.rec.snapshot()
				if form == RTRSend { // it consumes a receive and is delivered
					require.Len(t, msgs, 2)
					assert.Zero(t, msgs[0].Len)
					msgs = msgs[1:]
				}
				require.Len(t, msgs, 1)
				assert.Equal(t, "posted early", string(msgs[0].data))
				msgs, _ = a.rec.snapshot()
				require.Len(t, msgs, 1)
				for _, x := range []*side{a, b} {
					_, done := x.rec.snapshot()
					require.Len(t, done, 1, "the message itself is nobody's operation")
					assert.Equal(t, 1, x.rec.establish)
				}
			})
		})
	}
}

func TestNoReadyToReceive(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, s := rawPair(t, Config{RTR: RTRWrite}, mpa.Options{}, allRights)
		start := time.Now()
		s.run()
		assert.ErrorIs(t, s.rec.reason(), ErrNoRTR)
		assert.Equal(t, DefaultRTRTimeout, time.Since(start))
		assert.Zero(t, s.c.Stats().FPDUsOut, "nothing was sent")
	})
}

// TestNudge: a soft-iWARP responder may miss the first FPDU's arrival; any further one wakes it.
func TestNudge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ca, cb := memLink(t, 64<<10, 1460, mpa.Options{})
		a := newSide(t, ca, Config{}, allRights, sideMem)
		r := &raw{t, cb}
		a.run()
		time.Sleep(time.Hour) // nothing was sent yet: nothing to nudge about
		assert.Zero(t, ca.Stats().FPDUsOut)
		start := time.Now()
		a.post(&Op{Code: Send, Inline: []byte("hello"), Flags: Signaled})
		require.Equal(t, OpSend, Control(r.next()[1]).Opcode())
		u := r.next()
		assert.Equal(t, DefaultNudgeDelay, time.Since(start))
		assert.Equal(t, tagged(true, OpWrite, 1, 0, nil), u)
		time.Sleep(time.Hour)
		assert.EqualValues(t, 2, ca.Stats().FPDUsOut, "once is enough")
	})
	inBubble(t, func(t *testing.T) { // an answer in time
		a, b := pair(t, Config{}, mpa.Options{})
		b.expect(0, 64, 1)
		a.post(&Op{Code: Send})
		b.post(&Op{Code: Write})
		time.Sleep(time.Hour)
		assert.EqualValues(t, 1, a.c.Stats().FPDUsOut)
	})
}

func TestSilentPeerAtTheEnd(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		end  func(*side)
		want error
	}{
		"close":     {func(s *side) { s.Disconnect() }, nil},
		"terminate": {func(s *side) { s.Terminate(boom) }, boom},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) { // the peer takes all and never closes
				r, s := rawPair(t, Config{}, mpa.Options{}, allRights)
				s.run()
				r.send(tagged(true, OpWrite, 1, 0, nil))
				synctest.Wait()
				start := time.Now()
				c.end(s)
				assert.ErrorIs(t, s.rec.reason(), c.want)
				assert.Equal(t, DefaultLinger, time.Since(start))
			})
			inBubble(t, func(t *testing.T) { // the peer takes nothing any more
				ca, cb := memLink(t, 2000, 1460, mpa.Options{})
				s := newSide(t, cb, Config{Role: Responder}, allRights, sideMem)
				s.run()
				(&raw{t, ca}).send(tagged(true, OpWrite, 1, 0, nil))
				synctest.Wait()
				s.post(&Op{Code: Write, Segs: []Seg{s.seg(0, 100000)}})
				synctest.Wait()
				start := time.Now()
				c.end(s)
				err := s.rec.reason()
				if c.want != nil {
					assert.ErrorIs(t, err, c.want)
				} else {
					assert.ErrorIs(t, err, mpa.ErrLost)
				}
				assert.LessOrEqual(t, time.Since(start), 2*DefaultLinger)
				_, done := s.rec.snapshot()
				require.Len(t, done, 1)
				assert.ErrorIs(t, done[0].err, ErrFlushed)
			})
		})
	}
}

func TestPeerClosesWithinMessage(t *testing.T) { // RFC 5041, section 6.2
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{}, mpa.Options{}, allRights)
		s.expect(0, 64, 1)
		s.run()
		r.send(untagged(false, OpSend, 0, 0, 1, 0, []byte("half")))
		require.NoError(t, r.c.CloseWrite())
		assert.ErrorIs(t, s.rec.reason(), mpa.ErrLost)
		msgs, _ := s.rec.snapshot()
		require.Len(t, msgs, 1)
		assert.ErrorIs(t, msgs[0].Err, ErrFlushed, "the receive comes back")
	})
}

func TestHalfClose(t *testing.T) { // RFC 5041, section 6.2: the peer has said all, and still listens
	inBubble(t, func(t *testing.T) {
		r, s := rawPair(t, Config{IRD: 4, ORD: 4}, mpa.Options{}, allRights)
		s.run()
		r.send(tagged(true, OpWrite, 1, 0, nil))
		synctest.Wait()
		pattern(s.mem[:300000], 1)
		r.send(readRequest(1, ReadRequestFields{SinkSTag: 9, Size: 300000, SourceSTag: s.region.STag(), SourceTO: s.to(0)}))
		s.post(&Op{Code: Send, Inline: []byte("goodbye")}, &Op{Code: Read, Segs: []Seg{s.seg(0, 10)}, RemoteSTag: 1})
		require.NoError(t, r.c.CloseWrite())
		octets, sends := 0, 0
		for u := r.next(); u != nil; u = r.next() {
			switch Control(u[1]).Opcode() {
			case OpReadResponse:
				octets += len(u) - ddp.TaggedLen
			case OpSend:
				sends++
			}
		}
		assert.Equal(t, 300000, octets)
		assert.Equal(t, 1, sends)
		assert.NoError(t, s.rec.reason())
		_, done := s.rec.snapshot()
		require.Len(t, done, 2)
		assert.NoError(t, done[0].err)
		assert.ErrorIs(t, done[1].err, ErrFlushed, "nobody can answer it")
	})
}

func TestAbortBeforeRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		boom := errors.New("boom")
		_, s := rawPair(t, Config{}, mpa.Options{}, allRights)
		require.NoError(t, s.Post(&Op{Code: Send}))
		s.Abort(boom)
		s.Abort(errors.New("later"))
		s.run()
		assert.ErrorIs(t, s.rec.reason(), boom)
		_, done := s.rec.snapshot()
		require.Len(t, done, 1)
		assert.ErrorIs(t, done[0].err, ErrFlushed)
		assert.ErrorIs(t, s.Post(&Op{Code: Send}), ErrClosed)
	})
}

// TestTerminateAfterStartup: an initiator whose terms were not met says so and closes (RFC 6581, section 9.1).
func TestTerminateAfterStartup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ca, cb := memLink(t, 64<<10, 1460, mpa.Options{})
		a := newSide(t, ca, Config{}, allRights, sideMem)
		a.Terminate(&mpa.Error{Code: mpa.CodeIRD})
		a.run()
		r := &raw{t, cb}
		assert.Equal(t, []byte{0x20, 0x06, 0, 0}, r.terminate())
		assert.Nil(t, r.next())
		require.NoError(t, r.c.Close())
		assert.ErrorIs(t, a.rec.reason(), mpa.ErrIRD)
	})
}

func TestPostFromCallbacks(t *testing.T) { // they may post, and hold locks of their own while posting
	inBubble(t, func(t *testing.T) {
		a, b := pair(t, Config{Depth: 4}, mpa.Options{})
		const rounds = 200
		b.expect(0, 64, rounds)
		a.expect(0, 64, rounds)
		echo := func(s *side) func(got) {
			return func(g got) {
				if err := s.Post(&Op{Code: Send, Inline: g.data, Flags: Signaled}); err != nil && !errors.Is(err, ErrQueueFull) {
					t.Error(err)
				}
			}
		}
		b.rec.onReceived = echo(b)
		n := 1
		a.rec.onReceived = func(g got) {
			assert.Equal(t, fmt.Sprint(n-1), string(g.data))
			if n < rounds {
				n++
				echo(a)(got{data: []byte(fmt.Sprint(n - 1))})
			}
		}
		a.post(&Op{Code: Send, Inline: []byte("0"), Flags: Signaled})
		synctest.Wait()
		m, _ := a.rec.count()
		assert.Equal(t, rounds, m)
	})
}

func TestPostErrors(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, s := rawPair(t, Config{Depth: 3, ORD: 1}, mpa.Options{}, ddp.RemoteRead)
		dead, err := s.domain.Register(s.mem, 0, allRights, 0)
		require.NoError(t, err)
		dead.Free()
		for name, c := range map[string]struct {
			op   Op
			want error
		}{
			"no code":               {Op{}, ErrBadOp},
			"unknown code":          {Op{Code: 99}, ErrBadOp},
			"two sinks":             {Op{Code: Read, Segs: []Seg{s.seg(0, 1), s.seg(1, 1)}}, ErrBadOp},
			"sink without right":    {Op{Code: Read, Segs: []Seg{s.seg(0, 1)}}, ddp.ErrAccess},
			"outside":               {Op{Code: Send, Segs: []Seg{s.seg(sideMem, 1)}}, ddp.ErrBounds},
			"inline and elements":   {Op{Code: Send, Segs: []Seg{s.seg(0, 1)}, Inline: []byte("x")}, ErrBadOp},
			"inline Read":           {Op{Code: Read, Inline: []byte("x")}, ErrBadOp},
			"dead region":           {Op{Code: Write, Segs: []Seg{{Region: dead, Len: 1}}}, ddp.ErrInvalid},
			"atomic without right":  {Op{Code: FetchAdd, Segs: []Seg{s.seg(0, 8)}}, ddp.ErrAccess},
			"invalidate of nothing": {Op{Code: LocalInvalidate}, ErrBadOp},
		} {
			assert.ErrorIs(t, s.Post(chain(&Op{Code: Send}, &c.op)), c.want, name)
		}
		ops := []*Op{{Code: Send}, {Code: Send}, {Code: Send}, {Code: Send}}
		assert.ErrorIs(t, s.Post(chain(ops...)), ErrQueueFull, "as a whole or not at all")
		ops[2].Next = nil
		require.NoError(t, s.Post(chain(ops[:3]...)))
		s.run()
		s.Disconnect()
	})
}

// TestInvalidateWhileSending: withdrawing memory never waits for a peer that takes nothing, and the peer
// never sees what the memory holds later.
func TestInvalidateWhileSending(t *testing.T) {
	for _, l := range links[:2] {
		t.Run(l.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				ca, cb := memLink(t, 2000, 9000, l.opts) // segments too long to be copied
				s := newSide(t, ca, Config{NudgeDelay: -1}, allRights, sideMem)
				mem := repeat('s', 300000)
				w, err := s.domain.Register(mem, 0, 0, 0) // nobody's but ours: sent in place
				require.NoError(t, err)
				s.run()
				s.post(&Op{Code: Write, Segs: []Seg{{Region: w, Len: len(mem)}}, RemoteSTag: 7})
				synctest.Wait()
				w.Invalidate() // the socket is full, the writer waits
				for i := range mem {
					mem[i] = 'X'
				}
				r := &raw{t, cb}
				for f, err := r.c.Next(); err == nil; f, err = r.c.Next() {
					if err := f.Fill(); err != nil {
						break
					}
					b := make([]byte, f.Len)
					f.CopyTo(0, b)
					assert.NotContains(t, string(b), "X")
				}
				assert.Error(t, s.rec.reason())
				_, done := s.rec.snapshot()
				require.Len(t, done, 1)
				assert.Error(t, done[0].err)
			})
		})
	}
}

// TestReadRacesWrite: memory that the peer writes while it reads it breaks no CRC.
func TestReadRacesWrite(t *testing.T) {
	if raceEnabled {
		t.Skip("the race is the point: two peers' operations on the same octets, whose values may be either")
	}
	ca, cb := tcpLink(t, mpa.Options{})
	a, b := pairOver(t, ca, cb, Config{})
	done := make(chan error, 64)
	a.rec.onDone = func(_ *Op, err error) { done <- err }
	for range 40 {
		a.post(
			&Op{Code: Read, Flags: Signaled, Segs: []Seg{a.seg(0, 200000)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
			&Op{Code: Write, Flags: Signaled, Segs: []Seg{a.seg(500000, 200000)}, RemoteSTag: b.region.STag(), RemoteTO: b.to(0)},
		)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	}
	a.Disconnect()
	assert.NoError(t, a.rec.reason())
	assert.NoError(t, b.rec.reason())
}

// TestEarlyPlacement: without a check of its CRC a segment goes only where a wrong header does no harm.
func TestEarlyPlacement(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprint(early), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b := mpa.MemPipe(8 << 10) // the FPDU does not come whole
				tap := &wire{Socket: a, split: 1 << 20, flipAt: -1, cutAt: -1}
				ca, cb := link(t, tap, b, mpa.Options{MaxFPDU: 65535})
				access := ddp.RemoteWrite
				if early {
					access |= ddp.EarlyPlacement
				}
				s := newSide(t, cb, Config{Role: Responder}, access, sideMem)
				s.run()
				r := &raw{t, ca}
				tap.flipAt = tap.n + 40000
				go r.send(tagged(true, OpWrite, s.region.STag(), s.to(0), repeat('w', 60000)))
				assert.ErrorIs(t, s.rec.reason(), mpa.ErrCRC)
				assert.Equal(t, early, s.mem[0] == 'w')
			})
		})
	}
}
