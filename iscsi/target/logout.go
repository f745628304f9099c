package target

import (
	"time"

	"goiwarp/iscsi"
)

// logoutRequest takes a Logout Request (RFC 7143, section 11.14). Closing the session or its one
// connection is the same here: every task ends first, and the target closes the connection behind its response. c.mu is held.
func (c *conn) logoutRequest(p *iscsi.PDU) {
	h := iscsi.LogoutRequest(p.BHS[:])
	itt, reason, cid := h.ITT(), h.Reason(), h.CID()
	p.Release()
	switch {
	case reason == iscsi.LogoutRecovery:
		c.logoutResponse(itt, iscsi.LogoutNoRecovery)
		return
	case reason == iscsi.LogoutConnection && cid != c.params.CID:
		c.logoutResponse(itt, iscsi.LogoutNoCID)
		return
	}
	c.logout = true
	for _, t := range c.tasks {
		c.abort(t)
	}
	if c.active == 0 {
		c.endLogout(itt)
		return
	}
	c.srv.work.Go(func() {
		end := time.Now().Add(c.srv.cfg.AbortWait)
		timer := c.alarm(c.srv.cfg.AbortWait)
		defer timer.Stop()
		c.mu.Lock()
		defer c.unlock()
		for c.active > 0 && c.state == stateFull && time.Now().Before(end) {
			c.changed.Wait()
		}
		c.endLogout(itt)
	})
}

// closeWait is how long an initiator has to close an RDMA connection after its logout before the target does.
const closeWait = time.Second

// endLogout answers a logout and closes the connection. RFC 7143 (section 11.14) has the target half-close TCP behind its
// response. An RDMA connection has no half: when the target ends it, the initiator cannot tell this from a failure unless
// it has handled the response before, and Linux's then reports a connection error. So an initiator over RDMA may close
// first; the target is still the one who sees to it (RFC 7145, section 5.2.2). c.mu is held.
func (c *conn) endLogout(itt uint32) {
	c.logoutResponse(itt, iscsi.LogoutOK)
	if c.state >= stateEnding || !c.dm.Info().RDMA {
		c.terminate(nil, true)
		return
	}
	c.state = stateEnding
	c.closeTimer = time.AfterFunc(closeWait, func() { c.dm.ConnectionTerminate(true) })
}

func (c *conn) logoutResponse(itt uint32, code iscsi.LogoutCode) {
	p := c.pdus.get()
	h := iscsi.LogoutResponse(p.BHS[:])
	h.Init()
	h.SetITT(itt)
	h.SetResponse(code)
	h.SetTime2Wait(uint16(c.params.DefaultTime2Wait))
	h.SetTime2Retain(uint16(c.params.DefaultTime2Retain))
	c.respond(p)
}

// alarm wakes those who wait for c.changed after d.
func (c *conn) alarm(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() {
		c.mu.Lock()
		c.changed.Broadcast()
		c.mu.Unlock()
	})
}
