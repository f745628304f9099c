package iser

import (
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// mapping is the target's Remote Mapping of a task: what the initiator advertised with the SCSI Command (RFC
// 7145, section 7.3.1). It goes with the SCSI Response, or with DeallocateTaskResources.
type mapping struct {
	read, write         rnic.STag
	readBase, writeBase uint64
	hasRead, hasWrite   bool
	// Octets of data-out that travel unsolicited: expected, and once the last of them has come, true.
	unsolicited, arrived int
}

// invalidate is the STag that the SCSI Response's Send names: the Read STag if there is one.
func (m *mapping) invalidate() rnic.STag {
	if m.hasRead {
		return m.read
	}
	return m.write
}

// accountTarget notes what a received PDU says about its task; d.mu is held.
func (d *Datamover) accountTarget(bhs iscsi.BHS, p *iscsi.PDU, h Header) error {
	if d.unexpected.limit > 0 && p.Opcode() != iscsi.OpLoginReq {
		d.unexpected.retire(bhs.ExpStatSN())
		if p.Opcode() == iscsi.OpNOPOut {
			d.unexpected.answered(iscsi.NOPOut(bhs).TTT())
		}
	}
	switch p.Opcode() {
	case iscsi.OpSCSICommand:
		c := iscsi.SCSICommand(bhs)
		if h.ReadValid() && !c.Read() || h.WriteValid() && !c.Write() {
			return d.headerError(h, "STag for data that the command does not move")
		}
		if !h.ReadValid() && !h.WriteValid() {
			delete(d.remote, c.ITT())
			return nil
		}
		// A tag that is in use is the iSCSI layer's to reject; the newest advertisement counts.
		if _, used := d.remote[c.ITT()]; !used && len(d.remote) >= 2*d.window+miscReceives {
			return &CreditError{Held: len(d.remote) + 1, Limit: 2*d.window + miscReceives}
		}
		m := mapping{
			hasRead: h.ReadValid(), read: h.ReadSTag(), readBase: h.ReadBase(),
			hasWrite: h.WriteValid(), write: h.WriteSTag(), writeBase: h.WriteBase(),
			unsolicited: len(p.Data), arrived: len(p.Data),
		}
		if !m.hasRead {
			m.read, m.readBase = 0, 0
		}
		if !m.hasWrite {
			m.write, m.writeBase = 0, 0
		}
		if c.Write() && !c.Final() {
			m.unsolicited = max(m.unsolicited, min(d.params.FirstBurstLength, int(c.EDTL())))
		}
		d.remote[c.ITT()] = m
	case iscsi.OpTaskMgmtReq:
		r := iscsi.TaskMgmtRequest(bhs)
		if r.Function() != iscsi.TaskReassign || !h.ReadValid() && !h.WriteValid() {
			return nil
		}
		// The tags take the place of what was advertised before, and cover the whole of the data (RFC 7145, section 7.3.3).
		if _, used := d.remote[r.RTT()]; !used && len(d.remote) >= 2*d.window+miscReceives {
			return &CreditError{Held: len(d.remote) + 1, Limit: 2*d.window + miscReceives}
		}
		m := mapping{hasRead: h.ReadValid(), hasWrite: h.WriteValid()}
		if m.hasRead {
			m.read, m.readBase = h.ReadSTag(), h.ReadBase()
		}
		if m.hasWrite {
			m.write, m.writeBase = h.WriteSTag(), h.WriteBase()
		}
		d.remote[r.RTT()] = m
	case iscsi.OpDataOut:
		o := iscsi.DataOutPDU(bhs)
		if m, ok := d.remote[o.ITT()]; ok {
			m.arrived += len(p.Data)
			if o.Final() {
				m.unsolicited = m.arrived
			}
			d.remote[o.ITT()] = m
		}
	}
	return nil
}

// PutData implements iscsi.Datamover: one RDMA Write to the Read STag (RFC 7145, section 7.3.5).
func (d *Datamover) PutData(in *iscsi.DataIn) error {
	d.mu.Lock()
	taken, err := d.putData(in)
	d.mu.Unlock()
	if !taken && !in.Notify {
		in.Buf.Release()
	}
	return err
}

// putData is PutData below d.mu. taken tells that the transfer holds in.Buf, to release it when it is done.
func (d *Datamover) putData(in *iscsi.DataIn) (taken bool, err error) {
	if err := d.downLocked(); err != nil {
		return false, err
	}
	m, ok := d.remote[in.ITT]
	switch {
	case !d.target:
		return false, fmt.Errorf("%w: PutData", ErrRole)
	case in.From < 0 || in.Len < 0 || in.Offset < 0 || in.From > len(in.Buf.Bytes()) || in.Len > len(in.Buf.Bytes())-in.From || in.Len > d.maxData():
		return false, fmt.Errorf("%w: octets %d to %d of a buffer of %d", ErrTooLarge, in.From, in.From+in.Len, len(in.Buf.Bytes()))
	case !ok || !m.hasRead:
		return false, fmt.Errorf("%w: PutData of task 0x%08x", ErrNoSTag, in.ITT)
	}
	o := d.newOp(opWrite)
	b, ours := in.Buf.(*buffer)
	if ours = ours && b.slab.pool == &d.dom.buffers; ours {
		if in.Notify {
			b.retain()
		}
		o.buf = b
		o.sge[0] = rnic.SGE{MR: b.slab.mr, Off: b.off + in.From, Len: in.Len}
	} else if in.Len > 0 {
		c, err := d.dom.buffers.get(in.Len, nil)
		if err != nil {
			d.putOp(o)
			return false, err
		}
		copy(c.Bytes(), in.Buf.Bytes()[in.From:])
		o.buf = c
		o.sge[0] = rnic.SGE{MR: c.slab.mr, Off: c.off, Len: in.Len}
	}
	if in.Notify {
		o.user = in.Buf
	}
	o.wr.Op = rnic.OpWrite
	if in.Len > 0 {
		o.wr.SGE = o.sge[:]
	}
	o.wr.RemoteSTag, o.wr.RemoteAddr = m.read, m.readBase+uint64(in.Offset)
	o.itt, o.tag, o.dataSN, o.notify = in.ITT, in.Tag, in.DataSN, in.Notify
	if in.Notify || in.Ack {
		o.wr.Flags |= rnic.Signaled
	}
	d.stats.writes++
	if !in.Ack {
		d.enqueue(o, in.More)
		return ours, nil
	}
	// At level 1 the local completion is proof enough; otherwise a Read behind the Write shows that
	// the initiator's RNIC has processed it (RFC 7145, section 7.3.5).
	if d.params.ErrorRecoveryLevel == 1 || d.ord == 0 {
		o.ack = true
		d.enqueue(o, in.More)
		return ours, nil
	}
	a := d.newOp(opAck)
	a.wr.Op, a.wr.Flags = rnic.OpRead, rnic.Signaled
	a.wr.RemoteSTag, a.wr.RemoteAddr = m.read, m.readBase
	a.itt, a.dataSN, a.ack = in.ITT, in.DataSN, true
	d.enqueue(o, true)
	d.enqueue(a, in.More)
	return ours, nil
}

// GetData implements iscsi.Datamover: one RDMA Read of the Write STag (RFC 7145, section 7.3.6). It
// waits in a list while the peer serves as many Reads as it agreed to.
func (d *Datamover) GetData(out *iscsi.DataOut) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.downLocked(); err != nil {
		return err
	}
	m, ok := d.remote[out.ITT]
	switch {
	case !d.target:
		return fmt.Errorf("%w: GetData", ErrRole)
	case out.To < 0 || out.Len < 0 || out.Offset < 0 || out.To > len(out.Buf.Bytes()) || out.Len > len(out.Buf.Bytes())-out.To || out.Len > d.maxData():
		return fmt.Errorf("%w: octets %d to %d of a buffer of %d", ErrTooLarge, out.To, out.To+out.Len, len(out.Buf.Bytes()))
	case !ok || !m.hasWrite:
		return fmt.Errorf("%w: GetData of task 0x%08x", ErrNoSTag, out.ITT)
	case d.ord == 0:
		d.failLocked(ErrNoReads)
		return &connectionError{ErrNoReads}
	}
	at := uint64(out.Offset)
	if d.shiftedBase() {
		if out.Offset < m.unsolicited {
			return fmt.Errorf("%w: octet %d of task 0x%08x, of which %d travel unsolicited", ErrNoSTag, out.Offset, out.ITT, m.unsolicited)
		}
		at -= uint64(m.unsolicited)
	}
	o := d.newOp(opRead)
	if err := d.sink(o, out); err != nil {
		d.putOp(o)
		return err
	}
	o.wr.Op, o.wr.Flags = rnic.OpRead, rnic.Signaled
	o.wr.RemoteSTag, o.wr.RemoteAddr = m.write, m.writeBase+at
	o.itt, o.tag, o.notify, o.user = out.ITT, out.Tag, true, out.Buf
	d.stats.reads++
	d.reads.push(o)
	d.pump()
	return nil
}

// sink gives a Read the memory to read into; d.mu is held.
func (d *Datamover) sink(o *op, out *iscsi.DataOut) error {
	if out.Len == 0 {
		return nil
	}
	b, ours := out.Buf.(*buffer)
	off := out.To
	if ours = ours && b.slab.pool == &d.dom.buffers; ours {
		b.retain()
	} else {
		var err error
		if b, err = d.dom.buffers.get(out.Len, nil); err != nil {
			return err
		}
		o.copy, o.at, off = out.Buf, out.To, 0
	}
	o.buf = b
	o.wr.SGE = o.sge[:]
	switch {
	case !d.dom.attr.Caps.Has(rnic.CapReadSinkNeedsRemoteWrite):
		o.sge[0] = rnic.SGE{MR: b.slab.mr, Off: b.off + off, Len: out.Len}
		return nil
	case d.dom.buffers.remote != 0:
		mr, err := d.dom.buffers.region(b)
		if err != nil {
			b.Release()
			return err
		}
		o.sge[0] = rnic.SGE{MR: mr, Off: off, Len: out.Len}
		return nil
	}
	w, err := d.window1()
	if err == nil {
		if _, err = w.Bind(b.slab.mr, b.off+off, out.Len, readAccess); err != nil {
			d.windows = append(d.windows, w)
		}
	}
	if err != nil {
		b.Release()
		return fmt.Errorf("iser: memory window: %w", err)
	}
	o.sink = w
	o.sge[0] = rnic.SGE{Window: w, Len: out.Len}
	return nil
}

// DeallocateTaskResources implements iscsi.Datamover.
//
// Reads of the task that the initiator is already answering cannot be called back: their STag stays
// valid until the answer is there, since an answer to a dead STag would end the connection. Their memory is kept out of
// use as long, and the next PDU that is sent waits for them, so that an initiator which learns by it that the task is over
// does not invalidate its STag under a Read. An upcall that has begun already still comes.
func (d *Datamover) DeallocateTaskResources(itt uint32) {
	d.mu.Lock()
	if !d.target {
		if t := d.tasks[itt]; t != nil {
			delete(d.tasks, itt)
			d.cutTask(t)
		}
		d.mu.Unlock()
		return
	}
	delete(d.remote, itt)
	match := func(o *op) bool { return o.kind != opControl && o.itt == itt }
	drop := d.waiting.take(match)
	reads := d.reads.take(match)
	for o := d.posted.head; o != nil; o = o.next {
		if match(o) {
			o.forgotten = true
			o.notify = false
			if o.kind == opRead {
				d.fence = true
			}
		}
	}
	d.mu.Unlock()
	for _, l := range []*opList{&drop, &reads} {
		for o := l.pop(); o != nil; o = l.pop() {
			o.forgotten = true
			d.finish(o, nil)
		}
	}
}
