//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/rnic"
)

// process takes what the device has completed and delivers it. After an event it arms the queues again, before it
// looks into them, so that nothing is missed.
func (q *qp) process(arm bool) {
	q.poll.Lock()
	defer q.poll.Unlock()
	if q.gone {
		return
	}
	if arm {
		for _, c := range q.queues() {
			C.gw_arm(c)
		}
	}
	for more := true; more; {
		more = false
		for _, c := range q.queues() {
			n := int(C.gw_poll(c, &q.wc[0], pollBatch))
			for i := range max(n, 0) {
				q.complete(&q.wc[i])
			}
			more = more || n > 0
		}
		q.deliver()
	}
}

// complete translates one completion. Called with poll held.
func (q *qp) complete(wc *C.struct_gw_wc) {
	if wc.id&recvBit != 0 {
		q.received(wc)
		return
	}
	q.mu.Lock()
	s := &q.slots[int(wc.id)%q.sendDepth]
	s.done, s.status = true, uint32(wc.status)
	q.retire(false)
	q.mu.Unlock()
}

// retire delivers work at the head of the send queue that has completed; when all is set, the rest too, as
// flushed. A device may complete a Send while the Read before it still waits for its answer; the consumer sees the
// order of posting. Called with poll and mu held.
func (q *qp) retire(all bool) {
	for q.n > 0 {
		s := q.slots[q.head]
		if !s.done {
			if !all {
				break
			}
			s.status = C.IBV_WC_WR_FLUSH_ERR
		}
		q.head = (q.head + 1) % q.sendDepth
		q.n--
		c := rnic.Completion{ID: s.id, QP: q, Op: s.op}
		switch {
		case s.status != C.IBV_WC_SUCCESS:
			c.Status, c.Err = q.failure(s.status)
		case q.broken != nil:
			c.Status, c.Err = rnic.StatusFlushed, fmt.Errorf("%w: %w", errFlushed, q.broken)
		default:
			c.Len = s.octets
			q.count(&s)
			if !s.signaled {
				continue
			}
		}
		if c.Err != nil && q.broken == nil {
			q.broken = c.Err
		}
		q.stage(q.scq, c)
	}
	if q.n == 0 && q.leaving {
		select {
		case <-q.empty:
		default:
			close(q.empty)
		}
	}
}

// failure is the outcome of a status. One that is the first of its connection says why that failed. Called with mu held.
func (q *qp) failure(status uint32) (rnic.Status, error) {
	if status == C.IBV_WC_WR_FLUSH_ERR {
		switch {
		case q.broken != nil && !errors.Is(q.broken, errFlushed):
			return rnic.StatusFlushed, fmt.Errorf("%w: %w", errFlushed, q.broken)
		case q.cause != nil && !errors.Is(q.cause, errFlushed):
			return rnic.StatusFlushed, fmt.Errorf("%w: %w", errFlushed, q.cause)
		}
		return rnic.StatusFlushed, errFlushed
	}
	err := fmt.Errorf("verbs: %s", C.GoString(C.ibv_wc_status_str(status)))
	if q.doubt == nil {
		q.doubt = err
	}
	q.endLocked(err) // on InfiniBand and RoCE nobody else would end it
	switch status {
	case C.IBV_WC_LOC_LEN_ERR:
		return rnic.StatusLocalLength, err
	case C.IBV_WC_LOC_PROT_ERR, C.IBV_WC_LOC_ACCESS_ERR, C.IBV_WC_LOC_QP_OP_ERR, C.IBV_WC_MW_BIND_ERR:
		return rnic.StatusLocalProtect, err
	case C.IBV_WC_REM_ACCESS_ERR:
		return rnic.StatusRemoteAccess, err
	case C.IBV_WC_REM_OP_ERR, C.IBV_WC_REM_INV_REQ_ERR, C.IBV_WC_RNR_RETRY_EXC_ERR:
		return rnic.StatusRemoteOp, err
	}
	return rnic.StatusConnectionLost, err
}

// count counts a success.
func (q *qp) count(s *slot) {
	switch s.op {
	case rnic.OpSendInvalidate:
		q.counts.invalidates.Add(1)
		q.counts.sends.Add(1)
	case rnic.OpSend:
		q.counts.sends.Add(1)
	case rnic.OpWrite:
		q.counts.writes.Add(1)
	case rnic.OpRead:
		q.counts.reads.Add(1)
		q.counts.octetsIn.Add(uint64(s.octets))
		return
	}
	q.counts.octetsOut.Add(uint64(s.octets))
}

// received translates the completion of a receive. Called with poll held.
func (q *qp) received(wc *C.struct_gw_wc) {
	c := rnic.Completion{QP: q, Op: rnic.OpRecv}
	if q.srq != nil {
		c.ID = q.srq.take(uint32(wc.id &^ recvBit))
	} else {
		q.mu.Lock()
		c.ID = q.recvs[q.rhead]
		q.rhead = (q.rhead + 1) % q.recvDepth
		q.rn--
		q.mu.Unlock()
	}
	if wc.status == C.IBV_WC_SUCCESS {
		c.Len = int(wc.len)
		c.InvalidatedSTag = rnic.STag(wc.invalidated)
		q.counts.received.Add(1)
		q.counts.octetsIn.Add(uint64(wc.len))
		q.heard()
	} else {
		q.mu.Lock()
		c.Status, c.Err = q.failure(uint32(wc.status))
		q.mu.Unlock()
	}
	q.stage(q.rcq, c)
}

// heard notes that a message of the peer has arrived. On iWARP that is what the passive side waits for
// before it may send (RFC 5044, section 7.1.2, rule 4).
func (q *qp) heard() {
	q.mu.Lock()
	gated := q.gated
	q.mu.Unlock()
	if gated && q.open() {
		q.tell(rnic.Event{Kind: rnic.Established})
	}
}

// stage keeps a completion for the end of the batch. Called with poll held.
func (q *qp) stage(c *cq, wc rnic.Completion) {
	i := 0
	if c != q.scq {
		i = 1
	}
	q.staged[i] = append(q.staged[i], wc)
}

// deliver hands over what is staged. Called with poll held.
func (q *qp) deliver() {
	for i, c := range [...]*cq{q.scq, q.rcq} {
		batch := q.staged[i]
		if len(batch) == 0 {
			continue
		}
		err := c.deliver(batch)
		clear(batch)
		q.staged[i] = batch[:0]
		if err != nil {
			q.suspect(err)
			q.end(err)
		}
	}
}

// suspect notes what the device says about the connection. On iWARP the device ends it, too, and tells the peer why; on
// InfiniBand and RoCE the connection manager knows nothing of it.
func (q *qp) suspect(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.doubt == nil {
		q.doubt = err
	}
	if !q.dev.iwarp {
		q.endLocked(err)
	}
}

// end ends the connection, because of err; nil if in order.
func (q *qp) end(err error) {
	q.mu.Lock()
	q.endLocked(err)
	q.mu.Unlock()
}

// endLocked is end with mu held.
func (q *qp) endLocked(err error) {
	if q.state >= ending {
		return
	}
	q.state = ending
	if q.cause = err; err == nil {
		q.cause = rnic.ErrClosed
	}
	go q.finish(err)
}

// finish takes everything back from the device, flushes what it did not give, and tells the end.
func (q *qp) finish(err error) {
	whole := q.ep.own(q.dev.cfg.Removal) // no call for the connection is under way any more
	q.mu.Lock()
	connected := q.connected
	q.mu.Unlock()
	if whole {
		if connected {
			C.rdma_disconnect(q.ep.id)
		}
		C.gw_fail_qp(q.c)
		q.drain()
	}

	q.poll.Lock()
	if whole {
		q.destroy()
	} else {
		q.gone = true // a call into the kernel hangs: its objects stay until the process ends
		dropHandle(q.handle)
		q.dev.log.Warn("the kernel did not answer; objects of a connection are left to it")
	}
	q.mu.Lock()
	unfinished := q.n > 0 || q.broken != nil
	q.wrs, q.sges = nil, nil
	q.retire(true)
	for ; q.rn > 0; q.rn-- {
		status, e := q.failure(C.IBV_WC_WR_FLUSH_ERR)
		q.stage(q.rcq, rnic.Completion{ID: q.recvs[q.rhead], QP: q, Op: rnic.OpRecv, Status: status, Err: e})
		q.rhead = (q.rhead + 1) % q.recvDepth
	}
	q.state = dead
	started, leaving := q.started, q.leaving
	switch {
	case q.doubt != nil && (err == nil || errors.Is(err, errPeer)):
		err = q.doubt
	case errors.Is(err, errPeer) && unfinished && !leaving:
		err = fmt.Errorf("%w with work outstanding", errPeer)
	case errors.Is(err, errPeer):
		err = nil
	}
	q.mu.Unlock()
	q.deliver()
	q.poll.Unlock()

	if whole {
		q.ep.destroy()
	}
	switch {
	case !started: // told by the error of Connect or Accept
	case err == nil:
		q.tell(rnic.Event{Kind: rnic.Disconnected})
	default:
		q.tell(rnic.Event{Kind: rnic.Failed, Err: err})
	}
	close(q.done)
}

// drain waits until the device has given everything back, or gives nothing back any more.
func (q *qp) drain() {
	deadline := time.Now().Add(q.dev.cfg.Removal)
	last, since := -1, time.Now()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		q.process(false)
		q.mu.Lock()
		left := q.n - len(q.wrs) + q.rn
		q.mu.Unlock()
		now := time.Now()
		if left != last {
			last, since = left, now
		}
		if left <= 0 || now.Sub(since) > quiet || now.After(deadline) {
			return
		}
		time.Sleep(pause)
	}
}
