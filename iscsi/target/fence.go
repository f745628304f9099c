package target

import (
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// fence is a Response Fence under way (RFC 7143, section 4.2.2.3): in a session of several connections, whose responses overtake one
// another, a response that says something about others is delivered after all that were handed over before it, and before all that are
// after it.
//
//	raised --every connection has acknowledged what was sent--> response sent --acknowledged--> cleared: what waited is sent, in order
//	   |                                                            |
//	   +-- connections that do not acknowledge are pinged, and dropped after Config.PingTimeout
//
// There is none unless TaskReporting=ResponseFence or FastAbort was agreed. The session's lock guards it.
type fence struct {
	response handed  // sent, unless it waits
	waits    bool    // for what was sent before it
	pending  []noted // what has to be acknowledged now
	queue    []handed
	timer    *time.Timer
}

// noted is a connection that has to acknowledge all before a StatSN.
type noted struct {
	conn  *conn
	sn    iscsi.SN
	pings int // left
}

// fencePings is how often a connection is asked for one acknowledgement: a ping that was on its way before is no use.
const fencePings = 3

func (n *noted) done() bool { return n.conn.state != stateFull || !n.conn.ackedStatSN.Less(n.sn) }

// ask has the initiator acknowledge by the answer to a ping.
func (n *noted) ask() {
	if !n.done() && !n.conn.ping.open && n.pings > 0 {
		if n.conn.sendPing(); n.conn.ping.open {
			n.pings--
		}
	}
}

// handed is a response that was handed over to be sent.
type handed struct {
	conn  *conn
	pdu   *iscsi.PDU
	kept  *outcome // to be kept for recovery once it is sent; may be nil
	takes place
	own   bool // it needs a fence
}

// place is what a response that waits goes on to take of what its request took, so that no more wait than there may be requests.
type place uint8

const (
	noPlace place = iota
	windowPlace
	immediatePlace
	functionPlace
)

func (r *handed) take(by int) {
	switch r.takes {
	case windowPlace:
		r.conn.inFlight += by
	case immediatePlace:
		r.conn.immediate += by
	}
}

// send sends the response.
func (r *handed) send() {
	c := r.conn
	if r.kept != nil {
		r.kept.statSN = uint32(c.statSN)
		c.keep(r.kept)
	}
	c.respond(r.pdu)
}

// fenced tells which SCSI Responses have a fence of their own (section 4.2.2.3.4): unit attentions, whatever they tell of, since an initiator
// that learns of a reset must not find an older status behind it; and the end of PREEMPT AND ABORT.
func (t *task) fenced(r *scsi.Result) bool {
	if r.Err != nil {
		return false
	}
	if r.Status == scsi.StatusCheckCondition {
		s, ok := scsi.ParseSense(r.Sense())
		return ok && s.Key == scsi.KeyUnitAttention
	}
	return t.cdb[0] == opPersistentReserveOut && t.cdb[1]&0x1f == preemptAndAbort
}

// PERSISTENT RESERVE OUT and its service action (SPC-4, section 6.16).
const (
	opPersistentReserveOut = 0x5f
	preemptAndAbort        = 0x05
)

// holds tells that a response that is handed over now will have to wait, for a fence that is there or for its own. c.mu is held.
func (c *conn) holds(own bool) bool {
	return c.fencing && (c.fence != nil || (own || c.fenceNext) && c.live() > 1)
}

// handOver sends a response, or has it wait. c.mu is held.
func (c *conn) handOver(r handed) {
	h := c.shared
	if !c.holds(r.own) {
		r.send()
		return
	}
	r.own = r.own || h.fenceNext
	h.fenceNext = false
	r.take(1)
	if f := h.fence; f != nil {
		f.queue = append(f.queue, r)
		return
	}
	h.raise(r)
	h.advanceFence()
}

// raise begins a fence for a response.
func (h *shared) raise(r handed) {
	f := &fence{response: r, waits: true}
	h.fence = f
	for _, o := range h.conns {
		if o.state == stateFull {
			f.pending = append(f.pending, noted{o, o.statSN, fencePings})
		}
	}
	f.ask()
	f.timer = time.AfterFunc(h.srv.live.Load().PingTimeout, func() { h.fenceExpired(f) })
}

// advanceFence goes on as far as what was acknowledged lets it. The session's lock is held.
func (h *shared) advanceFence() {
	for f := h.fence; f != nil; f = h.fence {
		for i := range f.pending {
			if !f.pending[i].done() {
				return
			}
		}
		if f.waits {
			f.waits = false
			f.release(f.response)
			o := f.response.conn
			f.pending = append(f.pending[:0], noted{o, o.statSN, fencePings})
			f.ask()
			continue
		}
		f.timer.Stop()
		h.fence = nil
		for i, r := range f.queue {
			if h.fence != nil {
				h.fence.queue = append(h.fence.queue, f.queue[i:]...)
				break
			}
			if r.own && h.live() > 1 {
				h.raise(r)
				continue
			}
			f.release(r)
		}
	}
}

// release sends a response that has waited.
func (f *fence) release(r handed) {
	r.take(-1)
	r.send()
}

// ask has all connections acknowledge that have not.
func (f *fence) ask() {
	for i := range f.pending {
		f.pending[i].ask()
	}
}

// acknowledged is news of the initiator's: an ExpStatSN, or the answer to a ping. c.mu is held.
func (c *conn) acknowledged() {
	if c.fence != nil {
		c.advanceFence()
	}
	if c.fence != nil {
		c.fence.ask()
	}
}

// fenceExpired drops the connections that a fence waits for in vain.
func (h *shared) fenceExpired(f *fence) {
	h.mu.Lock()
	var late []*conn
	if h.fence == f {
		for i := range f.pending {
			if n := &f.pending[i]; !n.done() {
				late = append(late, n.conn)
			}
		}
		f.timer.Reset(h.srv.live.Load().PingTimeout)
	}
	for _, c := range late {
		c.log.Warn("peer does not acknowledge responses", "cid", c.params.CID, "after", h.srv.live.Load().PingTimeout)
		c.lose(ErrDeadPeer)
	}
	h.mu.Unlock()
}

// functions is how many task management responses wait.
func (h *shared) functions() (n int) {
	f := h.fence
	if f == nil {
		return 0
	}
	if f.waits && f.response.takes == functionPlace {
		n++
	}
	for i := range f.queue {
		if f.queue[i].takes == functionPlace {
			n++
		}
	}
	return n
}

// letGo sends what waits for a connection before its orderly end, whatever has not been acknowledged: the end of the connection is a fence
// that holds better. nil lets everything go. The session's lock is held.
func (h *shared) letGo(c *conn) {
	h.unqueue(c, func(r handed) {
		r.take(-1)
		r.send()
	})
}

// closedFence is letGo for a connection that is closed: what waited is kept for another one, if what the connection did is. c.mu is held.
func (c *conn) closedFence() {
	c.unqueue(c, func(r handed) {
		r.take(-1)
		if r.kept != nil {
			c.keep(r.kept)
		}
		r.pdu.Release()
	})
	if c.fence != nil {
		c.advanceFence() // it is not waited for any more
	}
}

// unqueue takes the responses of a connection, or with nil of all, out of the fence, in order.
func (h *shared) unqueue(c *conn, do func(r handed)) {
	f := h.fence
	if f == nil {
		return
	}
	if f.waits && (c == nil || f.response.conn == c) {
		f.waits, f.pending = false, nil
		do(f.response)
	}
	keep := f.queue[:0]
	for _, r := range f.queue {
		if c == nil || r.conn == c {
			do(r)
		} else {
			keep = append(keep, r)
		}
	}
	clear(f.queue[len(keep):])
	f.queue = keep
	if len(f.queue) == 0 && f.pending == nil {
		f.timer.Stop()
		h.fence = nil
	}
}
