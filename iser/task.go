package iser

import (
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// task is the initiator's Local Mapping of a SCSI command: what of its memory the target may reach
// (RFC 7145, section 7.3.1).
//
//	SendControl(SCSI Command) --> bound --SCSI Response, DeallocateTaskResources, end--> invalid
type task struct {
	read, write grant
	in          iscsi.Buffer // gets a copy of read.bounce
	inLen       int
	again       bool // granted anew: what came by another connection counts, too
	next        *task
}

// grant is one advertised piece of memory.
type grant struct {
	stag   rnic.STag // 0: nothing is advertised
	base   uint64
	window rnic.Window // nil where the buffer's own region was advertised
	buf    *buffer     // held while advertised; nil for memory of others
	bounce bool        // buf stands in for memory of others
}

// windowAccess are rights that a grant gives. The data is checked before the task ends and the rights end
// with the task, so that octets may be placed before their CRC was checked.
const (
	readAccess  = rnic.LocalWrite | rnic.RemoteWrite | rnic.EarlyPlacement
	writeAccess = rnic.RemoteRead
)

// advertise makes the task of a SCSI Command and writes its STags into the header; d.mu is held.
func (d *Datamover) advertise(h Header, bhs []byte, tb *iscsi.TaskBuffers) error {
	c := iscsi.SCSICommand(bhs)
	if tb == nil {
		return nil
	}
	in := tb.In != nil && tb.InLen > 0 && c.Read()
	out := tb.Out != nil && tb.OutLen > tb.Unsolicited && c.Write()
	// Where the base is the first solicited octet no more than the solicited part is granted.
	from := 0
	if d.shiftedBase() {
		from = tb.Unsolicited
	}
	return d.advertiseTask(h, c.ITT(), tb, in, out, from)
}

// reassign grants a task's memory anew on this connection and puts it into the header of the TASK REASSIGN request, under the ITT
// of the task (RFC 7145, section 7.3.3). All data-out is granted, since the target may have lost what was sent unsolicited.
func (d *Datamover) reassign(h Header, bhs []byte, tb *iscsi.TaskBuffers) error {
	if tb == nil {
		return nil
	}
	itt := iscsi.TaskMgmtRequest(bhs).RTT()
	if t, ok := d.tasks[itt]; ok {
		delete(d.tasks, itt)
		d.revoke(&t.read)
		d.revoke(&t.write)
		d.recycleTask(t)
	}
	if err := d.advertiseTask(h, itt, tb, tb.In != nil && tb.InLen > 0, tb.Out != nil && tb.OutLen > 0, 0); err != nil {
		return err
	}
	if t := d.tasks[itt]; t != nil {
		t.again = true
	}
	return nil
}

// advertiseTask grants data-in, and data-out behind its first from octets.
func (d *Datamover) advertiseTask(h Header, itt uint32, tb *iscsi.TaskBuffers, in, out bool, from int) error {
	if !in && !out {
		return nil
	}
	if _, used := d.tasks[itt]; used {
		return fmt.Errorf("%w: 0x%08x", ErrTask, itt)
	}
	t := d.freeTask
	if t == nil {
		t = new(task)
	} else {
		d.freeTask, t.next = t.next, nil
	}
	if in {
		if err := d.grant(&t.read, tb.In, 0, tb.InLen, readAccess, false); err != nil {
			d.recycleTask(t)
			return err
		}
		t.in, t.inLen = tb.In, tb.InLen
		h.SetRead(t.read.stag, t.read.base)
	}
	if out {
		if err := d.grant(&t.write, tb.Out, from, tb.OutLen-from, writeAccess, true); err != nil {
			d.revoke(&t.read)
			d.recycleTask(t)
			return err
		}
		h.SetWrite(t.write.stag, t.write.base)
	}
	d.tasks[itt] = t
	return nil
}

// shiftedBase says whether the Write Base Offset is that of the first solicited octet.
func (d *Datamover) shiftedBase() bool {
	return d.linuxBase || d.params.TaggedBufferForSolicitedDataOnly
}

// grant makes octets [off, off+n) of buf reachable for the peer; d.mu is held.
func (d *Datamover) grant(g *grant, buf iscsi.Buffer, off, n int, access rnic.Access, fill bool) error {
	mem := buf.Bytes()
	if off < 0 || n <= 0 || off > len(mem) || n > len(mem)-off {
		return fmt.Errorf("%w: octets %d to %d of a buffer of %d", ErrTooLarge, off, off+n, len(mem))
	}
	caps := d.dom.attr.Caps
	if d.zeroBased {
		access |= rnic.ZeroBased
	}
	b, ours := buf.(*buffer)
	ours = ours && b.slab.pool == &d.dom.buffers
	if !ours && !caps.Has(rnic.CapWindows|rnic.CapAnyMemory) {
		// No way to reach this memory: use some of ours.
		bounce, err := d.dom.buffers.get(n, nil)
		if err != nil {
			return err
		}
		if fill {
			copy(bounce.Bytes(), mem[off:off+n])
		}
		b, off, ours = bounce, 0, true
		g.bounce = true
	}
	if !caps.Has(rnic.CapWindows) {
		mr, err := d.dom.buffers.region(b)
		if err != nil {
			if g.bounce {
				b.Release()
			}
			*g = grant{}
			return err
		}
		g.buf = b
		if !g.bounce {
			b.retain()
		}
		g.stag, g.base = mr.STag(), mr.Addr()+uint64(off)
		d.stats.stags++
		return nil
	}
	w, err := d.window1()
	if err == nil {
		if ours {
			g.stag, err = w.Bind(b.slab.mr, b.off+off, n, access)
		} else {
			g.stag, err = w.BindBytes(mem[off:off+n], access)
		}
		if err != nil {
			d.windows = append(d.windows, w)
		}
	}
	if err != nil {
		if g.bounce {
			b.Release()
		}
		*g = grant{}
		return fmt.Errorf("iser: memory window: %w", err)
	}
	g.window, g.base = w, w.Addr()
	if ours {
		g.buf = b
		if !g.bounce {
			b.retain()
		}
	}
	d.stats.stags++
	return nil
}

// window1 takes an unbound window; d.mu is held.
func (d *Datamover) window1() (rnic.Window, error) {
	if n := len(d.windows); n > 0 {
		w := d.windows[n-1]
		d.windows = d.windows[:n-1]
		return w, nil
	}
	w, err := d.dom.pd.AllocWindow()
	if err == nil {
		d.nWindows++
	}
	return w, err
}

// revoke withdraws a grant; d.mu is held, or nobody else knows the task. The window has to be
// given back by the caller.
func (d *Datamover) revoke(g *grant) {
	if g.window != nil {
		if err := g.window.Invalidate(); err != nil {
			d.log.Error("iser: invalidating a window", "error", err)
		}
		d.windows = append(d.windows, g.window)
	}
	if g.buf != nil {
		g.buf.Release()
	}
	*g = grant{}
}

// recycleTask frees a task without grants; d.mu is held.
func (d *Datamover) recycleTask(t *task) {
	*t = task{next: d.freeTask}
	d.freeTask = t
}

// endTask ends the grants of a task whose SCSI Response came, before that is handed up (RFC 7145, section
// 7.3.2): the peer may have invalidated one of them with it, the rest is invalidated here. d.up and d.mu are held.
func (d *Datamover) endTask(t *task, bhs iscsi.BHS, invalidated rnic.STag) error {
	if t == nil {
		if invalidated != 0 {
			return &InvalidationError{ITT: bhs.ITT(), STag: invalidated}
		}
		return nil
	}
	var err error
	switch invalidated {
	case 0:
	case t.read.stag, t.write.stag:
		d.stats.remoteInvalid++
		d.stats.localInvalid--
	default:
		err = &InvalidationError{ITT: bhs.ITT(), STag: invalidated}
	}
	if t.read.window != nil {
		d.stats.localInvalid++
	}
	if t.write.window != nil {
		d.stats.localInvalid++
	}
	if err == nil {
		err = t.complete(iscsi.SCSIResponse(bhs))
	}
	if t.read.bounce && err == nil {
		// What was not sent must not show another task's octets.
		copy(t.in.Bytes()[:t.claimed(iscsi.SCSIResponse(bhs))], t.read.buf.Bytes())
	}
	d.dropTask(t)
	return err
}

// complete holds a good status of a read against the data that was placed before it, where the device counts that: a target that wrote less must say
// so by the residual, or the caller would take what its buffer held before for data of the disk.
func (t *task) complete(r iscsi.SCSIResponse) error {
	counter, ok := t.read.window.(rnic.PlacementCounter)
	if !ok || t.again || t.write.stag != 0 || r.Response() != 0 || r.Status() != 0 {
		return nil
	}
	if n, want := counter.Placed(), int64(t.claimed(r)); int64(n) < want {
		return &UnderrunError{ITT: r.ITT(), Placed: n, Want: want}
	}
	return nil
}

// claimed is how many octets of data-in have come, as r says.
func (t *task) claimed(r iscsi.SCSIResponse) int {
	if !r.Underflow() {
		return t.inLen
	}
	return int(max(int64(t.inLen)-int64(r.Residual()), 0))
}

// cutTask is dropTask for a task that gets no response: the peer may be using its memory at this
// moment, so that rights which are kept otherwise are withdrawn as well; d.mu is held.
func (d *Datamover) cutTask(t *task) {
	for _, g := range []*grant{&t.read, &t.write} {
		if g.window == nil && g.buf != nil {
			if err := d.dom.buffers.withdraw(g.buf); err != nil {
				d.log.Error("iser: withdrawing a buffer", "error", err)
			}
		}
	}
	d.dropTask(t)
}

// dropTask revokes and frees a task; d.mu is held.
func (d *Datamover) dropTask(t *task) {
	d.revoke(&t.read)
	d.revoke(&t.write)
	d.recycleTask(t)
}
