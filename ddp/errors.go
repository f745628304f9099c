package ddp

import (
	"errors"
	"fmt"
)

// Layer is DDP's number in a Terminate Message (RFC 5040, section 4.8).
const Layer = 1

// ErrorType groups DDP's errors (RFC 5041, section 7.2).
type ErrorType uint8

// Error types. Type 3 belongs to the layer below DDP.
const (
	LocalCatastrophic ErrorType = iota
	TaggedBuffer
	UntaggedBuffer
)

func (t ErrorType) String() string {
	switch t {
	case LocalCatastrophic:
		return "local"
	case TaggedBuffer:
		return "tagged"
	case UntaggedBuffer:
		return "untagged"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// ErrorCode tells the error within its type.
type ErrorCode uint8

// Codes of type LocalCatastrophic.
const (
	CodeLocal ErrorCode = 0
)

// Codes of type TaggedBuffer.
const (
	CodeInvalidSTag   ErrorCode = 0
	CodeBaseBounds    ErrorCode = 1
	CodeNotAssociated ErrorCode = 2
	CodeTOWrap        ErrorCode = 3
	CodeTaggedVersion ErrorCode = 4
)

// Codes of type UntaggedBuffer.
const (
	CodeInvalidQN       ErrorCode = 1
	CodeNoBuffer        ErrorCode = 2
	CodeMSNRange        ErrorCode = 3
	CodeInvalidMO       ErrorCode = 4
	CodeTooLong         ErrorCode = 5
	CodeUntaggedVersion ErrorCode = 6
)

var taggedNames = [...]string{"invalid STag", "base or bounds violation", "STag not associated with the stream", "TO wrap", "invalid DDP version"}

var untaggedNames = [...]string{1: "invalid QN", "no buffer available", "MSN out of range", "invalid MO", "message too long for its buffer", "invalid DDP version"}

// codeName names a code within its type.
func codeName(t ErrorType, c ErrorCode) string {
	switch {
	case t == LocalCatastrophic && c == CodeLocal:
		return "local catastrophic error"
	case t == TaggedBuffer && int(c) < len(taggedNames):
		return taggedNames[c]
	case t == UntaggedBuffer && c > 0 && int(c) < len(untaggedNames):
		return untaggedNames[c]
	}
	return fmt.Sprintf("code 0x%02x", uint8(c))
}

// Error is one of DDP's errors (RFC 5041, section 7.2), either found here in a peer's segment or
// reported by the peer about one of ours.
type Error struct {
	Type ErrorType
	Code ErrorCode
	// Remote is set when the peer reported the error in a Terminate Message.
	Remote bool
	// Detail says what and where, for people; it may be empty.
	Detail string
}

func (e *Error) Error() string {
	s := "ddp: "
	if e.Remote {
		s = "ddp: reported by the peer: "
	}
	s += e.Type.String() + ": " + codeName(e.Type, e.Code)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is matches an *Error of the same type, code and Remote flag, whatever the detail.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Type == e.Type && t.Code == e.Code && t.Remote == e.Remote
}

// Errors of local use; they never come from a peer's octets.
var (
	// ErrBound: a region that is valid cannot be bound again before it was invalidated.
	ErrBound = errors.New("ddp: region is bound")
	// ErrInvalid: the region was invalidated, or never bound.
	ErrInvalid = errors.New("ddp: region is not valid")
	// ErrFreed: the region's STag index was given back.
	ErrFreed = errors.New("ddp: region was freed")
	// ErrFull: no STag index is left.
	ErrFull = errors.New("ddp: STag table is full")
	// ErrBusy: the domain still has regions or streams.
	ErrBusy = errors.New("ddp: domain is in use")
	// ErrWrap: the buffer's offsets would pass 2^64.
	ErrWrap = errors.New("ddp: tagged offsets wrap")
	// ErrAccess: the region lacks a right that the operation needs.
	ErrAccess = errors.New("ddp: region lacks the needed right")
	// ErrBounds: an element reaches beyond its region.
	ErrBounds = errors.New("ddp: element reaches beyond its region")
	// ErrMessageTooLong: a message is longer than 2^32-1 octets (RFC 5041, section 5.2).
	ErrMessageTooLong = errors.New("ddp: message longer than 2^32-1 octets")
)
