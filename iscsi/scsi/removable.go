package scsi

import (
	"errors"
	"fmt"
)

// ErrPrevented is Eject's refusal while an initiator prevents removal.
var ErrPrevented = errors.New("scsi: an initiator prevents the removal of the medium")

// Removable tells that the logical unit's medium can be ejected.
func (l *LU) Removable() bool { return l.cfg.Removable }

// Ejected tells that a removable medium is out.
func (l *LU) Ejected() bool { return l.ejected.Load() }

// Eject takes a removable medium out, after what was written to it is durable. Commands that need it fail from then on. While an
// initiator prevents removal it is ErrPrevented, unless force is set.
func (l *LU) Eject(force bool) error {
	if !l.cfg.Removable {
		return fmt.Errorf("scsi: %s: %w: the medium is not removable", l.info.Name, errors.ErrUnsupported)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.preventing) > 0 && !force {
		return fmt.Errorf("%w: %s", ErrPrevented, l.info.Name)
	}
	l.ejected.Store(true)
	clear(l.preventing)
	return nil
}

// prevented tells whether any nexus keeps the tray as it is.
func (l *LU) prevented() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.preventing) > 0
}

// Insert brings a removable medium back and tells every nexus (NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED).
func (l *LU) Insert() { l.insert(nil) }

func (l *LU) insert(by *Nexus) {
	if l.ejected.Swap(false) {
		l.Attention(CodeMediumMayHaveChanged, by)
	}
}

// absentMedium ends a command that needs the medium while it is out.
func (t *task) absentMedium(c *command) bool {
	if !c.rule.medium || !t.lu.ejected.Load() {
		return false
	}
	t.fail(KeyNotReady, CodeMediumTrayOpen)
	return true
}

// startStop is START STOP UNIT (SBC-3, section 5.25). There is no spindle: stopping makes everything durable and the logical unit stays
// ready, because other initiators use it, too, and power conditions are taken and mean nothing. LOEJ loads and ejects a removable
// medium, but for a nexus's will (preventAllow).
func (t *task) startStop() {
	l := t.lu
	if t.cdb[4]&0xf0 != 0 { // START and LOEJ mean nothing with a power condition
		return
	}
	start, eject, noFlush := t.cdb[4]&0x01 != 0, t.cdb[4]&0x02 != 0, t.cdb[4]&0x04 != 0
	if eject && !l.cfg.Removable {
		t.badBits(4, 0x02)
		return
	}
	switch {
	case start && eject:
		if l.ejected.Load() && l.prevented() {
			t.fail(KeyIllegalRequest, CodeMediumRemovalPrevented)
			return
		}
		l.insert(t.nexus)
	case start:
		if l.ejected.Load() {
			t.fail(KeyNotReady, CodeMediumTrayOpen)
		}
	default:
		if !l.ejected.Load() && (eject || !noFlush) {
			if err := l.flush(); err != nil {
				t.storeError(err, true, 0)
				return
			}
		}
		if eject && l.Eject(false) != nil {
			t.fail(KeyIllegalRequest, CodeMediumRemovalPrevented)
		}
	}
}

// preventAllow is PREVENT ALLOW MEDIUM REMOVAL (SBC-3, section 5.13). Each nexus prevents for itself, until it allows, is lost, or the
// logical unit is reset.
func (t *task) preventAllow() {
	l := t.lu
	if t.cdb[4]&0x02 != 0 { // obsolete: media changers
		t.badBits(4, 0x02)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.cdb[4]&0x01 == 0 {
		delete(l.preventing, t.nexus)
		return
	}
	if l.preventing == nil {
		l.preventing = make(map[*Nexus]struct{})
	}
	l.preventing[t.nexus] = struct{}{}
}

var removableCommands = []command{
	{
		op: OpPreventAllow, name: "PREVENT ALLOW MEDIUM REMOVAL", when: (*LU).Removable,
		usage: []byte{OpPreventAllow, 0, 0, 0, 0x03, 0}, run: (*task).preventAllow,
	},
}
