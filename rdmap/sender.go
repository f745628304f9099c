package rdmap

import (
	"errors"
	"time"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

const (
	// maxPending is how many octets are queued at MPA before they are written: one vectored write
	// takes them all, and the kernel's socket buffer is of that order.
	maxPending = 512 << 10
	// postRounds is how many times a poster, or the reader, fills and writes before it leaves the
	// rest to the writer: it has other things to do.
	postRounds = 2
	// batchRounds bounds how long the end of a batch goes on serving what its own callbacks posted.
	batchRounds = 8
)

// sender turns operations and responses into segments, message by message: messages are never
// interleaved (RFC 5041, section 5.3). It belongs to whoever has set Stream.writing.
type sender struct {
	s      *Stream
	mulpdu int
	msn    [queues]uint32 // of the next message of each queue

	// The message under way.
	active bool
	msg    ddp.Outgoing
	op     *Op      // its operation, or nil:
	resp   response // the RDMA Read that it answers
	cur    ddp.Cursor
	inline []byte
	copied bool
	off    int // of a response's next octet in its region

	opTurn bool // an operation goes before the next response
	loan   ddp.Loan
	refs   refs
	head   [ddp.UntaggedLen + maxControl]byte
	one    [1][]byte
	termed bool // the Terminate Message has been queued
}

func (t *sender) init(s *Stream) {
	t.s, t.refs.s = s, s
	for i := range t.msn {
		t.msn[i] = ddp.FirstMSN
	}
}

// nextMSN numbers a message of queue qn.
func (t *sender) nextMSN(qn uint32) uint32 {
	m := t.msn[qn]
	t.msn[qn]++
	return m
}

// refs remembers which regions the octets that MPA has queued lie in. As Guard of the socket it holds them
// while they are written, and only then; a region that was invalidated meanwhile ends the stream, for
// what was announced can no longer be sent.
type refs struct {
	s     *Stream
	list  []ref // list[first:], in stream order
	first int
	taken int // list[first:taken] are held
}

type ref struct {
	region *ddp.Region
	stag   ddp.STag
	end    uint64
}

// add notes that the stream refers to r up to position end. r is held.
func (r *refs) add(region *ddp.Region, end uint64) {
	stag := region.STag()
	if n := len(r.list); n > r.first {
		if last := &r.list[n-1]; last.region == region && last.stag == stag {
			last.end = end
			return
		}
	}
	r.list = append(r.list, ref{region, stag, end})
}

// drop forgets what the socket has taken.
func (r *refs) drop(sent uint64) {
	for r.first < len(r.list) && r.list[r.first].end <= sent {
		r.list[r.first].region = nil
		r.first++
	}
	switch {
	case r.first == len(r.list):
		r.list, r.first = r.list[:0], 0
	case r.first > 64 && r.first > len(r.list)/2:
		n := copy(r.list, r.list[r.first:])
		clear(r.list[n:])
		r.list, r.first = r.list[:n], 0
	}
}

// errRevoked: memory was invalidated while it was being sent.
var errRevoked = errors.New("rdmap: region was invalidated while its octets were being sent")

// Acquire implements mpa.Guard.
func (r *refs) Acquire() error {
	sent := r.s.c.Sent()
	r.s.progress.Store(sent)
	r.drop(sent)
	for r.taken = r.first; r.taken < len(r.list); r.taken++ {
		e := &r.list[r.taken]
		if _, ok := e.region.Acquire(e.stag); !ok {
			r.Release()
			return errRevoked
		}
	}
	return nil
}

// Release implements mpa.Guard.
func (r *refs) Release() {
	for i := r.first; i < r.taken; i++ {
		r.list[i].region.Release()
	}
	r.taken = r.first
}

// sendableLocked says whether the owner of the writing half would find something to do.
func (s *Stream) sendableLocked() bool {
	switch {
	case !s.started || s.state >= finished:
		return false
	case s.state == failing:
		return true
	case s.canSend && (s.nudge || s.r.n > 0 || s.opReadyLocked()):
		return true
	}
	return s.finDueLocked()
}

// opReadyLocked says whether the next operation may begin: ORD, fences and the peer's FIN may hold it back.
func (s *Stream) opReadyLocked() bool {
	op := s.q.next
	switch {
	case op == nil:
		return false
	case op.Flags&Fence != 0 && s.q.outstanding > 0:
		return false
	case op.Code == LocalInvalidate:
		return s.q.completeUpTo(op, s.sent)
	case op.awaits():
		return !s.rx.fin && (s.q.outstanding < s.cfg.ORD || op.internal)
	}
	return true
}

// finDueLocked says whether a graceful close has come to the end of our half: all is sent, and answered
// unless the peer has ended its half already.
func (s *Stream) finDueLocked() bool {
	switch {
	case s.state != closing:
		return false
	case !s.canSend:
		return true
	case s.rx.fin:
		return s.r.n == 0 && !s.opReadyLocked()
	}
	return s.r.n == 0 && s.q.next == nil && s.q.outstanding == 0
}

// pump sends until nothing is left, or the socket is full, or long enough; the rest is the writer's. The caller has claimed the writing half; pump
// gives it up or hands it on.
func (s *Stream) pump() {
	for round := 0; ; round++ {
		s.fill()
		done, err := s.c.TryFlush()
		s.mu.Lock()
		if s.flushedLocked(err) {
			s.mu.Unlock()
			return
		}
		if !done || round+1 == postRounds {
			s.handoff = true
			s.mu.Unlock()
			s.wake()
			return
		}
		s.mu.Unlock()
	}
}

// pumpWait is pump for the writer, which waits for the socket. It delivers completions whenever the socket has
// taken something, and keeps the queue behind it filled.
func (s *Stream) pumpWait() {
	for {
		s.mu.Lock()
		owed := s.completeLocked()
		s.mu.Unlock()
		if owed {
			s.enter()
			s.leave()
		}
		s.fill()
		_, err := s.c.FlushSome()
		s.mu.Lock()
		over := s.flushedLocked(err)
		owed = s.completeLocked()
		s.mu.Unlock()
		if over {
			if owed {
				s.enter()
				s.leave()
			}
			return
		}
	}
}

// flushedLocked accounts for a write and says whether the writing half has been given up. It is, when
// nothing is left to send.
func (s *Stream) flushedLocked(err error) bool {
	s.sent = s.c.Sent()
	s.tx.refs.drop(s.sent)
	switch {
	case errors.Is(err, errRevoked):
		s.dieLocked(&Error{Type: LocalCatastrophic, Err: errRevoked})
	case s.state == dead: // nobody is left to hand on to
	case err != nil:
		s.writeFailedLocked(err)
	case s.c.Pending() > 0 || s.tx.active:
		return false
	case s.tx.termed || s.finDueLocked():
		s.finishLocked()
	case s.sendableLocked():
		return false
	}
	if s.cfg.Role == Initiator && s.timer == nil && s.cfg.NudgeDelay > 0 && s.sent > 0 && !s.heard.Load() && s.state < finished {
		s.timer = time.AfterFunc(s.cfg.NudgeDelay, s.nudgeDue)
	}
	if s.state == dead {
		s.tx.drop()
	}
	s.writing = false
	s.idle.Broadcast()
	return true
}

// drop lets go of everything that the message under way refers to.
func (t *sender) drop() {
	t.active, t.op, t.inline = false, nil, nil
	t.resp = response{}
	t.cur.Set(nil)
	clear(t.refs.list)
	t.refs.list, t.refs.first = nil, 0
}

// nudgeDue asks for the zero-length RDMA Write that wakes a peer which missed our first message.
func (s *Stream) nudgeDue() {
	s.mu.Lock()
	s.nudge = !s.heard.Load() && s.state == open
	s.mu.Unlock()
	s.wake()
}

// fill queues segments at MPA until there are enough for one write or no more.
func (s *Stream) fill() {
	t := &s.tx
	t.mulpdu = s.c.MULPDU()
	for s.c.Pending() < maxPending {
		switch {
		case s.stopped.Load():
			s.fillTerminate()
			return
		case t.active:
			s.sendSegment()
		case !s.startMessage():
			if !s.stopped.Load() {
				return
			}
		}
	}
	if s.stopped.Load() {
		s.fillTerminate()
	}
}

// fillTerminate queues the Terminate Message once, if there is one to send.
func (s *Stream) fillTerminate() {
	t := &s.tx
	t.active = false
	s.mu.Lock()
	due := s.state == failing && !t.termed
	term := s.term
	s.mu.Unlock()
	if !due {
		return
	}
	t.termed = true
	var buf [ddp.UntaggedLen + MaxTerminate]byte
	ddp.Untagged(buf[:]).Encode(&ddp.UntaggedFields{Last: true, ULP: uint8(MakeControl(OpTerminate)), QN: QueueTerminate, MSN: t.nextMSN(QueueTerminate)})
	s.c.Append(term.Append(buf[:ddp.UntaggedLen]), nil)
}

// startMessage begins the next message, and says whether there was one. Messages without payload from
// memory are queued at once.
func (s *Stream) startMessage() bool {
	t := &s.tx
	s.mu.Lock()
	if s.state >= failing || !s.canSend {
		s.mu.Unlock()
		return false
	}
	opReady := s.opReadyLocked()
	switch {
	case s.nudge:
		s.nudge = false
		s.mu.Unlock()
		ddp.Tagged(t.head[:]).Encode(&ddp.TaggedFields{Last: true, ULP: uint8(MakeControl(OpWrite)), STag: zeroLengthSTag})
		s.c.Append(t.head[:ddp.TaggedLen], nil)
	case s.r.n > 0 && !(opReady && t.opTurn):
		t.resp = s.r.pop()
		s.mu.Unlock()
		t.opTurn = true
		s.startResponse()
	case opReady:
		op := s.q.begin()
		s.mu.Unlock()
		t.opTurn = false
		s.startOp(op)
	default:
		s.mu.Unlock()
		return false
	}
	return true
}

// sentOp ends an operation's message, whose last octet is at end. The operation may be complete, and the
// consumer's again, when it returns.
func (s *Stream) sentOp(op *Op, end uint64) {
	s.stats.sent(op)
	s.mu.Lock()
	op.end, op.stage = end, stageSent
	if op.awaits() {
		s.q.await(op)
	}
	s.mu.Unlock()
}

// startOp begins an operation's message.
func (s *Stream) startOp(op *Op) {
	t := &s.tx
	switch op.Code {
	case Send:
		o := OpSend
		f := ddp.UntaggedFields{QN: QueueSend, MSN: t.nextMSN(QueueSend)}
		if op.Flags&Invalidate != 0 {
			o, f.ULPWord = OpSendInvalidate, uint32(op.RemoteSTag)
		}
		if op.Flags&Solicited != 0 {
			o += OpSendSE - OpSend
		}
		f.ULP = uint8(MakeControl(o))
		t.msg.StartUntagged(f, op.total)
	case Write:
		f := ddp.TaggedFields{ULP: uint8(MakeControl(OpWrite)), STag: op.RemoteSTag, TO: op.RemoteTO}
		t.msg.StartTagged(f, op.total)
	case Read:
		op.msn = t.nextMSN(QueueRequest)
		ReadRequest(t.head[ddp.UntaggedLen:]).Encode(&ReadRequestFields{op.sinkSTag, op.sinkTO, op.total, op.RemoteSTag, op.RemoteTO})
		s.sentOp(op, s.control(OpReadRequest, op.msn, ReadRequestLen))
		return
	case FetchAdd, CmpSwap:
		op.msn = t.nextMSN(QueueRequest)
		f := AtomicFields{Op: AtomicFetchAdd, ID: op.msn, STag: op.RemoteSTag, TO: op.RemoteTO, Data: op.Add, Mask: op.AddMask, CompareMask: 1<<64 - 1}
		if op.Code == CmpSwap {
			f.Op, f.Data, f.Mask, f.Compare, f.CompareMask = AtomicCmpSwap, op.Swap, op.SwapMask, op.Compare, op.CompareMask
		}
		AtomicRequest(t.head[ddp.UntaggedLen:]).Encode(&f)
		s.sentOp(op, s.control(OpAtomicRequest, op.msn, AtomicRequestLen))
		return
	case Immediate:
		o := OpImmediate
		if op.Flags&Solicited != 0 {
			o = OpImmediateSE
		}
		copy(t.head[ddp.UntaggedLen:], op.Imm[:])
		s.sentOp(op, s.control(o, t.nextMSN(QueueSend), ImmediateLen))
		return
	case LocalInvalidate:
		op.LocalInv.Invalidate()
		s.sentOp(op, 0)
		return
	}
	t.active, t.op = true, op
	t.inline = op.Inline
	t.cur.Set(op.Segs)
	t.copied = s.crc && op.Flags&CopyPayload != 0
}

// control queues a message of one segment whose payload of n octets is in t.head behind the DDP header.
func (s *Stream) control(o Opcode, msn uint32, n int) (end uint64) {
	t := &s.tx
	ddp.Untagged(t.head[:]).Encode(&ddp.UntaggedFields{Last: true, ULP: uint8(MakeControl(o)), QN: o.Queue(), MSN: msn})
	return s.c.Append(t.head[:ddp.UntaggedLen+n], nil)
}

// sendSegment queues the next segment of the message under way. With CRCs, memory that the peer may change is copied:
// its octets must be those that the CRC was computed over.
func (s *Stream) sendSegment() {
	t := &s.tx
	head, n := t.msg.Next(t.mulpdu)
	var end uint64
	switch {
	case n == 0:
		end = s.c.Append(head, nil)
	case t.op != nil && t.inline != nil:
		t.one[0] = t.inline[:n]
		t.inline = t.inline[n:]
		end = s.c.Append(head, t.one[:])
		t.one[0] = nil
	default:
		var err error
		if t.op != nil {
			err = t.loan.Take(&t.cur, n)
		} else {
			err = t.loan.TakeRegion(t.resp.region, t.resp.stag, t.off, n)
		}
		if err != nil {
			s.sourceGone(err, n)
			return
		}
		if len(head)+n <= mpa.CopyLen || t.copied || s.crc && t.loan.Access&(ddp.RemoteWrite|ddp.RemoteAtomic) != 0 {
			end = s.c.AppendCopy(head, t.loan.Bufs)
		} else {
			end = s.c.Append(head, t.loan.Bufs)
			for _, r := range t.loan.Regions() {
				t.refs.add(r, end)
			}
		}
		t.loan.Return()
		if t.op != nil {
			t.cur.Advance(n)
		} else {
			t.off += n
		}
	}
	s.stats.octetsSent.Add(uint64(n))
	if !t.msg.Ended() {
		return
	}
	t.active = false
	if op := t.op; op != nil {
		t.op, t.inline = nil, nil
		s.sentOp(op, end)
		return
	}
	s.retire()
}

// sourceGone ends the stream because the memory of a message under way has been invalidated. n octets of
// its current segment had been counted as sent.
func (s *Stream) sourceGone(err error, n int) {
	t := &s.tx
	t.active = false
	if op := t.op; op != nil {
		t.op, t.inline = nil, nil
		s.mu.Lock()
		op.err = err
		s.mu.Unlock()
		e := &Error{Type: LocalCatastrophic, Detail: op.Code.String(), Err: err}
		s.fail(e, Terminate{Layer: Layer, Type: uint8(LocalCatastrophic)})
		return
	}
	// An RDMA Read of the peer: tell it how far it came (RFC 5040, section 4.8).
	sent := t.msg.Sent() - uint32(n)
	e := &Error{Type: RemoteProtection, Code: CodeInvalidSTag, Detail: t.resp.stag.String() + " was invalidated while it was read"}
	s.fail(e, t.resp.terminate(e, sent))
	t.resp = response{}
}
