package scsi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// MaxLUN is the largest logical unit number that a Device gives out: what flat space addressing
// holds (SAM-5, section 4.7.7.5).
const MaxLUN = 1<<14 - 1

// DecodeLUN takes a LUN apart, given as the eight octets read as one big-endian number. It knows
// the single level forms: peripheral device addressing on bus 0 and flat space addressing. Whatever
// else is no LUN here.
func DecodeLUN(lun uint64) (number int, ok bool) {
	if lun&0x0000ffffffffffff != 0 {
		return 0, false
	}
	first := uint16(lun >> 48)
	switch first >> 14 {
	case 0: // peripheral; a bus other than 0 would be a second level
		return int(first & 0xff), first>>8 == 0
	case 1: // flat space
		return int(first & 0x3fff), true
	}
	return 0, false
}

// EncodeLUN is the LUN of a number: peripheral device addressing up to 255, flat space above.
func EncodeLUN(number int) uint64 {
	if number < 256 {
		return uint64(number) << 48
	}
	return (1<<14 | uint64(number)&MaxLUN) << 48
}

// Port describes the target port to initiators (INQUIRY and its device identification page). A zero
// field is left out there.
type Port struct {
	// Name is the SCSI port name, for iSCSI "iqn...,t,0x0001".
	Name string
	// DeviceName is the SCSI device name, for iSCSI the target's name.
	DeviceName string
	// Relative is the relative target port identifier, counted from 1.
	Relative uint16
	// Group is the target port group that the port belongs to, with its own asymmetric access states; 0 is none.
	Group uint16
	// Protocol is the protocol identifier (SPC-4, section 7.6.1; iSCSI is 5).
	Protocol byte
	// Version is the transport's version descriptor (SPC-4, table 144; iSCSI is 0960h).
	Version uint16
}

// Errors of a Device's configuration.
var (
	ErrLUNRange = errors.New("scsi: LUN out of range")
	ErrLUNTaken = errors.New("scsi: LUN already in use")
	ErrNoLUN    = errors.New("scsi: no such LUN")
)

// maxKnownInitiators bounds the names that a Device remembers in order to tell an initiator that
// comes back (I_T NEXUS LOSS) from a new one (POWER ON).
const maxKnownInitiators = 1024

// Device is a SCSI target device: ports, logical units by number, and the nexuses to them.
// All methods may be called by many goroutines at once.
type Device struct {
	// ports is replaced as a whole, too; the first one was there from the beginning.
	ports   atomic.Pointer[[]Port]
	aborter atomic.Pointer[TaskAborter]

	// luns is replaced as a whole, so that commands read it without a lock.
	luns atomic.Pointer[map[int]*LU]

	mu      sync.Mutex // guards what follows and the replacing of luns
	nexuses map[*Nexus]struct{}
	known   map[nexusID]struct{}
	states  paths               // of target port groups, for logical units that come later
	leaving map[uint16]struct{} // ports that go with their last nexus
}

// NewDevice makes a device without logical units.
func NewDevice(port Port) *Device {
	d := &Device{nexuses: make(map[*Nexus]struct{}), known: make(map[nexusID]struct{})}
	d.ports.Store(&[]Port{port})
	d.luns.Store(new(map[int]*LU))
	return d
}

// Port is the first target port.
func (d *Device) Port() Port { return (*d.ports.Load())[0] }

// LU is the logical unit with that number, nil if there is none.
func (d *Device) LU(number int) *LU { return (*d.luns.Load())[number] }

// LUNs are the numbers in use, in rising order.
func (d *Device) LUNs() []int { return slices.Sorted(maps.Keys(*d.luns.Load())) }

// Add gives a logical unit its number and tells every nexus that the list has changed.
func (d *Device) Add(number int, l *LU) error {
	if number < 0 || number > MaxLUN {
		return fmt.Errorf("%w: %d is not within 0 to %d", ErrLUNRange, number, MaxLUN)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.luns.Load()
	if old[number] != nil {
		return fmt.Errorf("%w: %d", ErrLUNTaken, number)
	}
	next := make(map[int]*LU, len(old)+1)
	maps.Copy(next, old)
	next[number] = l
	for n := range d.nexuses {
		n.attach(l, CodeReset)
	}
	l.changePaths(d.states)
	d.luns.Store(&next)
	d.lunsChanged()
	return nil
}

// Remove takes a number away and tells every nexus that the list has changed. Commands of the
// logical unit that run already go on to their end; the caller closes the store after them.
func (d *Device) Remove(number int) (*LU, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.luns.Load()
	l := old[number]
	if l == nil {
		return nil, fmt.Errorf("%w: %d", ErrNoLUN, number)
	}
	next := maps.Clone(old)
	delete(next, number)
	d.luns.Store(&next)
	if !slices.Contains(slices.Collect(maps.Values(next)), l) { // it may have another number still
		for n := range d.nexuses {
			n.leave(l)
		}
	}
	d.lunsChanged()
	return l, nil
}

// lunsChanged queues the unit attention at every logical unit for every nexus of this device. d.mu
// is held.
func (d *Device) lunsChanged() {
	for n := range d.nexuses {
		for _, l := range *d.luns.Load() {
			l.attend(n, CodeReportedLUNsChanged)
		}
	}
}

// NewNexus opens the nexus of an initiator port (for iSCSI, initiator name and ISID) through the first target port. Every
// logical unit has a unit attention for it: POWER ON, RESET, OR BUS DEVICE RESET for a nexus that was not
// seen before, I_T NEXUS LOSS for one that comes back.
func (d *Device) NewNexus(initiator string) *Nexus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nexus(initiator, d.Port())
}

// nexus opens one. d.mu is held.
func (d *Device) nexus(initiator string, port Port) *Nexus {
	n := &Nexus{initiator: initiator, dev: d, port: port}
	code := CodeReset
	if _, ok := d.known[n.id()]; ok {
		code = CodeNexusLoss
	} else if len(d.known) < maxKnownInitiators {
		d.known[n.id()] = struct{}{}
	}
	d.nexuses[n] = struct{}{}
	for _, l := range *d.luns.Load() {
		n.attach(l, code)
	}
	return n
}

// Nexuses is how many nexuses are open.
func (d *Device) Nexuses() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.nexuses)
}

func (d *Device) forget(n *Nexus) {
	d.mu.Lock()
	delete(d.nexuses, n)
	d.dropPort(n.port.Relative)
	d.mu.Unlock()
}

// Reset resets every logical unit (TARGET WARM RESET and TARGET COLD RESET): mode parameters go
// back to what was configured, SPC-2 reservations end, and every nexus is told code (CodeBusReset or CodePowerOn). by is
// who asked; nil is the operator. A nexus that sees only some logical units resets only those. The caller has
// aborted the tasks.
func (d *Device) Reset(by *Nexus, code Code) {
	for _, l := range *d.luns.Load() {
		if by.Sees(l) {
			l.reset(by, code)
		}
	}
}

// lookup finds the logical unit of a LUN; nil if there is none.
func (d *Device) lookup(lun uint64) *LU {
	number, ok := DecodeLUN(lun)
	if !ok {
		return nil
	}
	return d.LU(number)
}

// Plan is LU.Plan for the logical unit of a LUN, as the Device numbers it (Nexus.Resolve). If there is none, a command moves no data-out.
func (d *Device) Plan(lun uint64, cdb []byte) Plan {
	if l := d.lookup(lun); l != nil {
		return l.Plan(cdb)
	}
	if c := find(cdb); c != nil && c.flags&anyLUN != 0 {
		in, _ := c.plan(nil, cdb)
		return Plan{DataIn: in}
	}
	return Plan{}
}

// Execute runs one command for a nexus of this device, at a LUN given as in DecodeLUN, as the nexus's View numbers it. At a LUN
// that is not there INQUIRY answers with peripheral qualifier 3 (7Fh), REQUEST SENSE with LOGICAL
// UNIT NOT SUPPORTED as its data, REPORT LUNS with the list, and everything else ends with ILLEGAL
// REQUEST, LOGICAL UNIT NOT SUPPORTED (SPC-4, section 6.4.1 ff.).
//
// A nil x is one that expects no data. The cdb is not kept. Execute may wait as Transfer may; when
// ctx is cancelled it ends as soon as the store and x let it, with Result.Err set.
func (d *Device) Execute(ctx context.Context, n *Nexus, lun uint64, cdb []byte, x Transfer) Result {
	if l := d.lookup(n.Resolve(lun)); l != nil {
		return l.execute(ctx, d, n, cdb, x)
	}
	return d.executeAbsent(ctx, n, cdb, x)
}
