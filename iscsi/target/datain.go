package target

import (
	"errors"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// inData is a task's data-in: the buffers reserved for it, and what is on its way to the initiator.
//
// Pieces are as large as one PutData moves, so that a buffer has one owner at a time. The last piece that the
// device server gave is kept back until it is known whether it is the last of all: then it carries the F bit
// and leaves together with the status.
type inData struct {
	total  int64 // octets that the command can move at most: the CDB's wish within what the initiator expects
	piece  int   // octets of a piece
	bounce bool  // one PutData moves less than the smallest piece: it is copied into several
	holder bool  // counted in conn.holders
	burst  int   // octets of the Data-In sequence under way
	size   int   // octets reserved in all

	free []iscsi.Buffer // reserved, not in use
	lent int            // buffers that PutData has and gives back
	out  []sent         // those

	last    outgoing // kept back
	pending bool     // last is valid
}

// outgoing is a piece that can be sent.
type outgoing struct {
	buf iscsi.Buffer
	off int64
	n   int
}

// sent is a piece that comes back.
type sent struct {
	tag uint64
	buf iscsi.Buffer
}

// pool is d emptied, its slices kept for the next task.
func (d *inData) pool() inData { return inData{free: d.free[:0], out: d.out[:0]} }

// begin sizes the data-in.
func (d *inData) begin(t *task) {
	c := t.conn
	d.total = min(t.plan.DataIn, t.inLen)
	most := min(c.maxPutData, c.params.MaxBurstLength, c.srv.cfg.Limits.Chunk)
	if d.bounce = most < minChunk; !d.bounce {
		most &^= minChunk - 1
	}
	d.piece = most
}

// streams tells that the data-in is more than what is reserved for it.
func (d *inData) streams() bool { return d.total > int64(d.size) }

// reserve acquires buffers for the data-in, a chunk of it at most. A device server reads whole blocks, so
// the last piece is as large as the CDB may need, not only as the initiator expects.
func (d *inData) reserve(t *task) bool {
	if d.total == 0 {
		return true
	}
	c := t.conn
	limit := min(d.total, int64(c.srv.cfg.Limits.Chunk))
	for int64(d.size) < limit {
		n := d.piece
		if rest := limit - int64(d.size); !d.bounce && rest < int64(n) {
			n = int(min((rest+minChunk-1)&^(minChunk-1), t.plan.DataIn-int64(d.size), int64(n)))
		}
		b, err := c.dm.Alloc(n)
		if err != nil {
			if c.holders > 0 || !errors.Is(err, iscsi.ErrNoMemory) {
				return false
			}
			if len(d.free) > 0 {
				return true // stream on what there is
			}
			if !d.bounce && d.piece > minChunk {
				d.piece = max(d.piece/2&^(minChunk-1), minChunk)
				continue
			}
			return false
		}
		d.free = append(d.free, b)
		d.size += n
	}
	return true
}

// release gives reserved buffers back.
func (d *inData) release() {
	for i, b := range d.free {
		b.Release()
		d.free[i] = nil
	}
	d.free = d.free[:0]
	d.size = 0
	if d.pending {
		d.last.buf.Release()
		d.last, d.pending = outgoing{}, false
	}
}

// take gives a reserved buffer of at least n octets.
func (d *inData) take(n int) iscsi.Buffer {
	for i, b := range d.free {
		if len(b.Bytes()) >= n {
			last := len(d.free) - 1
			copy(d.free[i:], d.free[i+1:])
			d.free[last] = nil
			d.free = d.free[:last]
			return b
		}
	}
	return nil
}

// streams tells that the task's data does not fit into what it has reserved, so that it waits for
// its peer while it runs.
func (t *task) streams() bool { return t.in.streams() || t.out.streams() }

// InLength implements scsi.Transfer.
func (t *task) InLength() int64 { return t.inLen }

// OutLength implements scsi.Transfer.
func (t *task) OutLength() int64 { return t.outLen }

// Chunk implements scsi.Transfer.
func (t *task) Chunk() int {
	switch {
	case t.out.need > 0 && !t.out.whole:
		return t.out.piece
	case t.out.need > 0:
		return t.shared.srv.cfg.Limits.Chunk
	}
	return max(t.in.piece, minChunk)
}

// view is memory as the device server sees it: a part of a Datamover's buffer, or ordinary memory whose
// contents are copied.
type view struct {
	t   *task
	b   []byte
	buf iscsi.Buffer // of data-in
	out bool         // a piece of data-out, at off
	off int64
}

// view gives an idle view. c.mu is held.
func (t *task) view() *view {
	if n := len(t.views); n > 0 {
		v := t.views[n-1]
		t.views = t.views[:n-1]
		return v
	}
	return &view{t: t}
}

func (t *task) putView(v *view) {
	v.b, v.buf, v.out, v.off = nil, nil, false, 0
	t.views = append(t.views, v)
}

// Bytes implements scsi.Buffer.
func (v *view) Bytes() []byte { return v.b }

// Release implements scsi.Buffer.
func (v *view) Release() {
	t := v.t
	c := t.lock()
	defer c.mu.Unlock()
	if v.buf != nil {
		t.in.free = append(t.in.free, v.buf)
	}
	out, off := v.out, v.off
	t.putView(v)
	if out {
		t.returned(off)
	}
}

// Buffer implements scsi.Transfer.
func (t *task) Buffer(n int) (scsi.Buffer, error) {
	c := t.lock()
	defer c.mu.Unlock()
	if n < 0 || n > max(t.Chunk(), minChunk) {
		return nil, errors.New("target: buffer beyond the chunk")
	}
	for {
		if err := t.gone(); err != nil {
			return nil, err
		}
		if !t.in.bounce {
			if b := t.in.take(n); b != nil {
				v := t.view()
				v.b, v.buf = b.Bytes()[:n:n], b
				return v, nil
			}
			if t.in.lent > 0 {
				t.wait()
				continue
			}
		}
		// More than what the command said it would need, or smaller pieces than a block.
		v := t.view()
		v.b = make([]byte, n)
		return v, nil
	}
}

// In implements scsi.Transfer.
func (t *task) In(b scsi.Buffer, off int64, n int) error {
	v, ok := b.(*view)
	if !ok {
		return errors.New("target: foreign buffer")
	}
	c := t.lock()
	defer c.mu.Unlock()
	buf, data := v.buf, v.b
	t.putView(v)
	n = int(min(int64(n), t.inLen-off))
	if n > 0 {
		t.copyIn(data[:n], off)
	}
	switch err := t.gone(); {
	case err != nil || n <= 0:
		if buf != nil {
			t.in.free = append(t.in.free, buf)
		}
		return err
	case t.rec.parked: // copyIn has it
		if buf != nil {
			t.in.free = append(t.in.free, buf)
		}
		return nil
	case buf != nil:
		return t.send(outgoing{buf, off, n})
	}
	for data = data[:n]; len(data) > 0; {
		k := min(len(data), t.in.piece)
		buf, err := t.acquire(k)
		if err != nil {
			return err
		}
		copy(buf.Bytes(), data[:k])
		if err := t.send(outgoing{buf, off, k}); err != nil {
			return err
		}
		data, off = data[k:], off+int64(k)
	}
	return nil
}

// acquire gives a buffer of n octets for data that is to be copied. c.mu is held.
func (t *task) acquire(n int) (iscsi.Buffer, error) {
	for {
		if err := t.gone(); err != nil {
			return nil, err
		}
		if b := t.in.take(n); b != nil {
			return b, nil
		}
		if t.in.lent == 0 {
			b, err := t.conn.dm.Alloc(n)
			if err == nil {
				return b, nil
			}
			if t.inline || !errors.Is(err, iscsi.ErrNoMemory) {
				return nil, err
			}
			c := t.conn
			c.starved.push(t)
			c.watchMemory()
			t.wait()
			c.starved.remove(t)
			continue
		}
		t.wait()
	}
}

// send sends a piece of data-in, or keeps it back if it may be the last. c.mu is held.
func (t *task) send(o outgoing) error {
	d := &t.in
	if d.pending {
		if err := t.put(d.last, d.burst+d.last.n+o.n > t.conn.params.MaxBurstLength, false); err != nil {
			d.last, d.pending = outgoing{}, false
			o.buf.Release()
			return err
		}
		d.pending = false
	}
	if end := o.off + int64(o.n); o.n == d.piece && end < d.total {
		// A whole piece and more to come: nothing is won by waiting for it.
		return t.put(o, d.burst+o.n+d.piece > t.conn.params.MaxBurstLength, false)
	}
	d.last, d.pending = o, true
	return nil
}

// put is one PutData. c.mu is held; o's buffer is gone in any case.
func (t *task) put(o outgoing, final, more bool) error {
	c, d := t.conn, &t.in
	if o.n > c.maxPutData { // the initiator takes less than when the piece was laid out
		return t.putPieces(o, final, more)
	}
	c.dataIn = iscsi.DataIn{
		LUN: t.lun, ITT: t.itt, TTT: iscsi.ReservedTag, DataSN: t.dataInSN, Offset: int(o.off),
		Buf: o.buf, Len: o.n, Final: final, More: more,
	}
	if c.params.ErrorRecoveryLevel > 0 && !t.prepareIn(&c.dataIn) {
		return nil
	}
	if rest := d.total - o.off - int64(o.n); d.streams() && !more && rest > int64(len(d.free)*d.piece) {
		// Without this buffer there would be none for the rest.
		c.dataIn.Notify, c.dataIn.Tag = true, t.tag(o.off)
		d.out = append(d.out, sent{c.dataIn.Tag, o.buf})
		d.lent++
	}
	t.dataInSN++
	t.sentIn += int64(o.n)
	c.counters.OctetsIn += uint64(o.n)
	if d.burst += o.n; final {
		d.burst = 0
	}
	return t.unlessLost(c.dm.PutData(&c.dataIn))
}

// putPieces is put of more than one PutData moves. c.mu is held.
func (t *task) putPieces(o outgoing, final, more bool) error {
	defer o.buf.Release()
	data := o.buf.Bytes()[:o.n]
	for at := 0; at < len(data); {
		n := min(t.conn.maxPutData, len(data)-at)
		last := at+n == len(data)
		p := outgoing{plainBuffer(append([]byte(nil), data[at:at+n]...)), o.off + int64(at), n}
		if err := t.put(p, final && last, more && last); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// flush sends what was kept back, as the last of the data-in; more tells that the response follows at once. c.mu is held.
func (t *task) flush(more bool) {
	if d := &t.in; d.pending {
		last := d.last
		d.last, d.pending = outgoing{}, false
		_ = t.put(last, true, more) // an error is the connection's end, which is told by the Datamover
	}
}

// sentOut is the end of a PutData that gives its buffer back. c.mu is held.
func (t *task) sentOut(tag uint64) bool {
	d := &t.in
	for i := range d.out {
		if d.out[i].tag == tag {
			d.free = append(d.free, d.out[i].buf)
			last := len(d.out) - 1
			d.out[i], d.out[last] = d.out[last], sent{}
			d.out = d.out[:last]
			d.lent--
			t.cond.Broadcast()
			return true
		}
	}
	return false
}

// orphan hands all transfers under way to the connection: the Datamover is about to forget the task, and releases the buffers of those
// that it does not tell of. c.mu is held.
func (t *task) orphan() {
	for i, s := range t.in.out {
		t.conn.adopt(t.itt, s.tag, s.buf)
		t.in.out[i] = sent{}
	}
	t.in.out, t.in.lent = t.in.out[:0], 0
	t.out.orphan(t)
}

// releaseData gives all of an ended task's memory back. c.mu is held. Transfers that are still under way were
// orphaned, or their connection is down and their buffers ours.
func (t *task) releaseData() {
	for i, s := range t.in.out {
		s.buf.Release()
		t.in.out[i] = sent{}
	}
	t.in.out, t.in.lent = t.in.out[:0], 0
	t.in.release()
	t.out.release()
	if t.in.holder {
		t.in.holder = false
		t.conn.holders--
	}
}
