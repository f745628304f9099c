package target

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// function is a task management function under way (RFC 7143, sections 4.2.3 and 11.5; RFC 7144, section 6).
//
//	request --> affected tasks send nothing new
//	        --> their R2Ts are answered, AbortWait at most (RFC 7143, section 4.2.3.3, step a); not with FastAbort
//	        --> aborted: from here on no response of theirs
//	        --> unit attentions
//	        --> what they still write has ended, AbortWait at most
//	        --> response
//
// A store that stalls delays the response by AbortWait and no more. What it still holds then is fenced off: commands that
// touch the medium wait until it has let go, so that an old write lands before everything new.
type function struct {
	from  *conn
	fn    iscsi.TaskFunction
	itt   uint32
	lun   uint64
	unit  *unit              // nil: all
	seen  map[*unit]struct{} // with unit nil: those that the initiator sees; nil: all
	seq   uint32
	cmdSN iscsi.SN
}

// affects tells whether a task of the issuing session is older than the function and in its scope.
func (f *function) affects(t *task) bool {
	return f.covers(t.unit) && int32(t.seq-f.seq) <= 0
}

// covers tells that a task set is in the function's scope.
func (f *function) covers(u *unit) bool {
	if f.unit != nil || f.seen == nil {
		return f.unit == nil || u == f.unit
	}
	_, ok := f.seen[u]
	return ok
}

// visibleUnits are the task sets that the initiator of a masked session sees: what is masked is out of reach of its target
// resets; nil if it sees all.
func (c *conn) visibleUnits() map[*unit]struct{} {
	nexus := c.sess.nexus
	if !nexus.Masked() {
		return nil
	}
	seen := map[*unit]struct{}{c.node.absent: {}}
	for _, lun := range nexus.LUNs() {
		seen[c.unit(scsi.EncodeLUN(lun))] = struct{}{}
	}
	return seen
}

// manageTasks takes a Task Management Function Request. c.mu is held.
func (c *conn) manageTasks(p *iscsi.PDU) {
	h := iscsi.TaskMgmtRequest(p.BHS[:])
	f := &function{from: c, fn: h.Function(), itt: h.ITT(), lun: h.LUN(), seq: c.taskSeq, cmdSN: h.CmdSN()}
	rtt, ref, expDataSN := h.RTT(), h.RefCmdSN(), h.ExpDataSN()
	_, managed := c.manage[f.itt]
	switch {
	case managed, c.tasks[f.itt] != nil:
		c.reject(p, iscsi.RejectTaskInProgress, "ITT in use")
		return
	case len(c.manage)+c.functions() >= c.srv.cfg.Limits.Immediate:
		c.reject(p, iscsi.RejectTooManyImm, "too many task management functions")
		return
	}
	p.Release()
	c.counters.Management++
	level := slog.LevelInfo
	if c.counters.Management > loudRejects {
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "task management", "function", f.fn, "lun", f.lun>>48, "rtt", rtt)

	switch f.fn {
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.QueryTaskSet, iscsi.QueryAsyncEvent:
		if c.lu(f.lun) == nil {
			c.managed(f, iscsi.TaskNoLUN)
			return
		}
		f.unit = c.unit(f.lun)
	case iscsi.QueryTask:
		f.unit = c.unit(f.lun)
	}
	if f.fn >= iscsi.QueryTask && c.params.ISCSIProtocolLevel < 2 { // RFC 7144, section 6.3
		c.managed(f, iscsi.TaskNotSupported)
		return
	}
	switch f.fn {
	case iscsi.AbortTask:
		c.abortTask(f, rtt, ref)
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset, iscsi.TargetColdReset, iscsi.ITNexusReset:
		c.manage[f.itt] = struct{}{}
		if f.unit == nil {
			f.seen = c.visibleUnits()
		}
		for _, t := range c.tasks {
			t.closing = t.closing || f.affects(t)
		}
		c.dropHeld(f)
		c.sweep(f)
		c.srv.work.Go(func() { c.abortTasks(f) })
	case iscsi.TaskReassign:
		c.reassign(f, rtt, expDataSN)
	case iscsi.QueryTask:
		t := c.tasks[rtt]
		_, self := c.manage[rtt]
		switch {
		case self:
			c.managed(f, iscsi.TaskFunctionRejected)
		case t != nil && t.unit == f.unit:
			c.managed(f, iscsi.TaskSucceeded)
		default:
			c.managed(f, iscsi.TaskComplete)
		}
	case iscsi.QueryTaskSet:
		code := iscsi.TaskComplete
		for _, t := range c.tasks {
			if f.affects(t) {
				code = iscsi.TaskSucceeded
			}
		}
		c.managed(f, code)
	case iscsi.QueryAsyncEvent:
		c.queryAsyncEvent(f)
	default: // CLEAR ACA among them, since there is no ACA without NACA
		c.managed(f, iscsi.TaskNotSupported)
	}
}

// Numbers of unit attentions as QUERY ASYNCHRONOUS EVENT tells them (SAM-5, section 7.9).
const (
	depthOne  = 1 << 4
	depthMore = 2 << 4
)

// queryAsyncEvent tells whether a unit attention waits for the initiator, and which one comes first, without
// taking it (RFC 7144, sections 6.2 and 6.4.2). c.mu is held.
func (c *conn) queryAsyncEvent(f *function) {
	lu := c.lu(f.lun)
	if lu == nil { // removed since it was looked up
		c.managed(f, iscsi.TaskNoLUN)
		return
	}
	code, n := lu.PendingAttention(c.sess.nexus)
	if n == 0 {
		c.managed(f, iscsi.TaskComplete)
		return
	}
	depth := byte(depthOne)
	if n > 1 {
		depth = depthMore
	}
	c.managed(f, iscsi.TaskSucceeded, depth|byte(scsi.KeyUnitAttention), code.ASC(), code.ASCQ())
}

// unit is the task set behind a LUN of the initiator's.
func (c *conn) unit(lun uint64) *unit { return c.node.unit(c.sess.nexus.Resolve(lun)) }

// lu is the logical unit behind a LUN of the initiator's; nil if there is none.
func (c *conn) lu(lun uint64) *scsi.LU {
	number, ok := scsi.DecodeLUN(c.sess.nexus.Resolve(lun))
	if !ok {
		return nil
	}
	return c.node.Device.LU(number)
}

// managed sends a function's response, with additional information if there is some. c.mu is held.
func (c *conn) managed(f *function, code iscsi.TaskResponse, info ...byte) {
	p := c.pdus.get()
	h := iscsi.TaskMgmtResponse(p.BHS[:])
	h.Init()
	h.SetITT(f.itt)
	h.SetResponse(code)
	copy(h.AdditionalInfo(), info)
	if f.fn == iscsi.TaskReassign { // the task goes on behind it: nothing that SCSI hears of
		c.respond(p)
		return
	}
	c.handOver(handed{conn: c, pdu: p, takes: functionPlace, own: f.multiple()})
}

// multiple tells the functions that abort any number of tasks, whose responses have a fence (RFC 7143, section 4.2.2.3.4).
func (f *function) multiple() bool {
	switch f.fn {
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset, iscsi.TargetColdReset:
		return true
	}
	return false
}

// sweep has commands dropped when they come that are older than the function: other connections may be slower than the one that brought it
// (RFC 7143, section 4.2.3.3, step b). What comes behind it on its own connection was sent behind it, to fill a hole. c.mu is held.
func (c *conn) sweep(f *function) {
	if len(c.conns) == 1 || !c.expCmdSN.Less(f.cmdSN) {
		return
	}
	c.swept = slices.DeleteFunc(c.swept, func(o *function) bool { return o.unit == f.unit && o.cmdSN.LessEqual(f.cmdSN) })
	c.swept = append(c.swept, f)
}

// sweeps tells whether a command is one of those. c.mu is held.
func (c *conn) sweeps(p *iscsi.PDU) bool {
	h := iscsi.SCSICommand(p.BHS[:])
	c.swept = slices.DeleteFunc(c.swept, func(f *function) bool { return !c.expCmdSN.LessEqual(f.cmdSN) })
	if h.Immediate() {
		return false
	}
	for _, f := range c.swept {
		if f.from != c && h.CmdSN().Less(f.cmdSN) && f.covers(c.unit(h.LUN())) {
			return true
		}
	}
	return false
}

// abortTask is ABORT TASK (RFC 7143, section 11.6.1, cases a to c). c.mu is held.
func (c *conn) abortTask(f *function, rtt uint32, ref iscsi.SN) {
	t := c.tasks[rtt]
	if t == nil || t.lun != f.lun {
		c.managed(f, c.abortAbsent(f, rtt, ref))
		c.nextHeld()
		return
	}
	f.unit = t.unit
	c.abort(t)
	if f.unit.settled() == nil {
		c.managed(f, iscsi.TaskComplete)
		return
	}
	c.manage[f.itt] = struct{}{}
	c.srv.work.Go(func() {
		c.settle([]*unit{f.unit}, c.srv.cfg.AbortWait)
		c.mu.Lock()
		defer c.unlock()
		delete(c.manage, f.itt)
		c.managed(f, iscsi.TaskComplete)
	})
}

// abortAbsent is ABORT TASK of a task that is not in the task set: perhaps it has not had its turn, or has not come yet.
func (c *conn) abortAbsent(f *function, rtt uint32, ref iscsi.SN) iscsi.TaskResponse {
	if _, ok := c.manage[rtt]; ok {
		return iscsi.TaskFunctionRejected
	}
	for sn, h := range c.held {
		if h.pdu != nil && iscsi.BHS(h.pdu.BHS[:]).ITT() == rtt {
			c.plug(sn)
			return iscsi.TaskComplete
		}
	}
	if ref.In(c.expCmdSN, c.maxCmdSN) && ref.Less(f.cmdSN) {
		if _, ok := c.held[ref]; !ok {
			c.plug(ref)
			return iscsi.TaskComplete
		}
	}
	return iscsi.TaskNoTask
}

// dropHeld gives up commands that an immediate function overtook: they are in its scope, and count as received. c.mu is held.
func (c *conn) dropHeld(f *function) {
	for sn, h := range c.held {
		if h.pdu == nil || h.pdu.Opcode() != iscsi.OpSCSICommand || !sn.Less(f.cmdSN) {
			continue
		}
		if f.covers(c.unit(iscsi.BHS(h.pdu.BHS[:]).LUN())) {
			c.plug(sn)
		}
	}
}

// abortTasks does what a function that concerns many tasks needs time for.
func (c *conn) abortTasks(f *function) {
	wait := c.srv.cfg.AbortWait
	if !c.fast {
		c.awaitR2Ts(f.affects, wait)
	}

	var lost []*scsi.Nexus
	switch f.fn {
	case iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset, iscsi.TargetColdReset:
		inScope := func(t *task) bool { return f.covers(t.unit) }
		for _, o := range c.srv.connections(c.node) {
			if o.sess == c.sess {
				continue
			}
			if found, told := o.abortForOther(inScope, wait); found && !told {
				lost = append(lost, o.sess.nexus)
			}
		}
	}
	c.abortAll(f.affects, c)
	c.attention(f, lost)

	units := []*unit{f.unit}
	switch {
	case f.seen != nil && f.unit == nil:
		units = slices.Collect(maps.Keys(f.seen))
	case f.unit == nil:
		units = c.node.all()
	}
	c.settle(units, wait)

	c.mu.Lock()
	delete(c.manage, f.itt)
	if f.fn == iscsi.ITNexusReset {
		c.letGo(nil)
		c.fenceNext = false
	}
	c.managed(f, iscsi.TaskComplete)
	if f.fn == iscsi.ITNexusReset { // RFC 7144, section 6.3: all its connections are dropped
		c.ending = true
		for _, o := range c.conns {
			o.expire()
			o.terminate(nil, true)
		}
	}
	c.unlock()
	if f.fn == iscsi.TargetColdReset { // as a power cycle: every session ends; those of others not where this one sees a part
		for _, o := range c.srv.connections(c.node) {
			if f.seen != nil && o != c {
				continue
			}
			o.mu.Lock()
			o.dropSession(nil)
			o.unlock()
		}
	}
}

// awaitR2Ts waits until the affected tasks of this session have all data-out that they have asked for: the initiator goes
// on to answer R2Ts after its request.
func (c *conn) awaitR2Ts(affected func(*task) bool, wait time.Duration) {
	end := time.Now().Add(wait) // before the alarm goes off, or nobody would wake us after it
	timer := c.alarm(wait)
	defer timer.Stop()
	c.mu.Lock()
	defer c.unlock()
	for ; c.state == stateFull && time.Now().Before(end); c.changed.Wait() {
		asked := false
		for _, t := range c.tasks {
			asked = asked || affected(t) && t.out.asked > 0
		}
		if !asked {
			return
		}
	}
}

// abortAll aborts the tasks that affected picks. issuing is the connection that has asked for it, which knows.
func (c *conn) abortAll(affected func(*task) bool, issuing *conn) {
	c.mu.Lock()
	defer c.unlock()
	var ended terminations
	for _, t := range c.tasks {
		if affected(t) {
			ended.note(t, issuing)
			c.abort(t)
		}
	}
	ended.tell()
}

// attention does a function's work on the SCSI side and tells the other initiators. lost are the nexuses whose commands
// have ended without a status.
func (c *conn) attention(f *function, lost []*scsi.Nexus) {
	nexus, dev := c.sess.nexus, c.node.Device
	reset := func() {}
	switch f.fn {
	case iscsi.ClearTaskSet:
		if lu := c.lu(f.lun); lu != nil {
			for _, n := range lost {
				lu.Tell(n, scsi.CodeCommandsCleared)
			}
		}
	case iscsi.LogicalUnitReset:
		if lu := c.lu(f.lun); lu != nil {
			reset = func() { lu.Reset(nexus) }
		}
	case iscsi.TargetWarmReset:
		reset = func() { dev.Reset(nexus, scsi.CodeBusReset) }
	case iscsi.TargetColdReset:
		reset = func() { dev.Reset(nexus, scsi.CodePowerOn) }
	}
	// A reset may have to flush a cache, which a store that stalls does not answer.
	done := make(chan struct{})
	c.srv.work.Go(func() {
		reset()
		close(done)
	})
	timer := time.NewTimer(c.srv.cfg.AbortWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// settle waits until aborted tasks write no more in any of the units, for a bounded time.
func (c *conn) settle(units []*unit, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for _, u := range units {
		quiet := u.settled()
		if quiet == nil {
			continue
		}
		select {
		case <-quiet:
		case <-c.dm.Done():
			return
		case <-timer.C:
			c.log.Warn("aborted commands are still in their store; commands to it are held until they end")
			return
		}
	}
}
