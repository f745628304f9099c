package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offDataSN       = 36
	offBufferOffset = 40
	offDesiredLen   = 44
)

// DataOutPDU is the BHS of a SCSI Data-Out PDU (RFC 7143, section 11.7): one piece of a command's write data, solicited
// by the R2T whose TTT it carries, or unsolicited with TTT ReservedTag. DataSN begins at 0 for each R2T, and for the unsolicited data.
// (DataOut is the Datamover's request for a whole such sequence.)
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x05  |F       |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|          reserved (4)          |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|          reserved (4)          |          DataSN (4)         | 32
//	+--------------------------------+-----------------------------+
//	|        Buffer Offset (4)       |        reserved (4)         | 40
type DataOutPDU []byte

// Init makes h an empty DataOutPDU.
func (h DataOutPDU) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpDataOut)
	h.SetTTT(ReservedTag)
}

// Final is the F bit: the last PDU of its sequence.
func (h DataOutPDU) Final() bool { return h[1]&0x80 != 0 }

// SetFinal sets what Final returns.
func (h DataOutPDU) SetFinal(on bool) { setBit(h, 1, 0x80, on) }

// LUN is the logical unit number, its eight octets as on the wire.
func (h DataOutPDU) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h DataOutPDU) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h DataOutPDU) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h DataOutPDU) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h DataOutPDU) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h DataOutPDU) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// ExpStatSN acknowledges every status before it.
func (h DataOutPDU) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h DataOutPDU) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// DataSN is the number of this PDU within its sequence.
func (h DataOutPDU) DataSN() uint32 { return binary.BigEndian.Uint32(h[offDataSN:]) }

// SetDataSN sets what DataSN returns.
func (h DataOutPDU) SetDataSN(v uint32) { binary.BigEndian.PutUint32(h[offDataSN:], v) }

// Offset is the Buffer Offset of the payload within the whole transfer, octets.
func (h DataOutPDU) Offset() uint32 { return binary.BigEndian.Uint32(h[offBufferOffset:]) }

// SetOffset sets what Offset returns.
func (h DataOutPDU) SetOffset(v uint32) { binary.BigEndian.PutUint32(h[offBufferOffset:], v) }

// String is h on one line, for logs.
func (h DataOutPDU) String() string {
	return fmt.Sprintf("Data-Out ITT %#x TTT %#x F %t DataSN %d offset %d length %d ExpStatSN %d",
		h.ITT(), h.TTT(), h.Final(), h.DataSN(), h.Offset(), BHS(h).DataLen(), h.ExpStatSN())
}

// DataInPDU is the BHS of a SCSI Data-In PDU (RFC 7143, section 11.7): one piece of a command's read data. The last
// may carry a good status (S) and then has StatSN, Status and Residual.
// (DataIn is the Datamover's order to send one.)
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x25  |FA...OUS|   -    | status | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           TTT (4)           | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |          DataSN (4)         | 32
//	+--------------------------------+-----------------------------+
//	|        Buffer Offset (4)       |         residual (4)        | 40
type DataInPDU []byte

// Init makes h an empty DataInPDU.
func (h DataInPDU) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpDataIn)
	h.SetTTT(ReservedTag)
}

// Final is the F bit: the last PDU of its sequence.
func (h DataInPDU) Final() bool { return h[1]&0x80 != 0 }

// SetFinal sets what Final returns.
func (h DataInPDU) SetFinal(on bool) { setBit(h, 1, 0x80, on) }

// Ack is the A bit: the target asks for a DataACK SNACK (ErrorRecoveryLevel > 0).
func (h DataInPDU) Ack() bool { return h[1]&0x40 != 0 }

// SetAck sets what Ack returns.
func (h DataInPDU) SetAck(on bool) { setBit(h, 1, 0x40, on) }

// Overflow is the O bit, as in a SCSI Response; with S.
func (h DataInPDU) Overflow() bool { return h[1]&0x04 != 0 }

// SetOverflow sets what Overflow returns.
func (h DataInPDU) SetOverflow(on bool) { setBit(h, 1, 0x04, on) }

// Underflow is the U bit, as in a SCSI Response; with S.
func (h DataInPDU) Underflow() bool { return h[1]&0x02 != 0 }

// SetUnderflow sets what Underflow returns.
func (h DataInPDU) SetUnderflow(on bool) { setBit(h, 1, 0x02, on) }

// HasStatus is the S bit: the PDU ends the command.
func (h DataInPDU) HasStatus() bool { return h[1]&0x01 != 0 }

// SetHasStatus sets what HasStatus returns.
func (h DataInPDU) SetHasStatus(on bool) { setBit(h, 1, 0x01, on) }

// Status is the SCSI status; with S.
func (h DataInPDU) Status() uint8 { return h[3] }

// SetStatus sets what Status returns.
func (h DataInPDU) SetStatus(v uint8) { h[3] = v }

// LUN is the logical unit number, its eight octets as on the wire.
func (h DataInPDU) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h DataInPDU) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h DataInPDU) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h DataInPDU) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// TTT is the Target Transfer Tag, ReservedTag if none.
func (h DataInPDU) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// SetTTT sets what TTT returns.
func (h DataInPDU) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[offTTT:], v) }

// StatSN is the number of this status.
func (h DataInPDU) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h DataInPDU) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h DataInPDU) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h DataInPDU) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h DataInPDU) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h DataInPDU) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// DataSN is the number of this PDU within its sequence.
func (h DataInPDU) DataSN() uint32 { return binary.BigEndian.Uint32(h[offDataSN:]) }

// SetDataSN sets what DataSN returns.
func (h DataInPDU) SetDataSN(v uint32) { binary.BigEndian.PutUint32(h[offDataSN:], v) }

// Offset is the Buffer Offset of the payload within the whole transfer, octets.
func (h DataInPDU) Offset() uint32 { return binary.BigEndian.Uint32(h[offBufferOffset:]) }

// SetOffset sets what Offset returns.
func (h DataInPDU) SetOffset(v uint32) { binary.BigEndian.PutUint32(h[offBufferOffset:], v) }

// Residual is the residual count, octets; with S.
func (h DataInPDU) Residual() uint32 { return binary.BigEndian.Uint32(h[offResidual:]) }

// SetResidual sets what Residual returns.
func (h DataInPDU) SetResidual(v uint32) { binary.BigEndian.PutUint32(h[offResidual:], v) }

// String is h on one line, for logs.
func (h DataInPDU) String() string {
	return fmt.Sprintf("Data-In ITT %#x F %t S %t DataSN %d offset %d length %d StatSN %d status %#x residual %d",
		h.ITT(), h.Final(), h.HasStatus(), h.DataSN(), h.Offset(), BHS(h).DataLen(), h.StatSN(), h.Status(), h.Residual())
}
