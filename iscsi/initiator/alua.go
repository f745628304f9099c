package initiator

import (
	"context"
	"encoding/binary"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// AccessState is how well a logical unit can be reached by a target port group (SPC-4, section 5.11.2).
type AccessState byte

// The asymmetric access states.
const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2
	Unavailable        AccessState = 0x3
	BlockDependent     AccessState = 0x4
	Offline            AccessState = 0xe
	Transitioning      AccessState = 0xf
)

func (a AccessState) String() string {
	switch a {
	case ActiveOptimized:
		return "active/optimized"
	case ActiveNonOptimized:
		return "active/non-optimized"
	case Standby:
		return "standby"
	case Unavailable:
		return "unavailable"
	case BlockDependent:
		return "logical block dependent"
	case Offline:
		return "offline"
	case Transitioning:
		return "transitioning"
	}
	return fmt.Sprintf("access state %#x", byte(a))
}

// Usable tells whether a medium can be read and written in that state.
func (a AccessState) Usable() bool {
	return a == ActiveOptimized || a == ActiveNonOptimized || a == BlockDependent
}

// PortGroup is one target port group: ports that always share their access state.
type PortGroup struct {
	ID        uint16
	State     AccessState
	Preferred bool
	Ports     []uint16 // relative target port identifiers
}

// PortGroups asks for the target port groups (REPORT TARGET PORT GROUPS).
func (l *LUN) PortGroups(ctx context.Context) ([]PortGroup, error) {
	const most = 8 << 10
	cdb := scsi.CDB{scsi.OpMaintenanceIn, scsi.SAReportTargetPortGroups}
	binary.BigEndian.PutUint32(cdb[6:], most)
	b, err := l.fetch(ctx, cdb, most)
	if err != nil {
		return nil, err
	}
	return parsePortGroups(b)
}

// parsePortGroups reads the answer: a length of 4 octets, then groups of 8 octets and 4 for each port.
func parsePortGroups(b []byte) ([]PortGroup, error) {
	if len(b) < 4 {
		return nil, shortData("REPORT TARGET PORT GROUPS data", len(b), 4)
	}
	b = b[4:min(uint64(len(b)), 4+uint64(binary.BigEndian.Uint32(b)))]
	var list []PortGroup
	for len(b) >= 8 {
		g := PortGroup{ID: binary.BigEndian.Uint16(b[2:]), State: AccessState(b[0] & 0xf), Preferred: b[0]&0x80 != 0}
		ports := int(b[7])
		for b = b[8:]; ports > 0 && len(b) >= 4; ports-- {
			g.Ports = append(g.Ports, binary.BigEndian.Uint16(b[2:]))
			b = b[4:]
		}
		list = append(list, g)
	}
	return list, nil
}

// SetPortGroup asks that a target port group take an access state (SET TARGET PORT GROUPS), where the target lets initiators decide.
func (l *LUN) SetPortGroup(ctx context.Context, group uint16, state AccessState) error {
	list := make([]byte, 8)
	list[4] = byte(state) & 0xf
	binary.BigEndian.PutUint16(list[6:], group)
	cdb := scsi.CDB{scsi.OpMaintenanceOut, scsi.SASetTargetPortGroups}
	binary.BigEndian.PutUint32(cdb[6:], uint32(len(list)))
	return l.give(ctx, cdb, list)
}

// nexusOf finds in a page 83h which target port the session leads to, and of which group it is.
func nexusOf(ids []scsi.Designator) (group, port uint16, ok bool) {
	for _, d := range ids {
		if d.Association != 1 || len(d.Data) < 4 {
			continue
		}
		switch d.Type {
		case 4:
			port = binary.BigEndian.Uint16(d.Data[2:])
		case 5:
			group, ok = binary.BigEndian.Uint16(d.Data[2:]), true
		}
	}
	return group, port, ok
}
