package iscsi

// Opcode is a PDU's kind (RFC 7143, section 11.2.1.2).
type Opcode uint8

// Opcodes of initiators, then of targets.
const (
	OpNOPOut       Opcode = 0x00
	OpSCSICommand  Opcode = 0x01
	OpTaskMgmtReq  Opcode = 0x02
	OpLoginReq     Opcode = 0x03
	OpTextReq      Opcode = 0x04
	OpDataOut      Opcode = 0x05
	OpLogoutReq    Opcode = 0x06
	OpSNACK        Opcode = 0x10
	OpNOPIn        Opcode = 0x20
	OpSCSIResponse Opcode = 0x21
	OpTaskMgmtRsp  Opcode = 0x22
	OpLoginRsp     Opcode = 0x23
	OpTextRsp      Opcode = 0x24
	OpDataIn       Opcode = 0x25
	OpLogoutRsp    Opcode = 0x26
	OpR2T          Opcode = 0x31
	OpAsync        Opcode = 0x32
	OpReject       Opcode = 0x3f
)

var opcodeNames = map[Opcode]string{
	OpNOPOut: "NOP-Out", OpSCSICommand: "SCSI Command", OpTaskMgmtReq: "Task Management Request", OpLoginReq: "Login Request",
	OpTextReq: "Text Request", OpDataOut: "Data-Out", OpLogoutReq: "Logout Request", OpSNACK: "SNACK Request",
	OpNOPIn: "NOP-In", OpSCSIResponse: "SCSI Response", OpTaskMgmtRsp: "Task Management Response", OpLoginRsp: "Login Response",
	OpTextRsp: "Text Response", OpDataIn: "Data-In", OpLogoutRsp: "Logout Response", OpR2T: "R2T", OpAsync: "Asynchronous Message",
	OpReject: "Reject",
}

func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return nameOf(nil, int(o))
}

// FromInitiator tells that it is an opcode of initiators (bit 0x20 clear).
func (o Opcode) FromInitiator() bool { return o&0x20 == 0 }
