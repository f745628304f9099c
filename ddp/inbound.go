package ddp

import "fmt"

func (f Fault) String() string {
	switch f {
	case NoFault:
		return "no fault"
	case FaultSTag:
		return "no such STag"
	case FaultStream:
		return "STag of another stream"
	case FaultAccess:
		return "right not granted"
	case FaultWrap:
		return "TO wrap"
	case FaultBounds:
		return "out of bounds"
	case FaultShared:
		return "shared by several streams"
	}
	return fmt.Sprintf("fault %d", uint8(f))
}

// TaggedFault turns the fault of a tagged segment with n octets of payload into DDP's error (RFC 5041, section 7.2). DDP has no
// code of its own for a right that was not granted: such an STag is invalid for writing.
func TaggedFault(f Fault, h Tagged, n int) *Error {
	e := &Error{Type: TaggedBuffer, Detail: fmt.Sprintf("%v TO %#x length %d: %v", h.STag(), h.TO(), n, f)}
	switch f {
	case FaultBounds:
		e.Code = CodeBaseBounds
	case FaultStream:
		e.Code = CodeNotAssociated
	case FaultWrap:
		e.Code = CodeTOWrap
	default:
		e.Code = CodeInvalidSTag
	}
	return e
}
