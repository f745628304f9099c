package target

import (
	"errors"
	"slices"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// This file keeps what a dropped connection was doing (RFC 7143, sections 7.1.4.3, 7.2.2 and 8.2), for sessions with
// ErrorRecoveryLevel 2:
//
//	stateClosed, retained --logout for recovery, or a login with its CID--> logged out: tasks may be reassigned
//	     |                                                                      |
//	     +--Time2Wait + Time2Retain--> expired: tasks aborted <-----------------+   each TASK REASSIGN takes one away
//
// A task that was executing goes on: a write is done once, and its outcome kept. A read that lost its data is read again for the next
// connection. A response that was sent is kept until ExpStatSN passes it, since nobody knows whether it arrived.

// recovery is a connection's part in it. The session's lock guards it.
type recovery struct {
	retained    bool        // closed, and its tasks are kept
	forRecovery bool        // its logout asks for that
	loggedOut   bool        // its tasks may be reassigned, and its CID is free
	refused     bool        // it was let in no longer: nothing is kept
	timer       *time.Timer // ends it
	kept        []*outcome  // of commands whose status has not been acknowledged, oldest first
	octets      int         // of their data
}

// maxKept bounds the outcomes that a connection keeps. Initiators acknowledge with whatever they send, so that more than a few windows
// means one that does not.
const (
	maxKept       = 4096
	maxKeptOctets = 8 << 20 // of data-in that cannot be had again
)

// errLost is what a command's Transfer says when its connection is gone and the data would go nowhere.
var errLost = errors.New("target: connection lost, the command will be executed again")

// recoverable tells that the connection's tasks are kept when it is closed. c.mu is held.
func (c *conn) recoverable() bool {
	return c.sess != nil && !c.ending && !c.keepNothing && c.params.ErrorRecoveryLevel == 2 && c.params.DefaultTime2Retain > 0 &&
		(!c.logout || c.rec.forRecovery) && !c.rec.refused && !c.srv.stopping.Load()
}

// endTasks aborts the tasks of a connection that is closed, or keeps them. c.mu is held.
func (c *conn) endTasks() {
	keep := c.recoverable()
	if c.sess != nil && !c.ending && !c.logout && !errors.Is(c.cause, ErrConnectionReinstated) {
		c.tellDropped()
	}
	if !keep {
		c.clearTasks()
		c.rec.kept = nil
		return
	}
	for _, t := range c.tasks {
		switch {
		case t.conn != c:
		case t.immediate: // RFC 7143, section 7.14
			c.abort(t)
		default:
			c.park(t)
		}
	}
	c.rec.retained, c.rec.loggedOut = true, c.rec.forRecovery
	c.retain()
}

// clearTasks aborts the connection's tasks. If the session goes on without them, on another connection or on the one that takes this one's
// place, its initiator is told by a unit attention (RFC 7143, section 11.14.5). c.mu is held.
func (c *conn) clearTasks() {
	var told []*scsi.LU
	for _, t := range c.tasks {
		if t.conn != c {
			continue
		}
		if lu := c.lu(t.lun); lu != nil && !c.ending && (len(c.conns) > 1 || c.joining > 0) && !slices.Contains(told, lu) {
			told = append(told, lu)
			lu.Tell(c.sess.nexus, scsi.CodeClearedByISCSI)
		}
		c.abort(t)
	}
}

// tellDropped tells the initiator on another connection that this one is gone (RFC 7143, sections 7.1.4.3 and 11.9.1).
func (c *conn) tellDropped() {
	for _, o := range c.conns {
		if o == c || o.state != stateFull || !o.allowUnexpected(false) {
			continue
		}
		p := o.pdus.get()
		h := iscsi.AsyncMessage(p.BHS[:])
		h.Init()
		h.SetEvent(iscsi.AsyncDropConnection)
		h.SetParameter1(c.params.CID)
		h.SetParameter2(uint16(c.params.DefaultTime2Wait))
		if c.recoverable() {
			h.SetParameter3(uint16(c.params.DefaultTime2Retain))
		}
		o.countUnexpected()
		o.respond(p)
		return
	}
}

// retain starts the time that is left for recovery. c.mu is held.
func (c *conn) retain() {
	if c.rec.timer != nil {
		c.rec.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Duration(c.params.DefaultTime2Wait+c.params.DefaultTime2Retain)*time.Second, func() {
		c.mu.Lock()
		if c.rec.timer == timer {
			c.log.Info("nobody recovered the connection", "cid", c.params.CID, "commands", c.active)
			c.expire()
		}
		c.unlock()
	})
	c.rec.timer = timer
}

// expire gives up what is kept of the connection. c.mu is held.
func (c *conn) expire() {
	if !c.rec.retained {
		return
	}
	c.rec.retained, c.rec.kept = false, nil
	c.rec.timer.Stop()
	c.rec.timer = nil
	c.clearTasks()
	c.changed.Broadcast()
}

// logOutForRecovery lets the tasks of a closed connection be reassigned. c.mu is held.
func (c *conn) logOutForRecovery() {
	c.rec.loggedOut = true
	c.retain()
}

// settled ends the retention of a connection that nothing is kept of any more. c.mu is held.
func (c *conn) settled() {
	if c.rec.retained && c.rec.loggedOut && c.active == 0 && len(c.rec.kept) == 0 {
		c.expire()
	}
}

// expireAll gives up what is kept of connections that are gone.
func (s *Server) expireAll() {
	s.mu.Lock()
	all := make([]*session, 0, len(s.sessions))
	for _, ss := range s.sessions {
		all = append(all, ss)
	}
	s.mu.Unlock()
	for _, ss := range all {
		ss.each(func(c *conn) {
			c.mu.Lock()
			c.expire()
			c.unlock()
		})
	}
}

// outcome is the end of a command whose status the initiator may not have.
type outcome struct {
	itt, statSN uint32
	rsp         iscsi.PDU
	cmd         command // to read once more
	reread      bool    // data was sent, and is not kept
	data        []byte  // data-in that is kept
	in          inProgress
}

// command is what a SCSI command asks for.
type command struct {
	lun           uint64
	cmdSN         iscsi.SN
	cdb           []byte
	read, write   bool
	inLen, outLen int64
}

// outcomeOf is what to keep of a response that is about to be sent; nil: nothing. c.mu is held.
func (c *conn) outcomeOf(t *task, p *iscsi.PDU) *outcome {
	if t.immediate || c.ending {
		return nil
	}
	o := &outcome{itt: t.itt, in: t.rec.in}
	o.rsp.BHS = p.BHS
	o.rsp.Data = append([]byte(nil), p.Data...)
	switch {
	case t.rec.copying:
		o.data = t.rec.copy
	case t.sentIn > 0:
		o.reread = true
		o.cmd = command{t.lun, t.cmdSN, append([]byte(nil), t.cdb...), t.read, t.write, t.inLen, t.outLen}
	}
	t.rec.copy, t.rec.in.marks = nil, nil
	return o
}

func (c *conn) keep(o *outcome) {
	c.rec.kept = append(c.rec.kept, o)
	c.rec.octets += len(o.data)
	for len(c.rec.kept) > maxKept || c.rec.octets > maxKeptOctets {
		c.dropKept(0, 1)
	}
}

// dropKept forgets the outcomes from i to before j.
func (c *conn) dropKept(i, j int) {
	for _, o := range c.rec.kept[i:j] {
		c.rec.octets -= len(o.data)
	}
	c.rec.kept = slices.Delete(c.rec.kept, i, j)
}

// forgetKept forgets outcomes that the initiator has. c.mu is held.
func (c *conn) forgetKept() {
	n := 0
	for n < len(c.rec.kept) && iscsi.SN(c.rec.kept[n].statSN).Less(c.ackedStatSN) {
		n++
	}
	c.dropKept(0, n)
}

// DataACKNotify implements iscsi.Notifier.
func (c *conn) DataACKNotify(itt, dataSN uint32) {
	c.mu.Lock()
	defer c.unlock()
	if t := c.tasks[itt]; t != nil && t.conn == c {
		t.rec.in.acked = dataSN
		return
	}
	for _, o := range c.rec.kept {
		if o.itt == itt {
			o.in.acked = dataSN
		}
	}
}
