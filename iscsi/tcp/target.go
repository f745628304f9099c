package tcp

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

var errNotTarget = errors.New("iscsi/tcp: only a target moves data with PutData and GetData")

// PutData implements iscsi.Datamover: one Data-In PDU. On an error the buffer has been released,
// unless x.Notify says that it stays the caller's.
func (d *Datamover) PutData(x *iscsi.DataIn) error {
	o, err := d.newDataIn(x)
	switch {
	case err != nil:
	case d.phase.Load().level > 0:
		err = d.putKept(o)
	default:
		err = d.post(o, x.More)
	}
	if err != nil && o != nil {
		o.recycle()
	}
	if err != nil && !x.Notify {
		x.Buf.Release()
	}
	return err
}

func (d *Datamover) newDataIn(x *iscsi.DataIn) (*outgoing, error) {
	b := x.Buf.Bytes()
	switch limit := maxSend(d.params.Load()); {
	case !d.target:
		return nil, errNotTarget
	case x.From < 0 || x.Len < 0 || x.From > len(b) || x.Len > len(b)-x.From:
		return nil, fmt.Errorf("iscsi/tcp: PutData of %d octets at %d of a buffer of %d", x.Len, x.From, len(b))
	case x.Len > limit:
		return nil, fmt.Errorf("iscsi/tcp: PutData of %d octets, the initiator takes %d", x.Len, limit)
	}
	o := newOutgoing()
	o.data, o.buf = b[x.From:][:x.Len], x.Buf
	o.itt, o.notify, o.tag = x.ITT, x.Notify, x.Tag
	h := iscsi.DataInPDU(o.header())
	h.Init()
	h.SetFinal(x.Final)
	h.SetAck(x.Ack)
	h.SetITT(x.ITT)
	h.SetTTT(x.TTT)
	if x.TTT != iscsi.ReservedTag {
		h.SetLUN(x.LUN) // else the field is reserved (RFC 7143, section 11.7.4)
	}
	h.SetDataSN(x.DataSN)
	h.SetOffset(uint32(x.Offset))
	return o, nil
}

// GetData implements iscsi.Datamover: one R2T, and its Data-Out PDUs into the buffer. On an error the buffer is the caller's.
func (d *Datamover) GetData(x *iscsi.DataOut) error {
	b := x.Buf.Bytes()
	switch {
	case !d.target:
		return errNotTarget
	case x.To < 0 || x.Len <= 0 || x.To > len(b) || x.Len > len(b)-x.To:
		return fmt.Errorf("iscsi/tcp: GetData of %d octets to %d of a buffer of %d", x.Len, x.To, len(b))
	case x.TTT == iscsi.ReservedTag:
		return errors.New("iscsi/tcp: GetData needs a target transfer tag")
	}
	t := &d.transfers
	t.mu.Lock()
	if t.gets.get(x.TTT) != nil {
		t.mu.Unlock()
		return fmt.Errorf("iscsi/tcp: TTT %#x is in use", x.TTT)
	}
	n := t.gets.put(x.TTT)
	g := &n.value
	g.mem, g.itt, g.ttt, g.tag, g.buf, g.off = b[x.To:][:x.Len:x.Len], x.ITT, x.TTT, x.Tag, x.Buf, x.Offset
	g.lun, g.r2tSN = x.LUN, x.R2TSN
	o := newOutgoing()
	o.itt = x.ITT
	g.header(iscsi.R2T(o.header()))
	if d.phase.Load().level > 0 {
		d.watchSequence(g)
	}
	t.mu.Unlock()

	err := d.post(o, false)
	if err != nil {
		o.recycle()
		t.mu.Lock()
		if t.gets.get(x.TTT) == n {
			t.gets.remove(n)
			t.gets.recycle(n)
		}
		t.mu.Unlock()
	}
	return err
}

// solicited handles a Data-Out that answers an R2T.
func (d *Datamover) solicited(f iscsi.Frame) error {
	h := iscsi.DataOutPDU(d.reader.bhs[:])
	t := &d.transfers
	t.mu.Lock()
	n := t.gets.get(h.TTT())
	if n == nil || n.value.itt != h.ITT() {
		known := t.dropped.has(h.ITT(), h.TTT())
		t.mu.Unlock()
		if !known {
			return violation(Overrun, iscsi.BHS(h), "no R2T with TTT %#x", h.TTT())
		}
		d.stats.strays.Add(1)
		return d.segment(f, nil, 0)
	}
	g := &n.value
	recovers := d.phase.Load().level > 0
	if recovers && (g.lost || h.DataSN() != g.sn) {
		return d.passed(f, n)
	}
	if err := g.check(h, f.Data); err != nil {
		t.mu.Unlock()
		return err
	}
	g.busy = true
	off := g.got
	t.mu.Unlock()

	if err := d.segment(f, &g.sink, off); err != nil {
		if recovers && isDataDigest(err) {
			return d.spoilt(n)
		}
		return err
	}

	t.mu.Lock()
	g.busy = false
	if g.dead {
		t.gets.recycle(n)
		t.mu.Unlock()
		d.stats.strays.Add(1)
		return nil
	}
	g.got += f.Data
	g.sn++
	if recovers {
		g.moved = time.Now()
	}
	if !h.Final() {
		t.mu.Unlock()
		return nil
	}
	itt, tag := g.itt, g.tag
	t.gets.remove(n)
	t.gets.recycle(n)
	t.mu.Unlock()
	if !d.local.Load() {
		d.up.DataCompletionNotify(itt, tag, nil)
	}
	return nil
}

// check holds a Data-Out of n octets against what was asked for (RFC 7143, sections 11.7 and 11.8): DataSN counts from 0
// for each R2T, octets come in order, F is on the last PDU and on no other.
func (g *get) check(h iscsi.DataOutPDU, n int) error {
	want := len(g.mem) - g.got
	switch {
	case h.DataSN() != g.sn:
		return violation(Sequence, iscsi.BHS(h), "TTT %#x: DataSN %d, expected %d", g.ttt, h.DataSN(), g.sn)
	case int64(h.Offset()) != int64(g.off)+int64(g.got):
		return violation(Sequence, iscsi.BHS(h), "TTT %#x: offset %d, expected %d", g.ttt, h.Offset(), g.off+g.got)
	case n > want:
		return violation(Overrun, iscsi.BHS(h), "TTT %#x: %d octets where %d are left of the R2T", g.ttt, n, want)
	case h.Final() != (n == want):
		return violation(Sequence, iscsi.BHS(h), "TTT %#x: F=%t with %d octets of the R2T to come", g.ttt, h.Final(), want-n)
	}
	return nil
}
