package target

import (
	"context"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// Drain ends a target's sessions in order and lets no new ones begin until Resume: logins are refused with status 0301, or sent
// elsewhere where SetRedirect says so; initiators are asked to log out (an Asynchronous Message of event 1 whose Parameter3 is
// Config.LogoutWait) and have that long to do so; then what was accepted is finished and answered, and the connections are closed. When ctx
// ends, what is left is aborted, and the error is ctx's. Otherwise it wraps ErrNoTarget.
func (s *Server) Drain(ctx context.Context, target string) error {
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	return s.drainNode(ctx, n, ErrDrained)
}

// Resume lets sessions begin again after Drain. The error wraps ErrNoTarget.
func (s *Server) Resume(target string) error {
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	n.draining.Store(false)
	return nil
}

// Disconnect ends one session, asking its initiator for a logout first, as Drain does for all. It returns at once; ok is false if there
// is no such session.
func (s *Server) Disconnect(tsih uint16) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.sessions[tsih]
	if ss == nil || s.closing {
		return false
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*s.live.Load().LogoutWait+s.cfg.AbortWait)
		defer cancel()
		_ = s.endSessions(ctx, []*session{ss}, ErrDrained) // late ones are dropped, which is what was asked for
	})
	return true
}

func (s *Server) drainNode(ctx context.Context, n *node, cause error) error {
	n.draining.Store(true)
	return s.endSessions(ctx, s.sessionsOf(n), cause)
}

// sessionsOf are a node's sessions.
func (s *Server) sessionsOf(n *node) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*session
	for _, ss := range s.sessions {
		if ss.node == n {
			all = append(all, ss)
		}
	}
	return all
}

// endSessions asks for logouts, waits, drains what stays, and drops what is left when ctx ends.
func (s *Server) endSessions(ctx context.Context, all []*session, cause error) error {
	for _, ss := range all {
		ss.each(func(c *conn) { c.askLogout(cause) })
	}
	grace := time.NewTimer(s.live.Load().LogoutWait)
	defer grace.Stop()
	late := grace.C
	for i := 0; i < len(all); {
		select {
		case <-all[i].ended:
			i++
		case <-late:
			late = nil
			for _, ss := range all[i:] {
				ss.conn.drain(cause)
			}
		case <-ctx.Done():
			for _, ss := range all[i:] {
				ss.lose(cause)
			}
			return fmt.Errorf("%w: %w", cause, context.Cause(ctx))
		}
	}
	return nil
}

// drop ends a session that may not go on, telling the initiator. c.mu is held.
func (c *conn) drop(cause error) {
	if c.state == stateFull && !c.discovery {
		c.async(iscsi.AsyncDropSession, 0)
	}
	c.terminate(cause, true)
}
