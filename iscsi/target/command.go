package target

import (
	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// command takes a SCSI Command PDU (RFC 7143, section 11.3) whose turn it is. c.mu is held.
func (c *conn) command(p *iscsi.PDU) {
	h := iscsi.SCSICommand(p.BHS[:])
	if _, twice := c.tasks[h.ITT()]; twice {
		c.reject(p, iscsi.RejectTaskInProgress, "ITT in use")
		return
	}
	if h.Immediate() && c.immediate >= c.srv.cfg.Limits.Immediate {
		c.reject(p, iscsi.RejectTooManyImm, "too many immediate commands")
		return
	}
	t := c.newTask()
	t.itt, t.lun, t.cmdSN, t.attr = h.ITT(), h.LUN(), h.CmdSN(), h.Attr()
	t.read, t.write, t.immediate = h.Read(), h.Write(), h.Immediate()
	t.setCDB(p)
	lun := c.sess.nexus.Resolve(t.lun)
	t.plan = c.node.Device.Plan(lun, t.cdb)
	// What an aborted reader still does harms nobody.
	t.fences = t.plan.DataOut > 0 || t.plan.Blocks && t.plan.DataIn == 0
	t.unit = c.node.unit(lun)
	c.begin(t)

	c.tasks[t.itt] = t
	c.active++
	if t.immediate {
		c.immediate++
	} else {
		c.inFlight++
	}

	if t.write {
		c.checkUnsolicited(t, p, h.Final())
		t.out.begin(t, p, h.Final())
	} else {
		p.Release()
	}
	t.in.begin(t)
	c.prepareRecovery(t)
	if c.draining && t.fail == nil { // the initiator finds the target gone and comes back
		r := scsi.Result{Status: scsi.StatusBusy}
		t.fail = &r
	}
	if t.out.open && c.params.ErrorRecoveryLevel > 0 {
		c.watchUnsolicited()
	}
	admitted := t.unit.enter(t)
	switch {
	case t.fail != nil && !t.out.open:
		c.giveUp(t)
	case admitted:
		c.proceed(t)
	}
}

// setCDB copies the CDB, which the PDU's AHS may continue, and the lengths that the initiator expects.
func (t *task) setCDB(p *iscsi.PDU) {
	h := iscsi.SCSICommand(p.BHS[:])
	copy(t.cdbRoom[:], h.CDB())
	t.cdb = t.cdbRoom[:]
	edtl := int64(h.EDTL())
	if t.write {
		t.outLen = edtl
	} else if t.read {
		t.inLen = edtl
	}
	if len(p.AHS) == 0 {
		return
	}
	a, err := iscsi.ParseAHS(p.AHS)
	if err != nil {
		return // Validate has looked
	}
	if a.CDB != nil {
		t.cdb = append(append(make([]byte, 0, iscsi.CDBLen+len(a.CDB)), h.CDB()...), a.CDB...)
	}
	if t.write && t.read && a.HasBidi {
		t.inLen = int64(a.BidiReadLen)
	}
}

// checkUnsolicited holds a write's immediate data, and its announcement of more, against what was negotiated
// (RFC 7143, sections 11.4.7.2, 13.10, 13.11 and 13.14). Data that was not agreed on is taken and dropped.
func (c *conn) checkUnsolicited(t *task, p *iscsi.PDU, final bool) {
	n := len(p.Data)
	c.counters.OctetsOut += uint64(n)
	switch {
	case n > 0 && !c.params.ImmediateData, !final && c.params.InitialR2T:
		t.failWith(scsi.CodeUnexpectedUnsolicitedData)
	case n > c.params.FirstBurstLength, int64(n) > t.outLen:
		t.failWith(scsi.CodeNotEnoughUnsolicitedData)
	}
}

// answer sends a task's SCSI Response (RFC 7143, section 11.4), behind the data-in that was kept back.
// c.mu is held; end follows.
func (c *conn) answer(t *task, r *scsi.Result) {
	own := c.fencing && t.fenced(r)
	t.flush(!c.holds(own))
	c.uncount(t)
	p := c.pdus.get()
	h := iscsi.SCSIResponse(p.BHS[:])
	h.Init()
	h.SetITT(t.itt)
	h.SetExpDataSN(t.dataInSN)
	if r.Err != nil {
		c.log.Warn("command failed in the target", "itt", t.itt, "err", r.Err)
		h.SetResponse(iscsi.ResponseTargetFailure)
		h.SetExpDataSN(0)
	} else {
		h.SetStatus(uint8(r.Status))
		t.setResiduals(h, r)
		if sense := r.Sense(); len(sense) > 0 {
			sense = sense[:min(len(sense), c.maxData-2)]
			p.Data = iscsi.AppendSense(p.Room[:0], sense)
		}
	}
	c.counters.Commands++
	if r.Err != nil || r.Status != scsi.StatusGood {
		c.counters.Failed++
	}
	if t.inline {
		c.counters.Inline++
	}
	if c.meter != nil {
		c.measure(t, r)
	}
	var kept *outcome
	if c.params.ErrorRecoveryLevel == 2 {
		kept = c.outcomeOf(t, p)
	}
	c.handOver(handed{c, p, kept, t.place(), own})
}

// place is what the task took of its session while it was in progress.
func (t *task) place() place {
	if t.immediate {
		return immediatePlace
	}
	return windowPlace
}

// setResiduals compares what the command moves with what the initiator expected (RFC 7143, section 11.4.5).
func (t *task) setResiduals(h iscsi.SCSIResponse, r *scsi.Result) {
	if t.read && t.write {
		over, under := scsi.Residual(r.In, t.inLen)
		h.SetBidiOverflow(over > 0)
		h.SetBidiUnderflow(under > 0)
		h.SetBidiResidual(residual(over + under))
		over, under = scsi.Residual(r.Out, t.outLen)
		h.SetOverflow(over > 0)
		h.SetUnderflow(under > 0)
		h.SetResidual(residual(over + under))
		return
	}
	moved, expected := r.In, t.inLen
	switch {
	case t.write:
		moved, expected = r.Out, t.outLen
	case !t.read:
		moved = r.In + r.Out
	}
	over, under := scsi.Residual(moved, expected)
	h.SetOverflow(over > 0)
	h.SetUnderflow(under > 0)
	h.SetResidual(residual(over + under))
}

// residual is n as the 32 bits of the field hold it.
func residual(n int64) uint32 { return uint32(min(n, 1<<32-1)) }
