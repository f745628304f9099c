package target

import "fmt"

// ensurePort makes a portal group a target port of the target's device, and that port a target port group of its own with its own
// asymmetric access states (RFC 7143, sections 4.2.7.3 and 4.4.1; SPC-4, section 5.15). The name is the one that RFC 7143 gives it.
// Only the portal groups that there are at first, and those that SetPortalGroups tells of, are in it before somebody logs in
// through them.
func (n *node) ensurePort(tag uint16) {
	first := n.Device.Port()
	if first.Relative == 0 || tag == 0 { // a device that tells nothing of its ports
		return
	}
	for _, p := range n.Device.Ports() {
		if p.Relative == tag && p.Group == tag {
			return
		}
	}
	p := first
	p.Relative, p.Group = tag, tag
	p.Name, p.DeviceName = fmt.Sprintf("%s,t,0x%04x", n.Name, tag), n.Name
	// With too many ports those that come last share the first: they serve, and are one path to SCSI.
	_ = n.Device.EnsurePort(p)
}

// ensurePorts does so for those of the groups that the target is reached through.
func (n *node) ensurePorts(groups []PortalGroup) {
	if len(groups) == 0 {
		n.ensurePort(n.PortalGroup)
	}
	for _, g := range groups {
		if n.within(g.Tag) {
			n.ensurePort(g.Tag)
		}
	}
}
