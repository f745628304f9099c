package iscsi

import (
	"errors"
	"fmt"
	"io"
)

var padding [4]byte

// Errors of framing.
var (
	// ErrTooLong: a PDU longer than this side has to take, or than its length fields can tell.
	ErrTooLong = errors.New("iscsi: PDU too long")
	// ErrHeaderDigest: the header's digest is wrong, so nothing in the header, its lengths included, can be believed.
	ErrHeaderDigest = errors.New("iscsi: header digest error")
	// ErrDataDigest: the data segment's digest is wrong.
	ErrDataDigest = errors.New("iscsi: data digest error")
)

// Pad is how many octets of padding follow n octets (RFC 7143, section 11.1).
func Pad(n int) int { return -n & 3 }

// Frame says where the parts of one PDU lie in the stream, from its BHS (RFC 7143, section 11.1). All lengths are in octets.
type Frame struct {
	AHS          int // Additional Header Segments
	HeaderDigest int // 4 or 0
	Data         int // data segment without padding
	Pad          int
	DataDigest   int // 4 or 0; 0 also if there is no data segment
}

// FrameOf takes the lengths from a BHS, with the digests that were negotiated.
func FrameOf(bhs []byte, headerDigest, dataDigest bool) Frame {
	h := BHS(bhs)
	f := Frame{AHS: h.AHSLen(), Data: h.DataLen()}
	f.Pad = Pad(f.Data)
	if headerDigest {
		f.HeaderDigest = DigestLen
	}
	if dataDigest && f.Data > 0 {
		f.DataDigest = DigestLen
	}
	return f
}

// Header is the length of what comes before the data segment.
func (f Frame) Header() int { return BHSLen + f.AHS + f.HeaderDigest }

// Total is the length of the whole PDU in the stream.
func (f Frame) Total() int { return f.Header() + f.Data + f.Pad + f.DataDigest }

// SetLengths fills the length fields of the BHS from AHS and Data. ErrTooLong if they cannot be told.
func (p *PDU) SetLengths() error {
	if len(p.AHS) > MaxAHS || len(p.AHS)%4 != 0 || len(p.Data) > MaxDataSegment {
		return fmt.Errorf("%w: AHS %d, data segment %d", ErrTooLong, len(p.AHS), len(p.Data))
	}
	h := BHS(p.BHS[:])
	h.SetAHSLen(len(p.AHS))
	h.SetDataLen(len(p.Data))
	return nil
}

// AppendPDU appends p as it stands in the stream, padding and digests included, and fills p's length fields.
func AppendPDU(dst []byte, p *PDU, headerDigest, dataDigest bool) ([]byte, error) {
	if err := p.SetLengths(); err != nil {
		return dst, err
	}
	dst = append(dst, p.BHS[:]...)
	dst = append(dst, p.AHS...)
	if headerDigest {
		dst = AppendDigest(dst, Digest(Digest(0, p.BHS[:]), p.AHS))
	}
	if len(p.Data) > 0 {
		dst = append(dst, p.Data...)
		pad := padding[:Pad(len(p.Data))]
		dst = append(dst, pad...)
		if dataDigest {
			dst = AppendDigest(dst, Digest(Digest(0, p.Data), pad))
		}
	}
	return dst, nil
}

// DecodePDU takes one PDU from the front of b and tells its length in the stream. AHS and Data lie within b. It fails with
// io.ErrUnexpectedEOF when b ends before the PDU does, ErrTooLong when the data segment is longer than maxData,
// ErrHeaderDigest or ErrDataDigest.
func DecodePDU(b []byte, headerDigest, dataDigest bool, maxData int) (p PDU, n int, err error) {
	if len(b) < BHSLen {
		return p, 0, io.ErrUnexpectedEOF
	}
	f := FrameOf(b, headerDigest, dataDigest)
	if len(b) < f.Header() {
		return p, 0, io.ErrUnexpectedEOF
	}
	if at := BHSLen + f.AHS; headerDigest && !DigestOK(b[at:], Digest(0, b[:at])) {
		return p, 0, ErrHeaderDigest
	}
	if f.Data > maxData {
		return p, 0, fmt.Errorf("%w: data segment of %d octets, limit %d", ErrTooLong, f.Data, maxData)
	}
	n = f.Total()
	if len(b) < n {
		return p, 0, io.ErrUnexpectedEOF
	}
	copy(p.BHS[:], b)
	if f.AHS > 0 {
		p.AHS = b[BHSLen : BHSLen+f.AHS : BHSLen+f.AHS]
	}
	if f.Data > 0 {
		d := f.Header()
		p.Data = b[d : d+f.Data : d+f.Data]
		if end := d + f.Data + f.Pad; dataDigest && !DigestOK(b[end:], Digest(0, b[d:end])) {
			return p, n, ErrDataDigest
		}
	}
	return p, n, nil
}
