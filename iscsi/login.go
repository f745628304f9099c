package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offISID        = 8
	offTSIH        = 14
	offCID         = 20
	offStatusClass = 36
)

// Version is the protocol version that RFC 7143 describes, the only one there is (section 11.12.4).
const Version = 0x00

// Stage is a stage of the login phase (RFC 7143, section 11.12.3).
type Stage uint8

// Stages.
const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

func (s Stage) String() string { return nameOf(stageNames[:], int(s)) }

var stageNames = [...]string{"SecurityNegotiation", "LoginOperationalNegotiation", "reserved", "FullFeaturePhase"}

// LoginRequest is the BHS of a Login Request PDU (RFC 7143, section 11.12). The data segment is text.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|.1 0x03 |TC..CSNS|Ver.max |Ver.min | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                     ISID (6)                    |  TSIH (2)  | 8
//	+--------------------------------+----------------+------------+
//	|             ITT (4)            |   CID (2)      |     -      | 16
//	+--------------------------------+----------------+------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                         reserved (16)                        | 32
type LoginRequest []byte

// Init makes h an empty LoginRequest.
func (h LoginRequest) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpLoginReq)
	h[0] |= 0x40 // login requests are always immediate
}

// Transit is the T bit: ready to go on to the stage NSG.
func (h LoginRequest) Transit() bool { return h[1]&0x80 != 0 }

// SetTransit sets what Transit returns.
func (h LoginRequest) SetTransit(on bool) { setBit(h, 1, 0x80, on) }

// Continue is the C bit: the text goes on in the next PDU.
func (h LoginRequest) Continue() bool { return h[1]&0x40 != 0 }

// SetContinue sets what Continue returns.
func (h LoginRequest) SetContinue(on bool) { setBit(h, 1, 0x40, on) }

// CSG is the current stage.
func (h LoginRequest) CSG() Stage { return Stage(h[1] >> 2 & 3) }

// SetCSG sets what CSG returns.
func (h LoginRequest) SetCSG(v Stage) { h[1] = h[1]&^0x0c | byte(v)&3<<2 }

// NSG is the next stage, with T.
func (h LoginRequest) NSG() Stage { return Stage(h[1] & 0x03) }

// SetNSG sets what NSG returns.
func (h LoginRequest) SetNSG(v Stage) { h[1] = h[1]&^0x03 | byte(v)&0x03 }

// VersionMax is the highest version that the initiator speaks.
func (h LoginRequest) VersionMax() uint8 { return h[2] }

// SetVersionMax sets what VersionMax returns.
func (h LoginRequest) SetVersionMax(v uint8) { h[2] = v }

// VersionMin is the lowest.
func (h LoginRequest) VersionMin() uint8 { return h[3] }

// SetVersionMin sets what VersionMin returns.
func (h LoginRequest) SetVersionMin(v uint8) { h[3] = v }

// ISID is the Initiator Session ID (RFC 7143, section 11.12.5).
func (h LoginRequest) ISID() [6]byte { return [6]byte(h[offISID:]) }

// SetISID sets what ISID returns.
func (h LoginRequest) SetISID(v [6]byte) { copy(h[offISID:], v[:]) }

// TSIH is the Target Session Identifying Handle, 0 for a new session.
func (h LoginRequest) TSIH() uint16 { return binary.BigEndian.Uint16(h[offTSIH:]) }

// SetTSIH sets what TSIH returns.
func (h LoginRequest) SetTSIH(v uint16) { binary.BigEndian.PutUint16(h[offTSIH:], v) }

// ITT is the Initiator Task Tag.
func (h LoginRequest) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h LoginRequest) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// CID is the connection ID.
func (h LoginRequest) CID() uint16 { return binary.BigEndian.Uint16(h[offCID:]) }

// SetCID sets what CID returns.
func (h LoginRequest) SetCID(v uint16) { binary.BigEndian.PutUint16(h[offCID:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h LoginRequest) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h LoginRequest) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h LoginRequest) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h LoginRequest) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// String is h on one line, for logs.
func (h LoginRequest) String() string {
	return fmt.Sprintf("Login Request %v to %v T %t C %t ISID %x TSIH %d CID %d ITT %#x CmdSN %d ExpStatSN %d",
		h.CSG(), h.NSG(), h.Transit(), h.Continue(), h.ISID(), h.TSIH(), h.CID(), h.ITT(), h.CmdSN(), h.ExpStatSN())
}

// LoginResponse is the BHS of a Login Response PDU (RFC 7143, section 11.13). The data segment is text. The
// serial numbers mean something only with status class 0.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x23  |TC..CSNS|Ver.max |Ver.act.| AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                     ISID (6)                    |  TSIH (2)  | 8
//	+--------------------------------+----------------+------------+
//	|             ITT (4)            |        reserved (4)         | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+--------+--------+-----------+
//	|           MaxCmdSN (4)         | class  | detail |     -     | 32
//	+--------------------------------+--------+--------+-----------+
//	|                         reserved (8)                         | 40
type LoginResponse []byte

// Init makes h an empty LoginResponse.
func (h LoginResponse) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpLoginRsp)
}

// Transit is the T bit: ready to go on to the stage NSG.
func (h LoginResponse) Transit() bool { return h[1]&0x80 != 0 }

// SetTransit sets what Transit returns.
func (h LoginResponse) SetTransit(on bool) { setBit(h, 1, 0x80, on) }

// Continue is the C bit: the text goes on in the next PDU.
func (h LoginResponse) Continue() bool { return h[1]&0x40 != 0 }

// SetContinue sets what Continue returns.
func (h LoginResponse) SetContinue(on bool) { setBit(h, 1, 0x40, on) }

// CSG is the current stage.
func (h LoginResponse) CSG() Stage { return Stage(h[1] >> 2 & 3) }

// SetCSG sets what CSG returns.
func (h LoginResponse) SetCSG(v Stage) { h[1] = h[1]&^0x0c | byte(v)&3<<2 }

// NSG is the next stage, with T.
func (h LoginResponse) NSG() Stage { return Stage(h[1] & 0x03) }

// SetNSG sets what NSG returns.
func (h LoginResponse) SetNSG(v Stage) { h[1] = h[1]&^0x03 | byte(v)&0x03 }

// VersionMax is the highest version that the target speaks.
func (h LoginResponse) VersionMax() uint8 { return h[2] }

// SetVersionMax sets what VersionMax returns.
func (h LoginResponse) SetVersionMax(v uint8) { h[2] = v }

// VersionActive is the version chosen.
func (h LoginResponse) VersionActive() uint8 { return h[3] }

// SetVersionActive sets what VersionActive returns.
func (h LoginResponse) SetVersionActive(v uint8) { h[3] = v }

// ISID is the Initiator Session ID (RFC 7143, section 11.12.5).
func (h LoginResponse) ISID() [6]byte { return [6]byte(h[offISID:]) }

// SetISID sets what ISID returns.
func (h LoginResponse) SetISID(v [6]byte) { copy(h[offISID:], v[:]) }

// TSIH is the session handle: in the last response of a leading login the one just given out.
func (h LoginResponse) TSIH() uint16 { return binary.BigEndian.Uint16(h[offTSIH:]) }

// SetTSIH sets what TSIH returns.
func (h LoginResponse) SetTSIH(v uint16) { binary.BigEndian.PutUint16(h[offTSIH:], v) }

// ITT is the Initiator Task Tag.
func (h LoginResponse) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h LoginResponse) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// StatSN is the number of this status.
func (h LoginResponse) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h LoginResponse) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h LoginResponse) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h LoginResponse) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h LoginResponse) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h LoginResponse) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// Status is the login status: class in the high octet, detail in the low one.
func (h LoginResponse) Status() LoginStatus {
	return LoginStatus(binary.BigEndian.Uint16(h[offStatusClass:]))
}

// SetStatus sets what Status returns.
func (h LoginResponse) SetStatus(v LoginStatus) {
	binary.BigEndian.PutUint16(h[offStatusClass:], uint16(v))
}

// String is h on one line, for logs.
func (h LoginResponse) String() string {
	return fmt.Sprintf("Login Response %v to %v T %t C %t ISID %x TSIH %d ITT %#x StatSN %d ExpCmdSN %d MaxCmdSN %d status %v",
		h.CSG(), h.NSG(), h.Transit(), h.Continue(), h.ISID(), h.TSIH(), h.ITT(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN(), h.Status())
}
