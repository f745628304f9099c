package iscsi

import (
	"encoding/binary"
	"fmt"
)

// R2T is the BHS of a Ready To Transfer PDU (RFC 7143, section 11.8): the target asks for one stretch of a
// command's write data. Its StatSN is the next one and is not used up.
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x31  |1       |        -        |   0    |        0        |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |          R2TSN (4)          | 32
//	+--------------------------------+-----------------------------+
//	|        Buffer Offset (4)       | Desired Transfer Length (4) | 40
type R2T []byte

// Init makes h an empty R2T.
func (h R2T) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpR2T)
	h[1] = 0x80 // F is always set
}

// LUN is the logical unit number, its eight octets as on the wire.
func (h R2T) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h R2T) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h R2T) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h R2T) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h R2T) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h R2T) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// StatSN is the number of this status.
func (h R2T) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h R2T) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h R2T) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h R2T) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h R2T) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h R2T) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// R2TSN is the number of this R2T within the command.
func (h R2T) R2TSN() uint32 { return binary.BigEndian.Uint32(h[offDataSN:]) }

// SetR2TSN sets what R2TSN returns.
func (h R2T) SetR2TSN(v uint32) { binary.BigEndian.PutUint32(h[offDataSN:], v) }

// Offset is the Buffer Offset of the payload within the whole transfer, octets.
func (h R2T) Offset() uint32 { return binary.BigEndian.Uint32(h[offBufferOffset:]) }

// SetOffset sets what Offset returns.
func (h R2T) SetOffset(v uint32) { binary.BigEndian.PutUint32(h[offBufferOffset:], v) }

// DesiredLen is how many octets to send, never 0.
func (h R2T) DesiredLen() uint32 { return binary.BigEndian.Uint32(h[offDesiredLen:]) }

// SetDesiredLen sets what DesiredLen returns.
func (h R2T) SetDesiredLen(v uint32) { binary.BigEndian.PutUint32(h[offDesiredLen:], v) }

// String is h on one line, for logs.
func (h R2T) String() string {
	return fmt.Sprintf("R2T ITT %#x TTT %#x R2TSN %d offset %d length %d StatSN %d", h.ITT(), h.TTT(), h.R2TSN(), h.Offset(), h.DesiredLen(), h.StatSN())
}
