package ddp

import "fmt"

// Queue is the receiving side of one untagged queue (RFC 5041, sections 4.3 and 5.4): which message may come next and
// how much of it is there. Which buffer it goes to is the owner's to say.
//
// MPA hands segments up in the order in which they were sent, and a sender sends messages in order: so the message that is
// open, or the next one, is the only one that a segment can belong to. Within the message any order of offsets is taken.
type Queue struct {
	msn   uint32 // of the message that is open or comes next
	open  bool
	cover Cover
}

// FirstMSN is the number of a queue's first message.
const FirstMSN = 1

// NewQueue returns a queue that waits for its first message.
func NewQueue() Queue { return Queue{msn: FirstMSN} }

// MSN is the number of the message that is open or comes next.
func (q *Queue) MSN() uint32 { return q.msn }

// Open says whether part of a message is there.
func (q *Queue) Open() bool { return q.open }

// NextMO is the offset that the open message's next segment has if segments come in order.
func (q *Queue) NextMO() uint64 { return q.cover.Next() }

// CheckMSN says whether the segment may come now; nil means it may.
func (q *Queue) CheckMSN(h Untagged) *Error {
	if m := h.MSN(); m != q.msn {
		return &Error{Type: UntaggedBuffer, Code: CodeMSNRange, Detail: fmt.Sprintf("QN %d MSN %d, expected %d", h.QN(), m, q.msn)}
	}
	return nil
}

// CheckMO says whether n octets of payload at the segment's MO lie within a buffer of size octets.
// A segment without payload is not checked beyond its offset.
func (q *Queue) CheckMO(h Untagged, n, size int) *Error {
	mo := uint64(h.MO())
	switch {
	case mo > uint64(size), n > 0 && mo == uint64(size) && size > 0 && mo != q.cover.Next():
		return &Error{Type: UntaggedBuffer, Code: CodeInvalidMO, Detail: fmt.Sprintf("QN %d MSN %d MO %d, buffer of %d octets", h.QN(), h.MSN(), mo, size)}
	case mo+uint64(n) > uint64(size):
		return &Error{Type: UntaggedBuffer, Code: CodeTooLong, Detail: fmt.Sprintf("QN %d MSN %d MO %d length %d, buffer of %d octets", h.QN(), h.MSN(), mo, n, size)}
	}
	return nil
}

// Add accounts for a segment with n octets of payload that was placed, or that is about to be. It is an error when it
// contradicts the segments before it.
func (q *Queue) Add(h Untagged, n int) *Error {
	q.open = true
	mo := uint64(h.MO())
	if !q.cover.Add(mo, mo+uint64(n), h.Last()) {
		return &Error{Type: UntaggedBuffer, Code: CodeInvalidMO, Detail: fmt.Sprintf("QN %d MSN %d MO %d length %d contradicts earlier segments", h.QN(), h.MSN(), mo, n)}
	}
	return nil
}

// Complete says whether the whole message is there, and how long it is.
func (q *Queue) Complete() (length int, ok bool) {
	return int(q.cover.Len()), q.open && q.cover.Complete()
}

// Deliver ends the complete message; the next one may come. The MSN wraps from 2^32-1 to 0.
func (q *Queue) Deliver() {
	q.msn++
	q.open = false
	q.cover.Reset()
}

// Skip makes msn the next message's number: for a stream whose queue has been in use before it
// was handed over.
func (q *Queue) Skip(msn uint32) { q.msn = msn }
