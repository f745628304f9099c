package iser

import (
	"errors"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// Errors that connections and calls wrap.
var (
	// ErrNoReads: the connection allows no RDMA Reads (ORD 0), so that solicited data cannot be fetched.
	ErrNoReads = errors.New("iser: the peer serves no RDMA Reads (IRD 0)")
	// ErrNoSTag: the initiator advertised no memory for what the call would move.
	ErrNoSTag = errors.New("iser: the task has no advertised STag")
	// ErrTask: a SCSI Command whose Initiator Task Tag belongs to a task that is still active.
	ErrTask = errors.New("iser: task tag is in use")
	// ErrTooLarge: more data than the peer, the device or the pool can take at once.
	ErrTooLarge = errors.New("iser: too much data at once")
	// ErrNotISER: a PDU that has no place on an iSER connection (RFC 7145, section 7.3).
	ErrNotISER = errors.New("iser: PDU has no place on an iSER connection")
	// ErrUnexpectedLimit: the peer's MaxOutstandingUnexpectedPDUs is reached; the PDU must not be sent
	// now (RFC 7145, section 8.1).
	ErrUnexpectedLimit = errors.New("iser: limit of outstanding unexpected PDUs reached")
	// ErrRole: a primitive that only the other role has.
	ErrRole = errors.New("iser: not a primitive of this role")
	// ErrHelloRejected: the target refused the Hello (RFC 7145, section 10.1.3.2).
	ErrHelloRejected = errors.New("iser: Hello rejected")
)

// HeaderError is an iSER format or protocol error (RFC 7145, sections 10.1.3.3 and 10.1.3.4). It ends
// the connection.
type HeaderError struct {
	Reason string
	Header []byte // a copy of the offending message's beginning; may be nil
}

func (e *HeaderError) Error() string {
	if len(e.Header) == 0 {
		return "iser: " + e.Reason
	}
	return fmt.Sprintf("iser: %s (message begins %x)", e.Reason, e.Header)
}

// LengthError is a message that is not as long as its headers say (RFC 7145, section 10.1.3.3). It
// ends the connection.
type LengthError struct {
	What      string
	Got, Want int // octets
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("iser: %s of %d octets, its headers call for %d", e.What, e.Got, e.Want)
}

// InvalidationError is a Send with Invalidate that took an STag which is not its task's (RFC 7145, section
// 7.3.2). It ends the connection.
type InvalidationError struct {
	ITT  uint32
	STag rnic.STag
}

func (e *InvalidationError) Error() string {
	return fmt.Sprintf("iser: the peer invalidated STag 0x%08x, which is not one of task 0x%08x", uint32(e.STag), e.ITT)
}

// UnderrunError is a good status of a read with less data than it claims to have come: the rest of the buffer is stale. It ends the
// connection.
type UnderrunError struct {
	ITT    uint32
	Placed uint64 // octets
	Want   int64  // octets
}

func (e *UnderrunError) Error() string {
	return fmt.Sprintf("iser: the target wrote %d octets for task 0x%08x, whose good status claims %d", e.Placed, e.ITT, e.Want)
}

// CreditError is a peer that has more PDUs outstanding than it was allowed. It ends the connection.
type CreditError struct{ Held, Limit int }

func (e *CreditError) Error() string {
	return fmt.Sprintf("iser: peer has %d PDUs outstanding, %d are provided for", e.Held, e.Limit)
}

// ResourceError says why AllocateConnectionResources failed; a target answers the login with status
// 0302 (RFC 7145, section 10.1.3.1).
type ResourceError struct {
	What        string
	Asked, Have int
}

func (e *ResourceError) Error() string {
	return fmt.Sprintf("iser: %s: %d asked for, %d left", e.What, e.Asked, e.Have)
}

// connectionError is what calls return, and upcalls get, once the connection is down.
type connectionError struct{ cause error }

func (e *connectionError) Error() string {
	if e.cause == nil {
		return iscsi.ErrConnection.Error()
	}
	return iscsi.ErrConnection.Error() + ": " + e.cause.Error()
}

func (e *connectionError) Unwrap() []error {
	if e.cause == nil {
		return []error{iscsi.ErrConnection}
	}
	return []error{iscsi.ErrConnection, e.cause}
}
