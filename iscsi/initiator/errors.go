package initiator

import (
	"errors"
	"fmt"
	"strings"

	"goiwarp/iscsi"
)

// Errors of sessions and commands. Most come wrapped.
var (
	// ErrClosed: the session was closed or logged out on this side.
	ErrClosed = errors.New("initiator: session closed")
	// ErrLogoutRequested: the target asked for a logout, and got it.
	ErrLogoutRequested = errors.New("initiator: target asked for a logout")
	// ErrDropped: the target announced that it drops the session.
	ErrDropped = errors.New("initiator: target drops the session")
	// ErrAborted: the command was aborted, by this side or by a reset.
	ErrAborted = errors.New("initiator: command aborted")
	// ErrAbortUnanswered: the target did not answer a task management request, so the session was dropped.
	ErrAbortUnanswered = errors.New("initiator: task management request not answered")
	// ErrTimeout: the command outlived its deadline (Config.CommandTimeout). It comes as a *TimeoutError.
	ErrTimeout = errors.New("initiator: command not answered in time")
	// ErrDeadTarget: the target is silent, and did not answer a ping (Config.PingTimeout). It comes as a *DeadTargetError.
	ErrDeadTarget = errors.New("initiator: target does not answer")
	// ErrShort: the target moved less data than the command was for.
	ErrShort = errors.New("initiator: short transfer")
	// ErrBusy: too many requests other than commands are under way.
	ErrBusy = errors.New("initiator: too many requests under way")
)

// errClosedByTarget: the target closed the connection, in good order.
var errClosedByTarget = errors.New("closed by the target")

// SessionError is a session's end, and what all its open commands fail with. It wraps iscsi.ErrConnection and the cause.
type SessionError struct {
	Target string // name, or the portal's address in a discovery session
	Cause  error
}

func (e *SessionError) Error() string {
	cause := strings.TrimPrefix(fmt.Sprint(e.Cause), "initiator: ") // is said already
	return fmt.Sprintf("initiator: session with %s ended: %s", e.Target, cause)
}

// Unwrap gives iscsi.ErrConnection and the cause.
func (e *SessionError) Unwrap() []error { return []error{iscsi.ErrConnection, e.Cause} }

// RejectError is a PDU that the target rejected.
type RejectError struct {
	Opcode iscsi.Opcode // of what was rejected
	Reason iscsi.RejectReason
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("initiator: target rejects %v: %v", e.Opcode, e.Reason)
}

// ResponseError is a SCSI Response that says there is no SCSI status (RFC 7143, section 11.4.3).
type ResponseError struct{ Response uint8 }

func (e *ResponseError) Error() string {
	if e.Response == iscsi.ResponseTargetFailure {
		return "initiator: target failure"
	}
	return fmt.Sprintf("initiator: iSCSI response %#02x", e.Response)
}

// protocolError is something that the target sent and must not have.
func protocolError(p *iscsi.PDU, format string, args ...any) error {
	return &iscsi.ProtocolError{Opcode: p.Opcode(), Reason: iscsi.RejectProtocolError, Text: fmt.Sprintf(format, args...)}
}

func protocolErrorOf(op iscsi.Opcode, text string) error {
	return &iscsi.ProtocolError{Opcode: op, Reason: iscsi.RejectProtocolError, Text: text}
}
