package iscsi

import (
	"encoding/binary"
	"fmt"
)

// Offsets that PDUs of several kinds share, in octets from the start of the BHS.
const (
	offAHSLen    = 4
	offLUN       = 8
	offITT       = 16
	offTTT       = 20
	offCmdSN     = 24
	offStatSN    = 24
	offExpStatSN = 28
	offExpCmdSN  = 28
	offMaxCmdSN  = 32
)

// ReservedTag is the value of an Initiator Task Tag or Target Transfer Tag that names nothing.
const ReservedTag uint32 = 0xffffffff

// MaxDataSegment is the longest data segment that the 24-bit length field can tell, in octets.
const MaxDataSegment = 1<<24 - 1

// MaxAHS is the most octets of Additional Header Segments that TotalAHSLength can tell.
const MaxAHS = 255 * 4

// BHS is any PDU's Basic Header Segment (RFC 7143, section 11.2.1): what all kinds have in common. Like all views of
// this package it is the 48 octets themselves; the caller has checked the length once.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|.I opc. |F  opcode-specific        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                 LUN or opcode-specific (8)                   | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |     opcode-specific (4)     | 16
//	+--------------------------------+-----------------------------+
//	|                     opcode-specific (24)                     | 24
type BHS []byte

// Opcode is the PDU's kind.
func (h BHS) Opcode() Opcode { return Opcode(h[0] & 0x3f) }

// Immediate is the I bit, of PDUs from initiators.
func (h BHS) Immediate() bool { return h[0]&0x40 != 0 }

// Final is the F bit (in login PDUs, T).
func (h BHS) Final() bool { return h[1]&0x80 != 0 }

// AHSLen is the length of the Additional Header Segments in octets (the wire counts words).
func (h BHS) AHSLen() int { return int(h[offAHSLen]) * 4 }

// SetAHSLen sets what AHSLen returns; n is a multiple of 4 and at most MaxAHS.
func (h BHS) SetAHSLen(n int) { h[offAHSLen] = byte(n / 4) }

// DataLen is the data segment's length in octets, without padding.
func (h BHS) DataLen() int { return int(binary.BigEndian.Uint32(h[offAHSLen:]) & MaxDataSegment) }

// SetDataLen sets what DataLen returns; n is at most MaxDataSegment.
func (h BHS) SetDataLen(n int) {
	h[offAHSLen+1], h[offAHSLen+2], h[offAHSLen+3] = byte(n>>16), byte(n>>8), byte(n)
}

// LUN is the logical unit number, of PDUs that have one.
func (h BHS) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// ITT is the Initiator Task Tag.
func (h BHS) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// TTT is the Target Transfer Tag, of PDUs that have one.
func (h BHS) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// CmdSN is the command number, of PDUs from initiators that have one.
func (h BHS) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// ExpStatSN acknowledges statuses, in every PDU of an initiator.
func (h BHS) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h BHS) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// StatSN is the status number, in every PDU of a target (of Data-In, only with status).
func (h BHS) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h BHS) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next command number expected, in every PDU of a target.
func (h BHS) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// MaxCmdSN is the last command number that fits now, in every PDU of a target.
func (h BHS) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetWindow sets ExpCmdSN and MaxCmdSN, which every PDU of a target carries.
func (h BHS) SetWindow(exp, last SN) {
	binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(exp))
	binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(last))
}

// String is the PDU on one line, by its kind.
func (h BHS) String() string {
	if len(h) < BHSLen {
		return fmt.Sprintf("BHS of %d octets", len(h))
	}
	switch h.Opcode() {
	case OpNOPOut:
		return NOPOut(h).String()
	case OpSCSICommand:
		return SCSICommand(h).String()
	case OpTaskMgmtReq:
		return TaskMgmtRequest(h).String()
	case OpLoginReq:
		return LoginRequest(h).String()
	case OpTextReq:
		return TextRequest(h).String()
	case OpDataOut:
		return DataOutPDU(h).String()
	case OpLogoutReq:
		return LogoutRequest(h).String()
	case OpSNACK:
		return SNACKRequest(h).String()
	case OpNOPIn:
		return NOPIn(h).String()
	case OpSCSIResponse:
		return SCSIResponse(h).String()
	case OpTaskMgmtRsp:
		return TaskMgmtResponse(h).String()
	case OpLoginRsp:
		return LoginResponse(h).String()
	case OpTextRsp:
		return TextResponse(h).String()
	case OpDataIn:
		return DataInPDU(h).String()
	case OpLogoutRsp:
		return LogoutResponse(h).String()
	case OpR2T:
		return R2T(h).String()
	case OpAsync:
		return AsyncMessage(h).String()
	case OpReject:
		return Reject(h).String()
	}
	return fmt.Sprintf("opcode %#02x ITT %#x", byte(h.Opcode()), h.ITT())
}

func setBit(h []byte, at int, mask byte, on bool) {
	if on {
		h[at] |= mask
	} else {
		h[at] &^= mask
	}
}

// nameOf is names[i], or the number where there is no name.
func nameOf(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%#02x", i)
}
