package target

import (
	"time"

	"goiwarp/iscsi"
)

// pingState is the NOP-In that waits for its answer.
type pingState struct {
	ttt  uint32
	sn   iscsi.SN // the next response's when it was sent
	open bool
}

// nopOut takes a NOP-Out (RFC 7143, section 11.18): a ping, an answer to ours, or only an acknowledgement. c.mu is held.
func (c *conn) nopOut(p *iscsi.PDU) {
	h := iscsi.NOPOut(p.BHS[:])
	switch {
	case h.ITT() != iscsi.ReservedTag:
		r := c.pdus.get()
		n := iscsi.NOPIn(r.BHS[:])
		n.Init()
		n.SetITT(h.ITT())
		n.SetLUN(h.LUN())
		r.Data = append(r.Room[:0], p.Data[:min(len(p.Data), c.maxData)]...)
		c.respond(r)
	case h.TTT() == iscsi.ReservedTag: // its ExpStatSN was all it had to say
	case c.ping.open && h.TTT() == c.ping.ttt:
		c.ping.open = false
		c.retirePing()
		c.acknowledged()
	default:
		c.reject(p, iscsi.RejectInvalidField, "answers no NOP-In")
		return
	}
	p.Release()
}

// sendPing asks for a sign of life: a NOP-In with a fresh Target Transfer Tag, since only such a one is
// answered. It uses up no StatSN (RFC 7143, section 11.19). c.mu is held.
func (c *conn) sendPing() {
	if c.state != stateFull || c.discovery || !c.allowUnexpected(true) {
		return
	}
	c.ping = pingState{ttt: c.freshTTT(), sn: c.statSN, open: true}
	p := c.pdus.get()
	h := iscsi.NOPIn(p.BHS[:])
	h.Init()
	h.SetITT(iscsi.ReservedTag)
	h.SetTTT(c.ping.ttt)
	c.countUnexpected()
	c.stamp(p)
	c.transmit(p)
}

// watch is Serve's wait in full feature phase: it pings a peer that is silent and drops one that stays so.
func (c *conn) watch() {
	interval := c.set.PingInterval
	if interval < 0 {
		interval = 0
	}
	var tick <-chan time.Time
	timer := time.NewTimer(max(interval, time.Hour))
	defer timer.Stop()
	if interval > 0 {
		timer.Reset(interval)
		tick = timer.C
	}
	var seen uint64
	asked := false
	for {
		select {
		case <-c.dm.Done():
			return
		case f := <-c.events:
			f()
		case <-tick:
			c.mu.Lock()
			quiet := c.received == seen
			seen = c.received
			next := interval
			switch {
			case !quiet || c.state != stateFull:
				asked = false
			case asked:
				c.log.Warn("peer does not answer", "after", c.set.PingTimeout)
				c.lose(ErrDeadPeer)
			default:
				c.sendPing()
				asked = c.ping.open || c.discovery
				next = c.set.PingTimeout
			}
			c.unlock()
			timer.Reset(next)
		}
	}
}
