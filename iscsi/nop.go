package iscsi

import (
	"encoding/binary"
	"fmt"
)

// NOPOut is the BHS of a NOP-Out PDU (RFC 7143, section 11.18): an initiator's ping, or its answer
// to the target's. A ping has a task tag of its own and TTT ReservedTag; an answer copies TTT and LUN of the NOP-In.
// With ITT ReservedTag no answer is asked for, and the PDU must be immediate.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|.I 0x00 |1       |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                         reserved (16)                        | 32
type NOPOut []byte

// Init makes h an empty NOPOut.
func (h NOPOut) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpNOPOut)
	h[1] = 0x80 // F is always set
	h.SetITT(ReservedTag)
	h.SetTTT(ReservedTag)
}

// Immediate is the I bit: for immediate delivery, outside of the CmdSN order (RFC 7143, section 11.2.1.1).
func (h NOPOut) Immediate() bool { return h[0]&0x40 != 0 }

// SetImmediate sets what Immediate returns.
func (h NOPOut) SetImmediate(on bool) { setBit(h, 0, 0x40, on) }

// LUN is the logical unit number, its eight octets as on the wire.
func (h NOPOut) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h NOPOut) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h NOPOut) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h NOPOut) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h NOPOut) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h NOPOut) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h NOPOut) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h NOPOut) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h NOPOut) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h NOPOut) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// String is h on one line, for logs.
func (h NOPOut) String() string {
	return fmt.Sprintf("NOP-Out ITT %#x TTT %#x LUN %#x CmdSN %d ExpStatSN %d", h.ITT(), h.TTT(), h.LUN(), h.CmdSN(), h.ExpStatSN())
}

// NOPIn is the BHS of a NOP-In PDU (RFC 7143, section 11.19): the answer to a ping (ITT that of the
// NOP-Out), a ping by the target (ITT ReservedTag, a TTT to answer with), or mere news of the command window (both reserved).
// Only the first of the three uses up its StatSN.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x20  |1       |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |        reserved (12)        | 32
type NOPIn []byte

// Init makes h an empty NOPIn.
func (h NOPIn) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpNOPIn)
	h[1] = 0x80 // F is always set
	h.SetITT(ReservedTag)
	h.SetTTT(ReservedTag)
}

// LUN is the logical unit number, its eight octets as on the wire.
func (h NOPIn) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h NOPIn) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h NOPIn) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h NOPIn) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h NOPIn) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h NOPIn) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// StatSN is the number of this status.
func (h NOPIn) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h NOPIn) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h NOPIn) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h NOPIn) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h NOPIn) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h NOPIn) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// String is h on one line, for logs.
func (h NOPIn) String() string {
	return fmt.Sprintf("NOP-In ITT %#x TTT %#x LUN %#x StatSN %d ExpCmdSN %d MaxCmdSN %d",
		h.ITT(), h.TTT(), h.LUN(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
