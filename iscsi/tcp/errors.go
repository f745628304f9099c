package tcp

import (
	"fmt"

	"goiwarp/iscsi"
)

// Kind is what a peer's PDU did wrong.
type Kind int

// Kinds of errors. Each ends the connection, but for those that ErrorRecoveryLevel 1 mends (see the package's documentation).
const (
	// HeaderDigest: a header's CRC is wrong, so that nothing in it can be trusted (section 7.7).
	HeaderDigest Kind = iota + 1
	// DataDigest: a data segment's CRC is wrong (section 7.7).
	DataDigest
	// Format: lengths or fields that the PDU's kind does not allow (section 7.6).
	Format
	// Sequence: DataSN, R2TSN or Buffer Offset not the expected one, or the F bit missing or too early (section 7.8).
	Sequence
	// Overrun: more data than was asked for, or data that nobody asked for.
	Overrun
	// Underrun: less data than a good status claims to have come with it; the rest of the buffer is stale.
	Underrun
	// Backlog: the peer sends what must be answered and does not read the answers.
	Backlog
	// Truncated: the stream ended within a PDU.
	Truncated
)

var kindNames = [...]string{
	HeaderDigest: "header digest error", DataDigest: "data digest error", Format: "format error", Sequence: "sequence error",
	Overrun: "data beyond what was asked for", Underrun: "data missing under a good status", Backlog: "peer does not read", Truncated: "stream ends within a PDU",
}

func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("error kind %d", int(k))
}

// reason is the Reject reason that tells a peer of the error (RFC 7143, section 11.17.1); 0 for
// none.
func (k Kind) reason() byte {
	switch k {
	case DataDigest:
		return 0x02
	case Format, Sequence, Overrun:
		return 0x04
	}
	return 0
}

// Error is a fault of the peer that ended the connection. It wraps iscsi.ErrConnection.
type Error struct {
	Kind   Kind
	Opcode iscsi.Opcode // of the PDU; meaningless with HeaderDigest
	ITT    uint32
	Detail string // what was found and what was expected
	Remote bool   // the peer caused it; false: this side's layer above did
}

func (e *Error) Error() string {
	s := fmt.Sprintf("iscsi/tcp: %v", e.Kind)
	if e.Kind != HeaderDigest && e.Kind != Backlog && e.Kind != Truncated {
		s += fmt.Sprintf(": opcode %#02x ITT %#x", byte(e.Opcode), e.ITT)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is tells that target is an *Error of the same kind, so that errors.Is(err, &Error{Kind: DataDigest}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind
}

// Unwrap returns iscsi.ErrConnection.
func (e *Error) Unwrap() error { return iscsi.ErrConnection }

// violation is an Error about the PDU h.
func violation(k Kind, h iscsi.BHS, format string, args ...any) *Error {
	return &Error{Kind: k, Opcode: h.Opcode(), ITT: h.ITT(), Detail: fmt.Sprintf(format, args...), Remote: true}
}
