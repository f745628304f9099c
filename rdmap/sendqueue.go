package rdmap

import (
	"goiwarp/ddp"
)

// sendQueue holds the operations from Post to Done, oldest first (RFC 5040, section 5.5, rules 13 and 15):
//
//	head                    next                tail
//	 |  sent, incomplete     |  not yet sent     |
//
// Those of the sent ones that wait for a response are linked a second time. Stream.mu guards it.
type sendQueue struct {
	head, tail *Op
	next       *Op // the first that was not begun
	n          int // operations of the consumer
	signaled   int // those of them with the flag

	reads, readsTail *Op // waiting for a response, oldest first
	outstanding      int // how many

	rtr Op // the Ready-To-Receive message of this side
}

func (q *sendQueue) push(op *Op) {
	op.link, op.linkRead, op.stage, op.err, op.end, op.internal = nil, nil, stageQueued, nil, 0, false
	op.Next = nil
	if q.tail == nil {
		q.head = op
	} else {
		q.tail.link = op
	}
	q.tail = op
	if q.next == nil {
		q.next = op
	}
	q.n++
	if op.Flags&Signaled != 0 {
		q.signaled++
	}
}

// prependRTR puts the Ready-To-Receive message in front of all that may have been posted.
func (q *sendQueue) prependRTR(form RTR) {
	switch form {
	case RTRSend:
		q.rtr.Code = Send
	case RTRWrite:
		q.rtr.Code, q.rtr.RemoteSTag = Write, zeroLengthSTag
	case RTRRead:
		q.rtr.Code, q.rtr.RemoteSTag, q.rtr.sinkSTag = Read, zeroLengthSTag, zeroLengthSTag
	default:
		return
	}
	q.rtr.internal = true
	q.rtr.link = q.head
	q.head, q.next = &q.rtr, &q.rtr
	if q.tail == nil {
		q.tail = &q.rtr
	}
}

// begin takes the next operation out of the part that was not begun.
func (q *sendQueue) begin() *Op {
	op := q.next
	q.next = op.link
	op.stage = stageSending
	return op
}

// await puts a sent operation on the list of those that wait for a response.
func (q *sendQueue) await(op *Op) {
	if q.readsTail == nil {
		q.reads = op
	} else {
		q.readsTail.linkRead = op
	}
	q.readsTail = op
	q.outstanding++
}

// answered takes the oldest waiting operation off that list.
func (q *sendQueue) answered() {
	op := q.reads
	q.reads = op.linkRead
	if q.reads == nil {
		q.readsTail = nil
	}
	op.linkRead = nil
	op.stage = stageAnswered
	q.outstanding--
}

// pop removes the oldest operation.
func (q *sendQueue) pop() *Op {
	op := q.head
	q.head = op.link
	if q.head == nil {
		q.tail = nil
	}
	if q.next == op {
		q.next = op.link
	}
	op.link = nil
	if !op.internal {
		q.n--
		if op.Flags&Signaled != 0 {
			q.signaled--
		}
	}
	return op
}

// complete says whether the operation is over, when the socket has taken sent octets (rules 14 and 19).
func (o *Op) complete(sent uint64) bool {
	switch o.stage {
	case stageAnswered:
		return true
	case stageSent:
		return !o.awaits() && o.end <= sent
	}
	return false
}

// completeUpTo says whether all operations before op are over.
func (q *sendQueue) completeUpTo(op *Op, sent uint64) bool {
	for o := q.head; o != op; o = o.link {
		if !o.complete(sent) {
			return false
		}
	}
	return true
}

// prepare checks an operation and computes what the stream needs of it.
func (s *Stream) prepare(op *Op) error {
	if op.Inline != nil && (len(op.Segs) > 0 || op.Code != Send && op.Code != Write) {
		return ErrBadOp
	}
	var total uint64
	var err error
	switch op.Code {
	case Send, Write:
		if op.Inline != nil {
			if total = uint64(len(op.Inline)); total > 1<<32-1 {
				return ddp.ErrMessageTooLong
			}
		} else if total, err = ddp.CheckSegs(s.cfg.Domain, op.Segs, 0); err != nil {
			return err
		}
	case Read:
		if s.cfg.ORD == 0 {
			return ErrNoORD
		}
		if len(op.Segs) > 1 {
			return ErrBadOp
		}
		op.sinkSTag, op.sinkTO = zeroLengthSTag, 0
		if len(op.Segs) == 1 {
			if total, err = ddp.CheckSegs(s.cfg.Domain, op.Segs, 0); err != nil {
				return err
			}
			stag, to, access, ok := op.Segs[0].Target()
			switch {
			case !ok:
				return ddp.ErrInvalid
			case access&(ddp.LocalWrite|ddp.RemoteWrite) == 0:
				return ddp.ErrAccess
			}
			op.sinkSTag, op.sinkTO = stag, to
		}
		op.Length = uint32(total)
	case FetchAdd, CmpSwap:
		if s.cfg.ORD == 0 {
			return ErrNoORD
		}
		if len(op.Segs) > 0 {
			total, err = ddp.CheckSegs(s.cfg.Domain, op.Segs, ddp.LocalWrite)
			switch {
			case err != nil:
				return err
			case total != AtomicSize:
				return ErrBadOp
			}
		}
	case Immediate:
	case LocalInvalidate:
		if op.LocalInv == nil {
			return ErrBadOp
		}
	default:
		return ErrBadOp
	}
	op.total = uint32(total)
	return nil
}
