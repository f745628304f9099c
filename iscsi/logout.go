package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offTime2Wait   = 40
	offTime2Retain = 42
)

// LogoutReason is what a logout ends (RFC 7143, section 11.14.1).
type LogoutReason uint8

// Logout reasons.
const (
	LogoutSession    LogoutReason = 0
	LogoutConnection LogoutReason = 1
	LogoutRecovery   LogoutReason = 2 // remove the connection for recovery
)

func (r LogoutReason) String() string { return nameOf(logoutReasonNames[:], int(r)) }

var logoutReasonNames = [...]string{"close session", "close connection", "remove connection for recovery"}

// LogoutCode is a logout's outcome (RFC 7143, section 11.15.1).
type LogoutCode uint8

// Logout outcomes.
const (
	LogoutOK            LogoutCode = 0
	LogoutNoCID         LogoutCode = 1
	LogoutNoRecovery    LogoutCode = 2
	LogoutCleanupFailed LogoutCode = 3
)

func (r LogoutCode) String() string { return nameOf(logoutCodeNames[:], int(r)) }

var logoutCodeNames = [...]string{"closed", "CID not found", "connection recovery not supported", "cleanup failed"}

// LogoutRequest is the BHS of a Logout Request PDU (RFC 7143, section 11.14).
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|.I 0x06 |1 reason|        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                         reserved (8)                         | 8
//	+--------------------------------+----------------+------------+
//	|             ITT (4)            |     CID (2)    |     -      | 16
//	+--------------------------------+----------------+------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                         reserved (16)                        | 32
type LogoutRequest []byte

// Init makes h an empty LogoutRequest.
func (h LogoutRequest) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpLogoutReq)
	h[1] = 0x80 // F is always set
}

// Immediate is the I bit: for immediate delivery, outside of the CmdSN order (RFC 7143, section 11.2.1.1).
func (h LogoutRequest) Immediate() bool { return h[0]&0x40 != 0 }

// SetImmediate sets what Immediate returns.
func (h LogoutRequest) SetImmediate(on bool) { setBit(h, 0, 0x40, on) }

// Reason is what to end.
func (h LogoutRequest) Reason() LogoutReason { return LogoutReason(h[1] & 0x7f) }

// SetReason sets what Reason returns.
func (h LogoutRequest) SetReason(v LogoutReason) { h[1] = h[1]&^0x7f | byte(v)&0x7f }

// ITT is the Initiator Task Tag.
func (h LogoutRequest) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h LogoutRequest) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// CID is the connection in question.
func (h LogoutRequest) CID() uint16 { return binary.BigEndian.Uint16(h[offCID:]) }

// SetCID sets what CID returns.
func (h LogoutRequest) SetCID(v uint16) { binary.BigEndian.PutUint16(h[offCID:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h LogoutRequest) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h LogoutRequest) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h LogoutRequest) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h LogoutRequest) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// String is h on one line, for logs.
func (h LogoutRequest) String() string {
	return fmt.Sprintf("Logout Request %v CID %d ITT %#x CmdSN %d ExpStatSN %d", h.Reason(), h.CID(), h.ITT(), h.CmdSN(), h.ExpStatSN())
}

// LogoutResponse is the BHS of a Logout Response PDU (RFC 7143, section 11.15).
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x26  |1       |response|   -    | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                         reserved (8)                         | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |        reserved (4)         | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |        reserved (4)         | 32
//	+----------------+---------------+-----------------------------+
//	|  Time2Wait (2) |Time2Retain (2)|        reserved (4)         | 40
type LogoutResponse []byte

// Init makes h an empty LogoutResponse.
func (h LogoutResponse) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpLogoutRsp)
	h[1] = 0x80 // F is always set
}

// Response is the outcome.
func (h LogoutResponse) Response() LogoutCode { return LogoutCode(h[2]) }

// SetResponse sets what Response returns.
func (h LogoutResponse) SetResponse(v LogoutCode) { h[2] = byte(v) }

// ITT is the Initiator Task Tag.
func (h LogoutResponse) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h LogoutResponse) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// StatSN is the number of this status.
func (h LogoutResponse) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h LogoutResponse) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h LogoutResponse) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h LogoutResponse) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h LogoutResponse) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h LogoutResponse) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// Time2Wait is how long to wait before tasks may be reassigned, seconds.
func (h LogoutResponse) Time2Wait() uint16 { return binary.BigEndian.Uint16(h[offTime2Wait:]) }

// SetTime2Wait sets what Time2Wait returns.
func (h LogoutResponse) SetTime2Wait(v uint16) { binary.BigEndian.PutUint16(h[offTime2Wait:], v) }

// Time2Retain is how long after that tasks are kept, seconds.
func (h LogoutResponse) Time2Retain() uint16 { return binary.BigEndian.Uint16(h[offTime2Retain:]) }

// SetTime2Retain sets what Time2Retain returns.
func (h LogoutResponse) SetTime2Retain(v uint16) { binary.BigEndian.PutUint16(h[offTime2Retain:], v) }

// String is h on one line, for logs.
func (h LogoutResponse) String() string {
	return fmt.Sprintf("Logout Response %v ITT %#x StatSN %d ExpCmdSN %d MaxCmdSN %d", h.Response(), h.ITT(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
