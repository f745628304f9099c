package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offBegRun    = 40
	offRunLength = 44
)

// SNACKType is what a SNACK asks for (RFC 7143, section 11.16.1).
type SNACKType uint8

// SNACK types.
const (
	SNACKDataR2T SNACKType = 0
	SNACKStatus  SNACKType = 1
	SNACKDataACK SNACKType = 2
	SNACKRData   SNACKType = 3
)

func (t SNACKType) String() string { return nameOf(snackTypeNames[:], int(t)) }

var snackTypeNames = [...]string{"Data/R2T", "Status", "DataACK", "R-Data"}

// SNACKRequest is the BHS of a SNACK Request PDU (RFC 7143, section 11.16): asks for PDUs again, or acknowledges data.
// Over iSER there is none.
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x10  |1 type  |        -        |   0    |        0        |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |     TTT or SNACK Tag (4)    | 16
//	+--------------------------------+-----------------------------+
//	|          reserved (4)          |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                         reserved (8)                         | 32
//	+--------------------------------+-----------------------------+
//	|           BegRun (4)           |        RunLength (4)        | 40
type SNACKRequest []byte

// Init makes h an empty SNACKRequest.
func (h SNACKRequest) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpSNACK)
	h[1] = 0x80 // F is always set
}

// Type is what is asked for.
func (h SNACKRequest) Type() SNACKType { return SNACKType(h[1] & 0x0f) }

// SetType sets what Type returns.
func (h SNACKRequest) SetType(v SNACKType) { h[1] = h[1]&^0x0f | byte(v)&0x0f }

// LUN is the logical unit number, its eight octets as on the wire.
func (h SNACKRequest) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h SNACKRequest) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h SNACKRequest) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h SNACKRequest) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h SNACKRequest) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h SNACKRequest) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// ExpStatSN acknowledges every status before it.
func (h SNACKRequest) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h SNACKRequest) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// BegRun is the first number missing, or for DataACK the next expected.
func (h SNACKRequest) BegRun() uint32 { return binary.BigEndian.Uint32(h[offBegRun:]) }

// SetBegRun sets what BegRun returns.
func (h SNACKRequest) SetBegRun(v uint32) { binary.BigEndian.PutUint32(h[offBegRun:], v) }

// RunLength is how many are missing, 0 for all from BegRun on.
func (h SNACKRequest) RunLength() uint32 { return binary.BigEndian.Uint32(h[offRunLength:]) }

// SetRunLength sets what RunLength returns.
func (h SNACKRequest) SetRunLength(v uint32) { binary.BigEndian.PutUint32(h[offRunLength:], v) }

// String is h on one line, for logs.
func (h SNACKRequest) String() string {
	return fmt.Sprintf("SNACK Request %v ITT %#x TTT %#x BegRun %d RunLength %d", h.Type(), h.ITT(), h.TTT(), h.BegRun(), h.RunLength())
}
