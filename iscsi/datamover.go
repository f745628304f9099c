package iscsi

import (
	"context"
	"net"
)

// Datamover is RFC 5047's Datamover Interface for one connection: what moves PDUs and data below
// the iSCSI layer, whatever carries them. Package iscsi/tcp implements it with Data-In, R2T and
// Data-Out PDUs, package iser with RDMA Write and RDMA Read. Its primitives keep the RFC's names.
//
//	   iSCSI layer (target, initiator)
//	 SendControl PutData GetData ...      ControlNotify DataCompletionNotify ...
//	        |                                        ^
//	--------v----------------------------------------|-------- Datamover Interface
//	   iscsi/tcp: Data-In, R2T, Data-Out     iser: RDMA Write, RDMA Read, Send
//
// Two things are ours and not the RFC's. Login PDUs pass through SendControl and ControlNotify on
// every Datamover, before EnableDatamover too, so that one login code serves iSCSI over TCP, Linux's iSER
// (where the login itself travels in RDMA Sends) and RFC 7145's hand-over. And PutData may be told
// that more follows at once, so that data and status leave in one flush.
//
// No method waits for the peer or runs a Notifier method below itself on the caller's stack, so that callers may hold
// locks. Methods may be called by many goroutines; PDUs leave in the order of the calls. After
// the connection has failed methods return an error that wraps ErrConnection.
type Datamover interface {
	// Info tells what the connection is and what bounds it sets.
	Info() DatamoverInfo

	// Start begins the upcalls. It is called once, before anything is sent.
	Start(n Notifier)

	// Alloc lends memory for command data: n octets that PutData, GetData and a command's
	// buffers can use without a copy. It never waits: ErrNoMemory when the connection's share
	// (DatamoverConfig) is used up. Contents are undefined.
	Alloc(n int) (Buffer, error)

	// AllocateConnectionResources prepares for full feature phase (RFC 5047, section 8.4.2):
	// receives for the command window, RDMA Read resources. The target calls it after
	// authentication and before its final Login Response; the initiator before the last Login Request.
	AllocateConnectionResources(r ConnectionResources) error
	// DeallocateConnectionResources undoes it when the login fails afterwards.
	DeallocateConnectionResources()
	// NoticeKeyValues tells the outcome of the negotiation (section 8.4.4), before
	// EnableDatamover.
	NoticeKeyValues(p *Params)
	// EnableDatamover switches to full feature phase (section 8.4.3). The target hands in its
	// final Login Response, which is sent as the last PDU before the switch; the initiator nil,
	// after it received that response.
	EnableDatamover(final *PDU) error

	// SendControl sends one PDU that is not Data-In, R2T or solicited Data-Out (section 8.3.1).
	// It takes p over and releases it once sent. For the initiator's SCSI Command, and for its TASK REASSIGN of
	// one that moves data (RFC 7145, section 7.3.3), t names the task's buffers; otherwise t is nil. A target that sends a SCSI Response ends the task: its
	// mappings are dropped (RFC 7145, section 7.3.2), and ExpDataSN is the caller's.
	SendControl(p *PDU, t *TaskBuffers) error
	// PutData moves data-in to the initiator (section 8.3.2): one Data-In PDU, or one RDMA Write.
	// Target only. At most Info().MaxPutData octets.
	PutData(d *DataIn) error
	// GetData fetches data-out from the initiator (section 8.3.3): one R2T and its Data-Out PDUs, or one RDMA
	// Read. Target only. At most MaxBurstLength octets. DataCompletionNotify tells the end.
	GetData(d *DataOut) error
	// DeallocateTaskResources ends a task that gets no SCSI Response (aborted; section 8.3.6): when it
	// returns no more data of it will be placed in this side's buffers, and outstanding PutData
	// and GetData of it are forgotten without a notification; their buffers are released by the Datamover.
	DeallocateTaskResources(itt uint32)

	// ConnectionTerminate ends the connection (section 8.4.6). With graceful, PDUs already given
	// to SendControl are sent first. Buffers are the caller's again when Done is closed.
	ConnectionTerminate(graceful bool)
	// Done is closed when the connection is down and no upcall runs or will run.
	Done() <-chan struct{}
}

// Notifier is the iSCSI layer as the Datamover sees it: RFC 5047's upcalls (section 9). The
// Datamover calls them one at a time, from the goroutine that reads the connection; they must not block. What
// they send leaves in one flush when all that was read together has been handled.
type Notifier interface {
	// ControlNotify delivers one PDU that is not data of a solicited transfer; p is the
	// receiver's until it calls p.Release. At the initiator the Datamover has put all data-in of the task into its
	// buffer before it delivers the SCSI Response, and no data of it can be placed any more; a Data-In that carries status
	// arrives as the SCSI Response that it stands for.
	ControlNotify(p *PDU)
	// DataCompletionNotify tells that a DataIn with Notify, or a DataOut, has ended. err is not
	// nil when the data did not arrive as asked; the task cannot go on then.
	DataCompletionNotify(itt uint32, tag uint64, err error)
	// DataACKNotify tells that the initiator has acknowledged data-in up to dataSN (ErrorRecoveryLevel > 0).
	DataACKNotify(itt uint32, dataSN uint32)
	// ConnectionTerminateNotify is the last upcall: the connection is down (err nil: closed
	// gracefully by the peer). It is not called after ConnectionTerminate.
	ConnectionTerminateNotify(err error)
}

// Meter is a Datamover that can tell how much its connection has moved, PDUs and data alike, so that one who waits for a PDU sees
// that its peer is alive meanwhile.
type Meter interface {
	// Moved counts what the peer sent, and what has left for it, since the connection's beginning. The unit is about an octet, and
	// a device that does not see what the peer does to memory does not count that.
	Moved() (received, sent uint64)
}

// DataStopper is a Datamover of an initiator that sends data-out itself. One whose target fetches the data has nothing to stop.
type DataStopper interface {
	// StopDataOut sends no Data-Out PDU of a task any more, but for the rest of one that has begun, and leaves R2Ts without an answer. Otherwise
	// the task goes on.
	StopDataOut(itt uint32)
}

// Buffer is memory that a Datamover lends. It can be used again only after Release; a buffer handed to PutData is
// released by the Datamover.
type Buffer interface {
	// Bytes has exactly the length that was asked for.
	Bytes() []byte
	Release()
}

// TaskBuffers are the initiator's buffers for one SCSI command. The Datamover may move data of
// the task until it has delivered the SCSI Response, or DeallocateTaskResources has returned.
type TaskBuffers struct {
	// In takes data-in; nil if none. Out holds data-out; nil if none. Buffers from Alloc of the same Datamover are used in place; any
	// other Buffer works, perhaps by a copy or a costlier registration.
	In, Out Buffer
	InLen   int // octets of In that the command may fill (its Expected Data Transfer Length)
	OutLen  int
	// Unsolicited is how many leading octets of Out the iSCSI layer itself sends, as immediate
	// data and unsolicited Data-Out PDUs.
	Unsolicited int
	// Acked and AckedSN are kept by a Datamover that acknowledges data-in (ErrorRecoveryLevel > 0): the first Acked octets of In, in Data-In
	// PDUs before AckedSN, will not be sent again. A TASK REASSIGN on another connection has the same TaskBuffers, once the
	// first connection is Done, and goes on from there (RFC 7143, section 11.5.6).
	Acked   int
	AckedSN uint32
}

// DataIn is one PutData.
type DataIn struct {
	LUN    uint64 // as on the wire, big-endian octets in the high-order first
	ITT    uint32
	TTT    uint32 // target transfer tag, 0xffffffff unless an acknowledgement is asked for
	DataSN uint32 // number of this Data-In within the task
	Offset int    // buffer offset within the task's data-in, octets
	Buf    Buffer // taken over; released when it has been sent
	From   int    // first octet within Buf
	Len    int    // octets to send
	Final  bool   // F bit: ends a sequence (at MaxBurstLength) or the data
	Ack    bool   // A bit: ask for a DataACKNotify (ErrorRecoveryLevel > 0)
	// More promises that the caller sends another PDU of this connection at once: the data may wait
	// for it. A Datamover may then fold a good SCSI Response into the last Data-In (RFC 7143, section 11.7.3).
	More bool
	// Notify asks for a DataCompletionNotify with Tag when Buf may be used again; Buf is then not released.
	Notify bool
	Tag    uint64
}

// DataOut is one GetData.
type DataOut struct {
	LUN    uint64
	ITT    uint32
	TTT    uint32 // target transfer tag, unique among the connection's outstanding ones
	R2TSN  uint32
	Offset int    // buffer offset within the task's data-out, octets
	Buf    Buffer // filled from To on; stays the caller's
	To     int
	Len    int // desired data transfer length, octets
	Tag    uint64
}

// ConnectionResources sizes a connection (RFC 5047, section 8.4.2; RFC 7145, sections 5.1 and 8.1).
type ConnectionResources struct {
	Target bool
	// Window is the number of non-immediate commands that may be in flight.
	Window int
	// RecvDataSegment is the largest data segment, in octets, of a PDU that this side must be
	// able to receive in full feature phase outside of solicited data.
	RecvDataSegment int
	MaxAHS          int // octets of AHS to be prepared for
	Discovery       bool
}

// DatamoverInfo describes a connection to the layer above.
type DatamoverInfo struct {
	Transport             string // "tcp" or "iser"
	LocalAddr, RemoteAddr net.Addr
	// RDMA tells that data moves by RDMA: keys of RFC 7145 apply, digests do not.
	RDMA bool
	// Handover tells that the login travels in a byte stream whose connection becomes an RDMA one behind it if
	// RDMAExtensions=Yes is agreed (RFC 7145, section 5.1). The Datamover is a Switch.
	Handover bool
	// MaxPutData is the most octets that one PutData moves: over TCP the peer's MaxRecvDataSegmentLength.
	MaxPutData int
	// MaxSendSegment is the most octets of data segment that the peer is sure to take in a PDU other
	// than Data-In, whatever was negotiated: 0 for no limit beyond the negotiation. (Linux's iSER
	// initiator takes 128.)
	MaxSendSegment int
	// Facts are negotiated values and counters for people, in a stable order.
	Facts []Fact
}

// Fact is one named value for people to read.
type Fact struct{ Layer, Name, Value string }

// Dialer makes a connection to a portal for an initiator: the factory that programs hand in, so
// that iSCSI does not know its Datamovers. addr is "host:port".
type Dialer interface {
	Dial(ctx context.Context, addr string) (Datamover, error)
}
