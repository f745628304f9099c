package iser

import (
	"encoding/binary"
	"fmt"

	"goiwarp/rnic"
)

// HeaderLen is the length of every iSER header in octets (RFC 7145, section 9.1).
const HeaderLen = 28

// Opcode is an iSER header's kind: its first four bits (RFC 7145, section 9.1).
type Opcode uint8

// Opcodes.
const (
	OpControl    Opcode = 1 // an iSCSI control-type PDU follows
	OpHello      Opcode = 2
	OpHelloReply Opcode = 3
)

func (o Opcode) String() string {
	switch o {
	case OpControl:
		return "iSCSI control PDU"
	case OpHello:
		return "Hello"
	case OpHelloReply:
		return "HelloReply"
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

const (
	flagWSV = 0x08
	flagRSV = 0x04

	offWriteSTag = 4
	offWriteBase = 8
	offReadSTag  = 16
	offReadBase  = 20
)

// Header is the iSER header in front of an iSCSI control-type PDU (RFC 7145, section 9.2):
//
//	 0         1              4            8                     16          20                  28
//	+----+----+--------------+------------+---------------------+-----------+-------------------+
//	|0001|WR00| reserved     | Write STag | Write Base Offset   | Read STag | Read Base Offset  |
//	+----+----+--------------+------------+---------------------+-----------+-------------------+
//
// W (WSV) and R (RSV) say that the Write and the Read fields are valid. The slice has at least
// HeaderLen octets.
type Header []byte

// Opcode is the header's kind.
func (h Header) Opcode() Opcode { return Opcode(h[0] >> 4) }

// WriteValid is the WSV flag: the initiator advertises data that the target may RDMA Read.
func (h Header) WriteValid() bool { return h[0]&flagWSV != 0 }

// ReadValid is the RSV flag: the initiator advertises memory that the target may RDMA Write.
func (h Header) ReadValid() bool { return h[0]&flagRSV != 0 }

// WriteSTag names the buffer that holds the command's data-out. Valid with WriteValid.
func (h Header) WriteSTag() rnic.STag { return rnic.STag(binary.BigEndian.Uint32(h[offWriteSTag:])) }

// WriteBase is the Tagged Offset that the data-out begins at. What "begins" means depends on the
// peer: see WriteBase the type.
func (h Header) WriteBase() uint64 { return binary.BigEndian.Uint64(h[offWriteBase:]) }

// ReadSTag names the buffer that takes the command's data-in. Valid with ReadValid.
func (h Header) ReadSTag() rnic.STag { return rnic.STag(binary.BigEndian.Uint32(h[offReadSTag:])) }

// ReadBase is the Tagged Offset of the data-in's first octet.
func (h Header) ReadBase() uint64 { return binary.BigEndian.Uint64(h[offReadBase:]) }

// Init makes h the header of a control PDU that advertises nothing.
func (h Header) Init() {
	clear(h[:HeaderLen])
	h[0] = byte(OpControl) << 4
}

// SetWrite advertises data-out.
func (h Header) SetWrite(s rnic.STag, base uint64) {
	h[0] |= flagWSV
	binary.BigEndian.PutUint32(h[offWriteSTag:], uint32(s))
	binary.BigEndian.PutUint64(h[offWriteBase:], base)
}

// SetRead advertises memory for data-in.
func (h Header) SetRead(s rnic.STag, base uint64) {
	h[0] |= flagRSV
	binary.BigEndian.PutUint32(h[offReadSTag:], uint32(s))
	binary.BigEndian.PutUint64(h[offReadBase:], base)
}

// String is the header on one line.
func (h Header) String() string {
	s := h.Opcode().String()
	if h.WriteValid() {
		s += fmt.Sprintf(", write STag 0x%08x base 0x%x", uint32(h.WriteSTag()), h.WriteBase())
	}
	if h.ReadValid() {
		s += fmt.Sprintf(", read STag 0x%08x base 0x%x", uint32(h.ReadSTag()), h.ReadBase())
	}
	return s
}
