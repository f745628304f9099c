package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// AccessState is the asymmetric access state of a target port group for a logical unit (SPC-4, section 5.15.2.4).
type AccessState byte

// The access states.
const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2
	Unavailable        AccessState = 0x3
	Transitioning      AccessState = 0xf
)

var accessStates = map[AccessState]string{
	ActiveOptimized: "active/optimized", ActiveNonOptimized: "active/non-optimized", Standby: "standby",
	Unavailable: "unavailable", Transitioning: "transitioning",
}

func (s AccessState) String() string {
	if name, ok := accessStates[s]; ok {
		return name
	}
	return fmt.Sprintf("access state %xh", byte(s))
}

// ParseAccessState reads an access state by its name, as String writes it.
func ParseAccessState(name string) (AccessState, error) {
	for s, n := range accessStates {
		if n == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("scsi: access state %q: want active/optimized, active/non-optimized, standby, unavailable or transitioning", name)
}

// ErrNoGroup is a target port group that no port belongs to.
var ErrNoGroup = errors.New("scsi: no such target port group")

// Status codes of a target port group: why it has its state (SPC-4, table 308).
const (
	changedExplicitly = 1 // by SET TARGET PORT GROUPS
	changedImplicitly = 2
)

// pathState is a group's state and who made it so.
type pathState struct {
	state AccessState
	why   byte
}

// paths are the states of the groups that were ever changed; all others are active/optimized. A nil one is all.
type paths map[uint16]pathState

func (l *LU) pathState(group uint16) pathState {
	if p := l.paths.Load(); p != nil {
		return (*p)[group]
	}
	return pathState{}
}

// AccessState is the state of a target port group for this logical unit.
func (l *LU) AccessState(group uint16) AccessState { return l.pathState(group).state }

// SetAccessState changes the state of a target port group for this logical unit (an implicit change), and tells every
// nexus (ASYMMETRIC ACCESS STATE CHANGED). Commands that run already go on to their end.
func (l *LU) SetAccessState(group uint16, s AccessState) {
	if l.changePaths(paths{group: {s, changedImplicitly}}) {
		l.Attention(CodeAsymmetricAccessChanged, nil)
	}
}

// changePaths sets the states of groups, and tells whether any is another than before.
func (l *LU) changePaths(set paths) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, changed := paths{}, false
	if old := l.paths.Load(); old != nil {
		maps.Copy(next, *old)
	}
	for group, p := range set {
		if next[group].state != p.state {
			next[group], changed = p, true
		}
	}
	if changed {
		l.paths.Store(&next)
	}
	return changed
}

// forgetPath forgets the state of a group that is gone: one that comes with its identifier is active/optimized.
func (l *LU) forgetPath(group uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.paths.Load(); old != nil {
		next := maps.Clone(*old)
		delete(next, group)
		l.paths.Store(&next)
	}
}

// SetAccessState changes the state of a target port group for every logical unit, those that are added later included.
func (d *Device) SetAccessState(group uint16, s AccessState) error {
	if _, ok := accessStates[s]; !ok {
		return fmt.Errorf("scsi: there is no %v", s)
	}
	if group == 0 || !slices.ContainsFunc(d.Ports(), func(p Port) bool { return p.Group == group }) {
		return fmt.Errorf("%w: %d", ErrNoGroup, group)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.states == nil {
		d.states = make(paths)
	}
	d.states[group] = pathState{s, changedImplicitly}
	for _, l := range *d.luns.Load() {
		l.SetAccessState(group, s)
	}
	return nil
}

// inaccessible ends the command with NOT READY if its port's group is in a state in which it does not run (SPC-4, sections
// 5.15.2.4.4 to 5.15.2.4.6).
func (t *task) inaccessible(c *command) bool {
	if t.nexus == nil || t.nexus.port.Group == 0 {
		return false
	}
	allowed := pathStates(0)
	if c != nil {
		allowed = c.rule.paths
	}
	switch t.lu.pathState(t.nexus.port.Group).state {
	case Standby:
		if allowed&inStandby == 0 {
			t.fail(KeyNotReady, CodeNotAccessibleStandby)
			return true
		}
	case Unavailable:
		if allowed&inUnavailable == 0 {
			t.fail(KeyNotReady, CodeNotAccessibleUnavailable)
			return true
		}
	case Transitioning:
		if allowed&inTransition == 0 {
			t.fail(KeyNotReady, CodeNotAccessibleTransition)
			return true
		}
	}
	return false
}

// portGroups are the target port groups in rising order, each with its ports' relative identifiers.
func (t *task) portGroups() (ids []uint16, members map[uint16][]uint16) {
	members = make(map[uint16][]uint16)
	ports := []Port{t.port()}
	if t.dev != nil {
		ports = t.dev.Ports()
	}
	for _, p := range ports {
		if p.Group != 0 {
			members[p.Group] = append(members[p.Group], p.Relative)
		}
	}
	return slices.Sorted(maps.Keys(members)), members
}

// supportedStates of the groups: transitioning, unavailable, standby, and the two active ones.
const supportedStates = 0x80 | 0x08 | 0x04 | 0x02 | 0x01

// reportTargetPortGroups is REPORT TARGET PORT GROUPS (SPC-4, section 6.37): the length of what follows, with the extended format a
// header, and for each group
//
//	 0          1           2          4    5        6    7        8
//	+----------+-----------+----------+----+--------+----+--------+------------------------
//	|PREF state| supported | group id | 00 | status | 00 | ports  | 00 00, port's id | ...
//	+----------+-----------+----------+----+--------+----+--------+------------------------
func (t *task) reportTargetPortGroups() {
	ids, members := t.portGroups()
	if len(ids) == 0 { // TPGS is 0
		t.badField(1)
		return
	}
	data := append(t.reply[:0], 0, 0, 0, 0)
	switch t.cdb[1] >> 5 {
	case 0:
	case 1: // extended: format 1, no time told for implicit transitions
		data = append(data, 0x10, 0, 0, 0)
	default:
		t.badBits(1, 0xc0)
		return
	}
	for _, id := range ids {
		p := t.lu.pathState(id)
		data = append(data, byte(p.state), supportedStates)
		data = binary.BigEndian.AppendUint16(data, id)
		data = append(data, 0, p.why, 0, byte(len(members[id])))
		for _, port := range members[id] {
			data = append(data, 0, 0)
			data = binary.BigEndian.AppendUint16(data, port)
		}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	t.answer(data, int64(binary.BigEndian.Uint32(t.cdb[6:])))
}

// setTargetPortGroups is SET TARGET PORT GROUPS (SPC-4, section 6.45). Its parameter list has four reserved octets and then four for
// each group: the state, a reserved one, and the group's identifier. All of the list is checked before anything changes.
func (t *task) setTargetPortGroups() {
	length := int64(binary.BigEndian.Uint32(t.cdb[6:]))
	_, members := t.portGroups()
	if len(members) == 0 { // TPGS is 0
		t.badField(1)
		return
	}
	if length == 0 {
		return
	}
	if length < 8 || length%4 != 0 || length > 4+4*maxPorts {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	list, ok := t.parameterList(t.reply[:4+4*maxPorts], length)
	if !ok {
		return
	}
	set := make(paths)
	for at := 4; at < len(list); at += 4 {
		state, group := AccessState(list[at]&0x0f), binary.BigEndian.Uint16(list[at+2:])
		if state > Unavailable { // nobody can ask for a transition as such
			t.badParameter(at)
			return
		}
		if _, twice := set[group]; twice || members[group] == nil {
			t.badParameter(at + 2)
			return
		}
		set[group] = pathState{state, changedExplicitly}
	}
	if t.lu.changePaths(set) {
		t.lu.Attention(CodeAsymmetricAccessChanged, t.nexus)
	}
}

var pathCommands = []command{
	{
		op: OpMaintenanceIn, action: SAReportTargetPortGroups, name: "REPORT TARGET PORT GROUPS", flags: action | despiteReservation,
		usage: []byte{OpMaintenanceIn, 0xe0 | SAReportTargetPortGroups, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(6), run: (*task).reportTargetPortGroups,
	},
	{
		op: OpMaintenanceOut, action: SASetTargetPortGroups, name: "SET TARGET PORT GROUPS", flags: action,
		usage: []byte{OpMaintenanceOut, SASetTargetPortGroups, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(binary.BigEndian.Uint32(cdb[6:])) }), run: (*task).setTargetPortGroups,
	},
	{
		op: OpMaintenanceIn, action: SAReportSupportedTaskFunctions, name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", flags: action,
		usage: []byte{OpMaintenanceIn, SAReportSupportedTaskFunctions, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(6), run: (*task).reportTaskFunctions,
	},
}

// reportTaskFunctions is REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, section 6.36), in 4 octets, or 16 with REPD: ABORT TASK, ABORT
// TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, QUERY TASK; QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET. No timeouts are
// told.
func (t *task) reportTaskFunctions() {
	allocation := int64(binary.BigEndian.Uint32(t.cdb[6:]))
	if allocation < 4 {
		t.badField(6)
		return
	}
	data := append(t.reply[:0], 0x80|0x40|0x10|0x08|0x04, 0x04|0x02|0x01, 0, 0)
	if t.cdb[2]&0x80 != 0 { // REPD
		data[3] = 12
		data = append(data, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	t.answer(data, allocation)
}
