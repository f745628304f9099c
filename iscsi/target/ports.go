package target

import (
	"fmt"
	"slices"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// port makes a portal group a target port of the target's device, and that port a target port group of its own with its own asymmetric access
// states (RFC 7143, sections 4.2.7.3 and 4.4.1; SPC-4, section 5.15). The name is the one that RFC 7143 gives it. ok is false for a device
// that tells nothing of its ports. With too many ports those that come last share the first: they serve, and are one path to SCSI.
func (n *node) port(tag uint16) (p scsi.Port, ok bool) {
	p = n.Device.Port()
	if p.Relative == 0 || tag == 0 {
		return p, false
	}
	p.Relative, p.Group = tag, tag
	p.Name, p.DeviceName = fmt.Sprintf("%s,t,0x%04x", n.Name, tag), n.Name
	return p, true
}

// nexus is the nexus of a session that came through a portal group.
func (n *node) nexus(tag uint16, p *iscsi.Params) *scsi.Nexus {
	initiator := fmt.Sprintf("%s,i,0x%012x", p.InitiatorName, p.ISID)
	if port, ok := n.port(tag); ok {
		return n.Device.NewNexusThrough(port, initiator)
	}
	return n.Device.NewNexusOn(tag, initiator)
}

// setPorts makes the ports of the device those of the groups that the target is reached through. Others that were made so leave, with
// the last session through them. Only the portal groups that there are at first, and those that SetPortalGroups tells of, are among them
// before somebody logs in through them.
func (n *node) setPorts(groups []PortalGroup) {
	var tags []uint16
	if len(groups) == 0 {
		tags = append(tags, n.PortalGroup)
	}
	for _, g := range groups {
		if n.within(g.Tag) {
			tags = append(tags, g.Tag)
		}
	}
	for _, tag := range tags {
		if p, ok := n.port(tag); ok {
			_ = n.Device.EnsurePort(p)
		}
	}
	for _, p := range n.Device.Ports() {
		if own, ok := n.port(p.Relative); ok && p.Name == own.Name && !slices.Contains(tags, p.Relative) {
			_ = n.Device.RemovePort(p.Relative) // the last one stays
		}
	}
}
