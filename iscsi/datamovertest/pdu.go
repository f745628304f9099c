package datamovertest

import (
	"encoding/binary"
	"fmt"

	"goiwarp/iscsi"
)

// Offsets within the BHS that the suite's scripts use (RFC 7143, section 11).
const (
	offFlags      = 1
	offStatus     = 3
	offLUN        = 8
	offITT        = 16
	offTTT        = 20 // also Expected Data Transfer Length of a SCSI Command
	offCmdSN      = 24 // StatSN in a target's PDU
	offExpStatSN  = 28 // ExpCmdSN in a target's PDU
	offMaxCmdSN   = 32 // CDB of a SCSI Command
	offDataSN     = 36 // ExpDataSN of a SCSI Response
	offBufOffset  = 40
	offResidual   = 44
	flagFinal     = 0x80
	flagRead      = 0x40
	flagWrite     = 0x20
	flagUnderflow = 0x02
	reservedTag   = 0xffffffff
	statusGood    = 0x00
	statusCheck   = 0x02
)

var be = binary.BigEndian

func field(p *iscsi.PDU, off int) uint32 { return be.Uint32(p.BHS[off:]) }

func newPDU(op byte) *iscsi.PDU {
	p := &iscsi.PDU{}
	p.BHS[0] = op
	p.BHS[offFlags] = flagFinal
	return p
}

// loginRequest and loginResponse carry text that the Datamover does not read.
func loginRequest(final bool, text []byte) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpLoginReq) | 0x40)
	p.BHS[offFlags] = 1 << 2 // CSG operational
	if final {
		p.BHS[offFlags] = 0x80 | 1<<2 | 3
	}
	be.PutUint32(p.BHS[offITT:], 1)
	p.Data = text
	return p
}

func loginResponse(final bool, statSN uint32, text []byte) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpLoginRsp))
	p.BHS[offFlags] = 1 << 2
	if final {
		p.BHS[offFlags] = 0x80 | 1<<2 | 3
	}
	be.PutUint32(p.BHS[offITT:], 1)
	be.PutUint32(p.BHS[offCmdSN:], statSN)
	be.PutUint32(p.BHS[offExpStatSN:], 1)
	be.PutUint32(p.BHS[offMaxCmdSN:], Window)
	p.Data = text
	return p
}

// nopOut is an initiator's ping that asks for an answer.
func nopOut(itt uint32, data []byte) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpNOPOut) | 0x40)
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offTTT:], reservedTag)
	p.Data = data
	return p
}

// nopIn answers the ping itt.
func nopIn(itt, statSN uint32, data []byte) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpNOPIn))
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offTTT:], reservedTag)
	be.PutUint32(p.BHS[offCmdSN:], statSN)
	be.PutUint32(p.BHS[offExpStatSN:], 1)
	be.PutUint32(p.BHS[offMaxCmdSN:], Window)
	p.Data = data
	return p
}

// command is a SCSI Command that moves in octets to the initiator and out octets from it. moreData
// clears F: unsolicited Data-Out PDUs follow.
func command(itt, cmdSN uint32, in, out int, immediate []byte, moreData bool) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpSCSICommand))
	f := byte(1) // SIMPLE
	if !moreData {
		f |= flagFinal
	}
	if in > 0 {
		f |= flagRead
		be.PutUint32(p.BHS[offTTT:], uint32(in))
	}
	if out > 0 {
		f |= flagWrite
		be.PutUint32(p.BHS[offTTT:], uint32(out))
	}
	p.BHS[offFlags] = f
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offCmdSN:], cmdSN)
	if in > 0 && out > 0 { // bidirectional: the read length travels in an AHS (section 11.2.2.4)
		ahs := make([]byte, 8)
		be.PutUint16(ahs[0:], 5)
		ahs[2] = 2
		be.PutUint32(ahs[4:], uint32(in))
		p.AHS = ahs
	}
	p.Data = immediate
	return p
}

// dataOut is an unsolicited Data-Out.
func dataOut(itt, dataSN uint32, off int, data []byte, final bool) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpDataOut))
	if !final {
		p.BHS[offFlags] = 0
	}
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offTTT:], reservedTag)
	be.PutUint32(p.BHS[offDataSN:], dataSN)
	be.PutUint32(p.BHS[offBufOffset:], uint32(off))
	p.Data = data
	return p
}

// response is a SCSI Response; residual counts octets of underflow.
func response(itt, statSN uint32, status byte, residual int, expDataSN uint32, sense []byte) *iscsi.PDU {
	p := newPDU(byte(iscsi.OpSCSIResponse))
	if residual > 0 {
		p.BHS[offFlags] |= flagUnderflow
		be.PutUint32(p.BHS[offResidual:], uint32(residual))
	}
	p.BHS[offStatus] = status
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offCmdSN:], statSN)
	be.PutUint32(p.BHS[offExpStatSN:], 1)
	be.PutUint32(p.BHS[offMaxCmdSN:], Window)
	be.PutUint32(p.BHS[offDataSN:], expDataSN)
	p.Data = sense
	return p
}

// patternByte is octet i of the test data with the given seed: it does not repeat within a
// transfer's likely misplacements (a segment, a page, a burst).
func patternByte(seed uint32, i int) byte {
	x := uint32(i)*2654435761 + seed*40503
	return byte(x>>24) ^ byte(x>>9)
}

func fill(b []byte, seed uint32, off int) {
	for i := range b {
		b[i] = patternByte(seed, off+i)
	}
}

func pattern(seed uint32, off, n int) []byte {
	b := make([]byte, n)
	fill(b, seed, off)
	return b
}

// mismatch returns an error that names the first octet of b that is not the pattern's.
func mismatch(b []byte, seed uint32, off int) error {
	for i, c := range b {
		if want := patternByte(seed, off+i); c != want {
			return fmt.Errorf("octet %d of %d is %#02x, want %#02x (seed %d)", off+i, off+len(b), c, want, seed)
		}
	}
	return nil
}
