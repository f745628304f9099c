package initiator

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// sweeps is how often a command's age is looked at within its deadline; it ends at most 1/sweeps of it late.
const sweeps = 8

// deadline ends commands that outlive Config.CommandTimeout. Ages are counted in ticks of one timer, so that a command costs
// no look at the clock.
//
//	sent --CommandTimeout--> ABORT TASK --AbortTimeout--> LOGICAL UNIT RESET --AbortTimeout--> session dropped
//
// Each step ends the command if the target confirms it; only then are its buffers the owner's again. Session.mu guards all of it.
type deadline struct {
	timer *time.Timer
	tick  uint32
	busy  bool // a command is being ended
}

// TimeoutError says that a command outlived its deadline and was ended. It is an ErrTimeout and, since the command was aborted at the target,
// an ErrAborted.
type TimeoutError struct{ After time.Duration }

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("initiator: command not answered within %v", e.After)
}

// Timeout is true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// Unwrap gives ErrTimeout and ErrAborted.
func (e *TimeoutError) Unwrap() []error { return []error{ErrTimeout, ErrAborted} }

// watchCommands begins to look after deadlines; mu is held.
func (s *Session) watchCommands() {
	if s.cfg.CommandTimeout > 0 && s.cfg.TargetName != "" {
		s.deadline.timer = time.AfterFunc(s.cfg.CommandTimeout/sweeps, s.sweep)
	}
}

// unwatchCommands ends that; mu is held.
func (s *Session) unwatchCommands() {
	if s.deadline.timer != nil {
		s.deadline.timer.Stop()
	}
}

// sweep lets one more tick pass and ends the oldest command that is too old. One at a time: what ends it may end the others too.
func (s *Session) sweep() {
	s.mu.Lock()
	defer s.unlock()
	if s.ending() {
		return
	}
	d := &s.deadline
	d.tick++
	d.timer.Reset(s.cfg.CommandTimeout / sweeps)
	if d.busy {
		return
	}
	var old *Request
	for i := range s.slots {
		r := s.slots[i].req
		if r != nil && d.tick-r.tick > sweeps && r.todo == nothing && !s.strands(r.via) && (old == nil || r.cmdSN.Less(old.cmdSN)) {
			old = r
		}
	}
	if old == nil {
		return
	}
	old.late, d.busy = true, true
	itt := old.itt
	s.log.Warn("iscsi command too old", "target", s.cfg.TargetName, "after", s.cfg.CommandTimeout)
	s.wg.Go(func() {
		s.stopTask(old, itt)
		s.mu.Lock()
		s.deadline.busy = false
		s.unlock()
	})
}

// abortError is what a command that was aborted ends with.
func (s *Session) abortError(r *Request) error {
	if r.late {
		return &TimeoutError{After: s.cfg.CommandTimeout}
	}
	return ErrAborted
}

// stopTask ends a command that was sent, with its tag: when it returns the command has ended, or with the session will. A target need
// not take more than one ABORT TASK at a time (RFC 7143, section 4.2.2.1), so that they take turns.
func (s *Session) stopTask(r *Request, itt uint32) {
	s.abortTurn <- struct{}{}
	defer func() { <-s.abortTurn }()
	var unit uint64
	err := s.tryStop(iscsi.AbortTask, func() *Request {
		if sl := s.lookup(itt); sl == nil || sl.req != r {
			return nil
		}
		unit = r.lun
		return r
	})
	if err == nil {
		return
	}
	if !errors.Is(err, iscsi.ErrConnection) {
		s.log.Warn("iscsi abort failed, resetting the logical unit", "target", s.cfg.TargetName, "error", err)
		rerr := s.tryStop(iscsi.LogicalUnitReset, func() *Request {
			if sl := s.lookup(itt); sl == nil || sl.req != r {
				return nil // its answer came after all
			}
			return &Request{lun: unit}
		})
		if rerr == nil {
			return
		}
	}
	s.fail(err)
	<-s.done
}

// tryStop sends one task management function for the task or unit that which names, under mu, and waits for the answer; nil of which means
// that there is nothing left to do. The answer yes has ended the tasks.
func (s *Session) tryStop(fn iscsi.TaskFunction, which func() *Request) error {
	s.mu.Lock()
	r := which()
	if r == nil {
		s.unlock()
		return nil
	}
	task := r
	if fn != iscsi.AbortTask {
		task = nil
	}
	c, err := s.manageLocked(fn, r.lun, task)
	s.unlock()
	if err != nil {
		return err
	}
	timeout := time.NewTimer(s.cfg.AbortTimeout)
	defer timeout.Stop()
	select {
	case <-timeout.C:
		return ErrAbortUnanswered
	case <-c.wake:
	}
	switch rsp := iscsi.TaskMgmtResponse(c.bhs[:]).Response(); {
	case c.err != nil:
		return c.err
	case rsp != iscsi.TaskComplete && rsp != iscsi.TaskNoTask:
		return protocolErrorOf(iscsi.OpTaskMgmtRsp, fmt.Sprintf("%v answered: %v", fn, rsp))
	}
	return nil
}
