package target

import (
	"time"

	"goiwarp/iscsi"
)

// logoutRequest takes a Logout Request (RFC 7143, section 11.14), for the session, or for one of its connections, which need not be the one
// that carries the request. c.mu is held.
//
//	session                 every task ends, then the response; all connections are closed behind it
//	connection              its tasks end, likewise
//	connection, recovery    its tasks are kept for TASK REASSIGN (ErrorRecoveryLevel 2), once nothing of them can be sent any more
func (c *conn) logoutRequest(p *iscsi.PDU) {
	h := iscsi.LogoutRequest(p.BHS[:])
	itt, reason, cid := h.ITT(), h.Reason(), h.CID()
	p.Release()
	if reason == iscsi.LogoutSession {
		c.logoutSession(itt)
		return
	}
	if reason == iscsi.LogoutRecovery && c.params.ErrorRecoveryLevel < 2 {
		c.logoutResponse(itt, iscsi.LogoutNoRecovery)
		return
	}
	o := c.byCID(cid)
	switch {
	case o == nil:
		c.logoutResponse(itt, iscsi.LogoutNoCID)
	case reason == iscsi.LogoutRecovery:
		c.logoutRecovery(itt, o)
	default:
		c.logoutConnection(itt, o)
	}
}

// logoutSession ends the session.
func (c *conn) logoutSession(itt uint32) {
	c.letGo(nil)
	for _, o := range c.conns {
		o.logout = true
		o.expire()
	}
	for _, t := range c.tasks {
		c.abort(t)
	}
	left := func() (n int) {
		for _, o := range c.conns {
			n += o.active
		}
		return n
	}
	c.whenLeft(left, func() {
		c.ending = true
		for _, o := range c.conns {
			if o != c {
				o.terminate(nil, true)
			}
		}
		c.endLogout(itt)
	})
}

// logoutConnection ends one connection and its tasks.
func (c *conn) logoutConnection(itt uint32, o *conn) {
	c.letGo(o)
	o.logout = true
	o.expire()
	o.clearTasks()
	c.whenLeft(func() int { return o.active }, func() {
		if o != c {
			o.terminate(nil, true)
			c.logoutResponse(itt, iscsi.LogoutOK)
			return
		}
		c.endLogout(itt)
	})
}

// logoutRecovery lets the tasks of a connection be reassigned.
func (c *conn) logoutRecovery(itt uint32, o *conn) {
	o.logout, o.rec.forRecovery = true, true
	switch {
	case o == c:
		c.endLogout(itt) // its tasks are parked when nothing can be sent any more
	case o.state == stateClosed:
		o.logOutForRecovery()
		c.logoutResponse(itt, iscsi.LogoutOK)
	default:
		o.lose(ErrConnectionReinstated)
		c.srv.work.Go(func() {
			<-o.down
			c.mu.Lock()
			defer c.unlock()
			c.logoutResponse(itt, iscsi.LogoutOK)
		})
	}
}

// whenLeft does then when no tasks are left, or Config.AbortWait has passed: what a store still holds is fenced off. c.mu is held, also
// when then runs.
func (c *conn) whenLeft(left func() int, then func()) {
	if left() == 0 {
		then()
		return
	}
	c.srv.work.Go(func() {
		end := time.Now().Add(c.srv.cfg.AbortWait)
		timer := c.alarm(c.srv.cfg.AbortWait)
		defer timer.Stop()
		c.mu.Lock()
		defer c.unlock()
		for left() > 0 && c.state == stateFull && time.Now().Before(end) {
			c.changed.Wait()
		}
		then()
	})
}

// closeWait is how long an initiator has to close an RDMA connection after its logout before the target does.
const closeWait = 5 * time.Second

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
	if code != iscsi.LogoutNoCID {
		h.SetTime2Wait(uint16(c.params.DefaultTime2Wait))
		h.SetTime2Retain(uint16(c.params.DefaultTime2Retain))
	}
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
