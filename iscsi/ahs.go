package iscsi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// AHSType is the kind of an Additional Header Segment (RFC 7143, section 11.2.2.1).
type AHSType uint8

// AHS types.
const (
	AHSExtendedCDB AHSType = 1
	AHSBidiReadLen AHSType = 2
)

// MaxCDBLen is the longest CDB that an extended CDB AHS can complete, in octets (the AHS length field would hold
// more; SPC's variable length CDBs end here).
const MaxCDBLen = 260

// ErrAHS: Additional Header Segments that contradict themselves or the command.
var ErrAHS = errors.New("iscsi: malformed AHS")

// AHS are the parsed Additional Header Segments of a SCSI Command (RFC 7143, section 11.2.2).
//
//	 0                2        3        4
//	+----------------+--------+--------+-----------------------+
//	|  AHSLength     | type   | (AHSLength octets from here on,
//	+----------------+--------+   padded with zeros to 4)      |
//	+----------------------------------------------------------+
//
// An extended CDB has one reserved octet and then the CDB from octet 16 on; a bidirectional read length one reserved octet and
// four of length.
type AHS struct {
	// CDB is what follows the 16 octets in the BHS, in place; nil if there is none.
	CDB []byte
	// BidiReadLen is the Expected Bidirectional Read Data Transfer Length in octets; HasBidi tells that there is one.
	BidiReadLen uint32
	HasBidi     bool
}

// ParseAHS takes a PDU's AHS apart, in place. Segments of unknown type are skipped. Errors wrap ErrAHS.
func ParseAHS(b []byte) (AHS, error) {
	var a AHS
	for len(b) > 0 {
		if len(b) < 4 {
			return a, fmt.Errorf("%w: %d octets left", ErrAHS, len(b))
		}
		n := int(binary.BigEndian.Uint16(b))
		full := (3 + n + 3) &^ 3
		if full > len(b) {
			return a, fmt.Errorf("%w: segment of %d octets, %d left", ErrAHS, full, len(b))
		}
		switch AHSType(b[2]) {
		case AHSExtendedCDB:
			if n < 2 || a.CDB != nil || n-1 > MaxCDBLen-CDBLen {
				return a, fmt.Errorf("%w: extended CDB of AHS length %d", ErrAHS, n)
			}
			a.CDB = b[4 : 3+n : 3+n]
		case AHSBidiReadLen:
			if n != 5 || a.HasBidi {
				return a, fmt.Errorf("%w: bidirectional read length of AHS length %d", ErrAHS, n)
			}
			a.BidiReadLen, a.HasBidi = binary.BigEndian.Uint32(b[4:]), true
		}
		b = b[full:]
	}
	return a, nil
}

// AppendExtendedCDB appends the AHS that holds cdb from octet 16 on; nothing if cdb fits into the BHS.
func AppendExtendedCDB(dst, cdb []byte) []byte {
	if len(cdb) <= CDBLen {
		return dst
	}
	rest := cdb[CDBLen:]
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(rest)+1))
	dst = append(dst, byte(AHSExtendedCDB), 0)
	dst = append(dst, rest...)
	return append(dst, padding[:Pad(len(rest))]...)
}

// AppendBidiReadLen appends the AHS with a bidirectional command's read length in octets.
func AppendBidiReadLen(dst []byte, n uint32) []byte {
	dst = append(dst, 0, 5, byte(AHSBidiReadLen), 0)
	return binary.BigEndian.AppendUint32(dst, n)
}
