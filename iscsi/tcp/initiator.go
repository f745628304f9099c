package tcp

import (
	"goiwarp/iscsi"
)

// defaultR2Ts is MaxOutstandingR2T where nothing was negotiated (RFC 7143, section 13.17).
const defaultR2Ts = 1

// extraR2Ts may be outstanding beyond what was agreed at ErrorRecoveryLevel > 0: an R2T that the target has given up counts until its
// answer has left.
const extraR2Ts = 8

// dataIn handles a Data-In: its data goes to the task's buffer, and a status becomes the SCSI
// Response that it stands for. Data of a task that is not known any more is thrown away.
func (d *Datamover) dataIn(f iscsi.Frame) error {
	h := iscsi.DataInPDU(d.reader.bhs[:])
	level := d.phase.Load().level
	t := &d.transfers
	t.mu.Lock()
	n := t.tasks.get(h.ITT())
	if n == nil {
		t.mu.Unlock()
		d.stats.strays.Add(1)
		err := d.segment(f, nil, 0)
		if level > 0 && (err == nil || isDataDigest(err)) {
			return d.mendStatus(h, err != nil)
		}
		if err != nil {
			return err
		}
		return d.folded(h, h.DataSN()+1)
	}
	if n.value.mend != nil {
		return d.mendData(f, n)
	}
	k := &n.value
	if err := k.check(h, f.Data, d.inOrder()); err != nil {
		t.mu.Unlock()
		return err
	}
	k.busy = true
	t.mu.Unlock()

	if err := d.segment(f, &k.sink, int(h.Offset())); err != nil {
		return err
	}

	t.mu.Lock()
	k.busy = false
	k.got += f.Data
	k.sn++
	sn := k.sn
	if k.dead && !k.queued {
		t.tasks.recycle(n)
	}
	t.mu.Unlock()
	return d.folded(h, sn)
}

// inOrder tells whether data-in arrives with rising offsets (DataPDUInOrder and
// DataSequenceInOrder).
func (d *Datamover) inOrder() bool {
	p := d.params.Load()
	return p == nil || p.DataPDUInOrder && p.DataSequenceInOrder
}

// check holds a Data-In of n octets against what the task expects.
func (k *task) check(h iscsi.DataInPDU, n int, inOrder bool) error {
	off := int64(h.Offset())
	switch {
	case h.DataSN() != k.sn:
		return violation(Sequence, iscsi.BHS(h), "DataSN %d, expected %d", h.DataSN(), k.sn)
	case off+int64(n) > int64(len(k.mem)) || n > len(k.mem)-k.got:
		return violation(Overrun, iscsi.BHS(h), "%d octets at %d of %d, %d were placed before", n, off, len(k.mem), k.got)
	case !inOrder && n > 0 && !k.cover.add(int(off), int(off)+n):
		return violation(Overrun, iscsi.BHS(h), "%d octets at %d, of which some were placed before", n, off)
	case inOrder && off != int64(k.got):
		return violation(Sequence, iscsi.BHS(h), "offset %d, expected %d", off, k.got)
	}
	return nil
}

// folded delivers the SCSI Response that a Data-In with status stands for (RFC 7143, section 11.7.3): expDataSN PDUs
// with data were sent.
func (d *Datamover) folded(h iscsi.DataInPDU, expDataSN uint32) error {
	if !h.HasStatus() {
		return nil
	}
	p := responseOf(h, expDataSN)
	if err := d.transfers.complete(iscsi.SCSIResponse(p.BHS[:])); err != nil {
		p.Release()
		return err
	}
	d.endTask(h.ITT())
	d.notify(p)
	return nil
}

// responseOf is the SCSI Response that a Data-In with status stands for.
func responseOf(h iscsi.DataInPDU, expDataSN uint32) *iscsi.PDU {
	p := newReceived(0)
	r := iscsi.SCSIResponse(p.BHS[:])
	r.Init()
	r.SetOverflow(h.Overflow())
	r.SetUnderflow(h.Underflow())
	r.SetStatus(h.Status())
	r.SetITT(h.ITT())
	r.SetStatSN(h.StatSN())
	r.SetExpCmdSN(h.ExpCmdSN())
	r.SetMaxCmdSN(h.MaxCmdSN())
	r.SetExpDataSN(expDataSN)
	r.SetResidual(h.Residual())
	return p
}

// complete holds a good status of a read against the data that came before it: a target that sent less must
// say so by the residual, or the caller would take what its buffer held before for data of the disk.
func (t *transfers) complete(r iscsi.SCSIResponse) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.tasks.get(r.ITT())
	if n == nil || r.Response() != 0 || r.Status() != 0 || len(n.value.out) > 0 {
		return nil
	}
	k := &n.value
	want := int64(len(k.mem))
	if r.Underflow() {
		want -= int64(r.Residual())
	}
	if int64(k.got) < want {
		return violation(Underrun, iscsi.BHS(r), "%d octets of %d", k.got, want)
	}
	return nil
}

// endTask forgets a task: when it returns its memory is in nobody's hands.
func (d *Datamover) endTask(itt uint32) {
	if n := d.transfers.end(itt); n != nil {
		d.withdraw(itt)
		d.transfers.free(n)
	}
}

// StopDataOut implements iscsi.DataStopper.
func (d *Datamover) StopDataOut(itt uint32) {
	t := &d.transfers
	t.mu.Lock()
	n := t.tasks.get(itt)
	stop := n != nil && len(n.value.out) > 0
	if stop {
		n.value.mute = true
	}
	t.mu.Unlock()
	if stop {
		d.withdraw(itt)
	}
}

// r2t queues the Data-Out PDUs that an R2T asks for. One of a task that is not known any more is
// ignored.
func (d *Datamover) r2t(f iscsi.Frame) error {
	if err := d.segment(f, nil, 0); err != nil {
		return err
	}
	h := iscsi.R2T(d.reader.bhs[:])
	p := d.params.Load()
	limit, inOrder := int32(defaultR2Ts), true
	if p != nil {
		limit, inOrder = int32(max(p.MaxOutstandingR2T, defaultR2Ts)), p.DataSequenceInOrder
	}
	t := &d.transfers
	t.mu.Lock() // until the burst is queued, so that whoever forgets the task finds it there
	defer t.mu.Unlock()
	n := t.tasks.get(h.ITT())
	if n == nil {
		d.stats.strays.Add(1)
		return nil
	}
	k := &n.value
	off, length := int64(h.Offset()), int64(h.DesiredLen())
	if m := k.mend; m != nil { // what was lost may be asked for once more, and numbers may be missing
		stale, hole, ok := d.mendR2T(k, h)
		switch {
		case !ok:
			return violation(Sequence, iscsi.BHS(h), "R2TSN %d is far from what was expected", h.R2TSN())
		case stale:
			d.stats.strays.Add(1)
			return nil
		}
		d.askData(h.ITT(), hole)
		k.sn = h.R2TSN()
		inOrder, limit = false, limit+extraR2Ts
	}
	switch {
	case f.Data > 0:
		return violation(Format, iscsi.BHS(h), "data segment of %d octets", f.Data)
	case h.R2TSN() != k.sn:
		return violation(Sequence, iscsi.BHS(h), "R2TSN %d, expected %d", h.R2TSN(), k.sn)
	case length == 0:
		return violation(Format, iscsi.BHS(h), "Desired Data Transfer Length 0")
	case h.TTT() == iscsi.ReservedTag:
		return violation(Format, iscsi.BHS(h), "reserved TTT")
	case off+length > int64(len(k.out)):
		return violation(Overrun, iscsi.BHS(h), "asks for %d octets at %d of %d", length, off, len(k.out))
	case inOrder && off < int64(k.asked):
		return violation(Sequence, iscsi.BHS(h), "asks for octets at %d again, expected %d or more", off, k.asked)
	case k.bursts.Load() >= limit && !k.mute: // those of a mute one are not counted down
		return violation(Overrun, iscsi.BHS(h), "more than %d R2Ts at once", limit)
	}
	k.sn++
	k.asked = int(off + length)
	if k.mute {
		return nil
	}
	k.bursts.Add(1)
	o := newOutgoing()
	o.itt, o.task = k.itt, k
	o.burst = burst{off: int(off), end: int(off + length)}
	b := iscsi.DataOutPDU(o.header())
	b.Init()
	b.SetLUN(h.LUN())
	b.SetITT(h.ITT())
	b.SetTTT(h.TTT())
	if err := d.post(o, false); err != nil {
		o.recycle() // the connection is ending
	}
	return nil
}
