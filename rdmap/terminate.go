package rdmap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// Terminate is the Terminate Header (RFC 5040, section 4.8): why the sender ends the stream, and which
// segment made it do so.
//
//	 0      4      8              16 17 18 19            32
//	+------+------+--------------+--+--+--+--------------+
//	|layer | type |    code      |M |D |R |   reserved   |
//	+------+------+--------------+--+--+--+--------------+
//	| DDP Segment Length (if M)  | DDP header (if D) …    14 or 18 octets
//	+----------------------------+-----------------------+
//	| RDMA Read Request Header (if R) …                    28 octets
//	+----------------------------------------------------+
//
// Linux soft-iWARP on little-endian hosts sends the control word with layer and type swapped and M, D, R in the
// lowest bits of its third octet; ParseTerminate reads both forms.
type Terminate struct {
	Layer, Type, Code uint8

	// SegmentLen is the length of the DDP segment at fault, valid if HasLen (M).
	SegmentLen uint16
	HasLen     bool
	// DDP is that segment's header (D), ReadRequest the RDMA Read Request Header (R); nil if absent.
	DDP         []byte
	ReadRequest []byte

	// Swapped tells that a received message had soft-iWARP's form.
	Swapped bool
}

const (
	termControl = 4
	// MaxTerminate is the longest Terminate Header.
	MaxTerminate = termControl + 2 + ddp.UntaggedLen + ReadRequestLen

	termM, termD, termR             = 0x80, 0x40, 0x20
	termSwapM, termSwapD, termSwapR = 0x01, 0x02, 0x04
	termSwapMask                    = termSwapM | termSwapD | termSwapR
)

// Append appends the header in the RFC's form.
func (t *Terminate) Append(b []byte) []byte {
	b = append(b, t.Layer<<4|t.Type&15, t.Code, 0, 0)
	ctl := len(b) - 2
	if !t.HasLen {
		return b
	}
	b[ctl] |= termM
	b = binary.BigEndian.AppendUint16(b, t.SegmentLen)
	if t.DDP != nil {
		b[ctl] |= termD
		b = append(b, t.DDP...)
		if t.ReadRequest != nil {
			b[ctl] |= termR
			b = append(b, t.ReadRequest...)
		}
	}
	return b
}

// ParseTerminate reads a Terminate Header in either form. Octets behind what it announces are ignored, and what is announced
// but not there is absent: the message's point is the reason, and the stream is over anyway. The error is for less than a control word.
// started says that FPDUs had come before, so that MPA's two startup errors are not what the peer means.
// The result's slices point into b.
func ParseTerminate(b []byte, started bool) (*Terminate, error) {
	if len(b) < termControl {
		return nil, fmt.Errorf("rdmap: Terminate Message of %d octets", len(b))
	}
	t := &Terminate{Layer: b[0] >> 4, Type: b[0] & 15, Code: b[1]}
	m, d, r := b[2]&termM != 0, b[2]&termD != 0, b[2]&termR != 0
	if swappedTerminate(b, started) {
		t.Swapped = true
		t.Layer, t.Type = t.Type, t.Layer
		m, d, r = b[2]&termSwapM != 0, b[2]&termSwapD != 0, b[2]&termSwapR != 0
	}
	b = b[termControl:]
	if !m || len(b) < 2 {
		return t, nil
	}
	t.SegmentLen, t.HasLen = binary.BigEndian.Uint16(b), true
	b = b[2:]
	if !d || len(b) < ddp.MinLen {
		return t, nil
	}
	n := ddp.Control(b).HeaderLen()
	if len(b) < n {
		return t, nil
	}
	t.DDP, b = b[:n:n], b[n:]
	if r && len(b) >= ReadRequestLen {
		t.ReadRequest = b[:ReadRequestLen:ReadRequestLen]
	}
	return t, nil
}

// swappedTerminate decides which form a control word has. The header bits tell if any is set; else the
// form in which layer, type and code name an error that exists; and if both do, the RFC's.
func swappedTerminate(b []byte, started bool) bool {
	if b[2]&(termM|termD|termR) != 0 {
		return false
	}
	if b[2]&termSwapMask != 0 {
		return true
	}
	hi, lo := b[0]>>4, b[0]&15
	return !plausible(hi, lo, b[1], started) && plausible(lo, hi, b[1], started)
}

// plausible says whether layer, type and code name an error.
func plausible(layer, typ, code uint8, started bool) bool {
	switch layer {
	case Layer:
		switch ErrorType(typ) {
		case LocalCatastrophic:
			return true
		case RemoteProtection:
			return code <= 4 || code == 9 || code == 0xFF
		case RemoteOperation:
			return code >= 5 && code <= 9 || code == 0xFF
		}
	case ddp.Layer:
		switch ddp.ErrorType(typ) {
		case ddp.LocalCatastrophic:
			return code == 0
		case ddp.TaggedBuffer:
			return code <= 4
		case ddp.UntaggedBuffer:
			return code >= 1 && code <= 6
		}
	case mpa.TerminateLayer:
		if started && (mpa.Code(code) == mpa.CodeIRD || mpa.Code(code) == mpa.CodeRTR) {
			return false
		}
		return typ == mpa.TerminateType && code >= 1 && code <= 7
	}
	return false
}

// TerminateError says that a Terminate Message ended the stream: the peer's, as a rule.
type TerminateError struct {
	Layer, Type, Code uint8
	Remote            bool
	// Message is what was received.
	Message Terminate
}

// Error names the layer's error.
func (e *TerminateError) Error() string {
	s := "rdmap: stream terminated"
	if e.Remote {
		s += " by the peer"
	}
	if err := e.Unwrap(); err != nil {
		return s + ": " + err.Error()
	}
	return fmt.Sprintf("%s: layer %d type %d code 0x%02x", s, e.Layer, e.Type, e.Code)
}

// Unwrap returns the layer's own error: an *Error, a *ddp.Error or an *mpa.Error, with its Remote flag
// set as here; nil for a layer that does not exist.
func (e *TerminateError) Unwrap() error {
	switch e.Layer {
	case Layer:
		return &Error{Type: ErrorType(e.Type), Code: ErrorCode(e.Code), Remote: e.Remote, Detail: e.where()}
	case ddp.Layer:
		return &ddp.Error{Type: ddp.ErrorType(e.Type), Code: ddp.ErrorCode(e.Code), Remote: e.Remote, Detail: e.where()}
	case mpa.TerminateLayer:
		if e.Type == mpa.TerminateType {
			return &mpa.Error{Code: mpa.Code(e.Code), Remote: e.Remote}
		}
	}
	return nil
}

// where names the segment that the message quotes.
func (e *TerminateError) where() string {
	h := e.Message.DDP
	switch {
	case h == nil:
		return ""
	case ddp.Control(h).Tagged():
		return ddp.Tagged(h).String()
	}
	return ddp.Untagged(h).String()
}

// codeOf returns the layer, type and code with which a Terminate Message reports err.
func codeOf(err error) (layer, typ, code uint8) {
	var (
		r *Error
		d *ddp.Error
		m *mpa.Error
	)
	switch {
	case errors.As(err, &r):
		return Layer, uint8(r.Type), uint8(r.Code)
	case errors.As(err, &d):
		return ddp.Layer, uint8(d.Type), uint8(d.Code)
	case errors.As(err, &m):
		return mpa.TerminateLayer, mpa.TerminateType, uint8(m.Code)
	}
	return Layer, uint8(LocalCatastrophic), 0
}
