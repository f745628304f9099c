package rdmap

import (
	"errors"
	"fmt"
)

// Layer is RDMAP's number in a Terminate Message (RFC 5040, section 4.8).
const Layer = 0

// ErrorType groups RDMAP's errors (RFC 5040, figure 9).
type ErrorType uint8

// Error types.
const (
	LocalCatastrophic ErrorType = iota
	RemoteProtection
	RemoteOperation
)

func (t ErrorType) String() string {
	switch t {
	case LocalCatastrophic:
		return "local"
	case RemoteProtection:
		return "remote protection"
	case RemoteOperation:
		return "remote operation"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// ErrorCode tells the error within its type (RFC 5040, figure 9; RFC 6580, section 3.1).
type ErrorCode uint8

// Codes. The first five belong to RemoteProtection, the next four to RemoteOperation, the last two to both.
const (
	CodeInvalidSTag        ErrorCode = 0x00
	CodeBaseBounds         ErrorCode = 0x01
	CodeAccess             ErrorCode = 0x02
	CodeNotAssociated      ErrorCode = 0x03
	CodeTOWrap             ErrorCode = 0x04
	CodeVersion            ErrorCode = 0x05
	CodeUnexpectedOpcode   ErrorCode = 0x06
	CodeCatastrophicStream ErrorCode = 0x07
	CodeCatastrophicGlobal ErrorCode = 0x08
	CodeCannotInvalidate   ErrorCode = 0x09
	CodeUnspecified        ErrorCode = 0xFF
)

func (c ErrorCode) String() string {
	switch c {
	case CodeInvalidSTag:
		return "invalid STag"
	case CodeBaseBounds:
		return "base or bounds violation"
	case CodeAccess:
		return "access rights violation"
	case CodeNotAssociated:
		return "STag not associated with the stream"
	case CodeTOWrap:
		return "TO wrap"
	case CodeVersion:
		return "invalid RDMAP version"
	case CodeUnexpectedOpcode:
		return "unexpected opcode"
	case CodeCatastrophicStream:
		return "catastrophic error of the stream"
	case CodeCatastrophicGlobal:
		return "catastrophic error of the device"
	case CodeCannotInvalidate:
		return "STag cannot be invalidated"
	case CodeUnspecified:
		return "unspecified error"
	}
	return fmt.Sprintf("code 0x%02x", uint8(c))
}

// Error is one of RDMAP's own errors, found here in a peer's message or reported by the peer about
// one of ours.
type Error struct {
	Type ErrorType
	Code ErrorCode
	// Remote is set when the peer reported the error in a Terminate Message.
	Remote bool
	// Detail says what and where, for people; it may be empty.
	Detail string
	// Err is the cause of a local error, or nil.
	Err error
}

func (e *Error) Error() string {
	s := "rdmap: "
	if e.Remote {
		s = "rdmap: reported by the peer: "
	}
	s += e.Type.String()
	if e.Type == LocalCatastrophic {
		s += " catastrophic error"
	} else {
		s += ": " + e.Code.String()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is matches an *Error of the same type, code and Remote flag, whatever the detail.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Type == e.Type && t.Code == e.Code && t.Remote == e.Remote
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errors of local use.
var (
	// ErrFlushed: the operation or receive was not executed, or it is not known whether it was,
	// because the stream ended first.
	ErrFlushed = errors.New("rdmap: flushed")
	// ErrClosed: the stream takes no more work.
	ErrClosed = errors.New("rdmap: stream is closed")
	// ErrQueueFull: the send queue has no room for all the operations of a Post.
	ErrQueueFull = errors.New("rdmap: send queue is full")
	// ErrBadOp: an operation's fields do not fit its code.
	ErrBadOp = errors.New("rdmap: malformed operation")
	// ErrNoORD: the operation needs an RDMA Read or Atomic credit and the connection has none at all.
	ErrNoORD = errors.New("rdmap: no outbound RDMA Reads were agreed (ORD 0)")
	// ErrNoRTR: a peer-to-peer initiator never sent its Ready-To-Receive message.
	ErrNoRTR = errors.New("rdmap: no Ready-To-Receive message came")
)

// flushError is the error of what was outstanding when a stream ended.
type flushError struct{ cause error }

func (e *flushError) Error() string {
	if e.cause == nil {
		return ErrFlushed.Error() + ": the stream was closed"
	}
	return ErrFlushed.Error() + ": " + e.cause.Error()
}

// Is makes every flushError an ErrFlushed.
func (e *flushError) Is(target error) bool { return target == ErrFlushed }

func (e *flushError) Unwrap() error { return e.cause }
