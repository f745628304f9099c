package rdmap

import (
	"fmt"

	"goiwarp/ddp"
)

// Code is an operation of the send queue.
type Code uint8

// Operations.
const (
	Send      Code = iota + 1 // Send; with Invalidate and Solicited flags its other three forms
	Write                     // RDMA Write of Segs (or Inline) to RemoteSTag, RemoteTO
	Read                      // RDMA Read of RemoteSTag, RemoteTO into Segs, which has one element
	Immediate                 // Immediate Data: the 8 octets of Imm (RFC 7306, section 6)
	FetchAdd                  // masked 64-bit fetch and add (RFC 7306, section 5.1.1)
	CmpSwap                   // masked 64-bit compare and swap (RFC 7306, section 5.1.3)
	// LocalInvalidate invalidates the local region behind LocalInv in order with the other operations. Nothing
	// is sent.
	LocalInvalidate
)

var codeNames = [...]string{"none", "Send", "RDMA Write", "RDMA Read", "Immediate Data", "FetchAdd", "CmpSwap", "Local Invalidate"}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("operation %d", uint8(c))
}

// Flags modify an operation.
type Flags uint16

// Operation flags.
const (
	// Solicited asks the peer for an event (Send, Immediate).
	Solicited Flags = 1 << iota
	// Invalidate makes a Send carry RemoteSTag for the peer to invalidate.
	Invalidate
	// Fence holds the operation back until all earlier Reads and Atomics have completed.
	Fence
	// Signaled asks that Done be called at once on success. Without it Done may come as late as
	// together with the next completion.
	Signaled
	// CopyPayload takes a copy of Segs when the operation is sent, so that memory that changes
	// meanwhile cannot break the CRC. Sources that the peer may write are copied anyway.
	CopyPayload
	// InvalidateSink invalidates the sink's region when a Read completes.
	InvalidateSink
)

// Seg is a piece of a registered region.
type Seg = ddp.Seg

// InlineSegs is how many elements an Op or a Receive holds without a slice of its own.
const InlineSegs = 4

// Op is one operation. From Post until Done it belongs to the Stream. The zero value is an operation
// with nothing in it; Reset makes a used one so again.
type Op struct {
	Code  Code
	Flags Flags

	// Segs is what to gather (Send, Write), the sink (Read: exactly one element, or none when empty) or the
	// 8-octet place for an atomic's original value (optional). Own gives it storage.
	Segs []Seg
	own  [InlineSegs]Seg
	// Inline is payload that is not registered memory (Send, Write); Segs must be empty. It must hold
	// still until Done.
	Inline []byte

	RemoteSTag ddp.STag
	RemoteTO   uint64
	// Length is what a Read asks for; Post sets it from Segs.
	Length uint32

	// LocalInv is the region that LocalInvalidate invalidates.
	LocalInv *ddp.Region

	Imm [8]byte

	// Operands of atomics in host order (RFC 7306, section 5.1). Add and Swap share a field on the wire, and so
	// do their masks.
	Add, AddMask                         uint64
	Compare, CompareMask, Swap, SwapMask uint64
	// Original is an atomic's result in host order, valid in Done.
	Original uint64

	// User and Context are the poster's.
	User    uint64
	Context any

	Next *Op

	opState
}

// opState is the Stream's part of an Op.
type opState struct {
	link     *Op    // the next younger one in the send queue
	linkRead *Op    // the next younger one that waits for a response
	end      uint64 // stream position behind the last octet
	total    uint32 // payload length
	msn      uint32 // of a Read or Atomic Request; the latter's identifier too
	sinkSTag ddp.STag
	sinkTO   uint64
	stage    stage
	internal bool // the Stream's own: no Done
	err      error
}

// stage is how far an Op has come.
type stage uint8

const (
	stageQueued stage = iota
	stageSending
	stageSent     // handed to MPA; end is known
	stageAnswered // a Read or Atomic whose response is there
)

// Own returns the Op's own storage for Segs, empty.
func (o *Op) Own() []Seg { return o.own[:0] }

// Reset empties the Op for its next use.
func (o *Op) Reset() { *o = Op{} }

// awaits says whether the operation ends with a response of the peer.
func (o *Op) awaits() bool { return o.Code == Read || o.Code == FetchAdd || o.Code == CmpSwap }

// Receive is a posted receive: where one Send or Immediate Data message goes. From Handler.Receive
// until Handler.Received it belongs to the Stream.
type Receive struct {
	Segs []Seg
	own  [InlineSegs]Seg

	// User, Context and Next are the owner's.
	User    uint64
	Context any
	Next    *Receive
}

// Own returns the Receive's own storage for Segs, empty.
func (r *Receive) Own() []Seg { return r.own[:0] }

// Delivery tells how a Receive ended.
type Delivery struct {
	// Err is nil when a message was delivered. Otherwise the receive was flushed, or the message did
	// not fit (a *ddp.Error of CodeTooLong).
	Err error
	// Len is the message's length in octets.
	Len int
	// Invalidated is the STag that the message invalidated, or 0.
	Invalidated ddp.STag
	// Solicited: the peer asked for an event.
	Solicited bool
	// HasImm: the message was Immediate Data, which is in Imm and not in the buffer. Len is 8.
	HasImm bool
	Imm    [8]byte
}
