package rdmap

import (
	"encoding/binary"
	"fmt"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// Where octets go before their CRC was checked: an FPDU that is whole was checked, and is copied. One that is not is
// read straight to its destination only if a wrong header can do no harm there: the posted receive at the
// expected MSN and MO, the sink of the oldest outstanding Read at the expected TO, a region that
// allows it. Everything else is buffered first. Without CRCs there is nothing to wait for.

// put places the payload that starts at off of f; early says that it need not be whole.
func (s *Stream) put(f *mpa.FPDU, off int, early bool) error {
	p := &s.rx.place
	defer p.Done()
	if !f.Whole && (early || !s.crc) {
		s.leaveBatch() // ReadTo may wait
		if err := f.ReadTo(off, p); err != nil {
			if fault := p.Fault(); fault != nil {
				return fault
			}
			return err
		}
		return nil
	}
	if err := s.whole(f); err != nil {
		return err
	}
	return p.Copy(f, off)
}

// inWrite places a segment of an RDMA Write.
func (s *Stream) inWrite(f *mpa.FPDU) error {
	h := ddp.Tagged(f.Head)
	n := f.Len - ddp.TaggedLen
	if n == 0 { // neither STag nor TO may be checked (RFC 5041, section 5.2)
		if err := s.whole(f); err != nil {
			return err
		}
	} else {
		r, mem, off, fault := s.cfg.Domain.Reach(h.STag(), h.TO(), uint64(n), ddp.RemoteWrite, s.id)
		if fault != ddp.NoFault {
			return ddp.TaggedFault(fault, h, n)
		}
		if f.Whole {
			f.CopyTo(ddp.TaggedLen, mem[off:off+n])
			r.Count(n)
			r.Release()
		} else {
			_, access := r.Held()
			r.Release()
			s.rx.place.ToRegion(r, h.STag(), off, n)
			if err := s.put(f, ddp.TaggedLen, access.Has(ddp.EarlyPlacement)); err != nil {
				return err
			}
		}
		s.stats.octetsReceived.Add(uint64(n))
	}
	if h.Last() {
		s.stats.writesReceived.Add(1)
	}
	return nil
}

// inReadResponse places a segment of the answer to our oldest outstanding Read.
func (s *Stream) inReadResponse(f *mpa.FPDU) error {
	h := ddp.Tagged(f.Head)
	n := f.Len - ddp.TaggedLen
	s.mu.Lock()
	op := s.q.reads
	s.mu.Unlock()
	if op == nil || op.Code != Read {
		return &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Detail: "RDMA Read Response without a request"}
	}
	c := &s.rx.cover
	if n > 0 {
		off := h.TO() - op.sinkTO
		switch {
		case h.STag() != op.sinkSTag || op.total == 0:
			return ddp.TaggedFault(ddp.FaultSTag, h, n)
		case h.TO()+uint64(n) < h.TO():
			return ddp.TaggedFault(ddp.FaultWrap, h, n)
		case h.TO() < op.sinkTO || off > uint64(op.total) || uint64(n) > uint64(op.total)-off:
			return ddp.TaggedFault(ddp.FaultBounds, h, n)
		}
		g := &op.Segs[0]
		s.rx.place.ToRegion(g.Region, op.sinkSTag, g.Off+int(off), n)
		if err := s.put(f, ddp.TaggedLen, off == c.Next()); err != nil {
			return err
		}
		if !c.Add(off, off+uint64(n), false) {
			return ddp.TaggedFault(ddp.FaultBounds, h, n)
		}
		s.stats.octetsReceived.Add(uint64(n))
	} else if err := s.whole(f); err != nil {
		return err
	}
	if !h.Last() {
		return nil
	}
	if c.Next() != uint64(op.total) {
		return &Error{Type: RemoteOperation, Code: CodeUnspecified, Detail: fmt.Sprintf("RDMA Read Response has %d octets of %d", c.Next(), op.total)}
	}
	c.Reset()
	if op.Flags&InvalidateSink != 0 && len(op.Segs) == 1 {
		op.Segs[0].Region.Invalidate()
	}
	s.answered()
	return nil
}

// answered completes the oldest operation that waited for a response.
func (s *Stream) answered() {
	s.mu.Lock()
	s.q.answered()
	s.mu.Unlock()
	s.enterBatch() // whose end delivers it, and sends what had waited for the credit
}

// inSend places a segment of one of the four Sends or of Immediate Data, and delivers the message when it is complete.
func (s *Stream) inSend(f *mpa.FPDU, op Opcode) error {
	x := &s.rx
	q := &x.queues[QueueSend]
	h := ddp.Untagged(f.Head)
	n := f.Len - ddp.UntaggedLen
	if !q.Open() {
		s.enterBatch()
		s.called = true
		r := s.h.Receive()
		if r == nil {
			return &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeNoBuffer, Detail: fmt.Sprintf("%v, MSN %d", op, h.MSN())}
		}
		x.receive, x.opcode, x.size = r, op, ImmediateLen
		if !op.immediate() {
			x.size = 0
			for i := range r.Segs {
				x.size += r.Segs[i].Len
			}
		}
	}
	if op != x.opcode {
		return &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Detail: fmt.Sprintf("%v within %v", op, x.opcode)}
	}
	if err := q.CheckMO(h, n, x.size); err != nil {
		if err.Code == ddp.CodeTooLong {
			x.delivery.Err = err
		}
		return err
	}
	inOrder := uint64(h.MO()) == q.NextMO()
	if err := q.Add(h, n); err != nil {
		return err
	}
	switch {
	case op.immediate():
		if err := s.whole(f); err != nil {
			return err
		}
		f.CopyTo(ddp.UntaggedLen, x.imm[h.MO():int(h.MO())+n])
	case n == 0:
		if err := s.whole(f); err != nil {
			return err
		}
	default:
		x.place.ToSegs(x.receive.Segs, int(h.MO()), n)
		if err := s.put(f, ddp.UntaggedLen, inOrder); err != nil {
			return err
		}
	}
	s.stats.octetsReceived.Add(uint64(n))
	length, ok := q.Complete()
	if !ok {
		return nil
	}
	return s.deliverSend(op, h, length)
}

// deliverSend ends the open message (RFC 5040, section 5.5, rules 10 and 16).
func (s *Stream) deliverSend(op Opcode, h ddp.Untagged, length int) error {
	x := &s.rx
	d := &x.delivery
	*d = Delivery{Len: length, Solicited: op.solicited()}
	switch {
	case op.immediate():
		if length != ImmediateLen { // RFC 7306, section 6.3
			return &Error{Type: RemoteOperation, Code: CodeUnspecified, Detail: fmt.Sprintf("%v of %d octets", op, length)}
		}
		d.HasImm, d.Imm = true, x.imm
	case op.invalidates():
		stag := ddp.STag(h.ULPWord())
		if fault := s.cfg.Domain.InvalidateRemote(stag, s.id); fault != ddp.NoFault {
			return &Error{Type: RemoteProtection, Code: CodeCannotInvalidate, Detail: fmt.Sprintf("%v: %v", stag, fault)}
		}
		d.Invalidated = stag
		s.stats.invalidatesReceived.Add(1)
	}
	x.queues[QueueSend].Deliver()
	r := x.receive
	x.receive = nil
	s.stats.sendsReceived.Add(1)
	s.enterBatch()
	s.called = true
	s.h.Received(r, d)
	return nil
}

// controlMessage reads the payload of a message that has one segment of n octets, and moves its queue on.
func (s *Stream) controlMessage(f *mpa.FPDU, n int) ([]byte, error) {
	h := ddp.Untagged(f.Head)
	q := &s.rx.queues[h.QN()]
	got := f.Len - ddp.UntaggedLen
	if h.MO() != 0 {
		return nil, &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeInvalidMO, Detail: h.String()}
	}
	if err := q.CheckMO(h, got, n); err != nil {
		return nil, err
	}
	if got < n || !h.Last() {
		return nil, &Error{Type: RemoteOperation, Code: CodeUnspecified, Detail: fmt.Sprintf("%v of %d octets instead of %d, last %t", Control(h.ULP()).Opcode(), got, n, h.Last())}
	}
	if err := s.whole(f); err != nil {
		return nil, err
	}
	q.Deliver()
	b := s.rx.ctl[:n]
	f.CopyTo(ddp.UntaggedLen, b)
	return b, nil
}

// admit finds out whether one more request fits the promise that IRD is: queue 1 has that many buffers.
func (s *Stream) admit(h ddp.Untagged, atomic bool) error {
	s.mu.Lock()
	ok := s.r.admit(atomic)
	s.mu.Unlock()
	if !ok {
		return &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeNoBuffer, Detail: fmt.Sprintf("%v, MSN %d, beyond the IRD of %d", Control(h.ULP()).Opcode(), h.MSN(), s.cfg.IRD)}
	}
	return nil
}

// respond queues the answer to a request.
func (s *Stream) respond(e *response) {
	s.mu.Lock()
	s.r.push(e)
	s.mu.Unlock()
	s.enterBatch() // whose end sends it
}

// inReadRequest takes an RDMA Read Request. For size 0 the source is not checked (RFC 5040, section 5.2.1).
func (s *Stream) inReadRequest(f *mpa.FPDU) error {
	h := ddp.Untagged(f.Head)
	if err := s.admit(h, false); err != nil {
		return err
	}
	b, err := s.controlMessage(f, ReadRequestLen)
	if err != nil {
		return err
	}
	e := response{msn: h.MSN(), read: ReadRequest(b).Fields()}
	if q := &e.read; q.Size > 0 {
		r, _, off, fault := s.cfg.Domain.Reach(q.SourceSTag, q.SourceTO, uint64(q.Size), ddp.RemoteRead, s.id)
		if fault != ddp.NoFault {
			return protection(fault, "RDMA Read", q.SourceSTag, q.SourceTO, uint64(q.Size))
		}
		r.Release()
		e.region, e.stag, e.off = r, q.SourceSTag, off
	}
	s.stats.readsReceived.Add(1)
	s.respond(&e)
	return nil
}

// inAtomicRequest takes an Atomic Request (RFC 7306, section 5.2).
func (s *Stream) inAtomicRequest(f *mpa.FPDU) error {
	h := ddp.Untagged(f.Head)
	if err := s.admit(h, true); err != nil {
		return err
	}
	b, err := s.controlMessage(f, AtomicRequestLen)
	if err != nil {
		return err
	}
	e := response{atomic: true, msn: h.MSN(), op: AtomicRequest(b).Fields()}
	q := &e.op
	if q.Op != AtomicFetchAdd && q.Op != AtomicCmpSwap {
		return &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Detail: fmt.Sprintf("atomic operation %d", q.Op)}
	}
	r, mem, off, fault := s.cfg.Domain.Reach(q.STag, q.TO, AtomicSize, ddp.RemoteAtomic, s.id)
	if fault != ddp.NoFault {
		return protection(fault, "atomic", q.STag, q.TO, AtomicSize)
	}
	ok := aligned(mem, off)
	r.Release()
	if !ok {
		return &Error{Type: RemoteOperation, Code: CodeCatastrophicStream, Detail: fmt.Sprintf("atomic at %v TO %#x is not aligned to 64 bits", q.STag, q.TO)}
	}
	e.region, e.stag, e.off = r, q.STag, off
	s.stats.atomicsReceived.Add(1)
	s.respond(&e)
	return nil
}

// inAtomicResponse takes the answer to our oldest outstanding request, which has to be an Atomic.
func (s *Stream) inAtomicResponse(f *mpa.FPDU) error {
	s.mu.Lock()
	op := s.q.reads
	s.mu.Unlock()
	if op == nil || op.Code == Read {
		return &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Detail: "Atomic Response without a request"}
	}
	b, err := s.controlMessage(f, AtomicResponseLen)
	if err != nil {
		return err
	}
	a := AtomicResponse(b)
	if a.ID() != op.msn {
		return &Error{Type: RemoteOperation, Code: CodeUnspecified, Detail: fmt.Sprintf("Atomic Response to request %d, expected %d", a.ID(), op.msn)}
	}
	op.Original = a.Original()
	if len(op.Segs) > 0 {
		if err := s.storeOriginal(op); err != nil {
			return err
		}
	}
	s.answered()
	return nil
}

// storeOriginal writes an atomic's result to where its operation wants it, in host order.
func (s *Stream) storeOriginal(op *Op) error {
	p := &s.rx.place
	defer p.Done()
	p.ToSegs(op.Segs, 0, AtomicSize)
	bufs, err := p.Acquire()
	if err != nil {
		return err
	}
	v := s.rx.ctl[:AtomicSize]
	binary.NativeEndian.PutUint64(v, op.Original)
	for _, b := range bufs {
		v = v[copy(b, v):]
	}
	p.Release(AtomicSize)
	return nil
}

// inTerminate takes the peer's Terminate Message. It ends the stream in any case, so that nothing
// about it is refused.
func (s *Stream) inTerminate(f *mpa.FPDU) error {
	if err := s.whole(f); err != nil {
		return err
	}
	b := make([]byte, min(f.Len-ddp.UntaggedLen, MaxTerminate))
	f.CopyTo(ddp.UntaggedLen, b)
	t, err := ParseTerminate(b, s.heard.Load())
	if err != nil {
		return &Error{Type: RemoteOperation, Code: CodeUnspecified, Err: err}
	}
	return &TerminateError{Layer: t.Layer, Type: t.Type, Code: t.Code, Remote: true, Message: *t}
}
