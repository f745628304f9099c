package iscsi

import (
	"encoding/binary"
	"fmt"
)

// TextRequest is the BHS of a Text Request PDU (RFC 7143, section 11.10). TTT is ReservedTag in the first
// request of an exchange and copied from the last response in those that follow.
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|.I 0x04 |FC      |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                         reserved (16)                        | 32
type TextRequest []byte

// Init makes h an empty TextRequest.
func (h TextRequest) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpTextReq)
	h.SetTTT(ReservedTag)
}

// Immediate is the I bit: for immediate delivery, outside of the CmdSN order (RFC 7143, section 11.2.1.1).
func (h TextRequest) Immediate() bool { return h[0]&0x40 != 0 }

// SetImmediate sets what Immediate returns.
func (h TextRequest) SetImmediate(on bool) { setBit(h, 0, 0x40, on) }

// Final is the F bit.
func (h TextRequest) Final() bool { return h[1]&0x80 != 0 }

// SetFinal sets what Final returns.
func (h TextRequest) SetFinal(on bool) { setBit(h, 1, 0x80, on) }

// Continue is the C bit: the text goes on in the next PDU.
func (h TextRequest) Continue() bool { return h[1]&0x40 != 0 }

// SetContinue sets what Continue returns.
func (h TextRequest) SetContinue(on bool) { setBit(h, 1, 0x40, on) }

// LUN is the logical unit number, its eight octets as on the wire.
func (h TextRequest) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h TextRequest) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h TextRequest) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h TextRequest) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h TextRequest) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h TextRequest) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h TextRequest) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h TextRequest) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h TextRequest) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h TextRequest) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// String is h on one line, for logs.
func (h TextRequest) String() string {
	return fmt.Sprintf("Text Request ITT %#x TTT %#x F %t C %t CmdSN %d ExpStatSN %d", h.ITT(), h.TTT(), h.Final(), h.Continue(), h.CmdSN(), h.ExpStatSN())
}

// TextResponse is the BHS of a Text Response PDU (RFC 7143, section 11.11). With F unset, TTT names the
// exchange that the initiator goes on with.
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x24  |FC      |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |        reserved (12)        | 32
type TextResponse []byte

// Init makes h an empty TextResponse.
func (h TextResponse) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpTextRsp)
	h.SetTTT(ReservedTag)
}

// Final is the F bit.
func (h TextResponse) Final() bool { return h[1]&0x80 != 0 }

// SetFinal sets what Final returns.
func (h TextResponse) SetFinal(on bool) { setBit(h, 1, 0x80, on) }

// Continue is the C bit: the text goes on in the next PDU.
func (h TextResponse) Continue() bool { return h[1]&0x40 != 0 }

// SetContinue sets what Continue returns.
func (h TextResponse) SetContinue(on bool) { setBit(h, 1, 0x40, on) }

// LUN is the logical unit number, its eight octets as on the wire.
func (h TextResponse) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h TextResponse) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h TextResponse) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h TextResponse) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h TextResponse) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h TextResponse) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// StatSN is the number of this status.
func (h TextResponse) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h TextResponse) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h TextResponse) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h TextResponse) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h TextResponse) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h TextResponse) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// String is h on one line, for logs.
func (h TextResponse) String() string {
	return fmt.Sprintf("Text Response ITT %#x TTT %#x F %t C %t StatSN %d ExpCmdSN %d MaxCmdSN %d",
		h.ITT(), h.TTT(), h.Final(), h.Continue(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
