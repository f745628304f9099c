package tcp

import (
	"goiwarp/iscsi"
)

// This file is the initiator's half of recovery within a command and within a connection (ErrorRecoveryLevel > 0): what was lost is asked
// for again by SNACK, and numbered responses reach the layer above in their order, a command's only when all its data is there
// (RFC 7143, sections 7.8, 7.9 and 11.16).

// mending is what a task of an initiator misses.
type mending struct {
	numbers iscsi.Missing // DataSN and R2TSN
	buffers *iscsi.TaskBuffers
	ack     bool // a DataACK is due once everything before ackNext is there
	ackTTT  uint32
	ackLUN  uint64
	ackNext iscsi.SN
	ackEnd  int  // octets of data-in before ackNext
	refused bool // the target will not send again what is missing
}

// statuses puts numbered responses in order. The reading goroutine uses it alone.
type statuses struct {
	begun   bool
	numbers iscsi.Missing
	next    iscsi.SN                // to be delivered
	waiting map[iscsi.SN]*iscsi.PDU // arrived ahead of it, or before their data
}

// maxWaiting bounds the responses that wait for an earlier one.
const maxWaiting = 4096

func (s *statuses) close() {
	for _, p := range s.waiting {
		p.Release()
	}
	s.waiting = nil
}

// begin takes the first StatSN of full feature phase to be the one behind the final Login Response's.
func (d *Datamover) beginStatus(h iscsi.BHS) {
	d.status.begun = true
	d.status.next = h.StatSN() + 1
	d.status.numbers.Reset(d.status.next)
	d.status.waiting = make(map[iscsi.SN]*iscsi.PDU)
}

// inTurn delivers a PDU of full feature phase when its turn has come.
func (d *Datamover) inTurn(p *iscsi.PDU) error {
	h := iscsi.BHS(p.BHS[:])
	s := &d.status
	sn := h.StatSN()
	if !numbered(p) { // it tells the next number, and has none of its own
		err := d.expectStatus(p, sn)
		if err == nil {
			d.notify(p)
		} else {
			p.Release()
		}
		return err
	}
	fresh, hole, ok := s.numbers.Take(sn)
	switch {
	case !ok || len(s.waiting) >= maxWaiting:
		p.Release()
		return violation(Sequence, h, "StatSN %d, expected %d", sn, s.next)
	case !fresh:
		d.stats.strays.Add(1)
		p.Release()
		return nil
	}
	s.waiting[sn] = p
	if p.Opcode() == iscsi.OpReject {
		d.refusedSNACK(p)
	}
	d.askStatus(hole)
	if r := iscsi.SCSIResponse(h); p.Opcode() == iscsi.OpSCSIResponse {
		if err := d.expectData(r); err != nil {
			return err
		}
	}
	return d.deliverStatus()
}

// expectStatus notes that the target's next StatSN is sn.
func (d *Datamover) expectStatus(p *iscsi.PDU, sn iscsi.SN) error {
	hole, ok := d.status.numbers.Expect(sn)
	if !ok {
		return violation(Sequence, p.BHS[:], "StatSN %d, expected %d", sn, d.status.next)
	}
	d.askStatus(hole)
	return nil
}

// statusLost notes that a PDU with a status was discarded.
func (d *Datamover) statusLost(h iscsi.BHS) error {
	p := &iscsi.PDU{}
	copy(p.BHS[:], h)
	if !numbered(p) {
		return nil // a ping: the target will ask again
	}
	return d.expectStatus(p, h.StatSN()+1)
}

// deliverStatus delivers the responses whose turn it is. One whose data is not all there holds up those behind it, since what has been
// delivered is acknowledged, and data of an acknowledged command is not sent again.
func (d *Datamover) deliverStatus() error {
	s := &d.status
	for {
		p := s.waiting[s.next]
		if p == nil {
			return nil
		}
		if p.Opcode() == iscsi.OpSCSIResponse {
			r := iscsi.SCSIResponse(p.BHS[:])
			switch whole, refused := d.transfers.whole(r.ITT()); {
			case whole:
				if err := d.transfers.complete(r); err != nil {
					return err
				}
			case refused: // RFC 7143, section 7.8, case a.2
				crcError(p)
			default:
				return nil
			}
			d.endTask(r.ITT())
		}
		delete(s.waiting, s.next)
		s.next++
		d.notify(p)
	}
}

// crcError makes a response one of a command whose data did not arrive (RFC 7143, section 11.4.7.2).
func crcError(p *iscsi.PDU) {
	r := iscsi.SCSIResponse(p.BHS[:])
	r.SetResponse(iscsi.ResponseCompleted)
	r.SetStatus(statusCheckCondition)
	r.SetOverflow(false)
	r.SetUnderflow(false)
	r.SetResidual(0)
	p.Data = iscsi.AppendSense(nil, abortedCommand(0x47, 0x05))
	iscsi.BHS(r).SetDataLen(len(p.Data))
}

// whole tells that nothing is missing of a task's data-in, or that the target refuses to send it.
func (t *transfers) whole(itt uint32) (whole, refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.tasks.get(itt)
	if n == nil || n.value.mend == nil {
		return true, false
	}
	return n.value.mend.numbers.Whole(), n.value.mend.refused
}

// expectData holds a response against the data that the target says it has sent.
func (d *Datamover) expectData(r iscsi.SCSIResponse) error {
	t := &d.transfers
	t.mu.Lock()
	n := t.tasks.get(r.ITT())
	if n == nil || n.value.mend == nil || len(n.value.mem) == 0 || r.ExpDataSN() == 0 {
		t.mu.Unlock()
		return nil
	}
	hole, ok := n.value.mend.numbers.Expect(iscsi.SN(r.ExpDataSN()))
	t.mu.Unlock()
	if !ok {
		return violation(Sequence, iscsi.BHS(r), "ExpDataSN %d", r.ExpDataSN())
	}
	d.askData(r.ITT(), hole)
	return nil
}

// refusedSNACK looks for the rejection of a SNACK for data.
func (d *Datamover) refusedSNACK(p *iscsi.PDU) {
	if len(p.Data) < iscsi.BHSLen || iscsi.BHS(p.Data).Opcode() != iscsi.OpSNACK {
		return
	}
	h := iscsi.SNACKRequest(p.Data)
	if h.Type() != iscsi.SNACKDataR2T {
		return
	}
	d.transfers.mu.Lock()
	defer d.transfers.mu.Unlock()
	if n := d.transfers.tasks.get(h.ITT()); n != nil && n.value.mend != nil {
		n.value.mend.refused = true
	}
}

// mendData handles a Data-In at ErrorRecoveryLevel > 0. d.transfers is locked on entry.
func (d *Datamover) mendData(f iscsi.Frame, n *node[task]) error {
	h := iscsi.DataInPDU(d.reader.bhs[:])
	t := &d.transfers
	k := &n.value
	sn := iscsi.SN(h.DataSN())
	off := int64(h.Offset())
	if off+int64(f.Data) > int64(len(k.mem)) {
		t.mu.Unlock()
		return violation(Overrun, iscsi.BHS(h), "%d octets at %d of %d", f.Data, off, len(k.mem))
	}
	if sn.Less(k.mend.numbers.Oldest()) { // it is there, and may have been acknowledged
		t.mu.Unlock()
		d.stats.strays.Add(1)
		err := d.segment(f, nil, 0)
		if err != nil && !isDataDigest(err) {
			return err
		}
		return d.mendStatus(h, err != nil)
	}
	k.busy = true
	t.mu.Unlock()

	err := d.segment(f, &k.sink, int(off))
	spoilt := isDataDigest(err)
	if err != nil && !spoilt {
		return err
	}

	t.mu.Lock()
	k.busy = false
	if k.dead {
		if !k.queued {
			t.tasks.recycle(n)
		}
		t.mu.Unlock()
		return d.mendStatus(h, spoilt)
	}
	var hole iscsi.Run
	ok := true
	m := k.mend
	if spoilt {
		d.stats.lost.Add(1)
		if hole, ok = m.numbers.Expect(sn + 1); hole.Len == 0 {
			hole = iscsi.Run{First: sn, Len: 1} // it was sent again, and spoilt again
		}
	} else {
		var fresh bool
		if fresh, hole, ok = m.numbers.Take(sn); fresh {
			k.got += f.Data
		}
		if h.Ack() {
			m.ack, m.ackTTT, m.ackLUN, m.ackNext, m.ackEnd = true, h.TTT(), h.LUN(), sn+1, int(off)+f.Data
		}
	}
	ack := m.ack && m.ackNext.LessEqual(m.numbers.Oldest())
	if ack {
		m.ack = false
		m.buffers.AckedSN = uint32(m.ackNext)
		m.buffers.Acked = m.ackEnd
	}
	overrun := k.got > len(k.mem)
	ttt, lun, next := m.ackTTT, m.ackLUN, m.ackNext
	t.mu.Unlock()
	switch {
	case overrun:
		return violation(Overrun, iscsi.BHS(h), "more than the %d octets of the command", len(k.mem))
	case !ok:
		return violation(Sequence, iscsi.BHS(h), "DataSN %d is far from what was expected", h.DataSN())
	}
	d.askData(h.ITT(), hole)
	if ack {
		d.sendSNACK(iscsi.SNACKDataACK, iscsi.ReservedTag, ttt, lun, iscsi.Run{First: next})
	}
	return d.mendStatus(h, spoilt)
}

// mendStatus goes on with the status that a Data-In carries, or with the responses that waited for its data.
func (d *Datamover) mendStatus(h iscsi.DataInPDU, spoilt bool) error {
	if spoilt || !h.HasStatus() {
		return d.deliverStatus()
	}
	return d.inTurn(responseOf(h, h.DataSN()+1))
}

// mendR2T notes the arrival of an R2T; stale tells that it has arrived before. d.transfers is locked.
func (d *Datamover) mendR2T(k *task, h iscsi.R2T) (stale bool, hole iscsi.Run, ok bool) {
	fresh, hole, ok := k.mend.numbers.Take(iscsi.SN(h.R2TSN()))
	return !fresh, hole, ok
}

// askData asks for Data-In or R2Ts of a task again.
func (d *Datamover) askData(itt uint32, hole iscsi.Run) {
	if hole.Len > 0 {
		d.stats.lost.Add(uint64(hole.Len))
		d.sendSNACK(iscsi.SNACKDataR2T, itt, iscsi.ReservedTag, 0, hole)
	}
}

// askStatus asks for responses again.
func (d *Datamover) askStatus(hole iscsi.Run) {
	if hole.Len > 0 {
		d.stats.lost.Add(uint64(hole.Len))
		d.sendSNACK(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 0, hole)
	}
}

// sendSNACK sends a SNACK Request. It has no number, and acknowledges what the layer above has had.
func (d *Datamover) sendSNACK(kind iscsi.SNACKType, itt, ttt uint32, lun uint64, run iscsi.Run) {
	p := newReceived(0)
	h := iscsi.SNACKRequest(p.BHS[:])
	h.Init()
	h.SetType(kind)
	h.SetITT(itt)
	h.SetTTT(ttt)
	h.SetLUN(lun)
	h.SetBegRun(uint32(run.First))
	h.SetRunLength(run.Len)
	h.SetExpStatSN(d.status.next)
	d.stats.snacks.Add(1)
	q := &d.queue
	q.mu.Lock()
	if q.dead || q.closing {
		q.mu.Unlock()
		p.Release()
		return
	}
	q.count(d.pushControl(p), d.cfg.MaxQueued)
	q.mu.Unlock() // it leaves with what the upcalls of this batch send
}
