package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offEDTL = 20
	offCDB  = 32

	// CDBLen is how many octets of a CDB the BHS holds; the rest of a longer one is in an AHS.
	CDBLen = 16
)

// TaskAttr is a command's task attribute (RFC 7143, section 11.3.1).
type TaskAttr uint8

// Task attributes.
const (
	AttrUntagged    TaskAttr = 0
	AttrSimple      TaskAttr = 1
	AttrOrdered     TaskAttr = 2
	AttrHeadOfQueue TaskAttr = 3
	AttrACA         TaskAttr = 4
)

func (a TaskAttr) String() string { return nameOf(taskAttrNames[:], int(a)) }

var taskAttrNames = [...]string{"untagged", "simple", "ordered", "head of queue", "ACA"}

// SCSICommand is the BHS of a SCSI Command PDU (RFC 7143, section 11.3). The data segment is immediate data.
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|.I 0x01 |FRW.. A |PRI .   |   -    | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |           EDTL (4)          | 16
//	+--------------------------------+-----------------------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|                            CDB (16)                          | 32
type SCSICommand []byte

// Init makes h an empty SCSICommand.
func (h SCSICommand) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpSCSICommand)
}

// Immediate is the I bit: for immediate delivery, outside of the CmdSN order (RFC 7143, section 11.2.1.1).
func (h SCSICommand) Immediate() bool { return h[0]&0x40 != 0 }

// SetImmediate sets what Immediate returns.
func (h SCSICommand) SetImmediate(on bool) { setBit(h, 0, 0x40, on) }

// Final is the F bit: no unsolicited Data-Out PDU follows.
func (h SCSICommand) Final() bool { return h[1]&0x80 != 0 }

// SetFinal sets what Final returns.
func (h SCSICommand) SetFinal(on bool) { setBit(h, 1, 0x80, on) }

// Read is the R bit: the command moves data to the initiator.
func (h SCSICommand) Read() bool { return h[1]&0x40 != 0 }

// SetRead sets what Read returns.
func (h SCSICommand) SetRead(on bool) { setBit(h, 1, 0x40, on) }

// Write is the W bit: the command moves data to the target.
func (h SCSICommand) Write() bool { return h[1]&0x20 != 0 }

// SetWrite sets what Write returns.
func (h SCSICommand) SetWrite(on bool) { setBit(h, 1, 0x20, on) }

// Attr is the task attribute.
func (h SCSICommand) Attr() TaskAttr { return TaskAttr(h[1] & 0x07) }

// SetAttr sets what Attr returns.
func (h SCSICommand) SetAttr(v TaskAttr) { h[1] = h[1]&^0x07 | byte(v)&0x07 }

// Priority is the task priority, 0 (none) to 15 (RFC 7144, section 4.1); reserved below iSCSIProtocolLevel 2.
func (h SCSICommand) Priority() uint8 { return h[2] >> 4 }

// SetPriority sets what Priority returns.
func (h SCSICommand) SetPriority(v uint8) { h[2] = h[2]&0x0f | v<<4 }

// LUN is the logical unit number, its eight octets as on the wire.
func (h SCSICommand) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h SCSICommand) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h SCSICommand) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h SCSICommand) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// EDTL is the Expected Data Transfer Length in octets; of a bidirectional command, that of its write.
func (h SCSICommand) EDTL() uint32 { return binary.BigEndian.Uint32(h[offEDTL:]) }

// SetEDTL sets what EDTL returns.
func (h SCSICommand) SetEDTL(v uint32) { binary.BigEndian.PutUint32(h[offEDTL:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h SCSICommand) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h SCSICommand) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h SCSICommand) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h SCSICommand) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// CDB is the first 16 octets of the command descriptor block, in place.
func (h SCSICommand) CDB() []byte { return h[offCDB : offCDB+CDBLen] }

// SetCDB puts in the first 16 octets of cdb, with zeros behind a shorter one.
func (h SCSICommand) SetCDB(cdb []byte) { clear(h[offCDB+copy(h.CDB(), cdb) : offCDB+CDBLen]) }

// String is h on one line, for logs.
func (h SCSICommand) String() string {
	return fmt.Sprintf("SCSI Command ITT %#x LUN %#x CmdSN %d ExpStatSN %d EDTL %d R %t W %t F %t %v CDB %x",
		h.ITT(), h.LUN(), h.CmdSN(), h.ExpStatSN(), h.EDTL(), h.Read(), h.Write(), h.Final(), h.Attr(), h.CDB())
}
