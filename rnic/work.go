package rnic

import "fmt"

// Opcode is a work request's or a completion's operation.
type Opcode uint8

// Operations of the send queue, and OpRecv for receive completions.
const (
	OpSend            Opcode = iota + 1
	OpSendInvalidate         // Send that invalidates RemoteSTag at the peer (CapSendInvalidate)
	OpWrite                  // RDMA Write of SGE to (RemoteSTag, RemoteAddr)
	OpRead                   // RDMA Read of (RemoteSTag, RemoteAddr) into SGE
	OpImmediate              // Immediate Data, 8 octets in Imm (CapImmediate)
	OpFetchAdd               // masked fetch-and-add (CapAtomics)
	OpCmpSwap                // masked compare-and-swap (CapAtomics)
	OpLocalInvalidate        // invalidate the local RemoteSTag, in order with earlier work (CapLocalInvalidate)
	OpRecv                   // a receive completed by a Send or by Immediate Data
)

// Flags modify a work request.
type Flags uint8

// Work request flags.
const (
	// Signaled asks for a completion on success. Failures and flushes always complete.
	Signaled Flags = 1 << iota
	// Solicited sets the Solicited Event form of a Send or of Immediate Data.
	Solicited
	// Fence delays the request until all earlier RDMA Reads and Atomics of this QP have completed.
	Fence
	// InvalidateSink (OpRead, CapLocalInvalidate) invalidates the sink's STag when the Read completes.
	InvalidateSink
)

// SGE is one piece of registered memory: n octets at Off of MR, or of the memory that Window is
// bound to (CapWindowSGE; MR is then nil). A window as the sink of an RDMA Read puts its own STag on
// the wire, so that the right to write lives no longer than the Read and reaches no further.
type SGE struct {
	MR     MR
	Window Window
	Off    int
	Len    int
}

// SendWR is a work request for the send queue.
type SendWR struct {
	ID    uint64 // comes back in the completion
	Op    Opcode
	Flags Flags
	SGE   []SGE // gather list (Send, Write), scatter list (Read), 8-octet result buffer (atomics)
	// Inline, if not nil, is payload of a Send or Write that is copied while posting; SGE must be
	// empty. At most Attributes.MaxInline octets.
	Inline []byte

	RemoteSTag STag   // Write, Read, atomics: the peer's region; OpSendInvalidate, OpLocalInvalidate: what to invalidate
	RemoteAddr uint64 // Tagged Offset

	Imm [8]byte // OpImmediate

	// Atomics (RFC 7306, section 5.1), host order. Masks of all ones give the plain operation
	// for CmpSwap; AddMask 0 is one 64-bit addition.
	Add, AddMask                     uint64
	Compare, CompareMask, Swap, Mask uint64

	Next *SendWR
}

// RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID   uint64
	SGE  []SGE
	Next *RecvWR
}

// Status is a completion's outcome.
type Status uint8

// Completion statuses.
const (
	StatusOK             Status = iota
	StatusFlushed               // never executed, or unknown whether it was: the connection ended first
	StatusLocalLength           // a message did not fit its receive
	StatusLocalProtect          // a local region lacked a right, was gone or too small
	StatusRemoteAccess          // the peer refused the access (its Terminate says so)
	StatusRemoteOp              // the peer could not do the operation
	StatusConnectionLost        // the connection failed while the operation was under way
)

var statusNames = [...]string{"ok", "flushed", "local length error", "local protection error", "remote access error", "remote operation error", "connection lost"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Completion tells that a work request ended.
type Completion struct {
	ID     uint64
	QP     QP
	Op     Opcode
	Status Status
	Err    error // nil when StatusOK
	// Len is the number of octets received or read.
	Len int
	// Solicited tells that the message asked for an event.
	Solicited bool
	// InvalidatedSTag is not zero when the message was a Send with Invalidate.
	InvalidatedSTag STag
	// HasImm tells that the receive was completed by Immediate Data, which is in Imm.
	HasImm bool
	Imm    [8]byte
}
