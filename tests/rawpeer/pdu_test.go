package rawpeer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

// castagnoli is the CRC32c of iSCSI's digests and MPA's frames (RFC 7143, section 13.1; RFC 5044, section 4.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c is the CRC in the order of transmission: least significant octet first, as the examples in RFC 3720, appendix B.4, have it.
func crc32c(b ...[]byte) []byte {
	var sum uint32
	for _, p := range b {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return binary.LittleEndian.AppendUint32(nil, sum)
}

// Opcodes of iSCSI PDUs (RFC 7143, section 11.2.1.2).
const (
	opNopOut    = 0x00
	opSCSICmd   = 0x01
	opTMFReq    = 0x02
	opLoginReq  = 0x03
	opTextReq   = 0x04
	opDataOut   = 0x05
	opLogoutReq = 0x06
	opSNACK     = 0x10
	opNopIn     = 0x20
	opSCSIResp  = 0x21
	opTMFResp   = 0x22
	opLoginResp = 0x23
	opTextResp  = 0x24
	opDataIn    = 0x25
	opLogoutRsp = 0x26
	opR2T       = 0x31
	opAsync     = 0x32
	opReject    = 0x3f
)

var opNames = map[byte]string{
	opNopOut: "NOP-Out", opSCSICmd: "SCSI Command", opTMFReq: "Task Management Function Request", opLoginReq: "Login Request",
	opTextReq: "Text Request", opDataOut: "SCSI Data-Out", opLogoutReq: "Logout Request", opSNACK: "SNACK Request",
	opNopIn: "NOP-In", opSCSIResp: "SCSI Response", opTMFResp: "Task Management Function Response", opLoginResp: "Login Response",
	opTextResp: "Text Response", opDataIn: "SCSI Data-In", opLogoutRsp: "Logout Response", opR2T: "R2T", opAsync: "Asynchronous Message",
	opReject: "Reject",
}

// none is the reserved value of task tags.
const none = 0xffffffff

// damage says what of a PDU is sent with a digest that does not fit.
type damage int

const (
	damageHeader damage = 1 << iota
	damageData
)

// pdu is one iSCSI PDU (RFC 7143, section 11.1): basic header segment, additional header segments, data segment. The lengths in
// the header are put there by encode.
type pdu struct {
	bhs    [48]byte
	ahs    []byte
	data   []byte
	damage damage
}

func (p *pdu) op() byte               { return p.bhs[0] & 0x3f }
func (p *pdu) u16(at int) uint16      { return binary.BigEndian.Uint16(p.bhs[at:]) }
func (p *pdu) u32(at int) uint32      { return binary.BigEndian.Uint32(p.bhs[at:]) }
func (p *pdu) set32(at int, v uint32) { binary.BigEndian.PutUint32(p.bhs[at:], v) }
func (p *pdu) itt() uint32            { return p.u32(16) }
func (p *pdu) statSN() uint32         { return p.u32(24) }
func (p *pdu) expCmdSN() uint32       { return p.u32(28) }
func (p *pdu) maxCmdSN() uint32       { return p.u32(32) }

// encode lays the PDU out, with the digests that are on.
func (p *pdu) encode(hd, dd bool) []byte {
	p.bhs[4] = byte(len(p.ahs) / 4)
	p.bhs[5], p.bhs[6], p.bhs[7] = byte(len(p.data)>>16), byte(len(p.data)>>8), byte(len(p.data))
	b := append([]byte(nil), p.bhs[:]...)
	b = append(b, p.ahs...)
	if hd {
		d := crc32c(b)
		if p.damage&damageHeader != 0 {
			d[0] ^= 0xff
		}
		b = append(b, d...)
	}
	if len(p.data) == 0 {
		return b
	}
	seg := append([]byte(nil), p.data...)
	for len(seg)%4 != 0 {
		seg = append(seg, 0)
	}
	b = append(b, seg...)
	if dd {
		d := crc32c(seg)
		if p.damage&damageData != 0 {
			d[0] ^= 0xff
		}
		b = append(b, d...)
	}
	return b
}

// text is a data segment of keys: each pair ends with a zero octet (RFC 7143, section 6.1).
func text(pairs ...string) []byte {
	if len(pairs) == 0 {
		return nil
	}
	return []byte(strings.Join(pairs, "\x00") + "\x00")
}

// keys takes such a segment apart.
func keys(data []byte) map[string]string {
	m := map[string]string{}
	for pair := range strings.SplitSeq(string(data), "\x00") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			m[k] = v
		}
	}
	return m
}

func request(op byte, immediate, final bool, itt, cmdSN uint32) *pdu {
	p := &pdu{}
	p.bhs[0] = op
	if immediate {
		p.bhs[0] |= 0x40
	}
	if final {
		p.bhs[1] = 0x80
	}
	p.set32(16, itt)
	p.set32(24, cmdSN)
	return p
}

// loginRequest is RFC 7143, section 11.12. Stage numbers: 0 security, 1 operational, 3 full feature phase.
func loginRequest(isid [6]byte, tsih, cid uint16, csg, nsg byte, transit bool, cmdSN uint32, pairs ...string) *pdu {
	p := request(opLoginReq, true, transit, 1, cmdSN)
	p.bhs[1] |= csg << 2
	if transit {
		p.bhs[1] |= nsg
	}
	copy(p.bhs[8:], isid[:])
	binary.BigEndian.PutUint16(p.bhs[14:], tsih)
	binary.BigEndian.PutUint16(p.bhs[20:], cid)
	p.data = text(pairs...)
	return p
}

// SCSI Command flags (RFC 7143, section 11.3.1); attribute 1 is SIMPLE.
const (
	flagFinal = 0x80
	flagRead  = 0x40
	flagWrite = 0x20
	simple    = 0x01
)

// scsiCommand is RFC 7143, section 11.3, for a LUN below 256 (SAM's peripheral device addressing).
func scsiCommand(itt, cmdSN uint32, flags byte, lun byte, edtl uint32, cdb ...byte) *pdu {
	p := request(opSCSICmd, false, false, itt, cmdSN)
	p.bhs[1] = flags | simple
	p.bhs[9] = lun
	p.set32(20, edtl)
	copy(p.bhs[32:48], cdb)
	return p
}

func read10(itt, cmdSN, lba uint32, blocks uint16) *pdu {
	return scsiCommand(itt, cmdSN, flagFinal|flagRead, 0, uint32(blocks)*512, rw10(0x28, lba, blocks)...)
}

func write10(itt, cmdSN, lba uint32, blocks uint16) *pdu {
	return scsiCommand(itt, cmdSN, flagFinal|flagWrite, 0, uint32(blocks)*512, rw10(0x2a, lba, blocks)...)
}

func rw10(op byte, lba uint32, blocks uint16) []byte {
	b := []byte{op, 0}
	b = binary.BigEndian.AppendUint32(b, lba)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, blocks)
	return append(b, 0)
}

func testUnitReady(itt, cmdSN uint32) *pdu {
	return scsiCommand(itt, cmdSN, flagFinal, 0, 0, 0, 0, 0, 0, 0, 0)
}

func inquiry(itt, cmdSN uint32, length byte) *pdu {
	return scsiCommand(itt, cmdSN, flagFinal|flagRead, 0, uint32(length), 0x12, 0, 0, 0, length, 0)
}

// dataOut is RFC 7143, section 11.7.
func dataOut(itt, ttt, dataSN, offset uint32, final bool, data []byte) *pdu {
	p := request(opDataOut, false, final, itt, 0)
	p.set32(20, ttt)
	p.set32(36, dataSN)
	p.set32(40, offset)
	p.data = data
	return p
}

// nopOut asks for a NOP-In with the same data (RFC 7143, section 11.18).
func nopOut(itt, cmdSN uint32, data string) *pdu {
	p := request(opNopOut, true, true, itt, cmdSN)
	p.set32(20, none)
	p.data = []byte(data)
	return p
}

// Task management functions (RFC 7143, section 11.5.1).
const (
	tmfAbortTask = 1
	tmfReassign  = 8
)

func taskManagement(function byte, itt, cmdSN, rtt, refCmdSN, expDataSN uint32) *pdu {
	p := request(opTMFReq, true, true, itt, cmdSN)
	p.bhs[1] |= function
	p.set32(20, rtt)
	p.set32(32, refCmdSN)
	p.set32(36, expDataSN)
	return p
}

// logoutRequest is RFC 7143, section 11.14. Reasons: 0 close the session, 1 close the connection, 2 remove it for recovery.
func logoutRequest(reason byte, itt, cmdSN uint32, cid uint16) *pdu {
	p := request(opLogoutReq, true, true, itt, cmdSN)
	p.bhs[1] |= reason
	binary.BigEndian.PutUint16(p.bhs[20:], cid)
	return p
}

// SNACK types (RFC 7143, section 11.16.1).
const (
	snackData    = 0
	snackStatus  = 1
	snackDataACK = 2
	snackRData   = 3
)

func snack(kind byte, itt, ttt, begRun, runLength uint32) *pdu {
	p := request(opSNACK, false, true, itt, 0)
	p.bhs[1] |= kind
	p.set32(20, ttt)
	p.set32(40, begRun)
	p.set32(44, runLength)
	return p
}

func bit(b, mask byte) int {
	if b&mask != 0 {
		return 1
	}
	return 0
}

// describe names the fields of a PDU that matter for its kind, after the figures of RFC 7143, section 11.
func (p *pdu) describe() string {
	var s strings.Builder
	f := p.bhs[1]
	fmt.Fprintf(&s, "%s", opNames[p.op()])
	if p.bhs[0]&0x40 != 0 {
		s.WriteString(" (immediate)")
	}
	switch p.op() {
	case opLoginReq:
		fmt.Fprintf(&s, " T=%d C=%d CSG=%d NSG=%d TSIH=%d CID=%d CmdSN=%d ExpStatSN=%d", bit(f, 0x80), bit(f, 0x40), f>>2&3, f&3, p.u16(14), p.u16(20), p.u32(24), p.u32(28))
	case opLoginResp:
		fmt.Fprintf(&s, " T=%d C=%d CSG=%d NSG=%d TSIH=%d StatSN=%d ExpCmdSN=%d MaxCmdSN=%d Status=%02x%02x", bit(f, 0x80), bit(f, 0x40), f>>2&3, f&3, p.u16(14), p.u32(24), p.u32(28), p.u32(32), p.bhs[36], p.bhs[37])
	case opSCSICmd:
		fmt.Fprintf(&s, " F=%d R=%d W=%d ITT=%08x EDTL=%d CmdSN=%d ExpStatSN=%d CDB=% x", bit(f, 0x80), bit(f, 0x40), bit(f, 0x20), p.itt(), p.u32(20), p.u32(24), p.u32(28), p.bhs[32:48])
	case opSCSIResp:
		fmt.Fprintf(&s, " ITT=%08x Response=%02x Status=%02x SNACKTag=%08x StatSN=%d ExpCmdSN=%d MaxCmdSN=%d ExpDataSN=%d", p.itt(), p.bhs[2], p.bhs[3], p.u32(20), p.u32(24), p.u32(28), p.u32(32), p.u32(36))
		if f&0x06 != 0 {
			fmt.Fprintf(&s, " O=%d U=%d Residual=%d", bit(f, 4), bit(f, 2), p.u32(44))
		}
	case opDataOut:
		fmt.Fprintf(&s, " F=%d ITT=%08x TTT=%08x ExpStatSN=%d DataSN=%d Offset=%d Length=%d", bit(f, 0x80), p.itt(), p.u32(20), p.u32(28), p.u32(36), p.u32(40), len(p.data))
	case opDataIn:
		fmt.Fprintf(&s, " F=%d A=%d S=%d ITT=%08x TTT=%08x ExpCmdSN=%d MaxCmdSN=%d DataSN=%d Offset=%d Length=%d", bit(f, 0x80), bit(f, 0x40), bit(f, 1), p.itt(), p.u32(20), p.u32(28), p.u32(32), p.u32(36), p.u32(40), len(p.data))
		if f&1 != 0 {
			fmt.Fprintf(&s, " StatSN=%d Status=%02x", p.u32(24), p.bhs[3])
		}
	case opR2T:
		fmt.Fprintf(&s, " ITT=%08x TTT=%08x StatSN=%d ExpCmdSN=%d MaxCmdSN=%d R2TSN=%d Offset=%d Desired=%d", p.itt(), p.u32(20), p.u32(24), p.u32(28), p.u32(32), p.u32(36), p.u32(40), p.u32(44))
	case opTMFReq:
		fmt.Fprintf(&s, " Function=%d ITT=%08x RTT=%08x CmdSN=%d ExpStatSN=%d RefCmdSN=%d ExpDataSN=%d", f&0x7f, p.itt(), p.u32(20), p.u32(24), p.u32(28), p.u32(32), p.u32(36))
	case opTMFResp:
		fmt.Fprintf(&s, " ITT=%08x Response=%d StatSN=%d ExpCmdSN=%d MaxCmdSN=%d", p.itt(), p.bhs[2], p.u32(24), p.u32(28), p.u32(32))
	case opLogoutReq:
		fmt.Fprintf(&s, " Reason=%d ITT=%08x CID=%d CmdSN=%d ExpStatSN=%d", f&0x7f, p.itt(), p.u16(20), p.u32(24), p.u32(28))
	case opLogoutRsp:
		fmt.Fprintf(&s, " Response=%d ITT=%08x StatSN=%d ExpCmdSN=%d MaxCmdSN=%d Time2Wait=%d Time2Retain=%d", p.bhs[2], p.itt(), p.u32(24), p.u32(28), p.u32(32), p.u16(40), p.u16(42))
	case opSNACK:
		fmt.Fprintf(&s, " Type=%d ITT=%08x TTT=%08x ExpStatSN=%d BegRun=%d RunLength=%d", f&0xf, p.itt(), p.u32(20), p.u32(28), p.u32(40), p.u32(44))
	case opReject:
		fmt.Fprintf(&s, " Reason=%02x StatSN=%d ExpCmdSN=%d MaxCmdSN=%d DataSN=%d", p.bhs[2], p.u32(24), p.u32(28), p.u32(32), p.u32(36))
	case opAsync:
		fmt.Fprintf(&s, " Event=%d StatSN=%d ExpCmdSN=%d MaxCmdSN=%d P1=%d P2=%d P3=%d", p.bhs[36], p.u32(24), p.u32(28), p.u32(32), p.u16(38), p.u16(40), p.u16(42))
	case opNopOut:
		fmt.Fprintf(&s, " ITT=%08x TTT=%08x CmdSN=%d ExpStatSN=%d", p.itt(), p.u32(20), p.u32(24), p.u32(28))
	case opNopIn:
		fmt.Fprintf(&s, " ITT=%08x TTT=%08x StatSN=%d ExpCmdSN=%d MaxCmdSN=%d", p.itt(), p.u32(20), p.u32(24), p.u32(28), p.u32(32))
	case opTextReq, opTextResp:
		fmt.Fprintf(&s, " F=%d C=%d ITT=%08x TTT=%08x SN=%d", bit(f, 0x80), bit(f, 0x40), p.itt(), p.u32(20), p.u32(24))
	}
	return s.String()
}
