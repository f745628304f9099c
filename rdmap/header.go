package rdmap

import (
	"encoding/binary"
	"fmt"

	"goiwarp/ddp"
)

// Version is the RDMAP version that this package speaks (RFC 5040, section 4.1).
const Version = 1

// Opcode is a message's type on the wire (RFC 5040, section 4.3; RFC 7306, section 4; RFC 6580, section 3.4).
type Opcode uint8

// Opcodes.
const (
	OpWrite            Opcode = 0
	OpReadRequest      Opcode = 1
	OpReadResponse     Opcode = 2
	OpSend             Opcode = 3
	OpSendInvalidate   Opcode = 4
	OpSendSE           Opcode = 5
	OpSendSEInvalidate Opcode = 6
	OpTerminate        Opcode = 7
	OpImmediate        Opcode = 8
	OpImmediateSE      Opcode = 9
	OpAtomicRequest    Opcode = 10
	OpAtomicResponse   Opcode = 11

	lastOpcode = OpAtomicResponse
)

// Untagged queues (RFC 5040, section 4.2; RFC 7306, section 4.3).
const (
	QueueSend      = 0
	QueueRequest   = 1 // Read and Atomic Requests
	QueueTerminate = 2
	QueueAtomic    = 3 // Atomic Responses

	queues = 4
)

// Lengths of RDMAP's own headers, in octets behind the DDP header.
const (
	ReadRequestLen    = 28
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
	// ImmediateLen is the payload of an Immediate Data message.
	ImmediateLen = 8
	// AtomicSize is the size of an atomic's operand in memory.
	AtomicSize = 8

	maxControl = AtomicRequestLen
)

// Atomic opcodes (RFC 7306, section 5.2.1); 1 is reserved.
const (
	AtomicFetchAdd = 0
	AtomicCmpSwap  = 2
)

const (
	versionShift = 6
	opcodeMask   = 0x0F
	atomicOpMask = 0x0F
	// zeroLengthSTag goes into zero-length tagged messages of our own making. It names nothing, and nobody
	// may check it (RFC 5041, section 5.2); it is not 0 because some adapters refuse that.
	zeroLengthSTag ddp.STag = 1
)

var opcodeNames = [...]string{"RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send", "Send with Invalidate", "Send with SE", "Send with SE and Invalidate", "Terminate", "Immediate Data", "Immediate Data with SE", "Atomic Request", "Atomic Response"}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// Tagged says whether messages with this opcode are tagged.
func (o Opcode) Tagged() bool { return o == OpWrite || o == OpReadResponse }

// Queue is the untagged queue of messages with this opcode (RFC 5040, section 4.3; RFC 7306, figure 3).
func (o Opcode) Queue() uint32 {
	switch o {
	case OpReadRequest, OpAtomicRequest:
		return QueueRequest
	case OpTerminate:
		return QueueTerminate
	case OpAtomicResponse:
		return QueueAtomic
	}
	return QueueSend
}

// invalidates says whether the message carries an STag to invalidate.
func (o Opcode) invalidates() bool { return o == OpSendInvalidate || o == OpSendSEInvalidate }

// solicited says whether the message asks for an event.
func (o Opcode) solicited() bool {
	return o == OpSendSE || o == OpSendSEInvalidate || o == OpImmediateSE
}

// immediate says whether the message is Immediate Data.
func (o Opcode) immediate() bool { return o == OpImmediate || o == OpImmediateSE }

// Control is RDMAP's control octet, which DDP carries in every segment:
//
//	 0  1  2  3  4        7
//	+--+--+--+--+----------+
//	| RV  | rsvd|  opcode  |
//	+--+--+--+--+----------+
type Control uint8

// MakeControl returns the control octet of a message.
func MakeControl(o Opcode) Control { return Control(Version<<versionShift | uint8(o)) }

// Version is the RDMAP version of the sender; 0 is the RDMA Consortium's.
func (c Control) Version() uint8 { return uint8(c) >> versionShift }

// Opcode is the message's type.
func (c Control) Opcode() Opcode { return Opcode(uint8(c) & opcodeMask) }

// ReadRequest is the RDMA Read Request Header (RFC 5040, section 4.4), 28 octets behind the DDP header:
//
//	 0           4                      12          16          20                     28
//	+-----------+----------------------+-----------+-----------+----------------------+
//	| sink STag |       sink TO        |   size    |source STag|      source TO       |
//	+-----------+----------------------+-----------+-----------+----------------------+
type ReadRequest []byte

// SinkSTag names the requester's buffer; the responder copies it uninterpreted.
func (h ReadRequest) SinkSTag() ddp.STag { return ddp.STag(binary.BigEndian.Uint32(h)) }

// SinkTO is the first octet's offset in the requester's buffer.
func (h ReadRequest) SinkTO() uint64 { return binary.BigEndian.Uint64(h[4:]) }

// Size is the number of octets to read.
func (h ReadRequest) Size() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// SourceSTag names the responder's buffer.
func (h ReadRequest) SourceSTag() ddp.STag { return ddp.STag(binary.BigEndian.Uint32(h[16:])) }

// SourceTO is the first octet's offset in the responder's buffer.
func (h ReadRequest) SourceTO() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// ReadRequestFields are the values of the header.
type ReadRequestFields struct {
	SinkSTag   ddp.STag
	SinkTO     uint64
	Size       uint32
	SourceSTag ddp.STag
	SourceTO   uint64
}

// Fields reads the header.
func (h ReadRequest) Fields() ReadRequestFields {
	return ReadRequestFields{h.SinkSTag(), h.SinkTO(), h.Size(), h.SourceSTag(), h.SourceTO()}
}

// Encode writes the header's 28 octets.
func (h ReadRequest) Encode(f *ReadRequestFields) {
	binary.BigEndian.PutUint32(h, uint32(f.SinkSTag))
	binary.BigEndian.PutUint64(h[4:], f.SinkTO)
	binary.BigEndian.PutUint32(h[12:], f.Size)
	binary.BigEndian.PutUint32(h[16:], uint32(f.SourceSTag))
	binary.BigEndian.PutUint64(h[20:], f.SourceTO)
}

// AtomicRequest is the Atomic Request Header (RFC 7306, section 5.2.1), 52 octets:
//
//	 0         4         8         12             20             28             36             44             52
//	+---------+---------+---------+--------------+--------------+--------------+--------------+--------------+
//	|rsvd  op | request | STag    |      TO      | add or swap  | its mask     | compare      | its mask     |
//	+---------+---------+---------+--------------+--------------+--------------+--------------+--------------+
type AtomicRequest []byte

// Op is the atomic opcode: 0 FetchAdd, 2 CmpSwap.
func (h AtomicRequest) Op() uint32 { return binary.BigEndian.Uint32(h) & atomicOpMask }

// ID is the requester's identifier, which the response repeats.
func (h AtomicRequest) ID() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// STag names the responder's buffer.
func (h AtomicRequest) STag() ddp.STag { return ddp.STag(binary.BigEndian.Uint32(h[8:])) }

// TO is the offset of the 64-bit value; it must be a multiple of 8 in the responder's memory.
func (h AtomicRequest) TO() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// AtomicFields are the values of the header. Data is what to add or to swap in.
type AtomicFields struct {
	Op                               uint32
	ID                               uint32
	STag                             ddp.STag
	TO                               uint64
	Data, Mask, Compare, CompareMask uint64
}

// Fields reads the header.
func (h AtomicRequest) Fields() AtomicFields {
	u := binary.BigEndian.Uint64
	return AtomicFields{h.Op(), h.ID(), h.STag(), h.TO(), u(h[20:]), u(h[28:]), u(h[36:]), u(h[44:])}
}

// Encode writes the header's 52 octets.
func (h AtomicRequest) Encode(f *AtomicFields) {
	binary.BigEndian.PutUint32(h, f.Op)
	binary.BigEndian.PutUint32(h[4:], f.ID)
	binary.BigEndian.PutUint32(h[8:], uint32(f.STag))
	binary.BigEndian.PutUint64(h[12:], f.TO)
	binary.BigEndian.PutUint64(h[20:], f.Data)
	binary.BigEndian.PutUint64(h[28:], f.Mask)
	binary.BigEndian.PutUint64(h[36:], f.Compare)
	binary.BigEndian.PutUint64(h[44:], f.CompareMask)
}

// AtomicResponse is the Atomic Response Header (RFC 7306, section 5.2.2), 12 octets: the request's
// identifier and the value that was there before.
type AtomicResponse []byte

// ID is the identifier of the request.
func (h AtomicResponse) ID() uint32 { return binary.BigEndian.Uint32(h) }

// Original is the value before the operation.
func (h AtomicResponse) Original() uint64 { return binary.BigEndian.Uint64(h[4:]) }

// Encode writes the header's 12 octets.
func (h AtomicResponse) Encode(id uint32, original uint64) {
	binary.BigEndian.PutUint32(h, id)
	binary.BigEndian.PutUint64(h[4:], original)
}
