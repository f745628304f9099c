package iser

import "strings"

// PrivateLen is the length of the CM header in octets.
const PrivateLen = 4

const (
	privateNoZeroBased = 0x80
	privateNoSendInv   = 0x40
)

// Private is the CM header that both ends pass as private data when the RDMA connection is made
// (Annex A12 of the InfiniBand architecture; Linux sends it on iWARP too). RFC 7145 does not know it.
//
//	 0          1                4
//	+----------+----------------+
//	|ZS000000  | reserved       |
//	+----------+----------------+
//
// Z: zero-based addresses are not supported. S: Send with Invalidate is not supported.
type Private struct {
	NoZeroBased      bool
	NoSendInvalidate bool
}

// ParsePrivate reads a peer's private data. ok is false when the peer sent no CM header; nothing beyond the
// common core may then be assumed. What follows the four octets is ignored.
func ParsePrivate(b []byte) (p Private, ok bool) {
	if len(b) < PrivateLen {
		return Private{NoZeroBased: true, NoSendInvalidate: true}, false
	}
	return Private{NoZeroBased: b[0]&privateNoZeroBased != 0, NoSendInvalidate: b[0]&privateNoSendInv != 0}, true
}

// Append appends the four octets.
func (p Private) Append(b []byte) []byte {
	var f byte
	if p.NoZeroBased {
		f |= privateNoZeroBased
	}
	if p.NoSendInvalidate {
		f |= privateNoSendInv
	}
	return append(b, f, 0, 0, 0)
}

func (p Private) String() string {
	var s []string
	if !p.NoZeroBased {
		s = append(s, "zero-based addresses")
	}
	if !p.NoSendInvalidate {
		s = append(s, "Send with Invalidate")
	}
	if s == nil {
		return "iSER CM header: nothing optional"
	}
	return "iSER CM header: " + strings.Join(s, ", ")
}
