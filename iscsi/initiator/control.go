package initiator

import (
	"context"
	"errors"

	"goiwarp/iscsi"
)

// control is one request other than a SCSI command, and its answer.
type control struct {
	wake chan struct{} // closed with the answer
	want iscsi.Opcode  // the answer's
	bhs  [iscsi.BHSLen]byte
	data []byte
	err  error
	next *control
	// stops tells which tasks have ended once the answer is yes; nil if the request stops none.
	stops func(*Request) bool

	// Until the answer comes bhs is the request's own.
	via      *branch // the connection that it was sent on; nil: the leading one
	parked   bool    // waits to be sent
	moves    bool    // TASK REASSIGN
	recovery bool    // logout of a lost connection
}

func newControl() *control { return &control{wake: make(chan struct{})} }

// endControl lets c end with err when mu is released, after the requests that end with it.
func (s *Session) endControl(c *control, err error) {
	c.err, c.next = err, s.answered
	s.answered = c
}

// sendControl gives a request a tag and sends it; mu is held.
func (s *Session) sendControl(p *iscsi.PDU, c *control) error { return s.sendControlBy(nil, p, c) }

// sendControlBy is sendControl by a connection; nil is the leading one.
func (s *Session) sendControlBy(b *branch, p *iscsi.PDU, c *control) error {
	return s.sendTask(b, p, c, nil)
}

// sendTask is sendControlBy with the buffers of a TASK REASSIGN. On a connection that is being recovered a ping or an ABORT TASK waits.
func (s *Session) sendTask(b *branch, p *iscsi.PDU, c *control, t *iscsi.TaskBuffers) error {
	if len(s.ctlFree) == 0 {
		p.Release()
		return ErrBusy
	}
	i := s.ctlFree[len(s.ctlFree)-1]
	s.ctlFree = s.ctlFree[:len(s.ctlFree)-1]
	sl := &s.slots[i]
	sl.ctl, c.want = c, p.Opcode()|0x20 // every answer has its request's opcode, with the target's bit
	h := iscsi.NOPOut(p.BHS[:])         // ITT stands where it does in all of them
	h.SetITT(s.tag(i))
	c.bhs, c.via = p.BHS, b
	if s.strands(b) {
		if p.Release(); c.want == iscsi.OpNOPIn || c.aborts() {
			s.parkControl(c, nil)
			return nil
		}
		s.freeSlot(sl)
		return errLostRequest
	}
	if err := s.sendBy(b, p, t); err != nil {
		if errors.Is(err, iscsi.ErrConnection) && !c.moves && s.recovers() {
			s.lose(b, err) // which sorts c out with the others
			return nil
		}
		s.freeSlot(sl)
		return err
	}
	return nil
}

// call sends a request made by fill, which sets all but the tag and the serial numbers, and waits for the answer.
func (s *Session) call(ctx context.Context, state sessionState, fill func(p *iscsi.PDU)) (*control, error) {
	c := newControl()
	s.mu.Lock()
	if s.state != state {
		err := s.errLocked()
		s.unlock()
		return nil, err
	}
	p := s.pdus.get()
	fill(p)
	h := iscsi.NOPOut(p.BHS[:])
	h.SetCmdSN(s.cmdSN)
	h.SetExpStatSN(s.expStatSN)
	err := s.sendControl(p, c)
	s.unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-c.wake:
		return c, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// answer ends a request other than a command.
func (s *Session) answer(p *iscsi.PDU) {
	sl := s.lookup(iscsi.BHS(p.BHS[:]).ITT())
	if sl == nil || sl.ctl == nil {
		s.stray(p)
		return
	}
	c := sl.ctl
	if p.Opcode() != c.want {
		s.failLocked(protocolError(p, "in answer to what %v answers", c.want))
		return
	}
	s.freeSlot(sl)
	task := iscsi.TaskMgmtRequest(c.bhs[:]).RTT()
	c.bhs = p.BHS
	c.data = append(c.data, p.Data...)
	if c.moves {
		s.reassigned(p, task)
	}
	if c.stops != nil {
		s.tasksStopped(p, c)
	}
	if p.Opcode() == iscsi.OpLogoutRsp && s.leaving == nil && !c.recovery {
		s.leaving = ErrClosed
	}
	s.endControl(c, nil)
}

// Ping sends a NOP-Out and waits for its answer.
func (s *Session) Ping(ctx context.Context) error {
	s.mu.Lock()
	if s.state != sessionUp {
		err := s.errLocked()
		s.unlock()
		return err
	}
	c, err := s.sendPing()
	s.unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.wake:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sendPing sends a NOP-Out with a tag; mu is held. It takes its turn among the commands while the window is open: one for immediate delivery
// counts as unexpected over iSER, until a PDU that is not immediate follows, and of those the target takes few (RFC 7145, section 8.1.1.3).
func (s *Session) sendPing() (*control, error) { return s.sendPingBy(nil) }

// sendPingBy is sendPing by a connection; nil is the leading one.
func (s *Session) sendPingBy(b *branch) (*control, error) {
	c := newControl()
	p := s.pdus.get()
	n := iscsi.NOPOut(p.BHS[:])
	n.Init()
	immediate := s.maxCmdSN.Less(s.cmdSN) || s.rec.headless
	n.SetImmediate(immediate)
	n.SetCmdSN(s.cmdSN)
	n.SetExpStatSN(s.statSN(b))
	if err := s.sendControlBy(b, p, c); err != nil {
		return nil, err
	}
	if !immediate {
		s.cmdSN++
	}
	return c, nil
}

// TaskManagement asks for a function that concerns a logical unit or the target: all but ABORT TASK and TASK REASSIGN.
// Commands that it ends, end with ErrAborted. lun is as EncodeLUN makes it, 0 if the function has none.
func (s *Session) TaskManagement(ctx context.Context, fn iscsi.TaskFunction, lun uint64) (iscsi.TaskResponse, error) {
	c, err := s.manage(ctx, fn, lun, nil)
	if err != nil {
		return 0, err
	}
	return iscsi.TaskMgmtResponse(c.bhs[:]).Response(), nil
}

// manage sends a task management request and waits for the answer. r is the task of ABORT TASK.
func (s *Session) manage(ctx context.Context, fn iscsi.TaskFunction, lun uint64, r *Request) (*control, error) {
	s.mu.Lock()
	c, err := s.manageLocked(fn, lun, r)
	s.unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-c.wake:
		return c, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Session) manageLocked(fn iscsi.TaskFunction, lun uint64, r *Request) (*control, error) {
	if s.state != sessionUp && s.state != sessionLogout {
		return nil, s.errLocked()
	}
	c := newControl()
	before := s.cmdSN
	switch fn {
	case iscsi.AbortTask:
		itt := r.itt
		c.stops = func(q *Request) bool { return q.itt == itt }
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset:
		c.stops = func(q *Request) bool { return q.lun == lun && q.cmdSN.Less(before) }
	case iscsi.TargetWarmReset, iscsi.TargetColdReset, iscsi.ITNexusReset:
		c.stops = func(q *Request) bool { return q.cmdSN.Less(before) }
	case iscsi.ClearACA, iscsi.TaskReassign, iscsi.QueryTask, iscsi.QueryTaskSet, iscsi.QueryAsyncEvent:
	}
	p := s.pdus.get()
	h := iscsi.TaskMgmtRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetFunction(fn)
	h.SetLUN(lun)
	h.SetCmdSN(s.cmdSN)
	var by *branch
	if r != nil {
		by = r.via // ABORT TASK goes where the task is (RFC 7143, section 11.5.1)
	}
	h.SetExpStatSN(s.statSN(by))
	if r != nil {
		h.SetRTT(r.itt)
		h.SetRefCmdSN(r.cmdSN)
	}
	if err := s.sendControlBy(by, p, c); err != nil {
		return c, err
	}
	if r == nil && c.stops != nil && fn != iscsi.ITNexusReset {
		s.stopData(c)
	}
	return c, nil
}

// tasksStopped acts on the answer to a function that stops tasks: from now on the target sends nothing for them, so
// that they end here (RFC 7143, section 4.2.3.3).
func (s *Session) tasksStopped(p *iscsi.PDU, c *control) {
	switch rsp := iscsi.TaskMgmtResponse(p.BHS[:]).Response(); rsp {
	case iscsi.TaskComplete:
	case iscsi.TaskNoTask: // it had ended before; its answer came before this one, or it is lost
	default:
		s.stopMute(c)
		return
	}
	for i := range s.slots {
		r := s.slots[i].req
		if r == nil || !c.stops(r) {
			continue
		}
		s.mover(r).DeallocateTaskResources(r.itt)
		s.freeSlot(&s.slots[i])
		s.endRequest(r, s.abortError(r))
	}
}

// cancel gives up a command whose caller's context has ended, and returns when its buffers are the caller's again.
func (l *LUN) cancel(ctx context.Context, r *Request) {
	l.c.stop(r)
	<-r.wake
	if errors.Is(r.Err, ErrAborted) {
		r.Err = context.Cause(ctx)
	}
}

// stop ends a command early: at once if it was not sent yet, else when the target has answered ABORT TASK, or the session has ended
// because it did not.
func (s *Session) stop(r *Request) {
	s.mu.Lock()
	if r.state == requestQueued {
		s.queue.remove(r)
		s.endRequest(r, ErrAborted)
		s.checkDrained()
	}
	sent, itt := r.state == requestSent, r.itt
	s.unlock()
	if sent {
		s.stopTask(r, itt)
	}
}
