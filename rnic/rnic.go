// Package rnic describes what an RDMA device can do for its consumer, as small Go interfaces: the
// verbs of RFC 5040's "RDMAP/ULP interface" in the shape that libibverbs and librdmacm gave them.
//
// A consumer (iser, a tool, a test) is written against these interfaces and runs on any provider:
//
//	        consumer
//	           |  Dial / Listen          PostSend, PostRecv         Handler(completions)
//	           v                              v                           ^
//	+----------------+   +----+   +---------------------------+   +-------------+
//	| Device         |-->| PD |-->| MR, Window                |   | CQ          |
//	| (Attributes)   |   +----+   +---------------------------+   +-------------+
//	|                |------> Connector / Request --> QP ---------------^
//	+----------------+                                 ^--- SRQ (shared receives)
//
// Package rnic/soft implements them in software over TCP; a hardware provider implements them
// over libibverbs. What a device offers beyond the common core is a Capability; an operation that
// a device does not claim fails with an *UnsupportedError and does nothing.
//
// Package rnic/rnictest holds the conformance suite that every provider passes.
package rnic

import (
	"context"
	"net"
)

// STag names a registered region or a bound window on the wire: a 24-bit index and an 8-bit key
// (RFC 5041, section 4.2). In the verbs' words it is both the lkey and the rkey.
type STag uint32

// Access is the set of rights that a region or window grants (RFC 5040, section 3.2).
type Access uint32

// Rights. Reading the memory locally (as a gather source) is always granted.
const (
	// LocalWrite lets receives, and the sink of local RDMA Reads, write the region.
	LocalWrite Access = 1 << iota
	// RemoteWrite lets the peer RDMA Write the region. A Read's sink needs it too where the
	// device says so (ReadSinkNeedsRemoteWrite), because an iWARP Read Response is a tagged message.
	RemoteWrite
	// RemoteRead lets the peer RDMA Read the region.
	RemoteRead
	// RemoteAtomic lets the peer run atomics on the region (RFC 7306).
	RemoteAtomic
	// ZeroBased makes the Tagged Offset of the first octet 0 instead of its virtual address.
	ZeroBased
	// EarlyPlacement lets a software device place a segment's octets before the CRC that covers
	// them was checked. Set it only where a wrong header does no harm: on memory whose remote
	// right lives no longer than an operation that fails together with the connection.
	EarlyPlacement
)

// Capability is something that not every device can do.
type Capability uint32

// Capabilities.
const (
	CapLocalInvalidate Capability = 1 << iota // OpLocalInvalidate, Window.Invalidate
	CapSendInvalidate                         // OpSendInvalidate
	CapWindows                                // PD.AllocWindow
	CapImmediate                              // OpImmediate (RFC 7306, section 6)
	CapAtomics                                // OpFetchAdd, OpCmpSwap (RFC 7306, section 5)
	CapInline                                 // SendWR.Inline
	CapZeroBased                              // Access ZeroBased
	CapSRQ                                    // Device.CreateSRQ
	CapStreamUpgrade                          // the Device is a StreamUpgrader
	CapAnyMemory                              // Window.BindBytes: a window over memory that no MR covers
	// CapReadSinkNeedsRemoteWrite says that an RDMA Read's sink region must carry RemoteWrite (iWARP).
	CapReadSinkNeedsRemoteWrite
	// CapWindowSGE says that SGE.Window may name local memory: the sink of an RDMA Read above all.
	CapWindowSGE
)

// Has says whether all of want is in c.
func (c Capability) Has(want Capability) bool { return c&want == want }

// Attributes are a device's identity and limits. A zero limit means that the device sets none.
type Attributes struct {
	Name     string // e.g. "soft", "siw0"
	Provider string // "soft" or "verbs"
	Caps     Capability

	MaxSendSGE   int // scatter/gather entries of a Send or a Write
	MaxRecvSGE   int // scatter/gather entries of a receive
	MaxReadSGE   int // scatter/gather entries of an RDMA Read's sink (iWARP hardware: 1)
	MaxInline    int // octets of SendWR.Inline
	MaxIRD       int // inbound RDMA Reads and Atomics that a QP can promise
	MaxORD       int // outbound ones
	MaxQPWR      int // depth of a QP's queues
	MaxMsg       int64
	MaxPrivate   int // octets of private data that a consumer may pass at connection setup
	MaxMRSize    int64
	PageSizeHint int // alignment, in octets, of AllocMR's memory

	// PrivatePadded says that private data arrives with zeros behind it: InfiniBand's connection
	// manager has fields of a fixed size. What is passed must tell its length itself.
	PrivatePadded bool
}

// Device is one RDMA device. All methods may be called by many goroutines at once.
type Device interface {
	Attributes() Attributes

	AllocPD() (PD, error)
	CreateCQ(CQConfig) (CQ, error)
	// CreateSRQ makes a shared receive queue of the given depth (work requests).
	CreateSRQ(PD, SRQConfig) (SRQ, error)

	// Dial prepares a connection to addr ("host:port"): the address is resolved and, in software,
	// TCP is connected. No MPA Request is sent before Connector.Connect, so that the consumer can
	// create its QP and post receives first.
	Dial(ctx context.Context, addr string, opts *LinkOptions) (Connector, error)
	// Listen takes connection requests on addr.
	Listen(ctx context.Context, addr string, opts *LinkOptions) (Listener, error)

	// Close fails outstanding work with errors, closes all that was made from the device and
	// returns once no callback can run any more.
	Close() error
}

// StreamUpgrader is a Device that can turn a byte stream that is already connected into an RDMA
// connection: a port shared with iSCSI, and RFC 7145's login (section 5.1.2), need it.
type StreamUpgrader interface {
	// UpgradeRequest makes the MPA responder's side. read holds octets already taken from conn
	// (they begin the MPA Request Frame); the rest of the frame is read from conn.
	UpgradeRequest(ctx context.Context, conn net.Conn, read []byte, opts *LinkOptions) (Request, error)
	// UpgradeConnector makes the MPA initiator's side.
	UpgradeConnector(ctx context.Context, conn net.Conn, opts *LinkOptions) (Connector, error)
}

// PD is a protection domain: regions, windows and queue pairs that may work together.
type PD interface {
	Device() Device
	// RegisterMR registers memory that the caller owns and keeps until Deregister has returned.
	RegisterMR(mem []byte, access Access) (MR, error)
	// AllocMR allocates size octets outside the Go heap, page-aligned and zeroed, and registers
	// them. Deregister frees them.
	AllocMR(size int, access Access) (MR, error)
	// AllocWindow makes an unbound memory window.
	AllocWindow() (Window, error)
	// Close fails with ErrBusy while the domain still has regions, windows, SRQs or QPs.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	STag() STag
	// Addr is the Tagged Offset of the region's first octet: its virtual address, or 0 if ZeroBased.
	Addr() uint64
	Bytes() []byte
	Access() Access
	// Deregister withdraws all rights. When it returns no peer can reach the memory any more and
	// none of its operations is half done; it never waits for a peer. Local work requests that
	// name the region fail. Calling it again is harmless.
	Deregister() error
}

// Window is a right to a part of memory that can be granted and withdrawn cheaply, once per
// operation. Each Bind yields an STag with a new key. A grant belongs to the first connection of the
// domain whose peer uses it; peers of other connections are refused from then on. That makes it safe
// to let the peer invalidate it (RFC 5040, section 8.1.1).
type Window interface {
	// Bind grants access to mr's octets [off, off+n). The window must be unbound (ErrBound).
	Bind(mr MR, off, n int, access Access) (STag, error)
	// BindBytes grants access to memory that needs no region (CapAnyMemory).
	BindBytes(mem []byte, access Access) (STag, error)
	// STag is the current one; 0 when unbound. Addr is the Tagged Offset of its first octet.
	STag() STag
	Addr() uint64
	// Invalidate withdraws the grant, with MR.Deregister's guarantee. It is harmless on a window
	// that the peer already invalidated (Send with Invalidate).
	Invalidate() error
	// Free invalidates and returns the window's STag index to the device.
	Free() error
}

// PlacementCounter is a Window of a device that counts what is placed through it, as those in software do.
type PlacementCounter interface {
	// Placed is how many octets the peer's RDMA Writes have placed since the window was bound, those placed twice counted twice. It includes all that the
	// peer sent before a Send whose completion has been delivered. It keeps its value until the window is bound again.
	Placed() uint64
}

// SRQ is a receive queue that several QPs draw from.
type SRQ interface {
	// PostRecv appends the chain of receives. It fails as a whole or not at all.
	PostRecv(wr *RecvWR) error
	Close() error
}

// SRQConfig sizes a shared receive queue.
type SRQConfig struct {
	Depth int // work requests; 0 means 256
	// Limit, if above 0, calls OnLimit once when fewer receives than this are left; it is armed
	// by each PostRecv after which so many or more are there. OnLimit must not block.
	Limit   int
	OnLimit func()
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wc) completions into wc. It is not available on a CQ with a Handler.
	Poll(wc []Completion) (int, error)
	// Wait returns when a completion is there to poll, when ctx ends, or when the CQ is closed.
	Wait(ctx context.Context) error
	Close() error
}

// CQConfig configures a completion queue.
type CQConfig struct {
	Depth int // completions; 0 means 1024. A full queue is an error of its QPs, never a lost completion.
	// Handler, if not nil, is called with batches of completions in order, never by two
	// goroutines at once, and never below PostSend or PostRecv on the caller's stack (so that a
	// consumer may hold its own locks while it posts). It runs on the goroutine that reads the
	// connection and must not block. It may post; what it posts leaves in one flush when the
	// batch of messages that were read together has been handled. The slice is the CQ's again
	// when Handler returns.
	Handler func([]Completion)
}

// QPConfig configures a queue pair.
type QPConfig struct {
	PD     PD
	SendCQ CQ
	RecvCQ CQ
	SRQ    SRQ // nil: the QP has its own receive queue
	// Depths of the send and receive queues in work requests; 0 means 128.
	SendDepth, RecvDepth int
	// OnEvent, if not nil, hears of the connection's fate. It must not block. It is called at
	// most once with each kind of event, Disconnected or Failed last, after every outstanding
	// work request was completed or flushed. A Connect or Accept that fails is told by its error
	// alone; the work that was posted before it is flushed.
	OnEvent func(Event)
}

// EventKind says what happened to a connection.
type EventKind int

// Events.
const (
	// Established: on the passive side, the peer's first FPDU arrived and was valid, so that this
	// side may send (RFC 5044, section 7.1.2); on the active side, the connection is set up.
	Established EventKind = iota + 1
	// Disconnected: the peer closed gracefully, or Disconnect finished.
	Disconnected
	// Failed: the connection is lost; Err says why, a Terminate Message's cause included.
	Failed
)

// Event is a change of a QP's connection.
type Event struct {
	Kind EventKind
	Err  error
}

// QP is a queue pair: one RDMA connection. Its methods may be called by many goroutines.
type QP interface {
	// PostSend appends the chain that starts at wr (linked by Next) to the send queue, as a whole
	// or not at all. The work requests are copied: they are the caller's again when PostSend
	// returns; the memory they name is the QP's until their completion. Work posted before the
	// connection may send (see Established) waits in the queue.
	PostSend(wr *SendWR) error
	// PostRecv appends receives; not available with an SRQ.
	PostRecv(wr *RecvWR) error

	// Info is what connection setup agreed.
	Info() ConnInfo
	// Stats are counters of what the connection did so far.
	Stats() Stats

	// Disconnect ends the connection gracefully: what was posted before is sent first. It does
	// not wait; OnEvent tells the end.
	Disconnect() error
	// Close ends the connection at once if it is still up, flushes outstanding work with error
	// completions and returns when no callback for the QP can run any more. It must not be called
	// from an OnEvent of the same QP, nor from the Handler of a CQ that the QP uses.
	Close() error
}

// ConnParams are the consumer's wishes for one connection.
type ConnParams struct {
	PrivateData []byte
	// IRD: inbound RDMA Reads and Atomics that this side can serve at once. ORD: outbound ones
	// that it would like to have outstanding (RFC 6581, section 9.1). MPA's 0x3FFF means "the
	// consumer negotiates it itself".
	IRD, ORD int
}

// ConnInfo is what both sides agreed on.
type ConnInfo struct {
	LocalAddr, RemoteAddr net.Addr
	PrivateData           []byte // the peer's
	// PeerIRD and PeerORD are the peer's offers as they came; IRD and ORD are in force on this side.
	PeerIRD, PeerORD int
	IRD, ORD         int
	// NoDepths tells that the peer offered no IRD and ORD, because its startup is not the enhanced one:
	// PeerIRD and PeerORD then mean nothing, and the consumers have to agree by other means.
	NoDepths bool
	// Link has "mpa revision", "crc", "markers out", … for people to read; order is stable.
	Link []LinkFact
}

// LinkFact is one negotiated value of the layer below, for people to read.
type LinkFact struct{ Name, Value string }

// Stats counts what a connection did. A device may count only what passes through its consumer's hands: what
// it cannot know (frames; what the peer did to this side's memory) stays 0.
type Stats struct {
	FPDUsSent, FPDUsReceived         uint64
	OctetsSent, OctetsReceived       uint64 // payload of RDMAP messages
	CRCsGenerated, CRCsChecked       uint64
	CRCErrors                        uint64
	SendsSent, SendsReceived         uint64
	WritesSent, WritesReceived       uint64 // RDMA Write messages
	ReadsSent, ReadsReceived         uint64 // RDMA Read Requests
	AtomicsSent, AtomicsReceived     uint64
	InvalidatesSent, InvalidatesRecv uint64
}

// Connector is an outgoing connection before it is connected.
type Connector interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	CreateQP(QPConfig) (QP, error)
	// Connect sends the request and waits for the answer. A refusal is a *RejectedError.
	// CreateQP must have been called.
	Connect(ctx context.Context, p ConnParams) (ConnInfo, error)
	// Close gives up a connection that was not connected; afterwards it does nothing.
	Close() error
}

// Request is an incoming connection before it is answered.
type Request interface {
	// Info has the peer's private data, IRD and ORD.
	Info() ConnInfo
	CreateQP(QPConfig) (QP, error)
	// Accept answers. The QP may be used from then on; see Established for when it may send.
	Accept(ctx context.Context, p ConnParams) error
	// Reject refuses with private data and closes.
	Reject(private []byte) error
}

// Listener takes connection requests.
type Listener interface {
	Accept(ctx context.Context) (Request, error)
	Addr() net.Addr
	Close() error
}
