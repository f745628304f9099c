package scsi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Mapping is one logical unit as a View shows it.
type Mapping struct {
	// Number is the logical unit's number in the Device.
	Number int
	// ReadOnly refuses writes through this view, whatever the logical unit is for others.
	ReadOnly bool
}

// View is the part of a Device that one nexus sees, and under which numbers (LUN masking and mapping). What it leaves out is for that
// nexus not there: REPORT LUNS does not list it, and commands to it end as commands to any absent logical unit do. Logical units that
// the Device gets or loses later come and go in the view as well. A nil View shows all under their own numbers. Views do not
// change; Nexus.SetView replaces one.
type View struct {
	luns     map[int]Mapping // nil: all
	numbers  map[int]int     // of the Device -> of the nexus
	readOnly bool
}

// ErrView: a mapping that cannot be.
var ErrView = errors.New("scsi: impossible view")

// NewView shows the Device's logical units under the numbers that are luns' keys; nil shows all. readOnly refuses all writes. A
// logical unit has one number at most, so that what is read-only under one name is not writable under another. Errors wrap ErrView.
func NewView(luns map[int]Mapping, readOnly bool) (*View, error) {
	v := &View{readOnly: readOnly}
	if luns == nil {
		return v, nil
	}
	v.luns, v.numbers = maps.Clone(luns), make(map[int]int, len(luns))
	for n, m := range luns {
		if n < 0 || n > MaxLUN || m.Number < 0 || m.Number > MaxLUN {
			return nil, fmt.Errorf("%w: LUN %d as %d: numbers go from 0 to %d", ErrView, m.Number, n, MaxLUN)
		}
		if other, twice := v.numbers[m.Number]; twice {
			return nil, fmt.Errorf("%w: LUN %d is shown twice, as %d and %d", ErrView, m.Number, min(n, other), max(n, other))
		}
		v.numbers[m.Number] = n
	}
	return v, nil
}

// number is the Device's number for one of the view.
func (v *View) number(n int) (int, bool) {
	if v == nil || v.luns == nil {
		return n, true
	}
	m, ok := v.luns[n]
	return m.Number, ok
}

// Equal tells that two views show the same.
func (v *View) Equal(o *View) bool {
	plain := func(v *View) bool { return v == nil || v.luns == nil && !v.readOnly }
	if plain(v) || plain(o) {
		return plain(v) && plain(o)
	}
	return v.readOnly == o.readOnly && (v.luns == nil) == (o.luns == nil) && maps.Equal(v.luns, o.luns)
}

// absentLUN names no logical unit: its second level is reserved here.
const absentLUN = 1

// SetView gives the nexus another view of its Device; nil is the whole Device. Commands that run already go on to their end.
// If the view differs the initiator is told (REPORTED LUNS DATA HAS CHANGED).
func (n *Nexus) SetView(v *View) {
	if old := n.view.Swap(v); old.Equal(v) || n.dev == nil {
		return
	}
	for _, l := range *n.dev.luns.Load() {
		l.attend(n, CodeReportedLUNsChanged)
	}
}

// Resolve is the Device's LUN for one that the initiator gave; a LUN that the nexus does not see becomes one that is not there.
func (n *Nexus) Resolve(lun uint64) uint64 {
	if n == nil {
		return lun
	}
	v := n.view.Load()
	if v == nil || v.luns == nil {
		return lun
	}
	number, ok := DecodeLUN(lun)
	if ok {
		number, ok = v.number(number)
	}
	if !ok {
		return absentLUN
	}
	return EncodeLUN(number)
}

// LUNs are the numbers that the nexus sees of its Device, in rising order.
func (n *Nexus) LUNs() []int {
	if n.dev == nil {
		return nil
	}
	all := n.dev.LUNs()
	v := n.view.Load()
	if v == nil || v.luns == nil {
		return all
	}
	var seen []int
	for _, number := range all {
		if as, ok := v.numbers[number]; ok {
			seen = append(seen, as)
		}
	}
	slices.Sort(seen)
	return seen
}

// Sees tells that the nexus has l under some number.
func (n *Nexus) Sees(l *LU) bool {
	if n == nil {
		return true
	}
	v := n.view.Load()
	if v == nil || v.luns == nil || n.dev == nil {
		return true
	}
	for number, have := range *n.dev.luns.Load() {
		if _, ok := v.numbers[number]; ok && have == l {
			return true
		}
	}
	return false
}

// Masked tells that the nexus may see only some of its Device's logical units.
func (n *Nexus) Masked() bool {
	if n == nil {
		return false
	}
	v := n.view.Load()
	return v != nil && v.luns != nil
}

// readOnly tells that the nexus may not write to l.
func (n *Nexus) readOnly(l *LU) bool {
	if n == nil {
		return false
	}
	v := n.view.Load()
	switch {
	case v == nil:
		return false
	case v.readOnly:
		return true
	case v.luns == nil || n.dev == nil:
		return false
	}
	for number, have := range *n.dev.luns.Load() {
		if as, ok := v.numbers[number]; ok && have == l && v.luns[as].ReadOnly {
			return true
		}
	}
	return false
}
