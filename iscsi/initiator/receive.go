package initiator

import (
	"context"
	"log/slog"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// ControlNotify implements iscsi.Notifier: it handles one PDU of the target.
func (s *Session) ControlNotify(p *iscsi.PDU) {
	s.mu.Lock()
	s.alive.pdus++
	if f := s.cfg.Hooks.PDU; f != nil {
		f(false, p)
	}
	switch {
	case s.ending(), s.rec.gone:
	case s.state == sessionLogin:
		s.loginStep(p)
	default:
		if err := iscsi.Validate(p, false); err != nil {
			s.failLocked(err)
			break
		}
		s.receive(p)
		s.pump()
		s.checkDrained()
	}
	s.unlock()
	p.Release()
}

// receive handles a PDU of full feature phase.
func (s *Session) receive(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	s.window(h.ExpCmdSN(), h.MaxCmdSN())
	switch p.Opcode() {
	case iscsi.OpNOPIn:
		s.nopIn(p)
	case iscsi.OpSCSIResponse:
		if s.status(p) {
			s.response(p, nil)
		}
	case iscsi.OpTaskMgmtRsp, iscsi.OpTextRsp, iscsi.OpLogoutRsp:
		if s.status(p) {
			s.answer(p)
		}
	case iscsi.OpAsync:
		if s.status(p) {
			s.async(nil, p)
		}
	case iscsi.OpReject:
		if s.status(p) {
			s.rejected(p)
		}
	default:
		// Login Responses are over, and Data-In and R2T are the Datamover's to handle.
		s.failLocked(protocolError(p, "in full feature phase"))
	}
}

// window takes the command window over, unless it is older than what is known (RFC 7143, section 4.2.2.1).
func (s *Session) window(exp, last iscsi.SN) {
	if last.Less(exp - 1) {
		return
	}
	if s.expCmdSN.Less(exp) {
		s.expCmdSN = exp
	}
	if s.maxCmdSN.Less(last) {
		s.maxCmdSN = last
	}
}

// status checks a StatSN that is used up. At ErrorRecoveryLevel 0 one that was acknowledged before, or that leaves
// a gap, ends the session (RFC 7143, sections 4.2.2.2 and 7.1).
func (s *Session) status(p *iscsi.PDU) bool {
	sn := iscsi.BHS(p.BHS[:]).StatSN()
	if sn != s.expStatSN {
		s.failLocked(protocolError(p, "StatSN %d, expected %d", sn, s.expStatSN))
		return false
	}
	s.expStatSN++
	return true
}

// response ends a command, on the connection that it came by; nil is the leading one.
func (s *Session) response(p *iscsi.PDU, b *branch) {
	h := iscsi.SCSIResponse(p.BHS[:])
	sl := s.lookup(h.ITT())
	if sl == nil || sl.req == nil {
		s.stray(p)
		return
	}
	r := sl.req
	if r.via != b { // RFC 7143, section 4.2.5.1
		s.failLocked(protocolError(p, "on another connection than its command"))
		return
	}
	if err := r.residuals(p, h); err != nil {
		s.failLocked(err) // finish ends r with the others
		return
	}
	s.freeSlot(sl)
	s.rec.fruitless = 0
	var err error
	switch {
	case h.Response() != iscsi.ResponseCompleted:
		err = &ResponseError{h.Response()}
	default:
		r.Status = scsi.Status(h.Status())
		r.senseLen = copy(r.sense[:], iscsi.SenseData(p.Data))
		err = scsi.NewError(r.command(), r.Status, r.Sense())
	}
	if e, ok := err.(*scsi.Error); ok { //nolint:errorlint // just made
		e.Residual, e.Overflow = r.Residual, r.Overflow
		s.attentionCame(r, e)
	}
	s.endRequest(r, err)
}

// residuals takes the residual counts over; ones that say more was left than was asked for are a lie.
func (r *Request) residuals(p *iscsi.PDU, h iscsi.SCSIResponse) error {
	expected := r.OutLen
	if expected == 0 {
		expected = r.InLen
	}
	if h.Overflow() || h.Underflow() {
		r.Residual, r.Overflow = int(h.Residual()), h.Overflow()
	}
	if h.BidiOverflow() || h.BidiUnderflow() {
		r.BidiResidual, r.BidiOverflow = int(h.BidiResidual()), h.BidiOverflow()
	}
	switch {
	case h.Underflow() && r.Residual > expected:
		n := r.Residual
		r.Residual = expected
		return protocolError(p, "residual of %d, expected %d octets", n, expected)
	case h.BidiUnderflow() && r.BidiResidual > r.InLen:
		n := r.BidiResidual
		r.BidiResidual = r.InLen
		return protocolError(p, "read residual of %d, expected %d octets", n, r.InLen)
	}
	return nil
}

// stray tells of an answer that nobody waits for: the task was aborted, or never was.
func (s *Session) stray(p *iscsi.PDU) {
	s.strays++
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("iscsi answer to no task", "target", s.cfg.TargetName, "pdu", iscsi.BHS(p.BHS[:]).String(), "count", s.strays)
	}
}

// nopIn handles the target's pings and the answers to ours (RFC 7143, section 11.19).
func (s *Session) nopIn(p *iscsi.PDU) {
	h := iscsi.NOPIn(p.BHS[:])
	switch {
	case h.ITT() != iscsi.ReservedTag:
		if s.status(p) {
			s.answer(p)
		}
	default:
		s.pong(nil, h)
	}
}

// pong answers a ping of the target with its tag and LUN, on the connection that it came by; nil is the leading one. The ping has used no StatSN, and the answer
// uses no CmdSN. Nothing is owed to the reserved tag.
func (s *Session) pong(b *branch, h iscsi.NOPIn) {
	if h.TTT() == iscsi.ReservedTag {
		return
	}
	q := s.pdus.get()
	n := iscsi.NOPOut(q.BHS[:])
	n.Init()
	n.SetImmediate(true)
	n.SetLUN(h.LUN())
	n.SetTTT(h.TTT())
	n.SetCmdSN(s.cmdSN)
	n.SetExpStatSN(s.statSN(b))
	if err := s.sendBy(b, q, nil); err != nil {
		s.sendFault(b, err)
	}
}

// async handles an Asynchronous Message that came by a connection; nil is the leading one (RFC 7143, section 11.9).
func (s *Session) async(b *branch, p *iscsi.PDU) {
	h := iscsi.AsyncMessage(p.BHS[:])
	s.asyncCame(p)
	s.log.Info("iscsi target tells", "target", s.cfg.TargetName, "message", h.String())
	switch h.Event() {
	case iscsi.AsyncLogout:
		s.targetWantsLogout()
	case iscsi.AsyncDropConnection:
		if s.recovers() {
			s.dropped(h.Parameter1(), time.Duration(h.Parameter2())*time.Second)
			return
		}
		s.failLocked(ErrDropped)
	case iscsi.AsyncDropSession:
		s.failLocked(ErrDropped)
	case iscsi.AsyncTaskTerminated:
		s.tasksTerminated(b, h)
	case iscsi.AsyncSense, iscsi.AsyncNegotiate, iscsi.AsyncVendor:
		// Sense data is told again as unit attention; the others are not asked for by what was negotiated.
	}
}

// rejected handles a Reject: the request in its data segment ends (RFC 7143, section 11.17).
func (s *Session) rejected(p *iscsi.PDU) {
	reason := iscsi.Reject(p.BHS[:]).Reason()
	s.log.Warn("iscsi target rejects a PDU", "target", s.cfg.TargetName, "reason", reason.String())
	if len(p.Data) < iscsi.BHSLen {
		return
	}
	h := iscsi.BHS(p.Data[:iscsi.BHSLen])
	if op := h.Opcode(); s.params.ErrorRecoveryLevel > 0 && (op == iscsi.OpDataOut || op == iscsi.OpSNACK) {
		return // the task goes on, and ends by its response (RFC 7143, section 7.3)
	}
	err := &RejectError{h.Opcode(), reason}
	sl := s.lookup(h.ITT())
	if sl == nil {
		return
	}
	switch {
	case sl.req != nil && reason == iscsi.RejectDataDigest && s.mends(sl.req, h):
	case sl.req != nil:
		r := sl.req
		s.mover(r).DeallocateTaskResources(r.itt)
		s.freeSlot(sl)
		s.plug(r.cmdSN)
		s.endRequest(r, err)
	case sl.ctl != nil:
		c := sl.ctl
		s.freeSlot(sl)
		if !h.Immediate() {
			s.plug(h.CmdSN())
		}
		s.endControl(c, err)
	}
}

// maxResent is how often a command is sent again because its data did not arrive whole.
const maxResent = 8

// mends deals with a PDU of r that the target has discarded for its data's digest, at an ErrorRecoveryLevel above 0 (RFC 7143, section 7.8): a
// command is sent again, since the target has not counted its number. For a Data-Out the target asks again of its own accord.
func (s *Session) mends(r *Request, h iscsi.BHS) bool {
	switch {
	case s.params.ErrorRecoveryLevel == 0:
		return false
	case h.Opcode() == iscsi.OpDataOut:
		return true
	case h.Opcode() != iscsi.OpSCSICommand, r.cmdSN.Less(s.expCmdSN), r.resent >= maxResent:
		return false
	}
	r.resent++
	s.sendAgain(r)
	return true
}

// plug fills the gap that a rejected non-immediate request may leave in the order of commands, so that the target does not
// wait for its number for ever (RFC 7143, section 7.3): a ping takes the number.
func (s *Session) plug(sn iscsi.SN) {
	if sn.Less(s.expCmdSN) {
		return // the target has counted it
	}
	c := newControl()
	p := s.pdus.get()
	n := iscsi.NOPOut(p.BHS[:])
	n.Init()
	n.SetCmdSN(sn)
	n.SetExpStatSN(s.expStatSN)
	if err := s.sendControl(p, c); err != nil {
		s.sendFault(nil, err)
	}
}
