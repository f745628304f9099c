package target

import (
	"slices"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// preemptor is a node's part in PREEMPT AND ABORT: scsi.TaskAborter.
type preemptor struct {
	srv  *Server
	node *node
}

// AbortNexuses implements scsi.TaskAborter. x is the task of the PREEMPT AND ABORT, which runs on a worker.
func (p preemptor) AbortNexuses(l *scsi.LU, of []*scsi.Nexus, x scsi.Transfer) {
	self, ok := x.(*task)
	if !ok {
		return
	}
	u, wait := self.unit, p.srv.cfg.AbortWait
	u.leaveWorker()
	defer u.rejoinWorker()
	for _, c := range p.srv.connections(p.node) {
		if !slices.Contains(of, c.sess.nexus) {
			continue
		}
		affected := func(t *task) bool { return t.unit == u && t != self }
		if c.sess == self.conn.sess { // its own, under a key that it gave up itself
			c.abortAll(affected, self.conn)
			continue
		}
		if found, told := c.abortForOther(affected, wait); found && !told {
			l.Tell(c.sess.nexus, scsi.CodeCommandsCleared)
		}
	}
	self.conn.settle([]*unit{u}, wait)
}

// abortForOther aborts tasks of this session on account of another one, and tells whether there were any, and whether
// their initiator has a TASK ABORTED status for each of them, which the TAS bit of their logical units' control mode pages
// asks for (SPC-4, section 7.5.8).
func (c *conn) abortForOther(affected func(*task) bool, wait time.Duration) (found, told bool) {
	withStatus := func(t *task) bool { return affected(t) && c.tellsAborted(t) }
	c.mu.Lock()
	answers := false
	for _, t := range c.tasks {
		if withStatus(t) {
			t.closing, answers = true, true
		}
	}
	c.unlock()
	if answers { // the status of a task comes after the data that it has asked for
		c.awaitR2Ts(withStatus, wait)
	}
	told = true
	c.mu.Lock()
	defer c.unlock()
	var ended terminations
	for _, t := range c.tasks {
		if !affected(t) {
			continue
		}
		found = true
		if c.tellsAborted(t) && t.out.asked == 0 && c.state == stateFull {
			c.tellAborted(t)
		} else {
			told = false
		}
		ended.note(t, nil)
		c.abort(t)
	}
	ended.tell()
	c.fenceNext = c.fenceNext || found && c.fencing
	return found, found && told
}

// tellsAborted tells whether a task that another session aborts ends with a status. c.mu is held.
func (c *conn) tellsAborted(t *task) bool {
	lu := c.lu(t.lun)
	return lu != nil && lu.TaskAbortedStatus()
}

// tellAborted answers a task with TASK ABORTED; abort follows. c.mu is held.
func (c *conn) tellAborted(t *task) {
	p := c.pdus.get()
	h := iscsi.SCSIResponse(p.BHS[:])
	h.Init()
	h.SetITT(t.itt)
	h.SetExpDataSN(t.dataInSN)
	r := scsi.Result{Status: scsi.StatusTaskAborted}
	h.SetStatus(uint8(r.Status))
	t.setResiduals(h, &r)
	c.counters.Commands++
	c.counters.Failed++
	c.uncount(t)
	t.told = true
	c.handOver(handed{conn: c, pdu: p, takes: t.place()})
}
