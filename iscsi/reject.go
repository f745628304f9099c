package iscsi

import (
	"encoding/binary"
	"fmt"
)

// RejectReason is why a PDU was rejected (RFC 7143, section 11.17.1).
type RejectReason uint8

// Reject reasons.
const (
	RejectDataDigest     RejectReason = 0x02
	RejectSNACK          RejectReason = 0x03
	RejectProtocolError  RejectReason = 0x04
	RejectNotSupported   RejectReason = 0x05
	RejectTooManyImm     RejectReason = 0x06
	RejectTaskInProgress RejectReason = 0x07
	RejectInvalidDataACK RejectReason = 0x08
	RejectInvalidField   RejectReason = 0x09
	RejectNoTTT          RejectReason = 0x0a // a long operation: no TTT to give
	RejectDeprecated     RejectReason = 0x0b
	RejectWaitLogout     RejectReason = 0x0c
)

var rejectReasonNames = [...]string{
	2: "data digest error", 3: "SNACK reject", 4: "protocol error", 5: "command not supported", 6: "too many immediate commands",
	7: "task in progress", 8: "invalid data ACK", 9: "invalid PDU field", 10: "long operation", 11: "deprecated reason", 12: "waiting for logout",
}

func (r RejectReason) String() string { return nameOf(rejectReasonNames[:], int(r)) }

// Resend tells that the rejected PDU may be sent again as it was (RFC 7143, section 11.17.1).
func (r RejectReason) Resend() bool {
	switch r {
	case RejectDataDigest, RejectSNACK, RejectTooManyImm, RejectNoTTT:
		return true
	}
	return false
}

// Reject is the BHS of a Reject PDU (RFC 7143, section 11.17). The data segment is the header of the PDU that was rejected.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x3f  |1       | reason |   -    | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                         reserved (8)                         | 8
//	+--------------------------------+-----------------------------+
//	|           0xffffffff           |        reserved (4)         | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |     DataSN or R2TSN (4)     | 32
//	+--------------------------------+-----------------------------+
//	|                         reserved (8)                         | 40
type Reject []byte

// Init makes h an empty Reject.
func (h Reject) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpReject)
	h[1] = 0x80 // F is always set
	binary.BigEndian.PutUint32(h[offITT:], ReservedTag)
}

// Reason is why.
func (h Reject) Reason() RejectReason { return RejectReason(h[2]) }

// SetReason sets what Reason returns.
func (h Reject) SetReason(v RejectReason) { h[2] = byte(v) }

// StatSN is the number of this status.
func (h Reject) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h Reject) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h Reject) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h Reject) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h Reject) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h Reject) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// DataSN is the next DataSN or R2TSN of the task of a rejected SNACK.
func (h Reject) DataSN() uint32 { return binary.BigEndian.Uint32(h[offDataSN:]) }

// SetDataSN sets what DataSN returns.
func (h Reject) SetDataSN(v uint32) { binary.BigEndian.PutUint32(h[offDataSN:], v) }

// String is h on one line, for logs.
func (h Reject) String() string {
	return fmt.Sprintf("Reject %v StatSN %d ExpCmdSN %d MaxCmdSN %d", h.Reason(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
