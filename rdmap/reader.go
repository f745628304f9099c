package rdmap

import (
	"errors"
	"fmt"
	"io"
	"time"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// inbound is the reader's own state. fin is guarded by Stream.mu; the rest is the reader's alone.
type inbound struct {
	fin   bool // the peer has ended its half
	batch bool // the reader has entered a batch

	queues [queues]ddp.Queue
	place  ddp.Placement

	// The Send or Immediate Data message that is open on QN 0.
	receive  *Receive
	size     int // of its buffers
	opcode   Opcode
	imm      [ImmediateLen]byte
	delivery Delivery

	cover ddp.Cover // of the oldest outstanding Read's Response

	ctl [maxControl]byte // payload of a control message
}

func (r *inbound) init(*Stream) {
	for i := range r.queues {
		r.queues[i] = ddp.NewQueue()
	}
}

// Run reads the connection until it ends; the Handler is called on its goroutine. It returns after
// Handler.Closed, when nothing of the stream runs any more.
func (s *Stream) Run() {
	go s.write()
	s.begin()
	s.read()
	s.finish()
}

// begin lets the stream send, as far as its role allows (RFC 5044, section 7.1.2, rule 4; RFC 6581, section 9.2).
func (s *Stream) begin() {
	s.mu.Lock()
	s.started = true
	switch {
	case s.state >= failing:
	case s.cfg.Role == Responder && s.cfg.RTR != RTRNone:
		s.timer = time.AfterFunc(s.cfg.RTRTimeout, s.rtrOverdue)
	}
	s.mu.Unlock()
	s.enterBatch()
	if s.cfg.Role == Initiator {
		// The Ready-To-Receive message goes out before the consumer hears of the connection.
		s.mu.Lock()
		own := s.claimLocked()
		s.mu.Unlock()
		if own {
			s.pump()
		}
		s.called = true
		s.h.Established()
	}
	s.leaveBatch()
}

// rtrOverdue ends a peer-to-peer connection whose initiator stays silent.
func (s *Stream) rtrOverdue() {
	if !s.heard.Load() {
		s.Abort(fmt.Errorf("%w within %v", ErrNoRTR, s.cfg.RTRTimeout))
	}
}

func (s *Stream) enterBatch() {
	if !s.rx.batch {
		s.rx.batch = true
		s.enter()
	}
}

func (s *Stream) leaveBatch() {
	if s.rx.batch {
		s.rx.batch = false
		s.leave()
	}
}

// read handles FPDU after FPDU until the stream ends. Those that were read together are one batch; the batch ends before the reader
// may have to wait.
func (s *Stream) read() {
	for {
		f, err := s.c.Next()
		if err != nil {
			s.leaveBatch()
			s.readFailed(err)
			return
		}
		if s.stopped.Load() { // what comes after an error is dropped (RFC 5041, section 7.1)
			s.leaveBatch()
			return
		}
		if err := s.segment(f); err != nil {
			s.leaveBatch()
			s.segmentFailed(f, err)
			return
		}
		if !s.heard.Load() {
			s.firstFPDU()
		}
		if s.rx.batch && !s.c.Buffered() {
			s.leaveBatch()
		}
	}
}

// firstFPDU is for the first valid FPDU: the peer is in full operation, so that a responder may send.
func (s *Stream) firstFPDU() {
	s.heard.Store(true)
	s.mu.Lock()
	s.canSend = true
	s.nudge = false
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if s.cfg.Role == Responder {
		s.enterBatch()
		s.called = true
		s.h.Established()
	}
}

// whole makes f whole, so that its CRC has been checked. It may wait.
func (s *Stream) whole(f *mpa.FPDU) error {
	if f.Whole {
		return nil
	}
	s.leaveBatch()
	return f.Fill()
}

// readFailed ends the stream after MPA's error.
func (s *Stream) readFailed(err error) {
	var m *mpa.Error
	switch {
	case errors.Is(err, io.EOF):
		s.peerClosed()
	case errors.As(err, &m) && m.Code != mpa.CodeLost:
		s.fail(err, Terminate{Layer: mpa.TerminateLayer, Type: mpa.TerminateType, Code: uint8(m.Code)})
	default:
		s.mu.Lock()
		s.dieLocked(err)
		s.mu.Unlock()
	}
}

// segmentFailed ends the stream after an error in the segment f. With CRCs an FPDU that is not whole has not been checked
// yet: if it is damaged, that is the error, and not what its octets seem to say.
func (s *Stream) segmentFailed(f *mpa.FPDU, err error) {
	var t *TerminateError
	if errors.As(err, &t) && t.Remote {
		s.terminated(t)
		return
	}
	var m *mpa.Error
	if s.crc && !errors.As(err, &m) && !f.Whole {
		if bad := f.Fill(); bad != nil {
			s.readFailed(bad)
			return
		}
	}
	if errors.As(err, &m) && m.Code == mpa.CodeLost {
		s.readFailed(err)
		return
	}
	// The FPDU itself was valid, which is what a responder had to wait for.
	if !errors.As(err, &m) || m.Code != mpa.CodeCRC {
		s.mu.Lock()
		s.canSend = true
		s.mu.Unlock()
	}
	s.fail(err, s.describe(f, err))
}

// describe makes the Terminate Header for an error in the segment f (RFC 5040, figure 10).
func (s *Stream) describe(f *mpa.FPDU, err error) Terminate {
	var t Terminate
	t.Layer, t.Type, t.Code = codeOf(err)
	if t.Layer == mpa.TerminateLayer || t.Type == uint8(LocalCatastrophic) || f.Len < ddp.MinLen {
		return t
	}
	h := ddp.Control(f.Head)
	n := h.HeaderLen()
	if len(f.Head) < n {
		return t
	}
	t.HasLen, t.SegmentLen = true, uint16(f.Len)
	t.DDP = append([]byte(nil), f.Head[:n]...)
	if t.Layer == Layer && ErrorType(t.Type) == RemoteProtection && Control(h.ULP()).Opcode() == OpReadRequest && len(f.Head) >= n+ReadRequestLen {
		t.ReadRequest = append([]byte(nil), f.Head[n:n+ReadRequestLen]...)
	}
	return t
}

// segment handles one DDP segment: the checks that need its octets alone, then by buffer model.
func (s *Stream) segment(f *mpa.FPDU) error {
	if f.Len < ddp.MinLen {
		return tooShort(f)
	}
	h := ddp.Control(f.Head)
	if h.Version() != ddp.Version {
		return versionError(h)
	}
	if f.Len < h.HeaderLen() {
		return tooShort(f)
	}
	c := Control(h.ULP())
	op := c.Opcode()
	switch {
	case c.Version() != Version:
		return &Error{Type: RemoteOperation, Code: CodeVersion, Detail: fmt.Sprintf("version %d", c.Version())}
	case op > lastOpcode, op.Tagged() != h.Tagged():
		return &Error{Type: RemoteOperation, Code: CodeUnexpectedOpcode, Detail: fmt.Sprintf("%v, tagged %t", op, h.Tagged())}
	}
	if h.Tagged() {
		if op == OpWrite {
			return s.inWrite(f)
		}
		return s.inReadResponse(f)
	}
	u := ddp.Untagged(f.Head)
	if u.QN() != op.Queue() {
		return &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeInvalidQN, Detail: fmt.Sprintf("%v on QN %d", op, u.QN())}
	}
	if op == OpTerminate {
		return s.inTerminate(f)
	}
	if err := s.rx.queues[u.QN()].CheckMSN(u); err != nil {
		return err
	}
	switch op {
	case OpReadRequest:
		return s.inReadRequest(f)
	case OpAtomicRequest:
		return s.inAtomicRequest(f)
	case OpAtomicResponse:
		return s.inAtomicResponse(f)
	}
	return s.inSend(f, op)
}

// tooShort is the error of a ULPDU that ends within its DDP header: MPA's length does not fit its content.
func tooShort(f *mpa.FPDU) error {
	return &mpa.Error{Code: mpa.CodeMarker, Detail: fmt.Sprintf("ULPDU of %d octets is shorter than its DDP header", f.Len)}
}

func versionError(h ddp.Control) error {
	e := &ddp.Error{Type: ddp.UntaggedBuffer, Code: ddp.CodeUntaggedVersion, Detail: fmt.Sprintf("version %d", h.Version())}
	if h.Tagged() {
		e.Type, e.Code = ddp.TaggedBuffer, ddp.CodeTaggedVersion
	}
	return e
}
