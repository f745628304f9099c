package target

import (
	"fmt"
	"slices"
	"strings"

	"goiwarp/iscsi"
)

func checkAlias(name, alias string) error {
	if len(alias) > iscsi.MaxValueLen || strings.ContainsRune(alias, 0) {
		return fmt.Errorf("target: the alias of %s is longer than %d octets, or has a zero octet", name, iscsi.MaxValueLen)
	}
	return nil
}

// SetAlias replaces a target's alias while the server serves. Initiators learn of it at their next login (RFC 7143, section 13.7).
// The error wraps ErrNoTarget, or is about alias.
func (s *Server) SetAlias(target, alias string) error {
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	if err := checkAlias(n.Name, alias); err != nil {
		return err
	}
	n.alias.Store(&alias)
	return nil
}

// SetGroups replaces Target.PortalGroups, the tags of the groups that a target is reached through, while the server serves; none
// stands for all. It holds for discovery and for logins from now on: sessions stay where they are. The error wraps ErrNoTarget.
func (s *Server) SetGroups(target string, tags []uint16) error {
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	tags = slices.Clone(tags)
	n.groups.Store(&tags)
	n.setPorts(*s.portals.Load())
	return nil
}

// within tells that the target is reached through a group.
func (n *node) within(tag uint16) bool {
	tags := *n.groups.Load()
	return len(tags) == 0 || slices.Contains(tags, tag)
}
