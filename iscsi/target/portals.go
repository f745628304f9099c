package target

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"goiwarp/iscsi"
)

// PortalInfo says through which portal a connection came in.
type PortalInfo struct {
	// Advertise is the "host:port" that SendTargets announces for this portal; empty: the address
	// that the initiator connected to. It need not be an address of this host.
	Advertise string
	// Tag is the portal's target portal group tag (RFC 7143, section 4.4.3.2). 0: the target's own PortalGroup.
	Tag uint16
}

// PortalGroup is a target portal group: portals over which the connections of one session may be spread. A session stays
// within its group, and for SCSI each group is a target port.
type PortalGroup struct {
	// Tag is not 0.
	Tag uint16
	// Portals are the group's addresses as SendTargets tells them, "host:port" with an IPv6 address in brackets. An unspecified host
	// (0.0.0.0, [::]) is told as the address that the initiator connected to, with that port.
	Portals []string
}

// ErrPortals: portal groups that cannot be.
var ErrPortals = errors.New("target: impossible portal groups")

// SetPortalGroups replaces what SendTargets tells. Without groups it tells the one portal that the question came through. Sessions stay
// where they are; they are told (by unit attentions) of target ports that come with a group or go with it. Errors wrap ErrPortals.
func (s *Server) SetPortalGroups(groups []PortalGroup) error {
	groups, err := checkPortals(groups)
	if err != nil {
		return err
	}
	s.portals.Store(&groups)
	for _, n := range s.all() {
		n.setPorts(groups)
	}
	return nil
}

func checkPortals(groups []PortalGroup) ([]PortalGroup, error) {
	groups = slices.Clone(groups)
	seen := make(map[uint16]bool)
	for i := range groups {
		g := &groups[i]
		switch {
		case g.Tag == 0:
			return nil, fmt.Errorf("%w: a group has no tag: want 1 to 65535", ErrPortals)
		case seen[g.Tag]:
			return nil, fmt.Errorf("%w: group %d is there twice", ErrPortals, g.Tag)
		case len(g.Portals) == 0:
			return nil, fmt.Errorf("%w: group %d has no portals", ErrPortals, g.Tag)
		}
		seen[g.Tag] = true
		g.Portals = slices.Clone(g.Portals)
		for j, addr := range g.Portals {
			p, err := iscsi.ParsePortal(addr)
			if err != nil || p.HasGroup {
				return nil, fmt.Errorf("%w: group %d: %q is no address:port", ErrPortals, g.Tag, addr)
			}
			g.Portals[j] = p.Addr
		}
	}
	return groups, nil
}

// portalGroup is the tag of the group that the connection came through.
func (c *conn) portalGroup(n *node) uint16 {
	switch {
	case c.portal.Tag != 0:
		return c.portal.Tag
	case n != nil:
		return n.PortalGroup
	}
	if all := c.srv.all(); len(all) > 0 {
		return all[0].PortalGroup
	}
	return 1
}

// portalsOf are the addresses of a target, for the initiator of c.
func (c *conn) portalsOf(n *node) []iscsi.Portal {
	groups := *c.srv.portals.Load()
	if len(groups) == 0 {
		addr := c.portal.Advertise
		if addr == "" {
			addr = c.localAddr()
		}
		return []iscsi.Portal{{Addr: addr, Group: c.portalGroup(n), HasGroup: true}}
	}
	var ps []iscsi.Portal
	for _, g := range groups {
		if !n.within(g.Tag) {
			continue
		}
		for _, addr := range g.Portals {
			ps = append(ps, iscsi.Portal{Addr: c.reachable(addr), Group: g.Tag, HasGroup: true})
		}
	}
	return ps
}

// reachable puts the address that the initiator connected to in the place of an unspecified one.
func (c *conn) reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return addr
	}
	local, _, err := net.SplitHostPort(c.localAddr())
	if err != nil {
		return addr
	}
	return net.JoinHostPort(local, port)
}

// served tells that the target is reached through the connection's group.
func (c *conn) served(n *node) bool {
	return n.within(c.portalGroup(n))
}

// localAddr is the address that the initiator connected to, as it can be told to it.
func (c *conn) localAddr() string {
	a := c.dm.Info().LocalAddr
	if a == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	host, _, _ = strings.Cut(host, "%") // a zone means nothing to others
	return net.JoinHostPort(host, port)
}
