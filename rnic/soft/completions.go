package soft

import (
	"errors"
	"fmt"

	"goiwarp/ddp"
	"goiwarp/mpa"
	"goiwarp/rdmap"
	"goiwarp/rnic"
)

// stageLimit bounds a batch of completions that one call of a Handler gets.
const stageLimit = 256

// The methods below, up to Closed, are rdmap.Handler: the stream calls them one at a time.
var _ rdmap.Handler = (*qp)(nil)

// Receive implements rdmap.Handler.
func (q *qp) Receive() *rdmap.Receive { return q.rq.take() }

// Received implements rdmap.Handler.
func (q *qp) Received(r *rdmap.Receive, m *rdmap.Delivery) {
	q.stage(q.rcq, rnic.Completion{
		ID: r.User, QP: q, Op: rnic.OpRecv, Status: recvStatus(m.Err), Err: m.Err, Len: m.Len,
		Solicited: m.Solicited, InvalidatedSTag: rnic.STag(m.Invalidated), HasImm: m.HasImm, Imm: m.Imm,
	})
	q.rq.put(r)
}

// Done implements rdmap.Handler.
func (q *qp) Done(op *rdmap.Op, err error) {
	o := op.Context.(*sendOp)
	if err == nil {
		err = q.broken
	} else if q.broken == nil {
		if q.broken = err; !errors.Is(err, rdmap.ErrFlushed) {
			q.broken = flushError(err)
		}
	}
	c := rnic.Completion{ID: op.User, QP: q, Op: o.code, Len: o.octets, Err: err}
	signaled, part := o.signaled, o.part
	if c.Op == rnic.OpRead {
		q.read.octets += o.octets
		if q.read.err == nil {
			q.read.err = err
		}
		if !part {
			c.Len, c.Err = q.read.octets, q.read.err
			q.read = split{}
		}
	}
	q.mu.Lock()
	q.recycle(o)
	if !part {
		q.out--
	}
	q.mu.Unlock()
	if part || (c.Err == nil && !signaled) {
		return
	}
	if c.Err != nil {
		c.Status, c.Len = sendStatus(c.Err), 0
	}
	q.stage(q.scq, c)
}

// BatchEnd implements rdmap.Handler.
func (q *qp) BatchEnd() {
	for i := range q.staged {
		q.flush(i)
	}
}

// Established implements rdmap.Handler.
func (q *qp) Established() { q.tell(rnic.Event{Kind: rnic.Established}) }

// Closed implements rdmap.Handler.
func (q *qp) Closed(err error) {
	q.mu.Lock()
	if q.cause == nil {
		if q.cause = err; err == nil {
			q.cause = rnic.ErrClosed
		}
	}
	q.mu.Unlock()
	q.drain(err)
	if err != nil {
		q.tell(rnic.Event{Kind: rnic.Failed, Err: err})
	} else {
		q.tell(rnic.Event{Kind: rnic.Disconnected})
	}
}

// drain completes what no stream has: work posted while idle, and receives of the QP's own queue.
// Nothing is accepted afterwards.
func (q *qp) drain(err error) {
	flushed := flushError(err)
	q.mu.Lock()
	q.state = dead
	first := q.first
	q.first, q.last = nil, nil
	q.mu.Unlock()
	for op := first; op != nil; {
		next := op.Next
		q.Done(op, flushed)
		op = next
	}
	if q.srq == nil {
		q.rq.close(endedError(err))
		for r := q.rq.take(); r != nil; r = q.rq.take() {
			q.stage(q.rcq, rnic.Completion{ID: r.User, QP: q, Op: rnic.OpRecv, Status: rnic.StatusFlushed, Err: flushed})
			q.rq.put(r)
		}
	}
	q.BatchEnd()
}

// fail ends a QP that never got a stream. It is harmless on one that did.
func (q *qp) fail(err error) {
	q.mu.Lock()
	if q.state != idle {
		q.mu.Unlock()
		return
	}
	q.state = dead
	if q.cause == nil {
		q.cause = err
	}
	q.mu.Unlock()
	q.drain(err)
	close(q.done)
}

// stage keeps a completion for the end of the batch.
func (q *qp) stage(c *cq, wc rnic.Completion) {
	i := 0
	if c != q.scq {
		i = 1
	}
	q.staged[i] = append(q.staged[i], wc)
	if len(q.staged[i]) >= stageLimit {
		q.flush(i)
	}
}

func (q *qp) flush(i int) {
	batch := q.staged[i]
	if len(batch) == 0 {
		return
	}
	c := q.scq
	if i == 1 {
		c = q.rcq
	}
	err := c.deliver(batch)
	clear(batch)
	q.staged[i] = batch[:0]
	if err == nil {
		return
	}
	q.mu.Lock()
	s := q.stream
	q.mu.Unlock()
	if s != nil {
		s.Abort(err)
	}
}

func (q *qp) tell(e rnic.Event) {
	if q.onEvent != nil {
		q.onEvent(e)
	}
}

// flushError is the error of work that never ran.
func flushError(cause error) error {
	if cause == nil {
		return rdmap.ErrFlushed
	}
	return fmt.Errorf("%w: %w", rdmap.ErrFlushed, cause)
}

// endedError refuses work on a connection that has ended.
func endedError(cause error) error {
	if cause == nil || errors.Is(cause, rnic.ErrClosed) {
		return fmt.Errorf("%w: the connection has ended", rnic.ErrClosed)
	}
	return fmt.Errorf("%w: the connection has ended: %w", rnic.ErrClosed, cause)
}

// postError gives RDMAP's refusals the names of the verbs.
func postError(err error) error {
	switch {
	case errors.Is(err, rdmap.ErrClosed):
		return endedError(nil)
	case errors.Is(err, rdmap.ErrQueueFull):
		return fmt.Errorf("%w: %w", rnic.ErrQueue, err)
	case errors.Is(err, rdmap.ErrBadOp):
		return fmt.Errorf("%w: %w", rnic.ErrBadWR, err)
	case errors.Is(err, rdmap.ErrNoORD):
		return fmt.Errorf("%w: %w", rnic.ErrState, err)
	}
	return wrapDDP(err)
}

// recvStatus sorts the error of a receive that the stream gave back.
func recvStatus(err error) rnic.Status {
	if err == nil {
		return rnic.StatusOK // before the variables below move to the heap
	}
	var d *ddp.Error
	switch {
	case errors.As(err, &d) && !d.Remote && d.Type == ddp.LocalCatastrophic:
		return rnic.StatusLocalProtect // the buffer was withdrawn before the message came
	case errors.Is(err, rdmap.ErrFlushed):
		return rnic.StatusFlushed
	case errors.As(err, &d) && d.Type == ddp.UntaggedBuffer && d.Code == ddp.CodeTooLong:
		return rnic.StatusLocalLength
	}
	return rnic.StatusConnectionLost
}

// sendStatus sorts the error of a send, write, read or atomic.
func sendStatus(err error) rnic.Status {
	var (
		d *ddp.Error
		r *rdmap.Error
		m *mpa.Error
	)
	switch {
	case errors.Is(err, rdmap.ErrFlushed):
		return rnic.StatusFlushed
	case isLocal(err):
		return rnic.StatusLocalProtect
	case errors.As(err, &r) && r.Remote:
		if r.Type == rdmap.RemoteProtection {
			return rnic.StatusRemoteAccess
		}
		return rnic.StatusRemoteOp
	case errors.As(err, &d) && d.Remote:
		if d.Type == ddp.TaggedBuffer {
			return rnic.StatusRemoteAccess
		}
		return rnic.StatusRemoteOp
	case errors.As(err, &d) && d.Type == ddp.TaggedBuffer:
		return rnic.StatusLocalProtect // the sink of a Read was withdrawn under it
	case errors.As(err, &m):
		return rnic.StatusConnectionLost
	}
	return rnic.StatusConnectionLost
}

func isLocal(err error) bool {
	return errors.Is(err, ddp.ErrInvalid) || errors.Is(err, ddp.ErrFreed) || errors.Is(err, ddp.ErrBounds) || errors.Is(err, ddp.ErrAccess)
}
