package scsi

import (
	"encoding/binary"
	"fmt"
)

// PersistentReserveIn is PERSISTENT RESERVE IN with a service action such as PRReadKeys.
func PersistentReserveIn(action byte, allocation uint16) CDB {
	c := CDB{OpPersistentReserveIn, action & 0x1f}
	binary.BigEndian.PutUint16(c[7:], allocation)
	return c
}

// PersistentReserveOut is PERSISTENT RESERVE OUT with a service action such as SARegister, for the logical unit as a whole. length
// is that of the parameter list, as AppendReserve writes it.
func PersistentReserveOut(action byte, kind ReservationType, length uint32) CDB {
	c := CDB{OpPersistentReserveOut, action & 0x1f, byte(kind)}
	binary.BigEndian.PutUint32(c[5:], length)
	return c
}

// Bits of PERSISTENT RESERVE OUT's parameter list.
const (
	SpecIPT = 0x08 // SPEC_I_PT: TransportIDs follow, for AppendReserve
	AllTGPT = 0x04 // ALL_TG_PT: through every target port
	APTPL   = 0x01 // activate persist through power loss
	Unreg   = 0x02 // UNREG of REGISTER AND MOVE
)

// AppendReserve appends PERSISTENT RESERVE OUT's parameter list for all but REGISTER AND MOVE: the sender's key, the service
// action's, and flags. With SpecIPT, initiators name the ports ("iqn...,i,0x...") to register, too.
func AppendReserve(p []byte, key, action uint64, flags byte, initiators ...string) []byte {
	p = binary.BigEndian.AppendUint64(p, key)
	p = binary.BigEndian.AppendUint64(p, action)
	p = append(p, 0, 0, 0, 0, flags, 0, 0, 0)
	if flags&SpecIPT == 0 {
		return p
	}
	at := len(p)
	p = append(p, 0, 0, 0, 0)
	for _, name := range initiators {
		p = appendTransportID(p, name)
	}
	binary.BigEndian.PutUint32(p[at:], uint32(len(p)-at-4))
	return p
}

// AppendMove appends the parameter list of REGISTER AND MOVE: the reservation goes to an initiator port at the target port
// with that relative identifier.
func AppendMove(p []byte, key, action uint64, flags byte, port uint16, initiator string) []byte {
	p = binary.BigEndian.AppendUint64(p, key)
	p = binary.BigEndian.AppendUint64(p, action)
	p = append(p, 0, flags)
	p = binary.BigEndian.AppendUint16(p, port)
	at := len(p)
	p = append(p, 0, 0, 0, 0)
	p = appendTransportID(p, initiator)
	binary.BigEndian.PutUint32(p[at:], uint32(len(p)-at-4))
	return p
}

// ReservationData is what PERSISTENT RESERVE IN tells of keys and of the reservation.
type ReservationData struct {
	Generation uint32
	// Keys are of READ KEYS and READ FULL STATUS, or the holder's key.
	Keys []uint64
	// Type is 0 if there is no reservation, or it was not asked for.
	Type ReservationType
	// Registrations are of READ FULL STATUS.
	Registrations []Registration
}

// ParseReservation reads the data of PERSISTENT RESERVE IN with a service action other than REPORT CAPABILITIES. What the
// allocation length cut off is left out.
func ParseReservation(action byte, b []byte) (ReservationData, error) {
	what := "PERSISTENT RESERVE IN data"
	if len(b) < 8 {
		return ReservationData{}, short(what, len(b), 8)
	}
	d := ReservationData{Generation: binary.BigEndian.Uint32(b)}
	b = b[8:min(int64(len(b)), 8+int64(binary.BigEndian.Uint32(b[4:])))]
	switch action {
	case PRReadKeys:
		for ; len(b) >= 8; b = b[8:] {
			d.Keys = append(d.Keys, binary.BigEndian.Uint64(b))
		}
	case PRReadReservation:
		if len(b) >= 16 {
			d.Keys, d.Type = []uint64{binary.BigEndian.Uint64(b)}, ReservationType(b[13]&0x0f)
		}
	case PRReadFullStatus:
		for len(b) >= 24 {
			r := Registration{Key: binary.BigEndian.Uint64(b), Holder: b[12]&0x01 != 0, Port: binary.BigEndian.Uint16(b[18:])}
			if r.Holder {
				d.Type = ReservationType(b[13] & 0x0f)
			}
			n := 24 + int64(binary.BigEndian.Uint32(b[20:]))
			if n > int64(len(b)) {
				break
			}
			name, _, ok := parseTransportID(b[24:n])
			if !ok {
				return d, &DataError{what, fmt.Sprintf("TransportID of the registration with key %#x", r.Key)}
			}
			r.Initiator = name
			d.Keys, d.Registrations = append(d.Keys, r.Key), append(d.Registrations, r)
			b = b[n:]
		}
	default:
		return d, &DataError{what, fmt.Sprintf("service action %#02x", action)}
	}
	return d, nil
}
