package target

import (
	"errors"
	"net/netip"
	"strconv"
	"time"

	"goiwarp/iscsi"
)

// remote is the address that the connection comes from.
func (c *conn) remote() netip.Addr { return addrOf(c.dm.Info().RemoteAddr) }

// accessTo is the access list that holds for a login: the target's, or for Discovery the server's.
func (c *conn) accessTo(n *node, discovery bool) *access {
	if discovery {
		return c.srv.discovery.Load()
	}
	return n.access.Load()
}

// grant decides whether an initiator may go on with its login to n, which is nil in a Discovery session that names no target, and what it
// has to prove. c.mu is held.
func (c *conn) grant(id iscsi.Identity, n *node) (g iscsi.Grant, err error) {
	if n != nil {
		if own := n.access.Load(); own != nil && own.hidden && own.find(id.InitiatorName, c.remote()) == nil {
			return g, iscsi.NewLoginError(iscsi.LoginNotFound, "%s has no access from %v to %s, which is hidden", id.InitiatorName, c.remote(), n.Name)
		}
	}
	g.PortalGroup = c.portalGroup(n)
	a := c.accessTo(n, id.Discovery)
	r := a.find(id.InitiatorName, c.remote())
	if r == nil || n != nil && id.Discovery && n.access.Load().find(id.InitiatorName, c.remote()) == nil {
		return g, iscsi.NewLoginError(iscsi.LoginForbidden, "%s has no access from %v", id.InitiatorName, c.remote())
	}
	if n != nil {
		g.TargetAlias = *n.alias.Load()
		if !id.Discovery {
			if err := c.redirected(n); err != nil {
				return g, err
			}
		}
		switch {
		case n.draining.Load():
			return g, iscsi.NewLoginError(iscsi.LoginUnavailable, "target %s is being drained", n.Name)
		case !c.served(n):
			return g, iscsi.NewLoginError(iscsi.LoginNotFound, "target %s is not served by portal group %d", n.Name, g.PortalGroup)
		}
	}
	if len(r.Users) == 0 {
		return g, nil
	}
	if left, blocked := c.srv.guard.blocked(c.remote(), time.Now()); blocked {
		return g, notHeard(left)
	}
	if c.login.chap, err = iscsi.NewCHAPTarget(r.chap(a.algorithms)); err != nil {
		return g, err
	}
	g.Auth = []iscsi.Authenticator{&guarded{c.login.chap, c}}
	return g, nil
}

// guarded hears no proof of an address that has just failed too often, whichever of its connections it comes by.
type guarded struct {
	*iscsi.CHAPTarget
	conn *conn
}

// errNotHeard: an address has failed to prove itself too often of late.
var errNotHeard = errors.New("too many failed logins of this address")

// notHeard refuses a login of an address that is shut out for some time yet.
func notHeard(left time.Duration) error {
	return &iscsi.LoginError{
		Class: iscsi.LoginUnavailable.Class(), Detail: iscsi.LoginUnavailable.Detail(),
		Text: "the next is heard in " + left.Round(time.Second).String(), Err: errNotHeard,
	}
}

// Exchange implements iscsi.Authenticator.
func (g *guarded) Exchange(in iscsi.Text) (iscsi.Text, bool, error) {
	if left, blocked := g.conn.srv.guard.blocked(g.conn.remote(), time.Now()); blocked {
		return nil, false, notHeard(left)
	}
	return g.CHAPTarget.Exchange(in)
}

// user is who has proven to be at the other end, "" if nobody was asked to.
func (l *loginState) user() string {
	if l.chap == nil {
		return ""
	}
	return l.chap.User()
}

// admit looks at a login once more when its session is registered, because access may have changed since it began, and gives the
// session's nexus its view. c.mu is held until the connection is in full feature phase, so that SetAccess and Drain see either none of it
// or all.
func (c *conn) admit(ss *session) error {
	if ss.node != nil && ss.node.draining.Load() {
		return iscsi.NewLoginError(iscsi.LoginUnavailable, "target %s is being drained", ss.node.Name)
	}
	r, err := c.admissible(ss)
	if err != nil {
		return err
	}
	if c.login.chap != nil {
		c.srv.guard.passed(c.remote())
	}
	if ss.nexus != nil && ss != c.login.join {
		ss.nexus.SetView(r.view)
	}
	return nil
}

// admissible gives the rule by which a connection that has logged in may belong to its session now.
func (c *conn) admissible(ss *session) (*rule, error) {
	a := c.accessTo(ss.node, !ss.normal)
	r := c.entry(a, ss)
	if r == nil {
		return nil, iscsi.NewLoginError(iscsi.LoginForbidden, "access of %s was withdrawn", ss.key.initiator)
	}
	if ss == c.login.join {
		if err := c.belongs(a, ss, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// belongs tells whether a connection may be added to a session: by the user who began it, and from where the same rule holds as for the
// session's other connections, since what a session sees is one for all of them (RFC 7143, section 11.13.5). r is the rule of a for c.
func (c *conn) belongs(a *access, ss *session, r *rule) error {
	if user := c.login.user(); user != ss.user {
		return iscsi.NewLoginError(iscsi.LoginForbidden, "the session is %s, not %s", someone(ss.user), someone(user))
	}
	ss.shared.mu.Lock()
	defer ss.shared.mu.Unlock()
	for _, o := range ss.shared.conns {
		if o.state == stateFull && a.find(ss.key.initiator, o.remote()) != r {
			return iscsi.NewLoginError(iscsi.LoginCannotInclude, "other access from %v than from %v, where the session is", c.remote(), o.remote())
		}
	}
	return nil
}

// someone names a CHAP user for a log.
func someone(user string) string {
	if user == "" {
		return "nobody's in particular"
	}
	return strconv.Quote(user) + "'s"
}

// entry is the rule of a by which the connection may belong to its session, nil if it may not.
func (c *conn) entry(a *access, ss *session) *rule {
	r := a.find(ss.key.initiator, c.remote())
	if r == nil || !r.hasUser(c.login.user()) {
		return nil
	}
	return r
}

// reviewAccess ends a session that access lists do not let in any more, and shows others what they may see. Of several connections, the
// oldest that stays decides that; one that would not be let in, or not to the same, is ended alone, and what it was doing is not kept.
func (c *conn) reviewAccess() {
	c.mu.Lock()
	defer c.unlock()
	ss := c.sess
	if ss == nil || c.ending {
		return
	}
	a := c.accessTo(ss.node, !ss.normal)
	var held *rule
	for _, o := range c.conns {
		if o.state == stateFull && held == nil {
			held = o.entry(a, ss)
		}
	}
	if held == nil {
		c.dropSession(ErrAccessLost)
		return
	}
	for _, o := range c.conns {
		if o.state == stateFull && o.entry(a, ss) != held {
			o.rec.refused = true
			o.terminate(ErrAccessLost, true)
		}
	}
	if ss.nexus != nil {
		ss.nexus.SetView(held.view)
	}
}

// visible are those of the targets that SendTargets tells the initiator of: those that it may log in to. c.mu is held.
func (c *conn) visible(all []*node) []*node {
	var some []*node
	for _, n := range all {
		if n.access.Load().find(c.params.InitiatorName, c.remote()) != nil {
			some = append(some, n)
		}
	}
	return some
}

// sessionsBy counts an initiator's sessions. s.mu is held.
func (s *Server) sessionsBy(initiator string) (n int) {
	if set := s.live.Load(); set.InitiatorSessions >= set.Sessions {
		return 0 // the other limit comes first
	}
	for key := range s.byKey {
		if key.initiator == initiator {
			n++
		}
	}
	return n
}

// warnWeak tells the log of secrets in a that are shorter than RFC 7143 wants them.
func (s *Server) warnWeak(where string, a *access) {
	if a == nil {
		return
	}
	for _, r := range a.rules {
		for _, u := range append(r.Users[:len(r.Users):len(r.Users)], r.Mutual) {
			if u.Secret.Weak() {
				s.log.Warn("secret is shorter than 12 octets, which RFC 7143 asks for", "of", where, "rule", r.Name, "user", u.User)
			}
		}
	}
}
