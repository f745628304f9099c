package scsi

import "encoding/binary"

// Service actions of PERSISTENT RESERVE IN (SPC-4, section 6.15.1).
const (
	PRReadKeys           = 0x00
	PRReadReservation    = 0x01
	PRReportCapabilities = 0x02
	PRReadFullStatus     = 0x03
)

// persistentReserveIn is PERSISTENT RESERVE IN (SPC-4, section 6.15). All but the capabilities begin with PRGENERATION and the
// length of what follows:
//
//	 0                8                  8
//	+----------------+------------------+--------------------------------------------
//	| generation (4) | length (4)       | keys | the reservation | full descriptors
//	+----------------+------------------+--------------------------------------------
func (t *task) persistentReserveIn() {
	if t.lu.reservation.Load() != nil { // SPC-2, section 5.5.1
		t.res.Status = StatusReservationConflict
		return
	}
	p := &t.lu.persistent
	p.mu.Lock()
	s, generation := p.state, p.generation
	p.mu.Unlock()
	data := binary.BigEndian.AppendUint32(t.reply[:0], generation)
	data = append(data, 0, 0, 0, 0)
	switch t.cdb[1] & 0x1f {
	case PRReadKeys:
		for _, r := range s.list {
			data = binary.BigEndian.AppendUint64(data, r.key)
		}
	case PRReadReservation:
		if s.kind != 0 {
			key := uint64(0) // of all registrants
			if !s.kind.allRegistrants() {
				key, _ = s.key(s.holder)
			}
			data = binary.BigEndian.AppendUint64(data, key)
			data = append(data, 0, 0, 0, 0, 0, byte(s.kind), 0, 0)
		}
	case PRReadFullStatus:
		for _, r := range s.list {
			data = s.appendFullStatus(data, r)
		}
	case PRReportCapabilities:
		t.answer(p.capabilities(t.reply[:8], s), int64(binary.BigEndian.Uint16(t.cdb[7:])))
		return
	}
	binary.BigEndian.PutUint32(data[4:], uint32(len(data)-8))
	t.answer(data, int64(binary.BigEndian.Uint16(t.cdb[7:])))
}

// capabilities fills in REPORT CAPABILITIES' data (SPC-4, section 6.15.4):
//
//	 0        2                            3                     4          6
//	+--------+----------------------------+---------------------+----------+---------+
//	| length | CRH SIP_C ATP_C     PTPL_C | TMV ALLOW    PTPL_A | types (2)|  00 00  |
//	+--------+----------------------------+---------------------+----------+---------+
func (r *reservations) capabilities(p []byte, s *prState) []byte {
	clear(p)
	p[1] = 8
	p[2] = 0x10 | 0x08 | 0x04
	if r.keep != nil {
		p[2] |= 0x01
	}
	// Commands that only tell something go through write exclusive and not through exclusive access reservations, and
	// TEST UNIT READY through both: ALLOW COMMANDS 3.
	p[3] = 0x80 | 3<<4
	if s.aptpl {
		p[3] |= 0x01
	}
	p[4], p[5] = 0x80|0x40|0x20|0x08|0x02, 0x01
	return p
}

// appendFullStatus appends a full status descriptor (SPC-4, section 6.15.5): the key, whether it holds the reservation and
// which one, the target port, and the initiator port's TransportID.
func (s *prState) appendFullStatus(p []byte, r registration) []byte {
	p = binary.BigEndian.AppendUint64(p, r.key)
	holder, kind := byte(0), byte(0)
	if s.holds(r.id) {
		holder, kind = 0x01, byte(s.kind)
	}
	p = append(p, 0, 0, 0, 0, holder, kind, 0, 0, 0, 0)
	p = binary.BigEndian.AppendUint16(p, r.id.port)
	at := len(p)
	p = append(p, 0, 0, 0, 0)
	p = appendTransportID(p, r.id.initiator)
	binary.BigEndian.PutUint32(p[at:], uint32(len(p)-at-4))
	return p
}
