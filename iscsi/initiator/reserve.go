package initiator

import (
	"context"
	"encoding/binary"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// maxReserveData is how much is asked of PERSISTENT RESERVE IN, in octets: 8190 keys.
const maxReserveData = 65528

// ReservationType says who may do what while a persistent reservation is held (SPC-4, section 7.5.5.7).
type ReservationType = scsi.ReservationType

// The types of persistent reservation. With a registrants-only type, all who are registered may write (or access); with
// an all-registrants type they all hold the reservation.
const (
	WriteExclusive                 = scsi.WriteExclusive
	ExclusiveAccess                = scsi.ExclusiveAccess
	WriteExclusiveRegistrantsOnly  = scsi.WriteExclusiveRegistrantsOnly
	ExclusiveAccessRegistrantsOnly = scsi.ExclusiveAccessRegistrantsOnly
	WriteExclusiveAllRegistrants   = scsi.WriteExclusiveAllRegistrants
	ExclusiveAccessAllRegistrants  = scsi.ExclusiveAccessAllRegistrants
)

// ReservationKeys are the keys registered with a logical unit: READ KEYS.
type ReservationKeys struct {
	// Generation counts the changes of registrations.
	Generation uint32
	Keys       []uint64
}

// Reservation is who holds a logical unit: READ RESERVATION.
type Reservation struct {
	Generation uint32
	// Held tells whether there is a reservation; Key is its holder's, 0 if all registrants hold it.
	Held bool
	Key  uint64
	Type ReservationType
}

// ReservationKeys asks for the registered keys.
func (l *LUN) ReservationKeys(ctx context.Context) (ReservationKeys, error) {
	b, gen, err := l.reserveIn(ctx, scsi.PRReadKeys)
	k := ReservationKeys{Generation: gen}
	for ; len(b) >= 8; b = b[8:] {
		k.Keys = append(k.Keys, binary.BigEndian.Uint64(b))
	}
	return k, err
}

// Reservation asks for the reservation.
func (l *LUN) Reservation(ctx context.Context) (Reservation, error) {
	b, gen, err := l.reserveIn(ctx, scsi.PRReadReservation)
	r := Reservation{Generation: gen}
	if len(b) >= 14 {
		r.Held, r.Key, r.Type = true, binary.BigEndian.Uint64(b), ReservationType(b[13]&0xf)
	}
	return r, err
}

// Registration is one I_T nexus with a key: READ FULL STATUS.
type Registration struct {
	Key        uint64
	Holder     bool
	Type       ReservationType // if Holder
	AllPorts   bool            // the registration counts for all target ports
	TargetPort uint16          // relative target port identifier, unless AllPorts
	// Initiator is the TransportID's text: for iSCSI the name, mostly with ",i,0x" and the ISID.
	Initiator string
}

// Registrations asks for all registrations with who made them.
func (l *LUN) Registrations(ctx context.Context) ([]Registration, error) {
	b, _, err := l.reserveIn(ctx, scsi.PRReadFullStatus)
	if err != nil {
		return nil, err
	}
	var list []Registration
	for len(b) >= 24 {
		n := 24 + uint64(binary.BigEndian.Uint32(b[20:]))
		if n > uint64(len(b)) {
			break
		}
		r := Registration{
			Key: binary.BigEndian.Uint64(b), Holder: b[12]&0x01 != 0, AllPorts: b[12]&0x02 != 0,
			TargetPort: binary.BigEndian.Uint16(b[18:]), Initiator: transportID(b[24:n]),
		}
		if r.Holder {
			r.Type = ReservationType(b[13] & 0xf)
		}
		list, b = append(list, r), b[n:]
	}
	return list, nil
}

// transportID reads an iSCSI initiator's TransportID (SPC-4, section 7.6.4.6); others are shown in hexadecimal.
func transportID(b []byte) string {
	if len(b) < 4 || b[0]&0xf != 5 {
		return fmt.Sprintf("%x", b)
	}
	text := b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]
	for i, c := range text {
		switch {
		case c == 0:
			return string(text[:i])
		case c < 0x20 || c > 0x7e:
			return fmt.Sprintf("%x", text)
		}
	}
	return string(text)
}

// ReservationCapabilities are what a logical unit can do about reservations: REPORT CAPABILITIES.
type ReservationCapabilities struct {
	PersistThroughPowerLoss bool // APTPL can be asked for
	PersistActive           bool // and was
	SpecifyInitiators       bool
	AllPorts                bool
	Types                   []ReservationType
}

// ReservationCapabilities asks for them.
func (l *LUN) ReservationCapabilities(ctx context.Context) (ReservationCapabilities, error) {
	r := l.pool.get()
	defer l.pool.put(r)
	b := make([]byte, 8)
	r.CDB = scsi.PersistentReserveIn(scsi.PRReportCapabilities, uint16(len(b)))
	r.useIn(b)
	if err := l.run(ctx, r); err != nil {
		return ReservationCapabilities{}, err
	}
	if n := r.Moved(); n < 6 {
		return ReservationCapabilities{}, shortData("REPORT CAPABILITIES data", n, 6)
	}
	c := ReservationCapabilities{
		PersistThroughPowerLoss: b[2]&0x01 != 0, AllPorts: b[2]&0x04 != 0, SpecifyInitiators: b[2]&0x08 != 0, PersistActive: b[3]&0x01 != 0,
	}
	if b[3]&0x80 == 0 {
		return c, nil
	}
	mask := uint16(b[4]) | uint16(b[5])<<8 // bit n of the two octets is type n
	for t := WriteExclusive; t <= ExclusiveAccessAllRegistrants; t++ {
		if mask&(1<<t) != 0 {
			c.Types = append(c.Types, t)
		}
	}
	return c, nil
}

// reserveIn runs PERSISTENT RESERVE IN of a kind whose answer begins with generation and length.
func (l *LUN) reserveIn(ctx context.Context, action byte) (body []byte, generation uint32, err error) {
	b, err := l.fetch(ctx, scsi.PersistentReserveIn(action, maxReserveData), maxReserveData)
	if err != nil {
		return nil, 0, err
	}
	if len(b) < 8 {
		return nil, 0, shortData("PERSISTENT RESERVE IN data", len(b), 8)
	}
	return b[8:min(uint64(len(b)), 8+uint64(binary.BigEndian.Uint32(b[4:])))], binary.BigEndian.Uint32(b), nil
}

// RegisterOptions are what REGISTER can be asked for beside the key.
type RegisterOptions struct {
	// Ignore takes the new key whatever was registered before (REGISTER AND IGNORE EXISTING KEY).
	Ignore bool
	// Persist asks to keep registrations and reservation over power loss (APTPL).
	Persist bool
	// AllPorts registers with all target ports at once (ALL_TG_PT).
	AllPorts bool
}

// Register registers a key for this I_T nexus, in the place of old; old is 0 if there was none, key 0 ends the registration.
func (l *LUN) Register(ctx context.Context, old, key uint64, o RegisterOptions) error {
	action, flags := byte(scsi.SARegister), byte(0)
	if o.Ignore {
		action = scsi.SARegisterAndIgnore
	}
	if o.Persist {
		flags |= scsi.APTPL
	}
	if o.AllPorts {
		flags |= scsi.AllTGPT
	}
	return l.reserveOut(ctx, action, 0, old, key, flags)
}

// Reserve takes a persistent reservation. key is the one that was registered.
func (l *LUN) Reserve(ctx context.Context, key uint64, t ReservationType) error {
	return l.reserveOut(ctx, scsi.SAReserve, t, key, 0, 0)
}

// Release gives a persistent reservation back; t has to be the type that was taken.
func (l *LUN) Release(ctx context.Context, key uint64, t ReservationType) error {
	return l.reserveOut(ctx, scsi.SARelease, t, key, 0, 0)
}

// ClearReservations ends the reservation and all registrations, those of others as well.
func (l *LUN) ClearReservations(ctx context.Context, key uint64) error {
	return l.reserveOut(ctx, scsi.SAClear, 0, key, 0, 0)
}

// Preempt ends the registrations with the key victim, and takes the reservation over if that key held it. With abort the victim's commands
// are aborted, too.
func (l *LUN) Preempt(ctx context.Context, key, victim uint64, t ReservationType, abort bool) error {
	action := byte(scsi.SAPreempt)
	if abort {
		action = scsi.SAPreemptAndAbort
	}
	return l.reserveOut(ctx, action, t, key, victim, 0)
}

// reserveOut runs PERSISTENT RESERVE OUT with the parameter list of 24 octets (SPC-4, section 6.17.3).
func (l *LUN) reserveOut(ctx context.Context, action byte, t ReservationType, key, action2 uint64, flags byte) error {
	list := scsi.AppendReserve(nil, key, action2, flags)
	return l.give(ctx, scsi.PersistentReserveOut(action, t&0x0f, uint32(len(list))), list)
}
