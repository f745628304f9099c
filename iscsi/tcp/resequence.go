package tcp

import (
	"errors"
	"time"

	"goiwarp/iscsi"
)

// This file is the target's half of recovery within a command: data-out that was lost, and what was discarded (RFC 7143, sections
// 7.1.4.1, 7.8 and 7.9).
//
//	Data-Out in order --> placed --F--> DataCompletionNotify
//	   |  data digest wrong (Reject), or DataSN passed over
//	   v
//	lost: what follows is passed over --F, or nothing for SequenceTimeout--> DataCompletionNotify(PartialDataError)
//
// The layer above then asks for the rest with another R2T, of the next R2TSN.

func isDataDigest(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == DataDigest
}

// discarded is the end of a PDU for the layer above whose data segment is spoilt.
func (d *Datamover) discarded() error {
	d.stats.lost.Add(1)
	if d.target {
		d.refuse(outcome{reason: iscsi.RejectDataDigest, why: "data digest"})
		return nil
	}
	return d.statusLost(d.reader.bhs[:])
}

// putKept sends a Data-In that is kept for the case that it is lost.
func (d *Datamover) putKept(o *outgoing) error {
	h := iscsi.DataInPDU(o.header())
	d.queue.mu.Lock()
	err := d.queue.refuses()
	d.queue.mu.Unlock()
	if err != nil {
		return err
	}
	if d.keep.data(h, o.data) {
		return d.post(o, false)
	}
	// An R-Data SNACK waits for the whole of the command: the copy is what will be sent.
	if o.notify {
		d.queue.addCompletion(o)
		d.poke()
		return nil
	}
	o.buf.Release()
	o.recycle()
	return nil
}

// spoilt is the end of a solicited Data-Out whose data digest is wrong.
func (d *Datamover) spoilt(n *node[get]) error {
	d.stats.lost.Add(1)
	d.refuse(outcome{reason: iscsi.RejectDataDigest, why: "data digest"})
	h := iscsi.DataOutPDU(d.reader.bhs[:])
	t := &d.transfers
	t.mu.Lock()
	g := &n.value
	g.busy = false
	if g.dead {
		t.gets.recycle(n)
		t.mu.Unlock()
		return nil
	}
	g.lost, g.sn, g.moved = true, g.sn+1, time.Now()
	d.partial(n, h.Final())
	return nil
}

// passed throws a solicited Data-Out away that came behind a loss, or a second time. d.transfers is locked on entry.
func (d *Datamover) passed(f iscsi.Frame, n *node[get]) error {
	h := iscsi.DataOutPDU(d.reader.bhs[:])
	t := &d.transfers
	g := &n.value
	again := iscsi.SN(h.DataSN()).Less(iscsi.SN(g.sn))
	g.busy = true
	t.mu.Unlock()
	err := d.segment(f, nil, 0)
	if isDataDigest(err) {
		d.refuse(outcome{reason: iscsi.RejectDataDigest, why: "data digest"})
		err = nil
	}
	d.stats.lost.Add(1)
	t.mu.Lock()
	g.busy = false
	if g.dead {
		t.gets.recycle(n)
		t.mu.Unlock()
		return err
	}
	if again || err != nil {
		t.mu.Unlock()
		return err
	}
	g.lost, g.sn, g.moved = true, h.DataSN()+1, time.Now()
	d.partial(n, h.Final())
	return nil
}

// partial ends a GetData that lacks data if over says that nothing more of it will come. d.transfers is locked on entry.
func (d *Datamover) partial(n *node[get], over bool) {
	t := &d.transfers
	if !over {
		t.mu.Unlock()
		return
	}
	e := t.cut(n)
	t.mu.Unlock()
	d.tellPartial(e)
}

// cutShort is a GetData that has ended with a part of its data.
type cutShort struct {
	itt uint32
	tag uint64
	got int
}

// cut takes a GetData out; Data-Out PDUs that still come of it are thrown away. t is locked.
func (t *transfers) cut(n *node[get]) cutShort {
	g := &n.value
	e := cutShort{g.itt, g.tag, g.got}
	t.gets.remove(n)
	t.dropped.add(g.itt, g.ttt)
	t.gets.recycle(n)
	return e
}

func (d *Datamover) tellPartial(e cutShort) {
	if !d.local.Load() {
		d.up.DataCompletionNotify(e.itt, e.tag, &iscsi.PartialDataError{Got: e.got})
	}
}

// watchSequence sees to it that a GetData whose Data-Out PDUs stop coming ends. d.transfers is locked.
func (d *Datamover) watchSequence(g *get) {
	t := &d.transfers
	g.moved = time.Now()
	if t.armed {
		return
	}
	t.armed = true
	if t.alarm == nil {
		t.alarm = time.AfterFunc(d.cfg.SequenceTimeout, d.sequenceAlarm)
		return
	}
	t.alarm.Reset(d.cfg.SequenceTimeout)
}

// sequenceAlarm ends the GetData that have waited too long.
func (d *Datamover) sequenceAlarm() {
	d.beginBatch()
	defer d.endBatch()
	if d.over {
		return
	}
	var ended []cutShort
	t := &d.transfers
	now := time.Now()
	t.mu.Lock()
	next := time.Duration(-1)
	for _, n := range t.gets.buckets {
		for n != nil {
			following := n.next
			g := &n.value
			left := d.cfg.SequenceTimeout - now.Sub(g.moved)
			if left <= 0 && !g.busy {
				ended = append(ended, t.cut(n))
			} else if left = max(left, time.Millisecond); next < 0 || left < next {
				next = left
			}
			n = following
		}
	}
	if t.armed = next >= 0; t.armed {
		t.alarm.Reset(next)
	}
	t.mu.Unlock()
	d.stats.lost.Add(uint64(len(ended)))
	for _, e := range ended {
		d.tellPartial(e)
	}
}

// unwatch ends the alarm.
func (t *transfers) unwatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alarm != nil {
		t.alarm.Stop()
	}
	t.armed = true // not again
}
