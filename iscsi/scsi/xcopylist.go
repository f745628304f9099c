package scsi

import (
	"bytes"
	"encoding/binary"
)

// Limits of EXTENDED COPY, as RECEIVE COPY RESULTS (OPERATING PARAMETERS) and the third-party copy page
// tell them.
const (
	maxCopyTargets  = 16   // CSCD descriptors
	maxCopySegments = 64   // segment descriptors
	maxCopyList     = 2304 // octets of both lists together
)

// Descriptors of EXTENDED COPY's parameter list (SPC-4, section 6.4).
const (
	cscdIdentification = 0xe4 // identification descriptor
	segmentBlockBlock  = 0x02 // block device to block device

	cscdSize    = 32
	segmentSize = 28

	// cscdSelf is the CSCD descriptor ID of the logical unit that the command was sent to.
	cscdSelf = 0xffff
)

// copyList is EXTENDED COPY's parameter list, taken apart.
type copyList struct {
	id       uint32 // list identifier
	tracked  bool   // the identifier names the copy to RECEIVE COPY RESULTS
	immed    bool   // the command ends before its copy does
	targets  []copyTarget
	segments []copySegment
}

// copyTarget is an identification CSCD descriptor:
//
//	 0     1            2         4         5           7      8             28      29            32
//	+-----+------------+---------+---------+-----------+------+-------------+-------+--------------+
//	| E4h |        type|port     |code set |assoc. type|length| designator  |  PAD  | block length |
//	+-----+------------+---------+---------+-----------+------+-------------+-------+--------------+
//
// What SPC-3 called LU ID TYPE and NUL means nothing here since SPC-4.
type copyTarget struct {
	device     byte // peripheral device type
	codeSet    byte
	kind       byte // designator type
	designator []byte
	blockSize  uint32
}

// copySegment is a block device to block device segment descriptor:
//
//	 0     1      2        4        6        8      10         12           20           28
//	+-----+------+--------+--------+--------+------+----------+------------+------------+
//	| 02h |DC CAT| length | source | dest.  |  0   | blocks   | source LBA | dest. LBA  |
//	+-----+------+--------+--------+--------+------+----------+------------+------------+
type copySegment struct {
	at               int    // where it lies in the parameter list
	byDestination    bool   // DC: blocks counts those of the destination
	source, dest     uint16 // CSCD descriptor IDs
	blocks           uint16
	sourceLBA, toLBA uint64
}

// keep makes the list's own what lies in the buffer that it was parsed from.
func (c *copyList) keep() {
	for i := range c.targets {
		c.targets[i].designator = bytes.Clone(c.targets[i].designator)
	}
}

// copyError is a parameter list that is refused.
func copyError(code Code) *Sense { return &Sense{Key: KeyIllegalRequest, Code: code} }

func copyField(octet int) *Sense {
	return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: uint16(octet)}
}

// parseCopyList takes EXTENDED COPY's parameter list apart: the short header of LID1, 16 octets, or that
// of LID4, 48.
//
//	LID1   0          1                    2             4         8               12             16
//	      +----------+--------------------+-------------+---------+---------------+--------------+----
//	      | list id  |STR usage priority  | CSCD length |   0     |segment length |inline length | ...
//	      +----------+--------------------+-------------+---------+---------------+--------------+----
//
//	LID4   0     1       2       4    15      16      20         24   42           44              46             48
//	      +-----+-------+-------+----+-------+-------+----------+----+------------+---------------+--------------+----
//	      | 01h |usage..| 0020h | 0  |G IMMED| FFh 0 | list id  | 0  |CSCD length |segment length |inline length | ...
//	      +-----+-------+-------+----+-------+-------+----------+----+------------+---------------+--------------+----
func parseCopyList(b []byte, lid4 bool) (*copyList, *Sense) {
	header := 16
	if lid4 {
		header = 48
	}
	if len(b) < header {
		return nil, copyError(CodeParameterListLength)
	}
	c := &copyList{}
	var targets, segments, inline int
	var lengths [3]int // octets that hold the lengths, for field pointers
	if lid4 {
		switch {
		case b[0] != 0x01:
			return nil, copyField(0)
		case binary.BigEndian.Uint16(b[2:]) != 0x20:
			return nil, copyField(2)
		case b[16] != 0xff:
			return nil, copyField(16)
		}
		c.id, c.immed = binary.BigEndian.Uint32(b[20:]), b[15]&0x01 != 0
		targets, segments, inline = int(binary.BigEndian.Uint16(b[42:])), int(binary.BigEndian.Uint16(b[44:])), int(binary.BigEndian.Uint16(b[46:]))
		lengths = [3]int{42, 44, 46}
	} else {
		c.id = uint32(b[0])
		targets, segments, inline = int(binary.BigEndian.Uint16(b[2:])), int(binary.BigEndian.Uint32(b[8:])), int(binary.BigEndian.Uint32(b[12:]))
		lengths = [3]int{2, 8, 12}
	}
	switch usage := b[1] >> 3 & 3; {
	case usage == 1: // reserved
		return nil, copyField(1)
	case usage == 3 && (c.id != 0 || c.immed): // no identifier, without which nobody learns how a copy in the background ends
		return nil, copyField(1)
	default:
		c.tracked = usage != 3
	}
	switch {
	case inline != 0:
		return nil, copyError(CodeInlineDataLength)
	case targets%cscdSize != 0:
		// Every supported descriptor has this length. What the list begins with may be none of them.
		if len(b) > header && b[header] != cscdIdentification {
			return nil, copyError(CodeTargetDescriptorType)
		}
		return nil, copyField(lengths[0])
	case targets+segments > maxCopyList, header+targets+segments > len(b):
		return nil, copyError(CodeParameterListLength)
	case targets/cscdSize > maxCopyTargets:
		return nil, copyError(CodeTooManyTargetDescriptors)
	}
	for at := header; at < header+targets; at += cscdSize {
		t, s := parseCopyTarget(b[at:at+cscdSize], at)
		if s != nil {
			return nil, s
		}
		c.targets = append(c.targets, t)
	}
	for at := header + targets; at < header+targets+segments; at += segmentSize {
		if b[at] != segmentBlockBlock {
			return nil, &Sense{Key: KeyIllegalRequest, Code: CodeSegmentDescriptorType, FieldValid: true, Field: uint16(at)}
		}
		if header+targets+segments-at < segmentSize {
			return nil, copyError(CodeParameterListLength)
		}
		if len(c.segments) == maxCopySegments {
			return nil, copyError(CodeTooManySegments)
		}
		s, bad := parseCopySegment(b[at:at+segmentSize], at)
		if bad != nil {
			return nil, bad
		}
		c.segments = append(c.segments, s)
	}
	return c, nil
}

func parseCopyTarget(d []byte, at int) (copyTarget, *Sense) {
	t := copyTarget{
		device: d[1] & 0x1f, codeSet: d[4] & 0x0f, kind: d[5] & 0x0f,
		blockSize: binary.BigEndian.Uint32(d[28:]) & 0xffffff,
	}
	switch {
	case d[0] != cscdIdentification:
		return t, &Sense{Key: KeyIllegalRequest, Code: CodeTargetDescriptorType, FieldValid: true, Field: uint16(at)}
	case d[5]>>4&3 != associationUnit:
		return t, copyField(at + 5)
	case d[7] > 20:
		return t, copyField(at + 7)
	}
	t.designator = d[8 : 8+d[7]]
	return t, nil
}

func parseCopySegment(d []byte, at int) (copySegment, *Sense) {
	if binary.BigEndian.Uint16(d[2:]) != segmentSize-4 {
		return copySegment{}, copyField(at + 2)
	}
	return copySegment{
		at: at, byDestination: d[1]&0x02 != 0,
		source: binary.BigEndian.Uint16(d[4:]), dest: binary.BigEndian.Uint16(d[6:]),
		blocks:    binary.BigEndian.Uint16(d[10:]),
		sourceLBA: binary64(d[12:]), toLBA: binary64(d[20:]),
	}, nil
}
