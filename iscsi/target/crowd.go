package target

import (
	"container/list"
	"time"

	"goiwarp/iscsi"
)

// loginCrowd are the connections whose login has not come to an agreement, oldest first. Honest logins take
// milliseconds; so when the crowd is full, its oldest member is the least likely one to be one.
//
//	enlist --> logins --all is agreed--> opening --final response--> (session)
//	             |                          |
//	             +--full: the oldest--------+--refused, timeout, gone--> (discharged)
type loginCrowd struct {
	conns   list.List // of *conn
	dropped int       // since the last one that was logged
	logged  time.Time
}

// crowdInterval is how long logins that are crowded out are only counted after one was logged.
const crowdInterval = 10 * time.Second

// enter adds c. If it is one too many the oldest login leaves and is returned, with the number of those that left
// since that was logged, if it is to be logged now. Server.mu is held.
func (l *loginCrowd) enter(c *conn, limit int) (oldest *conn, dropped int) {
	if l.conns.Len() >= limit {
		oldest = l.conns.Remove(l.conns.Front()).(*conn)
		oldest.login.place = nil
		l.dropped++
		if now := time.Now(); l.logged.IsZero() || now.Sub(l.logged) >= crowdInterval {
			dropped = l.dropped
			l.dropped, l.logged = 0, now
		}
	}
	c.login.place = l.conns.PushBack(c)
	return oldest, dropped
}

// beginOpening takes a login out of the crowd whose session is to be opened, which may have to wait for the end of the
// session that it reinstates. Server.mu is taken.
func (s *Server) beginOpening(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opening >= s.live.Load().Sessions {
		return iscsi.NewLoginError(iscsi.LoginNoResources, "%d sessions are being opened", s.opening)
	}
	if n := len(s.conns) - s.logins.conns.Len(); n >= s.live.Load().Connections {
		return iscsi.NewLoginError(iscsi.LoginNoResources, "%d connections are open", n)
	}
	s.leaveLogin(c)
	c.login.opening = true
	s.opening++
	return nil
}

// leaveLogin counts a connection's login as over. s.mu is held.
func (s *Server) leaveLogin(c *conn) {
	if c.login.place != nil {
		s.logins.conns.Remove(c.login.place)
		c.login.place = nil
	}
	if c.login.opening {
		s.opening--
		c.login.opening = false
	}
}

// crowdedOut ends a login for a newer one, unless it has just come to its agreement. dropped is how many there were, if
// that is to be logged.
func (c *conn) crowdedOut(dropped int) {
	c.mu.Lock()
	defer c.unlock()
	if c.state != stateLogin || c.login.ready {
		return
	}
	if dropped > 0 {
		c.log.Warn("too many logins at once; the oldest was dropped", "limit", c.srv.live.Load().Logins, "dropped", dropped)
	}
	c.srv.countRefusal("crowded out")
	c.lose(ErrLoginCrowded)
}
