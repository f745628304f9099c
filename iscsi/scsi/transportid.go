package scsi

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// isidMark stands between an iSCSI initiator's name and its ISID in the name of an initiator port (RFC 7143, section
// 4.2.7; SPC-4, section 7.6.4.6).
const isidMark = ",i,0x"

const (
	transportISCSI = 0x05
	// transportPort is the format of a TransportID that has the ISID, and so names a port and not a device.
	transportPort = 0x40
	// maxTransportID is the longest TransportID taken: a name of 223 octets with its ISID.
	maxTransportID = 4 + 256
)

// initiatorPort tells a port's name from a device's.
func initiatorPort(name string) bool { return strings.Contains(name, isidMark) }

// appendTransportID appends an iSCSI TransportID, at least 24 octets and a multiple of four (SPC-4, section 7.6.4.6):
//
//	 0             1    2           4
//	+-------------+----+-----------+------------------------------------------
//	| form. 5     | 00 | length    | name ,i,0x ISID in hexadecimal, NUL, pad
//	+-------------+----+-----------+------------------------------------------
func appendTransportID(p []byte, name string) []byte {
	format := byte(transportISCSI)
	if initiatorPort(name) {
		format |= transportPort
	}
	n := max((len(name)+4)&^3, 20)
	p = append(p, format, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(n))
	p = append(p, name...)
	for range n - len(name) {
		p = append(p, 0)
	}
	return p
}

// parseTransportID reads the iSCSI TransportID at the beginning of p, and gives the name in the form in which a Nexus has it
// and the octets that it takes. A name without an ISID is an initiator device's.
func parseTransportID(p []byte) (name string, size int, ok bool) {
	if len(p) < 4 {
		return "", 0, false
	}
	size = 4 + int(binary.BigEndian.Uint16(p[2:]))
	if size > len(p) || size < 24 || size > maxTransportID || size%4 != 0 || p[0]&0x0f != transportISCSI {
		return "", 0, false
	}
	text, rest, ended := strings.Cut(string(p[4:size]), "\x00")
	if !ended || strings.Trim(rest, "\x00") != "" || text == "" {
		return "", 0, false
	}
	text = strings.ToLower(text)
	for i := range len(text) {
		if text[i] <= ' ' || text[i] == 0x7f {
			return "", 0, false
		}
	}
	device, isid, hasISID := strings.Cut(text, isidMark)
	switch p[0] & 0xc0 {
	case 0:
		return text, size, !hasISID
	case transportPort:
		n, err := strconv.ParseUint(isid, 16, 48)
		if !hasISID || err != nil {
			return "", 0, false
		}
		return fmt.Sprintf("%s%s%012x", device, isidMark, n), size, true
	}
	return "", 0, false
}
