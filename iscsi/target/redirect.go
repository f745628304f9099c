package target

import (
	"fmt"
	"slices"

	"goiwarp/iscsi"
)

// Redirect sends initiators that log in to a target elsewhere (RFC 7143, section 6.3: status class 1).
type Redirect struct {
	// Address is where to, "host:port". A login that comes in there is not sent on.
	Address string
	// Permanent says that the target has moved for good (status 0102), so that the initiator may remember it; else 0101.
	Permanent bool
	// From are the portal group tags whose logins are redirected. Empty: all.
	From []uint16
}

// Check tells what is wrong with r.
func (r *Redirect) Check() error {
	if r == nil {
		return nil
	}
	if p, err := iscsi.ParsePortal(r.Address); err != nil || p.HasGroup {
		return fmt.Errorf("target: redirection to %q: want an address:port", r.Address)
	}
	return nil
}

// SetRedirect redirects further logins to a target; nil ends that. Sessions stay: see Drain. The error wraps ErrNoTarget, or is about r.
func (s *Server) SetRedirect(target string, r *Redirect) error {
	if err := r.Check(); err != nil {
		return err
	}
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	n.redirect.Store(r)
	return nil
}

// redirected is the refusal that sends the login of c elsewhere, nil if it is right here.
func (c *conn) redirected(n *node) error {
	r := n.redirect.Load()
	if r == nil || len(r.From) > 0 && !slices.Contains(r.From, c.portalGroup(n)) {
		return nil
	}
	p, err := iscsi.ParsePortal(r.Address)
	if err != nil || p.Addr == c.localAddr() || p.Addr == c.portal.Advertise {
		return nil
	}
	status := iscsi.LoginMovedTemporarily
	if r.Permanent {
		status = iscsi.LoginMovedPermanently
	}
	return &iscsi.LoginError{Class: status.Class(), Detail: status.Detail(), Address: p.Addr}
}
