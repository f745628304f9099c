package scsi

import "encoding/binary"

// Vital product data pages (SPC-4, section 7.8; SBC-3, section 6.5).
const (
	PageSupported      = 0x00
	PageSerial         = 0x80
	PageIdentification = 0x83
	PagePorts          = 0x88
	PageThirdPartyCopy = 0x8f
	PageBlockLimits    = 0xb0
	PageCharacteristic = 0xb1
	PageProvisioning   = 0xb2
)

// vpdPages are the pages in rising order, as page 00h lists them.
var vpdPages = []struct {
	page  byte
	build func(t *task, p []byte) []byte // appends the page's body
}{
	{PageSupported, nil},
	{PageSerial, (*task).vpdSerial},
	{PageIdentification, (*task).vpdIdentification},
	{PagePorts, (*task).vpdPorts},
	{PageThirdPartyCopy, (*task).vpdThirdPartyCopy},
	{PageBlockLimits, (*task).vpdBlockLimits},
	{PageCharacteristic, (*task).vpdCharacteristics},
	{PageProvisioning, (*task).vpdProvisioning},
}

// inquiry is INQUIRY (SPC-4, section 6.6).
func (t *task) inquiry() {
	allocation := int64(binary.BigEndian.Uint16(t.cdb[3:]))
	page := t.cdb[2]
	if t.lu == nil {
		// Peripheral qualifier 3, device type 1Fh: there is and can be nothing here.
		if t.cdb[1]&0x01 != 0 {
			t.badBits(1, 0x01)
			return
		}
		t.answer(standardInquiry(t.reply[:0], 0x7f, &identity{}, Port{}), allocation)
		return
	}
	if t.cdb[1]&0x01 == 0 {
		if page != 0 {
			t.badField(2)
			return
		}
		data := standardInquiry(t.reply[:0], 0x00, &t.lu.ident, t.port())
		if t.lu.cfg.Removable {
			data[1] = 0x80 // RMB
		}
		if t.port().Group != 0 {
			data[5] |= 0x30 // TPGS: implicit and explicit changes of access states
		}
		if t.dev != nil && len(*t.dev.ports.Load()) > 1 {
			data[6] |= 0x10 // MULTIP
		}
		t.answer(data, allocation)
		return
	}
	for _, v := range vpdPages {
		if v.page != page {
			continue
		}
		p := append(t.reply[:0], 0x00, page, 0, 0)
		if v.build != nil {
			p = v.build(t, p)
		} else {
			for _, v := range vpdPages {
				p = append(p, v.page)
			}
		}
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)-4))
		t.answer(p, allocation)
		return
	}
	t.badField(2)
}

// port describes the target port that the command came through; its zero value for a logical unit that is used alone.
func (t *task) port() Port {
	switch {
	case t.nexus != nil && t.nexus.dev != nil:
		return t.nexus.port
	case t.dev != nil:
		return t.dev.Port()
	}
	return Port{}
}

// Version descriptors (SPC-4, table 144).
const (
	versionSAM5 = 0x00a0
	versionSPC4 = 0x0460
	versionSBC3 = 0x04c0
)

// standardInquiry appends standard INQUIRY data with version descriptors, 96 octets:
//
//	 0     1     2     3     4     5     6     7     8       16       32        36      58       74     96
//	+-----+-----+-----+-----+-----+-----+-----+-----+-------+--------+---------+-- -- -+--------+-- -- -+
//	|Q typ| RMB |  6  |HS 2 | 91  |  0  |  0  |CmdQ | vendor| product| revision|   0   |versions|   0   |
//	+-----+-----+-----+-----+-----+-----+-----+-----+-------+--------+---------+-- -- -+--------+-- -- -+
func standardInquiry(p []byte, device byte, id *identity, port Port) []byte {
	const size = 96
	p = p[:size]
	clear(p)
	p[0] = device
	p[2] = 0x06 // SPC-4
	p[3] = 0x12 // HISUP, response data format 2
	p[4] = size - 5
	if device == 0 {
		p[5] = 0x08 // 3PC: third-party copy
	}
	p[7] = 0x02 // CMDQUE
	padded(p[8:16], id.vendor)
	padded(p[16:32], id.product)
	padded(p[32:36], id.revision)
	at := 58
	for _, v := range [...]uint16{versionSAM5, port.Version, versionSPC4, versionSBC3} {
		if v != 0 && device == 0 {
			binary.BigEndian.PutUint16(p[at:], v)
			at += 2
		}
	}
	return p
}

// padded copies s into p and fills the rest with spaces.
func padded(p []byte, s string) {
	for i := copy(p, s); i < len(p); i++ {
		p[i] = ' '
	}
}

func (t *task) vpdSerial(p []byte) []byte { return append(p, t.lu.ident.serial...) }

// Kinds of designators (SPC-4, section 7.8.6).
const (
	designatorT10      = 0x1
	designatorNAA      = 0x3
	designatorRelative = 0x4
	designatorGroup    = 0x5
	designatorName     = 0x8

	codeSetBinary = 0x1
	codeSetASCII  = 0x2
	codeSetUTF8   = 0x3

	associationUnit   = 0x0
	associationPort   = 0x1
	associationDevice = 0x2
)

// vpdIdentification appends the designators: of the logical unit NAA and T10 vendor identification,
// of the target port its relative identifier and name, of the target device its name.
//
//	 0        1             2      3        4
//	+--------+-------------+------+--------+-----------------
//	|prot cs | PIV assoc ty|  00  | length | designator ...
//	+--------+-------------+------+--------+-----------------
func (t *task) vpdIdentification(p []byte) []byte {
	id := &t.lu.ident
	p = append(p, codeSetBinary, associationUnit<<4|designatorNAA, 0, byte(len(id.naa)))
	p = append(p, id.naa...)

	p = append(p, codeSetASCII, associationUnit<<4|designatorT10, 0, byte(8+len(id.serial)))
	p = append(p, "        "...)
	padded(p[len(p)-8:], id.vendor)
	p = append(p, id.serial...)

	port := t.port()
	if port.Relative != 0 {
		p = append(p, port.Protocol<<4|codeSetBinary, 0x80|associationPort<<4|designatorRelative, 0, 4, 0, 0)
		p = binary.BigEndian.AppendUint16(p, port.Relative)
	}
	if port.Group != 0 {
		p = append(p, port.Protocol<<4|codeSetBinary, 0x80|associationPort<<4|designatorGroup, 0, 4, 0, 0)
		p = binary.BigEndian.AppendUint16(p, port.Group)
	}
	p = appendName(p, port.Protocol, associationPort, port.Name)
	return appendName(p, port.Protocol, associationDevice, port.DeviceName)
}

// vpdPorts appends the target ports of the device, each with its names (SPC-4, section 7.8.14):
//
//	 0    2             4    6          8    10        12
//	+----+-------------+----+----------+----+---------+---------------------------
//	| 0  | relative id | 0  | TransportID's   | length  | designators of the target
//	|    |             |    | length: 0  | 0  |         | port, as in page 83h
//	+----+-------------+----+----------+----+---------+---------------------------
func (t *task) vpdPorts(p []byte) []byte {
	ports := []Port{t.port()}
	if t.dev != nil {
		ports = *t.dev.ports.Load()
	}
	for _, port := range ports {
		if port.Relative == 0 {
			continue
		}
		p = binary.BigEndian.AppendUint16(append(p, 0, 0), port.Relative)
		name := appendName(nil, port.Protocol, associationPort, port.Name)
		p = binary.BigEndian.AppendUint16(append(p, 0, 0, 0, 0, 0, 0), uint16(len(name)))
		p = append(p, name...)
	}
	return p
}

// appendName appends a SCSI name string designator: UTF-8, ended by a NUL and padded to four octets
// (SPC-4, section 7.8.6.11). A name too long for a designator (iSCSI's end at 223 octets) is left
// out.
func appendName(p []byte, protocol, association byte, name string) []byte {
	n := (len(name) + 4) &^ 3
	if name == "" || n > 255 || len(p)+4+n > maxReply {
		return p
	}
	p = append(p, protocol<<4|codeSetUTF8, 0x80|association<<4|designatorName, 0, byte(n))
	p = append(p, name...)
	for range n - len(name) {
		p = append(p, 0)
	}
	return p
}

func (t *task) vpdBlockLimits(p []byte) []byte {
	lim := &t.lu.limits
	body := [60]byte{}
	at := func(octet int) []byte { return body[octet-4:] } // offsets as the standard counts them
	at(5)[0] = lim.compareAndWrite
	binary.BigEndian.PutUint16(at(6), lim.granularity)
	binary.BigEndian.PutUint32(at(8), lim.transfer)
	binary.BigEndian.PutUint32(at(12), lim.optimal)
	if t.lu.thin {
		binary.BigEndian.PutUint32(at(20), lim.unmap)
		binary.BigEndian.PutUint32(at(24), maxUnmapDescriptors)
		binary.BigEndian.PutUint32(at(28), lim.unmapGranularity)
		binary.BigEndian.PutUint32(at(32), 0x80000000) // UGAVALID: granules begin at block 0
	}
	// WSNZ and MAXIMUM WRITE SAME LENGTH are 0: a WRITE SAME may reach to the end, and ends early
	// when it is aborted.
	if lim.atomic > 0 {
		// Without alignment, granularity and boundaries: a range lock knows none.
		binary.BigEndian.PutUint32(at(44), lim.atomic)
	}
	return append(p, body[:]...)
}

func (t *task) vpdCharacteristics(p []byte) []byte {
	body := [60]byte{}
	if !t.lu.cfg.Rotational {
		body[1] = 0x01 // non-rotating medium; 0 is "not reported"
	}
	if t.lu.Thin() {
		body[3] = 0x40 // WABEREQ 01b: blocks can be read after SANITIZE BLOCK ERASE
	}
	if rate := t.lu.cfg.RotationRate; rate != 0 {
		binary.BigEndian.PutUint16(body[:], uint16(rate))
	}
	return append(p, body[:]...)
}

func (t *task) vpdProvisioning(p []byte) []byte {
	if !t.lu.thin {
		return append(p, 0, 0, 0, 0)
	}
	bits := byte(0x80 | 0x40 | 0x20 | 0x04) // LBPU, LBPWS, LBPWS10, LBPRZ
	if t.lu.anchors {
		bits |= 0x02 // ANC_SUP
	}
	return append(p, t.lu.thresholdExponent(), bits, 0x02, 0) // thin
}
