package rdmap

import (
	"log/slog"
	"time"

	"goiwarp/ddp"
)

// Role is MPA's role of this side; it decides who may send first.
type Role uint8

// Roles.
const (
	Initiator Role = iota
	// Responder: nothing is sent before the peer's first valid FPDU (RFC 5044, section 7.1.2).
	Responder
)

// RTR is the Ready-To-Receive message of peer-to-peer mode (RFC 6581, section 9.2).
type RTR uint8

// Forms of the Ready-To-Receive message.
const (
	RTRNone  RTR = iota
	RTRSend      // a zero-length Send; consumes a receive of the peer
	RTRWrite     // a zero-length RDMA Write
	RTRRead      // a zero-length RDMA Read
)

// Defaults of Config.
const (
	DefaultDepth      = 128
	DefaultNudgeDelay = 200 * time.Millisecond
	DefaultLinger     = 3 * time.Second
	DefaultRTRTimeout = 10 * time.Second
)

// Config says how a Stream behaves.
type Config struct {
	// Domain is the protection domain whose regions the stream may use. Required.
	Domain *ddp.Domain
	// Handler takes what happens. Required.
	Handler Handler

	Role Role
	// IRD is how many RDMA Reads and, apart from them, Atomics of the peer are served at once; ORD is how many
	// of ours are outstanding at once, both kinds together. 0 means none.
	IRD, ORD int
	// RTR is the message that an Initiator sends first, or that a Responder waits for.
	RTR RTR
	// RTRTimeout bounds a Responder's wait for the message of peer-to-peer mode; 0 means DefaultRTRTimeout.
	RTRTimeout time.Duration
	// NudgeDelay: an Initiator that has sent and heard nothing for this long sends one zero-length RDMA
	// Write, which wakes a Linux soft-iWARP responder that missed the first message. 0 means DefaultNudgeDelay,
	// negative never.
	NudgeDelay time.Duration
	// Depth bounds the send queue in operations; 0 means DefaultDepth.
	Depth int
	// Linger bounds how long the end of a stream may wait for the peer: to take a Terminate Message or the
	// last messages, and to close its side. 0 means DefaultLinger.
	Linger time.Duration
	// Log takes events of the connection (debug level for each, warn for errors); nil is silent.
	Log *slog.Logger
}

// Handler takes what a Stream has to tell. Its methods are called one at a time and in order, by the
// stream's own goroutines, never below Post on the caller's stack. They must not block, and they may post.
type Handler interface {
	// Receive takes the next posted receive; nil when there is none, which is the peer's error (DDP untagged 2).
	Receive() *Receive
	// Received gives a receive back, in the order of Receive. The Delivery is the stream's again on return.
	Received(r *Receive, m *Delivery)
	// Done gives an operation back, in the order of Post (RFC 5040, section 5.5, rule 15). err is nil on success, and wraps
	// ErrFlushed when the stream ended before the operation had.
	Done(op *Op, err error)
	// BatchEnd tells that the callbacks of messages that were read together are over for now. What it and
	// they posted leaves in one flush.
	BatchEnd()
	// Established tells once that this side may send.
	Established()
	// Closed is the last call: all operations and receives were given back. err is nil after a
	// graceful close of either side.
	Closed(err error)
}

// Stats counts what a stream did.
type Stats struct {
	OctetsSent, OctetsReceived       uint64 // payload of messages, Terminate excluded
	SendsSent, SendsReceived         uint64 // Immediate Data included
	WritesSent, WritesReceived       uint64 // RDMA Write messages
	ReadsSent, ReadsReceived         uint64 // RDMA Read Requests
	AtomicsSent, AtomicsReceived     uint64
	InvalidatesSent, InvalidatesRecv uint64
}
