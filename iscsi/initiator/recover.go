package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// This file recovers lost connections of a session with ErrorRecoveryLevel 2 (RFC 7143, sections 7.1.4.3, 7.2.2 and 7.1.5):
//
//	lost --Done, Time2Wait--> another connection is up: it logs the lost one out, for recovery --> resume
//	  |                   \-> none is: a login with the same CID takes its place ---------------/
//	  +--Time2Wait + Time2Retain, or the target says no--> the session ends
//
// What a lost connection has left is kept in order by its slots; resume, in reassign.go, sends it by a connection that is up.
//
// The connection that leads is known as nil wherever a connection is named. When it is lost another takes that part, so that
// pings, text and logouts go on.

// recoveryRetry is the first pause between attempts to recover a connection, and recoveryRetryLast the longest.
const (
	recoveryRetry     = 250 * time.Millisecond
	recoveryRetryLast = 4 * time.Second
)

// maxFruitless is how many recoveries in a row may pass without an answer to any command, of connections that do not last: a target that
// spoils each new one is given up.
const (
	maxFruitless = 8
	lasting      = 10 * time.Second
)

// recovery is a session's part in it. Session.mu guards it.
type recovery struct {
	dialer   iscsi.Dialer
	life     context.Context // ends with the session; nil: nothing is recovered
	quit     context.CancelFunc
	lead     *branch   // leads now; nil: the first connection
	headless bool      // no connection is up
	gone     bool      // the first connection was lost
	lost     []*branch // not recovered yet, oldest first
	running  bool      // a goroutine is at it

	fruitless int
	orphans   []orphan   // commands to be sent or reassigned, in the order of CmdSN
	moving    int        // TASK REASSIGN that are not answered
	parked    []*control // to be sent when that can be
}

// loss is what is known of a lost connection.
type loss struct {
	begun   time.Time // zero: with the session
	lost    bool
	resumed bool // what it left is being taken care of
	since   time.Time
	wait    time.Duration // Time2Wait
	cause   error
}

// RecoveryError says that a lost connection could not be recovered within its session, which has ended by that. It wraps both reasons.
type RecoveryError struct {
	CID   uint16
	Cause error // why the connection was lost
	Err   error // why it was not recovered
}

func (e *RecoveryError) Error() string {
	return fmt.Sprintf("initiator: connection %d lost (%v) and not recovered: %v", e.CID, e.Cause, e.Err)
}

// Unwrap gives both reasons.
func (e *RecoveryError) Unwrap() []error { return []error{e.Cause, e.Err} }

// Recovered is how many lost connections of the session have been recovered (ErrorRecoveryLevel 2).
func (s *Session) Recovered() uint64 { return s.recovered.Load() }

// beginRecovery lets connections be recovered from now on, if that was agreed.
func (s *Session) beginRecovery(d iscsi.Dialer) {
	if s.params.ErrorRecoveryLevel < 2 || s.params.DefaultTime2Retain == 0 || s.cfg.TargetName == "" {
		return
	}
	s.mu.Lock()
	if !s.ending() {
		s.rec.dialer = d
		s.rec.life, s.rec.quit = context.WithCancel(context.Background())
	}
	s.unlock()
}

// recovers tells whether a connection that is lost now is recovered.
func (s *Session) recovers() bool {
	return s.rec.life != nil && s.leaving == nil && (s.state == sessionUp || s.state == sessionLogout && s.drained != nil) &&
		s.rec.fruitless < maxFruitless
}

// sendFault is what becomes of a connection that did not take a PDU.
func (s *Session) sendFault(b *branch, err error) {
	if errors.Is(err, iscsi.ErrConnection) {
		s.lose(b, err)
		return
	}
	s.failLocked(err)
}

// lose takes a connection out of use; nil is the leading one. If it cannot be recovered the session ends. mu is held.
func (s *Session) lose(b *branch, err error) {
	leads := b == nil || b.leads
	switch {
	case s.ending(), b != nil && b.lost, leads && s.rec.headless:
		return
	case !s.recovers():
		s.failLocked(err)
		return
	}
	if leads {
		b = s.unseat()
	} else {
		s.leave(b)
	}
	b.lost, b.since, b.cause = true, time.Now(), err
	if b.since.Sub(b.begun) > lasting {
		s.rec.fruitless = 0
	}
	b.wait = max(b.wait, time.Duration(s.params.DefaultTime2Wait)*time.Second)
	b.dm.ConnectionTerminate(false)
	s.rec.lost = append(s.rec.lost, b)
	s.log.Warn("iscsi connection lost", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "cid", b.cid, "connections", s.Connections(), "cause", err)
	if fatal := s.strand(b); fatal != nil {
		s.failLocked(fatal)
		return
	}
	if !s.rec.running {
		s.rec.running = true
		s.wg.Go(s.recoverAll)
	}
}

// unseat takes the leading connection out of use, gives its part to another, and returns it.
func (s *Session) unseat() *branch {
	b := s.rec.lead
	if b == nil {
		b = &branch{s: s, dm: s.dm, cid: s.params.CID, up: true, allocated: true, ready: make(chan struct{})}
		s.rec.gone = true
	}
	b.leads, b.load, b.expStatSN = true, 0, s.expStatSN
	for i := range s.slots {
		sl := &s.slots[i]
		switch {
		case sl.req != nil && sl.req.via == nil:
			sl.req.via = b
			b.load++
		case sl.ctl != nil && sl.ctl.via == nil && !sl.ctl.parked:
			sl.ctl.via = b
		}
	}
	if len(s.branches) == 0 {
		s.rec.headless = true
		s.width.Store(0)
		return b
	}
	next := s.branches[0]
	s.leave(next)
	s.seat(next)
	return b
}

// seat makes a connection the leading one.
func (s *Session) seat(b *branch) {
	s.dm, s.info, s.expStatSN, s.maxData = b.dm, b.dm.Info(), b.expStatSN, b.maxData
	s.rec.lead, s.rec.headless, b.leads = b, false, true
	s.lend(b.dm)
	for i := range s.slots {
		sl := &s.slots[i]
		switch {
		case sl.req != nil && sl.req.via == b:
			sl.req.via = nil
		case sl.ctl != nil && sl.ctl.via == b:
			sl.ctl.via = nil
		}
	}
	b.load = 0
	s.width.Store(int32(1 + len(s.branches)))
	s.alive.asked, s.alive.last = false, s.moved()
}

// leave takes a connection that does not lead from among those that are up.
func (s *Session) leave(b *branch) {
	for i, o := range s.branches {
		if o == b {
			s.branches = append(s.branches[:i:i], s.branches[i+1:]...)
			break
		}
	}
	s.width.Store(int32(1 + len(s.branches)))
}

// byCID finds a connection that is up. leads tells that it is the leading one, which has no branch.
func (s *Session) byCID(cid uint16) (b *branch, ok bool) {
	for _, b := range s.branches {
		if b.cid == cid {
			return b, true
		}
	}
	lead := s.params.CID
	if s.rec.lead != nil {
		lead = s.rec.lead.cid
	}
	return nil, lead == cid && !s.rec.headless
}

// dropped is the target's word that it drops a connection (RFC 7143, section 11.9.1).
func (s *Session) dropped(cid uint16, wait time.Duration) {
	b, ok := s.byCID(cid)
	if !ok {
		return // known already
	}
	s.lose(b, ErrDropped)
	for _, l := range s.rec.lost {
		if l.cid == cid {
			l.wait = max(l.wait, wait)
		}
	}
}

// recoverAll works until no connection is lost, and then brings the session back to as many as it had.
func (s *Session) recoverAll() {
	for {
		s.mu.Lock()
		if s.ending() {
			s.rec.running = false
			s.unlock()
			return
		}
		if len(s.rec.lost) > 0 {
			b := s.rec.lost[0]
			s.unlock()
			if err := s.recover(b); err != nil {
				s.fail(&RecoveryError{CID: b.cid, Cause: b.cause, Err: err})
			}
			continue
		}
		cid, missing := s.missing()
		if !missing {
			s.rec.running = false
			s.unlock()
			return
		}
		s.unlock()
		ctx, cancel := context.WithTimeout(s.rec.life, s.cfg.AbortTimeout)
		err := s.join(ctx, s.rec.dialer, cid, nil)
		cancel()
		if err == nil {
			continue
		}
		s.log.Warn("iscsi session stays without a connection", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "cid", cid, "error", err)
		s.mu.Lock()
		idle := len(s.rec.lost) == 0 || s.ending()
		s.rec.running = !idle
		s.unlock()
		if idle {
			return // the next loss brings another attempt
		}
	}
}

// missing is the ID of a connection that the session had and has no more.
func (s *Session) missing() (cid uint16, ok bool) {
	for cid := range uint16(s.wanted()) {
		if _, up := s.byCID(cid); !up {
			return cid, s.state == sessionUp
		}
	}
	return 0, false
}

// recover recovers one connection, or tells why it cannot be.
func (s *Session) recover(b *branch) error {
	s.mu.Lock()
	wait := b.wait
	s.unlock()
	begin, retain := b.since.Add(wait), time.Duration(s.params.DefaultTime2Retain)*time.Second
	ctx, cancel := context.WithDeadlineCause(s.rec.life, begin.Add(retain), errRetained)
	defer cancel()
	select {
	case <-b.dm.Done(): // its memory is not written to any more
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := sleep(ctx, time.Until(begin)); err != nil {
		return context.Cause(ctx)
	}
	for pause := recoveryRetry; ; pause = min(2*pause, recoveryRetryLast) {
		s.mu.Lock()
		headless := s.rec.headless
		s.unlock()
		try, end := context.WithTimeout(ctx, s.cfg.AbortTimeout)
		var err error
		if headless {
			err = s.join(try, s.rec.dialer, b.cid, b)
		} else {
			err = s.logOutLost(try, b)
		}
		end()
		if err == nil {
			s.log.Info("iscsi connection recovered", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "cid", b.cid, "after", time.Since(b.since))
			return nil
		}
		if hopeless(err) {
			return err
		}
		if sleep(ctx, pause) != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// errRetained: the time is over for which the target keeps tasks.
var errRetained = errors.New("initiator: the target keeps the tasks of a lost connection no longer")

// refusal is a target's answer other than yes to a step of the recovery.
type refusal struct{ text string }

func (e *refusal) Error() string { return "initiator: " + e.text }

// hopeless tells errors that another attempt will not change.
func hopeless(err error) bool {
	var login *iscsi.LoginError
	var no *refusal
	switch {
	case errors.As(err, &login):
		return !login.Remote || login.Class != iscsi.LoginUnavailable.Class()
	case errors.As(err, &no), errors.Is(err, iscsi.ErrNoRDMA):
		return true
	}
	return false
}

// logOutLost lets a lost connection be logged out for recovery by one that is up (RFC 7143, section 11.14), and its tasks go on.
func (s *Session) logOutLost(ctx context.Context, b *branch) error {
	c := newControl()
	s.mu.Lock()
	if s.ending() {
		err := s.errLocked()
		s.unlock()
		return err
	}
	p := s.pdus.get()
	h := iscsi.LogoutRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetReason(iscsi.LogoutRecovery)
	h.SetCID(b.cid)
	h.SetCmdSN(s.cmdSN)
	h.SetExpStatSN(s.expStatSN)
	c.recovery = true
	err := s.sendControl(p, c)
	s.unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.wake:
	case <-ctx.Done():
		s.mu.Lock()
		s.lose(c.via, ErrLogoutUnanswered)
		s.unlock()
		return context.Cause(ctx)
	}
	if c.err != nil {
		return c.err
	}
	r := iscsi.LogoutResponse(c.bhs[:])
	switch code := r.Response(); code {
	case iscsi.LogoutOK: // tasks may be reassigned after a while (section 11.15.3)
		wait := min(time.Duration(r.Time2Wait()), time.Duration(s.params.DefaultTime2Retain)) * time.Second
		if err := sleep(s.rec.life, wait); err != nil {
			return err
		}
	case iscsi.LogoutNoCID: // it has forgotten the connection: whether it kept tasks of it shows
	case iscsi.LogoutCleanupFailed:
		return fmt.Errorf("initiator: logout of connection %d for recovery: %v", b.cid, code)
	default:
		return &refusal{fmt.Sprintf("logout of connection %d for recovery: %v", b.cid, code)}
	}
	s.mu.Lock()
	s.resume(b)
	s.unlock()
	return nil
}

// recovering tells whether a lost connection may come back: the session lives, and none is up.
func (s *Session) recovering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.life != nil && !s.ending()
}

// ErrLogoutUnanswered: the target did not answer a Logout Request for a lost connection, so the connection that carried it was given up.
var ErrLogoutUnanswered = errors.New("initiator: logout for recovery not answered")
