package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offStatusQualifier = 8
	offSNACKTag        = 20
	offExpDataSN       = 36
	offBidiResidual    = 40
	offResidual        = 44
)

// Response codes of a SCSI Response (RFC 7143, section 11.4.3): whether there is a SCSI status at all.
const (
	ResponseCompleted     uint8 = 0x00
	ResponseTargetFailure uint8 = 0x01
)

// SCSIResponse is the BHS of a SCSI Response PDU (RFC 7143, section 11.4). The data segment is the sense
// data behind its two octets of length (SenseData, AppendSense).
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x21  |1..ouOU.|response| status | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	| status qualifier|                reserved                    | 8
//	+-----------------+--------------+-----------------------------+
//	|             ITT (4)            |        SNACK Tag (4)        | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |        ExpDataSN (4)        | 32
//	+--------------------------------+-----------------------------+
//	|    bidi read residual (4)      |       residual (4)          | 40
type SCSIResponse []byte

// Init makes h an empty SCSIResponse.
func (h SCSIResponse) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpSCSIResponse)
	h[1] = 0x80 // F is always set
}

// BidiOverflow is the o bit: the read of a bidirectional command had more data than expected.
func (h SCSIResponse) BidiOverflow() bool { return h[1]&0x10 != 0 }

// SetBidiOverflow sets what BidiOverflow returns.
func (h SCSIResponse) SetBidiOverflow(on bool) { setBit(h, 1, 0x10, on) }

// BidiUnderflow is the u bit: the read of a bidirectional command had less data than expected.
func (h SCSIResponse) BidiUnderflow() bool { return h[1]&0x08 != 0 }

// SetBidiUnderflow sets what BidiUnderflow returns.
func (h SCSIResponse) SetBidiUnderflow(on bool) { setBit(h, 1, 0x08, on) }

// Overflow is the O bit: Residual octets were not moved because EDTL was too small.
func (h SCSIResponse) Overflow() bool { return h[1]&0x04 != 0 }

// SetOverflow sets what Overflow returns.
func (h SCSIResponse) SetOverflow(on bool) { setBit(h, 1, 0x04, on) }

// Underflow is the U bit: Residual octets of EDTL were not moved.
func (h SCSIResponse) Underflow() bool { return h[1]&0x02 != 0 }

// SetUnderflow sets what Underflow returns.
func (h SCSIResponse) SetUnderflow(on bool) { setBit(h, 1, 0x02, on) }

// Response says whether the target completed the command: ResponseCompleted and others.
func (h SCSIResponse) Response() uint8 { return h[2] }

// SetResponse sets what Response returns.
func (h SCSIResponse) SetResponse(v uint8) { h[2] = v }

// Status is the SCSI status, if Response is ResponseCompleted.
func (h SCSIResponse) Status() uint8 { return h[3] }

// SetStatus sets what Status returns.
func (h SCSIResponse) SetStatus(v uint8) { h[3] = v }

// StatusQualifier is the SCSI status qualifier (RFC 7144, section 4.2); reserved below iSCSIProtocolLevel 2.
func (h SCSIResponse) StatusQualifier() uint16 {
	return binary.BigEndian.Uint16(h[offStatusQualifier:])
}

// SetStatusQualifier sets what StatusQualifier returns.
func (h SCSIResponse) SetStatusQualifier(v uint16) {
	binary.BigEndian.PutUint16(h[offStatusQualifier:], v)
}

// ITT is the Initiator Task Tag.
func (h SCSIResponse) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h SCSIResponse) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// SNACKTag is to be copied into an R-Data SNACK, 0 at ErrorRecoveryLevel 0.
func (h SCSIResponse) SNACKTag() uint32 { return binary.BigEndian.Uint32(h[offSNACKTag:]) }

// SetSNACKTag sets what SNACKTag returns.
func (h SCSIResponse) SetSNACKTag(v uint32) { binary.BigEndian.PutUint32(h[offSNACKTag:], v) }

// StatSN is the number of this status.
func (h SCSIResponse) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h SCSIResponse) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h SCSIResponse) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h SCSIResponse) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h SCSIResponse) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h SCSIResponse) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// ExpDataSN is how many Data-In (and, for bidirectional commands, R2T) PDUs the command had.
func (h SCSIResponse) ExpDataSN() uint32 { return binary.BigEndian.Uint32(h[offExpDataSN:]) }

// SetExpDataSN sets what ExpDataSN returns.
func (h SCSIResponse) SetExpDataSN(v uint32) { binary.BigEndian.PutUint32(h[offExpDataSN:], v) }

// BidiResidual is the residual count of the read of a bidirectional command, octets.
func (h SCSIResponse) BidiResidual() uint32 { return binary.BigEndian.Uint32(h[offBidiResidual:]) }

// SetBidiResidual sets what BidiResidual returns.
func (h SCSIResponse) SetBidiResidual(v uint32) { binary.BigEndian.PutUint32(h[offBidiResidual:], v) }

// Residual is the residual count, octets.
func (h SCSIResponse) Residual() uint32 { return binary.BigEndian.Uint32(h[offResidual:]) }

// SetResidual sets what Residual returns.
func (h SCSIResponse) SetResidual(v uint32) { binary.BigEndian.PutUint32(h[offResidual:], v) }

// String is h on one line, for logs.
func (h SCSIResponse) String() string {
	return fmt.Sprintf("SCSI Response ITT %#x response %#x status %#x StatSN %d ExpCmdSN %d MaxCmdSN %d ExpDataSN %d O %t U %t residual %d",
		h.ITT(), h.Response(), h.Status(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN(), h.ExpDataSN(), h.Overflow(), h.Underflow(), h.Residual())
}

// SenseData is the sense data in a SCSI Response's data segment, without its length field
// (RFC 7143, section 11.4.7); nil if there is none. A length that says more than there is, is cut.
func SenseData(data []byte) []byte {
	if len(data) < 2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(data))
	if n == 0 {
		return nil
	}
	return data[2:min(len(data), 2+n)]
}

// AppendSense appends the data segment that carries sense: its length, then itself.
func AppendSense(dst, sense []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(sense)))
	return append(dst, sense...)
}
