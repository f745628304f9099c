package ddp

import (
	"encoding/binary"
	"fmt"
)

// Version is the DDP version that this package speaks (RFC 5041, section 4.1).
const Version = 1

// Bits of the first octet, DDP's control field.
const (
	flagTagged  = 0x80
	flagLast    = 0x40
	maskVersion = 0x03
)

// Header lengths, ULP control octets included.
const (
	TaggedLen   = 14
	UntaggedLen = 18
	// MinLen is what must be there to tell the two headers apart.
	MinLen = 2
)

// Field offsets.
const (
	offULP  = 1 // the octet that both headers leave to the ULP
	offULP4 = 2 // untagged: four more octets for the ULP
	offSTag = 2
	offTO   = 6
	offQN   = 6
	offMSN  = 10
	offMO   = 14
)

// Control is the part that tagged and untagged headers share; the slice may be longer.
type Control []byte

// Tagged says which of the two headers follows.
func (h Control) Tagged() bool { return h[0]&flagTagged != 0 }

// Last is set on the segment that ends its message.
func (h Control) Last() bool { return h[0]&flagLast != 0 }

// Version is the DDP version of the segment's sender.
func (h Control) Version() uint8 { return h[0] & maskVersion }

// ULP is the octet that DDP carries for the layer above.
func (h Control) ULP() uint8 { return h[offULP] }

// HeaderLen is TaggedLen or UntaggedLen.
func (h Control) HeaderLen() int {
	if h.Tagged() {
		return TaggedLen
	}
	return UntaggedLen
}

// Tagged is the header of a tagged segment (RFC 5041, section 4.2), 14 octets:
//
//	 0        1        2                 6                                   14
//	+--------+--------+-----------------+-----------------------------------+
//	|1 L  DV |  ULP   |      STag       |           Tagged Offset           |
//	+--------+--------+-----------------+-----------------------------------+
//
// The caller has checked the length.
type Tagged []byte

// Last is set on the segment that ends its message.
func (h Tagged) Last() bool { return h[0]&flagLast != 0 }

// ULP is the octet that DDP carries for the layer above.
func (h Tagged) ULP() uint8 { return h[offULP] }

// STag names the buffer at the receiver.
func (h Tagged) STag() STag { return STag(binary.BigEndian.Uint32(h[offSTag:])) }

// TO is the Tagged Offset of the payload's first octet within the buffer that STag names.
func (h Tagged) TO() uint64 { return binary.BigEndian.Uint64(h[offTO:]) }

// TaggedFields are the values of a tagged header.
type TaggedFields struct {
	Last bool
	ULP  uint8
	STag STag
	TO   uint64
}

// Fields reads the header.
func (h Tagged) Fields() TaggedFields {
	return TaggedFields{Last: h.Last(), ULP: h.ULP(), STag: h.STag(), TO: h.TO()}
}

// Encode writes the header's 14 octets.
func (h Tagged) Encode(f *TaggedFields) {
	h[0] = flagTagged | Version
	if f.Last {
		h[0] |= flagLast
	}
	h[offULP] = f.ULP
	binary.BigEndian.PutUint32(h[offSTag:], uint32(f.STag))
	binary.BigEndian.PutUint64(h[offTO:], f.TO)
}

func (h Tagged) String() string {
	return fmt.Sprintf("tagged %v TO %#x last=%t", h.STag(), h.TO(), h.Last())
}

// Untagged is the header of an untagged segment (RFC 5041, section 4.3), 18 octets:
//
//	 0        1        2            6            10           14           18
//	+--------+--------+------------+------------+------------+------------+
//	|0 L  DV |  ULP   |    ULP     |     QN     |    MSN     |     MO     |
//	+--------+--------+------------+------------+------------+------------+
//
// The caller has checked the length.
type Untagged []byte

// Last is set on the segment that ends its message.
func (h Untagged) Last() bool { return h[0]&flagLast != 0 }

// ULP is the first of the five octets that DDP carries for the layer above.
func (h Untagged) ULP() uint8 { return h[offULP] }

// ULPWord is the other four; RDMAP puts the STag to invalidate there.
func (h Untagged) ULPWord() uint32 { return binary.BigEndian.Uint32(h[offULP4:]) }

// QN is the queue number.
func (h Untagged) QN() uint32 { return binary.BigEndian.Uint32(h[offQN:]) }

// MSN is the message's number within its queue; the first one is 1.
func (h Untagged) MSN() uint32 { return binary.BigEndian.Uint32(h[offMSN:]) }

// MO is the offset of the payload's first octet within the message.
func (h Untagged) MO() uint32 { return binary.BigEndian.Uint32(h[offMO:]) }

// UntaggedFields are the values of an untagged header.
type UntaggedFields struct {
	Last    bool
	ULP     uint8
	ULPWord uint32
	QN      uint32
	MSN     uint32
	MO      uint32
}

// Fields reads the header.
func (h Untagged) Fields() UntaggedFields {
	return UntaggedFields{Last: h.Last(), ULP: h.ULP(), ULPWord: h.ULPWord(), QN: h.QN(), MSN: h.MSN(), MO: h.MO()}
}

// Encode writes the header's 18 octets.
func (h Untagged) Encode(f *UntaggedFields) {
	h[0] = Version
	if f.Last {
		h[0] |= flagLast
	}
	h[offULP] = f.ULP
	binary.BigEndian.PutUint32(h[offULP4:], f.ULPWord)
	binary.BigEndian.PutUint32(h[offQN:], f.QN)
	binary.BigEndian.PutUint32(h[offMSN:], f.MSN)
	binary.BigEndian.PutUint32(h[offMO:], f.MO)
}

func (h Untagged) String() string {
	return fmt.Sprintf("untagged QN %d MSN %d MO %d last=%t", h.QN(), h.MSN(), h.MO(), h.Last())
}
