package iscsi

import (
	"fmt"
	"strings"
)

// LoginStatus is the status of a Login Response: class in the high octet, detail in the low one
// (RFC 7143, section 11.13.5).
type LoginStatus uint16

// Login statuses.
const (
	LoginOK                 LoginStatus = 0x0000
	LoginMovedTemporarily   LoginStatus = 0x0101
	LoginMovedPermanently   LoginStatus = 0x0102
	LoginInitiatorError     LoginStatus = 0x0200
	LoginAuthFailed         LoginStatus = 0x0201
	LoginForbidden          LoginStatus = 0x0202
	LoginNotFound           LoginStatus = 0x0203
	LoginTargetRemoved      LoginStatus = 0x0204
	LoginBadVersion         LoginStatus = 0x0205
	LoginTooManyConnections LoginStatus = 0x0206
	LoginMissingParameter   LoginStatus = 0x0207
	LoginCannotInclude      LoginStatus = 0x0208
	LoginBadSessionType     LoginStatus = 0x0209
	LoginNoSession          LoginStatus = 0x020a
	LoginInvalidRequest     LoginStatus = 0x020b
	LoginTargetError        LoginStatus = 0x0300
	LoginUnavailable        LoginStatus = 0x0301
	LoginNoResources        LoginStatus = 0x0302
)

// Class is the status class: 0 success, 1 redirection, 2 the initiator's fault, 3 the target's.
func (s LoginStatus) Class() uint8 { return uint8(s >> 8) }

// Detail is the status detail within the class.
func (s LoginStatus) Detail() uint8 { return uint8(s) }

var loginStatusNames = map[LoginStatus]string{
	LoginOK: "success", LoginMovedTemporarily: "target moved temporarily", LoginMovedPermanently: "target moved permanently",
	LoginInitiatorError: "initiator error", LoginAuthFailed: "authentication failure", LoginForbidden: "authorization failure",
	LoginNotFound: "target not found", LoginTargetRemoved: "target removed", LoginBadVersion: "unsupported version",
	LoginTooManyConnections: "too many connections", LoginMissingParameter: "missing parameter",
	LoginCannotInclude: "cannot include connection in session", LoginBadSessionType: "session type not supported",
	LoginNoSession: "session does not exist", LoginInvalidRequest: "invalid during login", LoginTargetError: "target error",
	LoginUnavailable: "service unavailable", LoginNoResources: "out of resources",
}

// Name is the status in words; "status xxxxh" if it has none.
func (s LoginStatus) Name() string {
	if n, ok := loginStatusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("status %04xh", uint16(s))
}

func (s LoginStatus) String() string {
	if n, ok := loginStatusNames[s]; ok {
		return fmt.Sprintf("%04x (%s)", uint16(s), n)
	}
	return fmt.Sprintf("%04x", uint16(s))
}

// LoginError is a login that failed: refused by a target, or given up by an initiator.
type LoginError struct {
	// Class and Detail are the login status (RFC 7143, section 11.13.5): what the target answers, or answered. An initiator that
	// gives up by itself has nothing to send, and both are 0.
	Class, Detail uint8
	// Remote tells that the other side decided.
	Remote bool
	// Text says what was wrong, for people.
	Text string
	// Address is where to go instead, host:port, with class 1 (redirection).
	Address string
	// Err is the cause, if there is one.
	Err error
}

// NewLoginError is a refusal with a status and the reason in words.
func NewLoginError(s LoginStatus, format string, args ...any) *LoginError {
	return &LoginError{Class: s.Class(), Detail: s.Detail(), Text: fmt.Sprintf(format, args...)}
}

// Status is class and detail in one.
func (e *LoginError) Status() LoginStatus { return LoginStatus(e.Class)<<8 | LoginStatus(e.Detail) }

func (e *LoginError) Error() string {
	var b strings.Builder
	b.WriteString("iscsi: login ")
	switch {
	case e.Class == 1:
		b.WriteString("redirected to " + e.Address)
	case e.Remote:
		b.WriteString("refused by the target")
	case e.Status() == LoginOK:
		b.WriteString("given up")
	default:
		b.WriteString("refused")
	}
	if e.Status() != LoginOK {
		b.WriteString(": " + e.Status().String())
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap is the cause.
func (e *LoginError) Unwrap() error { return e.Err }

// Is matches another *LoginError by its status, so that errors.Is(err, &LoginError{Class: 2, Detail: 1}) works.
func (e *LoginError) Is(target error) bool {
	t, ok := target.(*LoginError)
	return ok && t.Class == e.Class && t.Detail == e.Detail
}

// Temporary tells that the same login may succeed later: the fault is the target's (class 3).
func (e *LoginError) Temporary() bool { return e.Class == 3 }
