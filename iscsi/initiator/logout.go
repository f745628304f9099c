package initiator

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi"
)

// Logout lets the commands under way end, logs out and closes the connection. Commands submitted afterwards fail. When ctx ends before,
// the session is closed without a logout.
func (s *Session) Logout(ctx context.Context) error {
	s.mu.Lock()
	if s.state != sessionUp {
		err := s.errLocked()
		s.unlock()
		return err
	}
	drained := s.drain()
	s.unlock()
	select {
	case <-drained:
	case <-ctx.Done():
		s.Close()
		return context.Cause(ctx)
	}
	c, err := s.call(ctx, sessionLogout, fillLogout)
	if errors.Is(err, errClosedByTarget) {
		s.Close()
		return nil // all commands had ended: some targets (istgt) close the connection before their answer has left
	}
	if err != nil {
		s.Close()
		return err
	}
	s.hangUp(ErrClosed)
	<-s.done
	s.wg.Wait()
	if code := iscsi.LogoutResponse(c.bhs[:]).Response(); code != iscsi.LogoutOK {
		return fmt.Errorf("initiator: logout: %v", code)
	}
	return nil
}

// drain takes no more commands from now on; the channel is closed once the last has ended.
func (s *Session) drain() <-chan struct{} {
	s.state = sessionLogout
	done := make(chan struct{})
	s.drained = done
	s.checkDrained()
	return done
}

func fillLogout(p *iscsi.PDU) {
	h := iscsi.LogoutRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetReason(iscsi.LogoutSession)
}

// hangUp closes the connection in good order after a logout.
func (s *Session) hangUp(cause error) {
	s.mu.Lock()
	if !s.ending() {
		s.terminate(true)
		s.endLocked(cause)
	}
	s.unlock()
}

// targetWantsLogout obeys an asynchronous logout request. The goroutine ends with the session, which the target ends if it has to
// wait too long.
func (s *Session) targetWantsLogout() {
	if s.state != sessionUp {
		return
	}
	drained := s.drain()
	s.leaving = ErrLogoutRequested
	s.wg.Go(func() {
		<-drained
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.AbortTimeout)
		defer cancel()
		if _, err := s.call(ctx, sessionLogout, fillLogout); err != nil {
			s.fail(err)
			return
		}
		s.hangUp(ErrLogoutRequested)
	})
}
