package initiator

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// alive is how a session finds out that its target is silent although the connection stands: stopped, hung, or behind a box
// on the way that acknowledges in its stead. TCP notices none of these.
//
//	heard ... silence ... | beat: ping ... silence ... | beat: dead
//	          PingInterval              PingTimeout
//
// What arrives only counts; one timer compares the counts from time to time. Session.mu guards all of it.
type alive struct {
	timer *time.Timer
	pdus  uint64 // that came from the target
	// ping is the last one that was sent, and asked tells that its answer, or any other sign of life, is due.
	ping  *control
	asked bool
	last  counts // at the last beat
}

// counts are what a connection had moved at some time.
type counts struct{ pdus, received, sent uint64 }

// sendSlack is how many octets the system may still have taken for sending without that being a sign of life: a few requests, and the
// ping. More of them leave only as fast as the target takes them in, since the socket's buffer is full of what went before.
const sendSlack = 4096

// watch begins to watch the target; mu is held. A discovery session knows no pings (RFC 7143, section 4.3), and
// is too short to need them.
func (s *Session) watch() {
	if s.cfg.PingInterval > 0 && s.cfg.TargetName != "" {
		s.alive.last = s.moved()
		s.alive.timer = time.AfterFunc(s.cfg.PingInterval, s.beat)
	}
}

// unwatch ends that; mu is held.
func (s *Session) unwatch() {
	if s.alive.timer != nil {
		s.alive.timer.Stop()
	}
}

// moved counts what came and went so far. Data that the Datamover moves by itself counts where it can tell.
func (s *Session) moved() counts {
	c := counts{pdus: s.alive.pdus}
	c.count(s.dm)
	return c
}

// count takes over what a connection has moved, if it tells.
func (c *counts) count(dm iscsi.Datamover) {
	if m, ok := dm.(iscsi.Meter); ok {
		c.received, c.sent = m.Moved()
	}
}

// beat looks at what has moved since the last time.
func (s *Session) beat() {
	s.mu.Lock()
	defer s.unlock()
	if s.ending() {
		return
	}
	a := &s.alive
	s.feel()
	if s.ending() {
		return
	}
	if s.rec.headless { // being recovered, within its own time
		a.asked = false
		a.timer.Reset(s.cfg.PingInterval)
		return
	}
	now := s.moved()
	heard := now.pdus != a.last.pdus || now.received != a.last.received
	sending := now.sent-a.last.sent > sendSlack
	a.last = now
	switch {
	case heard:
		a.asked = false
		a.timer.Reset(s.cfg.PingInterval)
	case !a.asked:
		switch err := s.ask(); {
		case err == nil:
			a.asked = true
			a.timer.Reset(s.cfg.PingTimeout)
		case errors.Is(err, iscsi.ErrConnection):
			s.silent(err)
		default: // it takes no more of such PDUs for now; who was not asked cannot fail to answer
			a.timer.Reset(s.cfg.PingInterval)
		}
	case sending: // the ping waits its turn behind data
		a.timer.Reset(s.cfg.PingTimeout)
	default:
		s.silent(&DeadTargetError{Silence: s.cfg.PingInterval + s.cfg.PingTimeout})
	}
}

// silent gives the leading connection up, and goes on watching if the session does.
func (s *Session) silent(err error) {
	s.lose(nil, err)
	if !s.ending() {
		s.alive.asked = false
		s.alive.timer.Reset(s.cfg.PingInterval)
	}
}

// ask sends a ping, unless something that the target has to answer at once waits for it already. Nothing may follow
// a Logout Request (RFC 7143, section 11.14), which is such a thing itself.
func (s *Session) ask() error {
	if s.alive.ping.waits() || s.state == sessionLogout && s.drained == nil {
		return nil
	}
	c, err := s.sendPing()
	switch {
	case errors.Is(err, ErrBusy): // so many answers are due that one more tells nothing
		return nil
	case err == nil:
		s.alive.ping = c
	}
	return err
}

// waits tells whether c's answer is still due.
func (c *control) waits() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.wake:
		return false
	default:
		return true
	}
}

// DeadTargetError says that nothing came from the target for Silence, not even the answer to a ping. It is an ErrDeadTarget.
type DeadTargetError struct{ Silence time.Duration }

func (e *DeadTargetError) Error() string {
	return fmt.Sprintf("initiator: target does not answer: nothing received for %v, not even the answer to a ping", e.Silence)
}

// Is makes errors.Is find ErrDeadTarget.
func (e *DeadTargetError) Is(target error) bool { return target == ErrDeadTarget }
