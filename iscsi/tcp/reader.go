package tcp

import (
	"errors"
	"io"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

const (
	// readBuffer holds headers, and small data segments whole.
	readBuffer = 16 << 10
	// largeData is the data segment from which on the reader stops reading ahead: the next one is likely as large,
	// and what was not read ahead can be read to its destination.
	largeData = 8 << 10
	// shortAhead is what is read behind a large data segment: its padding and digest and the next header.
	shortAhead = 256
)

// reader is the reading half. Only the reading goroutine uses it.
type reader struct {
	buf   []byte
	r, w  int // octets buf[r:w] were read and not yet used
	ahead int // octets to read ahead

	bhs  [iscsi.BHSLen]byte // the PDU at hand
	ahs  [iscsi.MaxAHS]byte
	list [2][]byte
	fill filler
	put  placer
}

func (r *reader) init(read []byte) {
	r.buf = make([]byte, max(readBuffer, len(read)))
	r.w = copy(r.buf, read)
	r.ahead = len(r.buf)
	r.fill.r, r.put.r = r, r
}

// filler is the sock.Scatter that reads into the buffer.
type filler struct{ r *reader }

func (f *filler) Acquire() ([][]byte, error) {
	r := f.r
	r.list[0] = r.buf[r.w:min(len(r.buf), r.w+max(r.ahead, iscsi.BHSLen))]
	return r.list[:1], nil
}

func (f *filler) Release(n int) { f.r.w += n }

// placer is the sock.Scatter that reads a data segment to its place, and behind it into the
// buffer, which is empty.
type placer struct {
	r      *reader
	t      *transfers
	to     *sink
	off, n int // where in to, and how much
	digest bool
	sum    uint32
	own    sink // of the PDU for the layer above that is being read
}

func (p *placer) Acquire() ([][]byte, error) {
	r := p.r
	p.t.mu.Lock()
	if p.to == nil || p.to.dead { // nobody wants it: the buffer takes it, piece by piece
		r.list[0] = r.buf[:min(len(r.buf), p.n)]
		return r.list[:1], nil
	}
	r.list[0] = p.to.mem[p.off:][:p.n]
	r.list[1] = r.buf[:min(len(r.buf), r.ahead)]
	return r.list[:], nil
}

func (p *placer) Release(n int) {
	r := p.r
	k := min(n, len(r.list[0]))
	if p.digest {
		p.sum = iscsi.Digest(p.sum, r.list[0][:k])
	}
	p.off += k
	p.n -= k
	r.r, r.w = 0, n-k
	p.t.mu.Unlock()
	r.list[0], r.list[1] = nil, nil
}

// read is the reading goroutine.
func (d *Datamover) read() {
	d.beginBatch()
	err := error(nil)
	for err == nil {
		if d.draining.Load() {
			err = d.drain()
			break
		}
		if err = d.readPDU(); err != nil && d.reject(err) {
			err = nil // the rest of the stream is drained until the peer has seen why
		}
	}
	d.endBatch()
	d.ended(err)
	d.teardown()
}

// need waits until n octets are buffered; io.EOF only if there is not a single one.
func (d *Datamover) need(n int) error {
	r := &d.reader
	for r.w-r.r < n {
		if r.r > 0 {
			r.w = copy(r.buf, r.buf[r.r:r.w])
			r.r = 0
		}
		if err := d.wait(&r.fill); err != nil {
			if errors.Is(err, io.EOF) && r.w > r.r {
				return &Error{Kind: Truncated, Remote: true}
			}
			return err
		}
	}
	return nil
}

// wait reads from the socket. What was queued leaves first, and others may run upcalls meanwhile.
func (d *Datamover) wait(s sock.Scatter) error {
	d.endBatch()
	n, err := d.sock.Read(s)
	d.stats.octetsIn.Add(uint64(n))
	d.beginBatch()
	return err
}

// readPDU reads one PDU and handles it.
func (d *Datamover) readPDU() error {
	r := &d.reader
	if err := d.need(iscsi.BHSLen); err != nil {
		return err
	}
	ph := d.phase.Load()
	f := iscsi.FrameOf(r.buf[r.r:], ph.headerDigest, ph.dataDigest)
	if err := d.need(f.Header()); err != nil {
		return inside(err)
	}
	h := r.buf[r.r:][:f.Header()]
	if end := iscsi.BHSLen + f.AHS; ph.headerDigest && !iscsi.DigestOK(h[end:], iscsi.Digest(0, h[:end])) {
		return &Error{Kind: HeaderDigest, Remote: true}
	}
	copy(r.bhs[:], h)
	copy(r.ahs[:], h[iscsi.BHSLen:][:f.AHS])
	r.r += f.Header()
	r.ahead = len(r.buf)
	if f.Data >= largeData {
		r.ahead = shortAhead
	}
	d.stats.pdusIn.Add(1)
	bhs := iscsi.BHS(r.bhs[:])
	if ph.level > 0 && d.target {
		d.keep.acknowledge(bhs.ExpStatSN())
	}
	if f.Data > ph.maxData {
		return violation(Format, bhs, "data segment of %d octets, at most %d were agreed on", f.Data, ph.maxData)
	}
	switch op := bhs.Opcode(); {
	case d.target && op == iscsi.OpDataOut && bhs.TTT() != iscsi.ReservedTag:
		return d.solicited(f)
	case !d.target && op == iscsi.OpDataIn:
		return d.dataIn(f)
	case !d.target && op == iscsi.OpR2T:
		return d.r2t(f)
	case d.target && op == iscsi.OpSNACK && ph.level > 0:
		return d.snack(f)
	}
	return d.control(f)
}

// control reads the rest of a PDU for the layer above and delivers it.
func (d *Datamover) control(f iscsi.Frame) error {
	r := &d.reader
	p := newReceived(f.AHS + f.Data)
	p.BHS = r.bhs
	if f.AHS > 0 {
		p.AHS = p.Room[:f.AHS:f.AHS]
		copy(p.AHS, r.ahs[:f.AHS])
	}
	if f.Data > 0 {
		p.Data = p.Room[f.AHS:][:f.Data:f.Data]
		r.put.own.mem = p.Data
		err := d.segment(f, &r.put.own, 0)
		r.put.own.mem = nil
		if err != nil {
			p.Release()
			if d.phase.Load().level > 0 && isDataDigest(err) {
				return d.discarded()
			}
			return err
		}
	}
	if d.status.begun {
		return d.inTurn(p)
	}
	op, h := p.Opcode(), iscsi.BHS(r.bhs[:])
	if op == iscsi.OpSCSIResponse && !d.target {
		if err := d.transfers.complete(iscsi.SCSIResponse(p.BHS[:])); err != nil {
			p.Release()
			return err
		}
		d.endTask(h.ITT())
	}
	final := op == iscsi.OpLoginRsp && !d.target && h[1]&0x80 != 0 && h[1]&3 == 3 && h[36] == 0
	d.notify(p)
	if final {
		d.awaitFull()
		if d.phase.Load().level > 0 {
			d.beginStatus(r.bhs[:])
		}
	}
	return nil
}

// notify delivers p, unless this side has ended the connection.
func (d *Datamover) notify(p *iscsi.PDU) {
	if d.local.Load() {
		p.Release()
		return
	}
	d.up.ControlNotify(p)
}

// awaitFull waits until the layer above has dealt with the final Login Response: what follows it on the
// stream may have digests.
func (d *Datamover) awaitFull() {
	select {
	case <-d.full:
		return
	default:
	}
	d.endBatch()
	select {
	case <-d.full:
	case <-d.failed:
	case <-d.ending:
	}
	d.beginBatch()
}

// segment reads the data segment, its padding and digest, into s at off; into nothing if s is nil or dead.
func (d *Datamover) segment(f iscsi.Frame, s *sink, off int) error {
	r := &d.reader
	p := &r.put
	p.t, p.to, p.off, p.n, p.digest, p.sum = &d.transfers, s, off, f.Data, f.DataDigest > 0, 0
	if k := min(f.Data, r.w-r.r); k > 0 {
		b := r.buf[r.r:][:k]
		if s != nil {
			d.transfers.mu.Lock()
			if !s.dead {
				copy(s.mem[off:], b)
			}
			d.transfers.mu.Unlock()
		}
		if p.digest {
			p.sum = iscsi.Digest(0, b)
		}
		p.off += k
		p.n -= k
		r.r += k
	}
	for p.n > 0 {
		r.r, r.w = 0, 0
		if err := d.wait(p); err != nil {
			return inside(err)
		}
	}
	p.to = nil
	tail := f.Pad + f.DataDigest
	if err := d.need(tail); err != nil {
		return inside(err)
	}
	b := r.buf[r.r:][:tail]
	r.r += tail
	if p.digest && !iscsi.DigestOK(b[f.Pad:], iscsi.Digest(p.sum, b[:f.Pad])) {
		return violation(DataDigest, r.bhs[:], "data segment of %d octets", f.Data)
	}
	return nil
}

// inside makes the stream's end an error: a PDU was under way.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{Kind: Truncated, Remote: true}
	}
	return err
}

// drain throws away what arrives until the stream ends.
func (d *Datamover) drain() error {
	r := &d.reader
	r.ahead = len(r.buf)
	for {
		r.r, r.w = 0, 0
		if err := d.wait(&r.fill); err != nil {
			return err
		}
	}
}

// reject tells the initiator of its error and lets the connection end gracefully (RFC 7143, section
// 7.3). false: there is nothing to tell, or nobody to be told.
func (d *Datamover) reject(err error) bool {
	var e *Error
	if !d.target || !errors.As(err, &e) || e.Kind.reason() == 0 || d.draining.Load() {
		return false
	}
	p := &iscsi.PDU{Data: append([]byte(nil), d.reader.bhs[:]...)}
	h := iscsi.Reject(p.BHS[:])
	h.Init()
	h.SetReason(iscsi.RejectReason(e.Kind.reason()))
	q := &d.queue
	q.mu.Lock()
	if q.dead || q.closing {
		q.mu.Unlock()
		return false
	}
	h.SetStatSN(q.statSN)
	h.SetExpCmdSN(q.expCmdSN)
	h.SetMaxCmdSN(q.maxCmdSN)
	q.count(d.pushControl(p), d.cfg.MaxQueued)
	q.err = e
	q.mu.Unlock()
	d.finish()
	return true
}
