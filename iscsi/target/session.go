package target

import (
	"fmt"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// sessionKey names a session beside its TSIH (RFC 7143, section 4.4.3): an initiator has at most one with the same ISID to a
// target portal group. A Discovery session without a target has the portal in its place (section 7.4.2.1).
type sessionKey struct {
	initiator string
	isid      [6]byte
	target    string
	group     uint16
	portal    string
}

// session is the I_T nexus of one initiator port and one target portal group.
//
//	open: in Server.sessions and byKey --> all connections Done, nothing kept for recovery --> last task out of its store --> ended
type session struct {
	tsih   uint16
	key    sessionKey
	node   *node         // nil: Discovery of all targets
	nexus  *scsi.Nexus   // nil: Discovery
	params *iscsi.Params // conn's mutex guards what they point to
	agreed iscsi.Params  // what the leading login has settled
	user   string        // who began it, proven by CHAP; empty: nobody was asked
	normal bool
	conn   *conn   // the leading connection
	shared *shared // what its connections have in common
	since  time.Time
	ended  chan struct{} // closed when it is forgotten
}

// open registers a new session. An older one with the same key is reinstated (RFC 7143, section 6.3.5): its connection
// is dropped, its tasks are aborted, and open waits until the last of them has left its store and the
// connection's resources (over RDMA, the STags) are gone.
func (s *Server) open(c *conn, n *node, p *iscsi.Params) (*session, error) {
	key := c.keyOf(n, p.InitiatorName, p.ISID)
	for {
		s.mu.Lock()
		if s.closing {
			s.mu.Unlock()
			return nil, iscsi.NewLoginError(iscsi.LoginUnavailable, "shutting down")
		}
		old := s.byKey[key]
		if old == nil {
			ss, err := s.register(c, key, n, p)
			s.mu.Unlock()
			if err == nil && n != nil && !p.Discovery {
				ss.nexus = n.nexus(key.group, p)
			}
			return ss, err
		}
		s.mu.Unlock()
		s.log.Info("session is being reinstated", "tsih", old.tsih, "initiator", key.initiator,
			"isid", fmt.Sprintf("%012x", key.isid), "target", key.target)
		old.lose(ErrReinstated)
		select {
		case <-old.ended:
		case <-c.dm.Done():
			return nil, iscsi.ErrConnection
		}
	}
}

// register gives a session its handle. s.mu is held.
func (s *Server) register(c *conn, key sessionKey, n *node, p *iscsi.Params) (*session, error) {
	set := s.live.Load()
	if len(s.sessions) >= set.Sessions {
		return nil, iscsi.NewLoginError(iscsi.LoginNoResources, "%d sessions are open", len(s.sessions))
	}
	if n := s.sessionsBy(key.initiator); n >= set.InitiatorSessions {
		return nil, iscsi.NewLoginError(iscsi.LoginNoResources, "%s has %d sessions", key.initiator, n)
	}
	for s.lastTSIH++; s.lastTSIH == 0 || s.sessions[s.lastTSIH] != nil; s.lastTSIH++ {
	}
	ss := &session{
		tsih: s.lastTSIH, key: key, node: n, params: p, agreed: *p, normal: !p.Discovery, conn: c, shared: c.shared,
		user: c.login.user(), since: time.Now(), ended: make(chan struct{}),
	}
	s.sessions[ss.tsih] = ss
	s.byKey[key] = ss
	return ss, nil
}

// ended is the end of a connection that is closed and whose last task has ended; the session ends with its last one.
func (s *Server) ended(c *conn) {
	defer close(c.over)
	c.mu.Lock()
	ss := c.sess
	cause := c.cause
	c.mu.Unlock()
	if ss == nil {
		return
	}
	if !c.last {
		s.log.Info("connection ended", "tsih", ss.tsih, "cid", c.params.CID, "cause", cause)
		return
	}
	s.end(ss, cause)
}

// end is a session's end.
func (s *Server) end(ss *session, cause error) {
	if ss.nexus != nil {
		ss.nexus.Close()
	}
	ss.shared.mu.Lock()
	counters := ss.shared.counters
	ss.shared.mu.Unlock()
	attrs := []any{
		"tsih", ss.tsih, "initiator", ss.key.initiator, "target", ss.key.target,
		"commands", counters.Commands, "aborted", counters.Aborted,
	}
	if cause != nil {
		attrs = append(attrs, "cause", cause)
	}
	s.log.Info("session ended", attrs...)
	s.forget(ss)
}

// forget takes a session out of the books.
func (s *Server) forget(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ss.tsih)
	if s.byKey[ss.key] == ss {
		delete(s.byKey, ss.key)
	}
	close(ss.ended)
	s.checkEmpty()
}
