package initiator

import (
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Request is one SCSI command: what is asked, and what came of it. Its owner may use it again and again, so that commands cost no
// allocation; while it is under way (from Submit until Done) the owner leaves it and its buffers alone.
//
//	new --Submit--> queued --window open--> sent --SCSI Response--> done
//	                  |                       |
//	                  +------ Cancel ---------+--> ABORT TASK --> done (ErrAborted)
type Request struct {
	// CDB is the command. LongCDB, if not nil, stands in its place and may have more than 16 octets.
	CDB     scsi.CDB
	LongCDB []byte
	Attr    iscsi.TaskAttr
	// In takes InLen octets, Out gives OutLen; buffers from Session.Alloc are used in place. They stay the owner's.
	In, Out       iscsi.Buffer
	InLen, OutLen int
	// Done is called when the command has ended, on the goroutine that reads the connection (or in Submit or Cancel, if
	// it never was on its way): it must not block, but may submit. nil is for the package's own use.
	Done func(*Request)
	// Context is the owner's.
	Context any

	// Err is nil for status GOOD (and CONDITION MET), a *scsi.Error for any other, or why there is no status.
	Err    error
	Status scsi.Status
	// Residual is how many octets fewer were moved than expected; with Overflow how many more there would have been. Of a
	// bidirectional command it is the write's, and BidiResidual the read's.
	Residual     int
	Overflow     bool
	BidiResidual int
	BidiOverflow bool

	relay    relay // takes r when the session is done with it; nil: the owner
	journey        // with a Disk
	lun      uint64
	itt      uint32
	via      *branch // the connection; nil: the leading one
	cmdSN    iscsi.SN
	state    requestState
	sent     bool      // the target may have seen it
	late     bool      // outlived its deadline
	mute     bool      // its data-out was stopped, since it is being aborted
	todo     todo      // its connection was lost
	resent   uint8     // how often the target discarded it
	tick     uint32    // when it was sent, as deadline counts
	begun    time.Time // when it was submitted, for Hooks.Command
	prev     *Request  // in the session's queue
	next     *Request  // in the queue, or in a list of ended ones
	bufs     iscsi.TaskBuffers
	wake     chan struct{} // for a waiting caller, holds one
	inMem    memory
	outMem   memory
	list     [24]byte    // UNMAP's parameter list
	one      [1]*Request // itself, as a batch of one
	sense    [maxSense]byte
	senseLen int
}

// relay is what a command returns to, if not to its owner: it may send the command again.
type relay interface{ ended(r *Request) }

// maxSense is the most sense data that SPC-4 knows, in octets.
const maxSense = 252

type requestState uint8

const (
	requestIdle requestState = iota
	requestQueued
	requestSent
	requestEnded
)

// Sense is the sense data that came with the status, in place; empty if there was none.
func (r *Request) Sense() []byte { return r.sense[:r.senseLen] }

// Moved is how many octets of data-in (of a write: data-out) were really moved, as the target says.
func (r *Request) Moved() int {
	n := r.OutLen
	if n == 0 {
		n = r.InLen
	}
	if r.Overflow {
		return n
	}
	return n - r.Residual
}

// command is the CDB as it is sent.
func (r *Request) command() []byte {
	if r.LongCDB != nil {
		return r.LongCDB
	}
	return r.CDB[:]
}

// reset prepares r for another command of this package.
func (r *Request) reset() {
	wake := r.wake
	*r = Request{wake: wake}
}

// prepare makes r a command without data.
func (r *Request) prepare(cdb scsi.CDB) {
	r.CDB, r.LongCDB = cdb, nil
	r.In, r.InLen, r.Out, r.OutLen = nil, 0, nil, 0
}

// memory is a caller's own memory as a Buffer.
type memory struct{ b []byte }

func (m *memory) Bytes() []byte { return m.b }
func (m *memory) Release()      {}

// useIn and useOut let the command use the caller's memory.
func (r *Request) useIn(b []byte) {
	if len(b) > 0 {
		r.inMem.b, r.In, r.InLen = b, &r.inMem, len(b)
	}
}

func (r *Request) useOut(b []byte) {
	if len(b) > 0 {
		r.outMem.b, r.Out, r.OutLen = b, &r.outMem, len(b)
	}
}

// requestList is a queue of requests.
type requestList struct{ head, tail *Request }

func (l *requestList) push(r *Request) {
	r.prev, r.next = l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *requestList) pushFront(r *Request) {
	r.prev, r.next = nil, l.head
	if l.head == nil {
		l.tail = r
	} else {
		l.head.prev = r
	}
	l.head = r
}

// insert puts r behind at; nil is the front.
func (l *requestList) insert(r, at *Request) {
	switch {
	case at == nil:
		l.pushFront(r)
	case at == l.tail:
		l.push(r)
	default:
		r.prev, r.next = at, at.next
		at.next.prev, at.next = r, r
	}
}

func (l *requestList) remove(r *Request) {
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
}
