package mpa

import (
	"fmt"
)

// Code is an MPA error code: the Error Code of a Terminate Message with layer 2 (LLP) and error
// type 0 (MPA). RFC 5044, section 8, and RFC 6581, section 8.
type Code uint8

// Error codes.
const (
	CodeLost   Code = 1 // TCP connection closed, reset or timed out
	CodeCRC    Code = 2 // CRC of a received FPDU is wrong
	CodeMarker Code = 3 // a Marker and the ULPDU Length fields disagree
	CodeFrame  Code = 4 // invalid Request or Reply frame
	CodeLocal  Code = 5 // local catastrophic error
	CodeIRD    Code = 6 // insufficient IRD resources
	CodeRTR    Code = 7 // no matching Ready-To-Receive form
)

// Layer and error type that a Terminate Message carries for an error of this package (RFC 5040,
// section 4.8).
const (
	TerminateLayer = 2 // LLP
	TerminateType  = 0 // MPA
)

// String names the code for a log.
func (c Code) String() string {
	switch c {
	case CodeLost:
		return "connection lost"
	case CodeCRC:
		return "CRC mismatch"
	case CodeMarker:
		return "marker disagrees with FPDU lengths"
	case CodeFrame:
		return "invalid startup frame"
	case CodeLocal:
		return "local error"
	case CodeIRD:
		return "insufficient IRD"
	case CodeRTR:
		return "no matching RTR form"
	}
	return fmt.Sprintf("error code %d", uint8(c))
}

// Error is an error of the MPA layer. errors.Is matches it against the Err… values by Code.
type Error struct {
	Code   Code
	Remote bool   // the peer reported it, in a Terminate Message
	Detail string // what happened where; may be empty
	Err    error  // cause, or nil
}

// Error formats e on one line.
func (e *Error) Error() string {
	s := "mpa: "
	if e.Remote {
		s += "peer reports "
	}
	s += e.Code.String()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same code, so that errors.Is(err, ErrCRC) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Detail == "" && t.Err == nil
}

// Targets for errors.Is, one for each code.
var (
	ErrLost   error = &Error{Code: CodeLost}
	ErrCRC    error = &Error{Code: CodeCRC}
	ErrMarker error = &Error{Code: CodeMarker}
	ErrFrame  error = &Error{Code: CodeFrame}
	ErrLocal  error = &Error{Code: CodeLocal}
	ErrIRD    error = &Error{Code: CodeIRD}
	ErrRTR    error = &Error{Code: CodeRTR}
)

func errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// RejectError says that the responder's ULP refused the connection with a Reply whose R bit is
// set. MPA is over, the TCP connection is still open (RFC 5044, section 7.1.2, rule 3).
type RejectError struct {
	PrivateData []byte // of the responder's ULP
	Enhanced    bool   // the Reply held IRD and ORD
	IRD, ORD    int    // as in the Reply; an ORD above what was offered is the one that the ULP needs
}

// Error formats e on one line.
func (e *RejectError) Error() string {
	s := fmt.Sprintf("mpa: connection rejected by the peer, %d octets of private data", len(e.PrivateData))
	if e.Enhanced {
		s += fmt.Sprintf(", IRD %d ORD %d", e.IRD, e.ORD)
	}
	return s
}
