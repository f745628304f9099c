package mpa

import (
	"encoding/binary"
	"errors"
	"io"
)

const (
	// HeadSize is how much of a ULPDU Next waits for at least, as far as it has so much: any
	// header of DDP and RDMAP fits.
	HeadSize = 64

	// readBuffer is the size of the reading half's buffer: any FPDU, and room to read on.
	readBuffer = 72 << 10
	// wholeLen is the ULPDU length up to which Next waits for the whole FPDU. To place less than
	// this directly would cost more than the copy.
	wholeLen = CopyLen
	// largeLen is the ULPDU length from which on the reader expects more such FPDUs, until it meets
	// one of wholeLen or less, and reads only readAhead octets beyond the end of a payload: trailer
	// and next header. So the next payload goes straight to its place, too.
	largeLen  = 16 << 10
	readAhead = 256
	// compactLen is how many octets are moved to the front of the buffer to read more at once.
	compactLen = 4 << 10
)

// reader is the reading half of a Conn: a buffer over the socket, the position of its first octet in
// the stream, and the FPDU that is being handed out.
//
//	buf  |....consumed....|r....buffered....|w....free....|
type reader struct {
	c       *Conn
	crc     bool
	markers bool
	buf     []byte
	r, w    int
	pos     uint64 // of buf[r] in the stream of full operation
	large   bool   // FPDUs are large, read little ahead
	err     error  // what Next returns for good
	f       FPDU
	win     window
	count   counters
}

var _ = [1]struct{}{}[max(maxFPDU-readBuffer, 0)] // the buffer holds any FPDU

func (in *reader) init(c *Conn) {
	in.c = c
	in.crc = c.params.CRC
	in.markers = c.params.MarkersIn
	in.buf = make([]byte, readBuffer)
	in.f.in = in
	in.win.in = in
	in.win.list = make([][]byte, 0, 8)
}

// Next waits for the next FPDU, until its length and the first HeadSize octets of its ULPDU, or all
// of a short one, are there. The FPDU is valid until the following call of Next; one that was not
// read to its end is then checked and dropped.
//
// Next returns io.EOF when the peer has ended its half of the connection between two FPDUs, and an
// *Error otherwise: CodeLost, or CodeCRC or CodeMarker for a damaged FPDU. After an error it returns
// the same one for good, as nothing may be delivered any more (RFC 5044, section 8). It never closes
// the connection, so that the layers above can still send a Terminate Message.
func (c *Conn) Next() (*FPDU, error) {
	in := &c.in
	if in.err == nil {
		in.next()
	}
	if in.err != nil {
		return nil, in.err
	}
	return &in.f, nil
}

// fail ends the reading half with err. The first FPDU opens the gate even if it fails its checks: its
// sender is in full operation, and a Terminate Message has to tell of it. Otherwise none will come.
func (in *reader) fail(err error) error {
	in.err = err
	in.f.state = spent
	if errors.Is(err, ErrCRC) || errors.Is(err, ErrMarker) {
		in.c.open()
	} else {
		in.c.shut(err)
	}
	return err
}

// next reads the FPDU's head; failures are left in in.err.
func (in *reader) next() {
	if in.f.finish() != nil {
		return
	}
	pre := 0 // a Marker between two FPDUs belongs to the second
	if in.markers && in.pos%markerStep == 0 {
		pre = markerLen
	}
	if in.fill(pre+lengthLen) != nil {
		return
	}
	n := int(binary.BigEndian.Uint16(in.buf[in.r+pre:]))
	size := fpduLen(n)
	raw := pre + size
	if in.markers {
		raw += markerLen * innerMarkers(in.pos+uint64(pre), size)
	}
	if n >= largeLen {
		in.large = true
	} else if n <= wholeLen { // what lies between may be the end of a large message
		in.large = false
	}
	in.f.begin(n, pre, raw)
	if n <= wholeLen || in.markers || in.w-in.r >= raw {
		if in.fill(raw) != nil {
			return
		}
		_ = in.f.verify()
		return
	}
	if in.fill(lengthLen+HeadSize) != nil {
		return
	}
	in.f.headOnly()
}

// fill waits until n octets are buffered, n at most maxFPDU.
func (in *reader) fill(n int) error {
	for in.w-in.r < n {
		have := in.w - in.r
		if have == 0 {
			in.r, in.w = 0, 0
		}
		if in.r+n > len(in.buf) || have <= compactLen && in.r > len(in.buf)/2 {
			copy(in.buf, in.buf[in.r:in.w])
			in.r, in.w = 0, have
		}
		end := len(in.buf)
		if in.large {
			end = min(end, in.r+n+readAhead)
		}
		in.win.buffer(in.buf[in.w:end])
		if err := in.read(); err != nil {
			return err
		}
	}
	return nil
}

// read does one read of the socket into the window and turns its failure into ours.
func (in *reader) read() error {
	_, err := in.c.sock.Read(&in.win)
	switch {
	case err == nil:
		return nil
	case in.win.err != nil: // the destination's own
		return in.win.err
	case err == io.EOF:
		if in.f.state == spent && in.w == in.r {
			return in.fail(io.EOF)
		}
		return in.fail(&Error{Code: CodeLost, Detail: "FIN inside an FPDU", Err: io.ErrUnexpectedEOF})
	}
	return in.fail(&Error{Code: CodeLost, Err: err})
}

// Buffered reports whether another complete FPDU lies in the buffer behind the current one, so that
// Next will not wait. It is how a caller that batches finds the end of its batch.
func (c *Conn) Buffered() bool {
	in := &c.in
	if in.err != nil {
		return false
	}
	r, pos := in.r, in.pos
	switch in.f.state {
	case whole:
		r, pos = r+in.f.raw, pos+uint64(in.f.raw)
	case partial, broken:
		return false
	}
	pre := 0
	if in.markers && pos%markerStep == 0 {
		pre = markerLen
	}
	have := in.w - r
	if have < pre+lengthLen {
		return false
	}
	size := fpduLen(int(binary.BigEndian.Uint16(in.buf[r+pre:])))
	raw := pre + size
	if in.markers {
		raw += markerLen * innerMarkers(pos+uint64(pre), size)
	}
	return have >= raw
}

// window is the Scatter that the socket reads into: what is left of an FPDU's payload goes to its
// destination, what comes behind it to the buffer. The CRC is continued over each piece of payload
// while its memory is still on loan.
type window struct {
	in   *reader
	dst  Scatter  // nil if all goes to the buffer
	due  int      // octets of payload that dst has still to take
	tail []byte   // free part of the buffer
	lent int      // octets of dst in this attempt
	sum  uint32   // CRC up to the last octet that dst took
	list [][]byte // reused
	err  error    // of dst
}

// buffer sets the window up for the buffer alone.
func (v *window) buffer(tail []byte) {
	v.dst, v.due, v.tail, v.err = nil, 0, tail, nil
}

// place sets the window up for n octets to dst and what follows to tail.
func (v *window) place(dst Scatter, n int, tail []byte) {
	v.dst, v.due, v.tail, v.err = dst, n, tail, nil
}

// Acquire lends the destination and the buffer behind it.
func (v *window) Acquire() ([][]byte, error) {
	v.list, v.lent = v.list[:0], 0
	if v.due > 0 {
		if err := v.borrow(); err != nil {
			return nil, err
		}
	}
	if v.lent == v.due {
		v.list = append(v.list, v.tail)
	}
	return v.list, nil
}

// borrow puts the destination's buffers on the list, as far as the payload goes.
func (v *window) borrow() error {
	bufs, err := v.dst.Acquire()
	if err != nil {
		v.err = err
		return err
	}
	for _, b := range bufs {
		if n := v.due - v.lent; len(b) > n {
			b = b[:n]
		}
		if len(b) > 0 {
			v.list = append(v.list, b)
			v.lent += len(b)
		}
	}
	if v.lent == 0 {
		v.dst.Release(0)
		v.err = errorf(CodeLocal, "destination is %d octets short", v.due)
		return v.err
	}
	return nil
}

// Release passes n octets on to the destination and the buffer.
func (v *window) Release(n int) {
	d := min(n, v.lent)
	if v.lent > 0 {
		if v.in.crc {
			left := d
			for _, b := range v.list {
				if left == 0 {
					break
				}
				b = b[:min(left, len(b))]
				v.sum = crc(v.sum, b)
				left -= len(b)
			}
		}
		v.dst.Release(d)
		v.due -= d
	}
	v.in.w += n - d
	clear(v.list) // hold on to nobody's memory
}
