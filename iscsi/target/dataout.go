package target

import (
	"errors"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// outData is a task's data-out: what arrives as immediate and unsolicited data, and what is fetched with GetData, into a
// window of pieces that moves over the data as the device server consumes it.
//
//	0        consumed      window: pieces                  need       outLen
//	|------------|[ piece ][ piece ][ piece ]................|............|
//	                        unsolicited -->|<-- GetData       not wanted by the CDB
//
// Each piece has at most one GetData outstanding, so a buffer has at most one owner.
type outData struct {
	need   int64 // octets that the command wants: the CDB's wish within what the initiator expects to send
	piece  int   // size of a piece, octets
	window int64 // octets of the pieces in all

	open     bool       // more unsolicited data follows
	received int64      // unsolicited octets so far, immediate ones included
	dataSN   uint32     // next Data-Out's
	held     []heldData // unsolicited data that has not been copied into a piece
	copied   int64      // unsolicited octets copied or passed over
	whole    bool       // held[0] is all of the data-out: it is used in place

	pieces []piece
	next   int64 // offset behind the last piece
	asked  int   // GetData outstanding
}

// heldData is unsolicited data as it lies in the PDU that brought it.
type heldData struct {
	pdu  *iscsi.PDU
	data []byte
}

// piece is a buffer for the octets [off, off+n) of the data-out.
type piece struct {
	buf   iscsi.Buffer
	off   int64
	n     int
	have  int // octets there, from the start
	asked int // octets under way by GetData
	lent  bool
}

func (p *piece) end() int64 { return p.off + int64(p.n) }

// pool is o emptied, its slices kept for the next task.
func (o *outData) pool() outData { return outData{held: o.held[:0], pieces: o.pieces[:0]} }

// begin sizes the data-out of a write command and takes its immediate data, if any, over.
func (o *outData) begin(t *task, p *iscsi.PDU, final bool) {
	c := t.conn
	o.need = min(t.plan.DataOut, t.outLen)
	limit := c.srv.cfg.Limits.Chunk
	if o.need > int64(limit) {
		limit /= 2 // one half is fetched while the other is written
	}
	o.piece = max(min(c.params.MaxBurstLength, limit)&^(minChunk-1), minChunk)
	o.open = !final
	if len(p.Data) > 0 {
		o.hold(p)
	} else {
		p.Release()
	}
	o.whole = final && o.received >= o.need && o.need > 0
}

// hold keeps a PDU with unsolicited data until it has been copied.
func (o *outData) hold(p *iscsi.PDU) {
	o.received += int64(len(p.Data))
	o.held = append(o.held, heldData{p, p.Data})
}

// streams tells that the data-out passes through the window in turns; valid once that is reserved.
func (o *outData) streams() bool { return o.need > o.window && !o.whole }

// reserve acquires the window.
func (o *outData) reserve(t *task) bool {
	if o.need == 0 || o.whole {
		return true
	}
	defer func() { o.window = o.next }()
	c := t.conn
	limit := min(o.need, int64(c.srv.cfg.Limits.Chunk))
	for o.next < limit {
		n := int(min(int64(o.piece), o.need-o.next))
		b, err := c.dm.Alloc(n)
		if err != nil {
			if c.holders > 0 || !errors.Is(err, iscsi.ErrNoMemory) {
				return false
			}
			// Nothing of this connection's will come back by waiting: take smaller pieces, fewer of them.
			if len(o.pieces) > 0 {
				return true
			}
			if o.piece > minChunk {
				o.piece = max(o.piece/2&^(minChunk-1), minChunk)
				continue
			}
			return false
		}
		o.pieces = append(o.pieces, piece{buf: b, off: o.next, n: n})
		o.next += int64(n)
	}
	return true
}

// fill copies unsolicited data that is held into the window, as far as it fits.
func (t *task) fill() {
	o := &t.out
	if o.whole {
		return
	}
	i := 0
	for i < len(o.held) {
		h := &o.held[i]
		if o.copied >= o.need { // not wanted
			h.data = nil
		}
		for k := range o.pieces {
			p := &o.pieces[k]
			at := o.copied - p.off
			if at < 0 || at >= int64(p.n) || len(h.data) == 0 {
				continue
			}
			n := copy(p.buf.Bytes()[at:p.n], h.data)
			h.data = h.data[n:]
			p.have = int(at) + n
			o.copied += int64(n)
		}
		if len(h.data) > 0 {
			break
		}
		h.pdu.Release()
		*h = heldData{}
		i++
	}
	o.held = o.held[:copy(o.held, o.held[i:])]
}

// complete tells that the window is full.
func (o *outData) complete() bool {
	if o.asked > 0 {
		return false
	}
	for i := range o.pieces {
		if o.pieces[i].have < o.pieces[i].n {
			return false
		}
	}
	return true
}

// solicit fetches what the window lacks, in order, as far as MaxOutstandingR2T allows. c.mu is held.
func (c *conn) solicit(t *task) {
	o := &t.out
	if o.open || o.whole || t.closing || t.aborted || t.rec.parked || t.fail != nil || c.state != stateFull {
		return
	}
	for i := range o.pieces {
		p := &o.pieces[i]
		if p.lent || p.asked > 0 || p.have == p.n {
			continue
		}
		if o.copied < o.received && p.off+int64(p.have) < o.received || o.asked >= c.params.MaxOutstandingR2T {
			return
		}
		n := min(p.n-p.have, c.params.MaxBurstLength)
		off := p.off + int64(p.have)
		c.dataOut = iscsi.DataOut{
			LUN: t.lun, ITT: t.itt, TTT: c.freshTTT(), R2TSN: t.r2tSN, Offset: int(off),
			Buf: p.buf, To: p.have, Len: n, Tag: t.tag(off),
		}
		t.r2tSN++
		p.asked = n
		o.asked++
		if err := c.dm.GetData(&c.dataOut); err != nil {
			// The connection is lost, or cannot fetch at all (RFC 7145, section 9.5.1: no ORD). The
			// buffer is ours in either case.
			p.asked = 0
			o.asked--
			c.lose(fmt.Errorf("fetching data-out: %w", err))
			return
		}
		if p.have+n < p.n {
			return // the rest of this piece first: DataSequenceInOrder
		}
	}
}

// arrived is the end of a GetData. c.mu is held.
func (c *conn) arrived(t *task, tag uint64, err error) {
	o := &t.out
	var p *piece
	for i := range o.pieces {
		if q := &o.pieces[i]; q.asked > 0 && t.tag(q.off+int64(q.have)) == tag {
			p = q
		}
	}
	if p == nil {
		c.log.Warn("stray data completion", "itt", t.itt, "tag", tag)
		return
	}
	n := p.asked
	p.asked = 0
	o.asked--
	if err != nil {
		var partial *iscsi.PartialDataError
		if errors.As(err, &partial) && t.mayAskAgain() {
			n, err = partial.Got, nil
		}
	}
	switch {
	case err != nil && t.fail != nil:
	case err != nil && t.outlives(err): // it is fetched anew by the connection that takes the task on
		t.rec.parked = true
	case err != nil:
		c.log.Warn("data-out failed", "itt", t.itt, "offset", p.off+int64(p.have), "err", err)
		t.failWith(scsi.CodeNotEnoughUnsolicitedData)
	default:
		p.have += n
		c.counters.OctetsOut += uint64(n)
	}
	if t.closing {
		c.changed.Broadcast()
	}
	if t.phase == running {
		c.solicit(t)
		t.cond.Broadcast()
		return
	}
	c.advance(t)
}

// failWith makes the task end with CHECK CONDITION, ABORTED COMMAND (RFC 7143, section 11.4.7.2) once no more data of
// it is due. The first failure stays.
func (t *task) failWith(code scsi.Code) {
	if t.fail == nil {
		r := scsi.Check(scsi.KeyAbortedCommand, code)
		t.fail = &r
	}
}

// unsolicited takes a Data-Out PDU that no R2T asked for. c.mu is held.
func (c *conn) unsolicited(p *iscsi.PDU) {
	h := iscsi.DataOutPDU(p.BHS[:])
	t := c.tasks[h.ITT()]
	if t == nil && len(c.held) > 0 && c.holdData(p) {
		return
	}
	if t == nil {
		c.log.Debug("data-out of no task", "itt", h.ITT())
		p.Release()
		return
	}
	o := &t.out
	if t.rec.outLost && !o.open && h.TTT() == iscsi.ReservedTag { // late: it is being asked for
		p.Release()
		return
	}
	if h.TTT() != iscsi.ReservedTag || !o.open {
		c.reject(p, iscsi.RejectProtocolError, "data-out that nothing asked for")
		return
	}
	if c.params.ErrorRecoveryLevel > 0 && !c.params.RDMAExtensions {
		if !c.inSequence(t, h) {
			p.Release()
			return
		}
	} else if h.DataSN() != o.dataSN {
		// A DataSN out of order implies that a PDU before it was lost. Without recovery within a command the
		// task ends with CHECK CONDITION, once all of its data has come (RFC 7143, sections 7.9 and 7.8, b).
		c.log.Warn("unsolicited data out of sequence", "itt", h.ITT(), "dataSN", h.DataSN(), "expected", o.dataSN)
		t.failWith(scsi.CodeProtocolServiceCRC)
	} else if int64(h.Offset()) != o.received && t.fail == nil {
		// In order, but for other octets: the initiator and we do not agree on what was sent.
		c.protocolError(p, fmt.Sprintf("unsolicited data out of order: DataSN %d offset %d, expected offset %d",
			h.DataSN(), h.Offset(), o.received))
		return
	}
	o.dataSN = h.DataSN() + 1
	o.open = !h.Final()
	n := int64(len(p.Data))
	c.counters.OctetsOut += uint64(n)
	first := int64(c.params.FirstBurstLength)
	switch {
	case t.fail != nil:
		o.received += n
		p.Release()
	case o.received+n > min(first, t.outLen):
		o.received += n
		p.Release()
		t.failWith(scsi.CodeNotEnoughUnsolicitedData)
	default:
		o.hold(p)
	}
	if !o.open && t.fail == nil && t.outLen > first && o.received != first && !t.rec.outLost {
		t.failWith(scsi.CodeNotEnoughUnsolicitedData)
	}
	c.unsolicitedMoved(t)
}

// unsolicitedMoved goes on with a task whose unsolicited data has moved on. c.mu is held.
func (c *conn) unsolicitedMoved(t *task) {
	o := &t.out
	switch t.phase {
	case collect:
		c.advance(t)
	case waitUnit, waitMemory:
		if t.fail != nil && !o.open {
			c.giveUp(t)
		}
	}
}

// giveUp ends a task whose data-out was wrong before it had its turn. c.mu is held.
func (c *conn) giveUp(t *task) {
	if t.phase == waitMemory {
		c.memory.remove(t)
	}
	c.answer(t, t.fail)
	if t.unit.withdraw(t) {
		c.end(t)
		return
	}
	t.aborted = true // answered; the worker that has just taken it ends it
	delete(c.tasks, t.itt)
}

// Out implements scsi.Transfer.
func (t *task) Out(off int64, n int) (scsi.Buffer, error) {
	c := t.lock()
	defer c.mu.Unlock()
	o := &t.out
	if n < 0 || off < 0 || off+int64(n) > o.need {
		return nil, fmt.Errorf("target: data-out %d+%d of %d", off, n, o.need)
	}
	if o.whole {
		v := t.view()
		v.b = o.inPlace(off, n)
		return v, nil
	}
	for {
		switch {
		case t.aborted:
			return nil, errAborted
		case t.fail != nil && o.asked == 0:
			return nil, errors.New("target: data-out failed")
		}
		if i, ok := o.find(off, n); ok {
			if p := &o.pieces[i]; p.have == p.n {
				p.lent = true
				v := t.view()
				v.b, v.out, v.off = p.buf.Bytes()[off-p.off:][:n:n], true, p.off
				return v, nil
			}
		} else if b, ok := o.gather(off, n); ok {
			v := t.view()
			v.b = b
			return v, nil
		} else if !o.ahead(off) {
			return nil, fmt.Errorf("target: data-out %d+%d is not within reach", off, n)
		}
		t.consume(off)
		t.conn.solicit(t)
		if t.inline {
			return nil, errors.New("target: data-out is not there")
		}
		t.wait()
	}
}

// inPlace is a part of immediate data that is used in place.
func (o *outData) inPlace(off int64, n int) []byte { return o.held[0].data[off:][:n:n] }

// find gives the piece that has all of a range.
func (o *outData) find(off int64, n int) (int, bool) {
	for i := range o.pieces {
		if p := &o.pieces[i]; off >= p.off && off+int64(n) <= p.end() {
			return i, true
		}
	}
	return 0, false
}

// gather copies a range that lies across pieces, if all of it is there.
func (o *outData) gather(off int64, n int) ([]byte, bool) {
	var b []byte
	for i := range o.pieces {
		p := &o.pieces[i]
		at := off + int64(len(b)) - p.off
		if at >= 0 && at < int64(p.n) && p.have == p.n && len(b) < n {
			b = append(b, p.buf.Bytes()[at:min(int64(p.n), at+int64(n-len(b)))]...)
		}
	}
	return b, len(b) == n
}

// ahead tells that a range begins at or behind the window's start, so that it will come.
func (o *outData) ahead(off int64) bool {
	return len(o.pieces) > 0 && off >= o.pieces[0].off
}

// consume moves the window on: pieces that lie before off and are not lent are used for what follows.
func (t *task) consume(off int64) {
	o := &t.out
	for o.next < o.need && len(o.pieces) > 0 {
		p := o.pieces[0]
		if p.lent || p.asked > 0 || p.end() > off || p.have < p.n {
			return
		}
		room := len(p.buf.Bytes())
		o.pieces = append(o.pieces[:0], o.pieces[1:]...)
		p = piece{buf: p.buf, off: o.next, n: int(min(int64(room), o.need-o.next))}
		o.next += int64(p.n)
		o.pieces = append(o.pieces, p)
		t.fill()
	}
}

// returned takes a piece back from the device server. c.mu is held.
func (t *task) returned(off int64) {
	o := &t.out
	for i := range o.pieces {
		if p := &o.pieces[i]; p.off == off && p.lent {
			p.lent = false
			t.consume(p.end())
			t.conn.solicit(t)
			return
		}
	}
}

// orphan hands what is under way to the connection: the task is about to be forgotten by the Datamover. c.mu is held.
func (o *outData) orphan(t *task) {
	for i := range o.pieces {
		if p := &o.pieces[i]; p.asked > 0 {
			t.conn.adopt(t.itt, t.tag(p.off+int64(p.have)), p.buf)
			p.buf, p.asked = nil, 0
		}
	}
	o.asked = 0
}

func (o *outData) releasePieces() {
	for i := range o.pieces {
		if b := o.pieces[i].buf; b != nil {
			b.Release()
		}
		o.pieces[i] = piece{}
	}
	o.pieces = o.pieces[:0]
	o.next = 0
}

// release gives all memory back.
func (o *outData) release() {
	o.releasePieces()
	for i := range o.held {
		o.held[i].pdu.Release()
		o.held[i] = heldData{}
	}
	o.held = o.held[:0]
}
