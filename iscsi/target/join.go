package target

import (
	"errors"

	"goiwarp/iscsi"
)

// ErrConnectionReinstated ends a connection in whose place the initiator has logged in a new one.
var ErrConnectionReinstated = errors.New("target: connection reinstated by a new login")

// This file adds connections to sessions (RFC 7143, sections 6.3.1 and 6.3.4):
//
//	TSIH   CID        what the target does
//	0      any        a new session; one with the same key is reinstated (session.go)
//	known  new        one more connection, up to MaxConnections; with ErrorRecoveryLevel 2 one more to recover the other
//	known  known      the old connection is logged out, for recovery with ErrorRecoveryLevel 2, and this one takes its place
//	other  any        refused: session does not exist
//
// Who joins has to be the user who began the session, and to have the access that its other connections have (entry.go).

// keyOf names the session that a login is about.
func (c *conn) keyOf(n *node, initiator string, isid [6]byte) sessionKey {
	key := sessionKey{initiator: initiator, isid: isid}
	if n != nil {
		key.target, key.group = n.Name, c.portalGroup(n)
	} else {
		key.portal = c.localAddr()
	}
	return key
}

// joins finds the session that a login with a TSIH asks for. c.mu is held.
func (c *conn) joins(id iscsi.Identity, n *node) (*session, error) {
	s := c.srv
	s.mu.Lock()
	ss := s.sessions[id.TSIH]
	s.mu.Unlock()
	if ss == nil || ss.key != c.keyOf(n, id.InitiatorName, id.ISID) {
		return nil, iscsi.NewLoginError(iscsi.LoginNoSession, "no session %d of this initiator", id.TSIH)
	}
	if !ss.normal || id.Discovery {
		return nil, iscsi.NewLoginError(iscsi.LoginTooManyConnections, "a Discovery session has one connection")
	}
	ss.shared.mu.Lock()
	defer ss.shared.mu.Unlock()
	return ss, ss.shared.roomFor(id.CID)
}

// roomFor tells whether a connection with this ID may be added, the one with the same ID leaving. The session's lock is held.
func (h *shared) roomFor(cid uint16) error {
	if h.ending {
		return iscsi.NewLoginError(iscsi.LoginNoSession, "the session is ending")
	}
	limit := h.sess.agreed.MaxConnections
	if limit == 1 && h.sess.agreed.ErrorRecoveryLevel == 2 {
		limit = 2 // for cleaning the other one up (RFC 7143, section 6.3.4)
	}
	n := h.live()
	if o := h.byCID(cid); o != nil && o.state == stateFull {
		n--
	}
	if n >= limit {
		return iscsi.NewLoginError(iscsi.LoginTooManyConnections, "the session has %d connections", n)
	}
	return nil
}

// join makes place for a connection in a session: an older one with the same ID is logged out, and join waits until nothing of
// it can be sent or received any more, and, if its tasks are not kept, until they have left their store.
func (s *Server) join(c *conn, p *iscsi.Params) (*session, error) {
	s.mu.Lock()
	ss := s.sessions[p.TSIH]
	s.mu.Unlock()
	if ss == nil || ss != c.login.join {
		return nil, iscsi.NewLoginError(iscsi.LoginNoSession, "no session %d", p.TSIH)
	}
	if _, err := c.admissible(ss); err != nil { // or anybody could end an older connection
		return nil, err
	}
	h := ss.shared
	h.mu.Lock()
	h.joining++
	c.login.joining = true
	h.mu.Unlock()
	for {
		h.mu.Lock()
		if err := h.roomFor(p.CID); err != nil {
			h.mu.Unlock()
			return nil, err
		}
		old := h.byCID(p.CID)
		if old == nil {
			h.mu.Unlock()
			return ss, nil
		}
		until := old.down
		if old.state < stateClosed {
			s.log.Info("connection is being reinstated", "tsih", ss.tsih, "cid", p.CID, "initiator", ss.key.initiator)
			old.lose(ErrConnectionReinstated)
		} else if old.rec.retained {
			old.logOutForRecovery()
			h.mu.Unlock()
			continue
		} else {
			until = old.over
		}
		h.mu.Unlock()
		select {
		case <-until:
		case <-c.dm.Done():
			return nil, iscsi.ErrConnection
		}
	}
}

// joined is the end of a login that was to join a session, whatever came of it. A session that has lost its last connection to it
// meanwhile ends.
func (s *Server) joined(c *conn) {
	if !c.login.joining {
		return
	}
	c.login.joining = false
	ss := c.login.join
	h := ss.shared
	h.mu.Lock()
	h.joining--
	over := h.over()
	h.mu.Unlock()
	if over {
		s.end(ss, ErrConnectionReinstated)
	}
}

// enter adds a connection whose login has come to its end to the session that join has prepared. c.mu is held, which is the session's
// afterwards.
func (c *conn) enter(ss *session) error {
	own, h := c.shared, ss.shared
	h.mu.Lock()
	err := h.roomFor(c.login.machine.Identity().CID)
	if err == nil && h.byCID(c.login.machine.Identity().CID) != nil {
		err = iscsi.NewLoginError(iscsi.LoginTooManyConnections, "two logins for the same connection")
	}
	if err != nil {
		h.mu.Unlock()
		return err
	}
	c.share(h)
	own.mu.Unlock()
	h.conns = append(h.conns, c)
	return nil
}

// stampJoin makes the command window that a response tells, in a login that joins a session, the session's. c.mu is held.
func (c *conn) stampJoin(p *iscsi.PDU) {
	if ss := c.login.join; ss != nil && c.shared != ss.shared {
		ss.shared.mu.Lock()
		iscsi.BHS(p.BHS[:]).SetWindow(ss.shared.expCmdSN, ss.shared.maxCmdSN)
		ss.shared.mu.Unlock()
	}
}
