package mpa

import (
	"encoding/binary"
	"io"
)

// FPDU is the FPDU that Next returned. It is reused by the following call of Next, with all that it
// refers to.
type FPDU struct {
	// Len is the length of the ULPDU in octets, 0 to MaxULPDU.
	Len int
	// Head is the beginning of the ULPDU, free of Markers: all of it if Whole, else HeadSize
	// octets. It stays valid and unchanged until the following call of Next.
	Head []byte
	// Whole says that all of the FPDU is buffered. Its CRC has been checked then. The ULPDU of
	// an FPDU that is not whole must not be trusted before Fill or ReadTo has returned nil.
	Whole bool

	in    *reader
	state fpduState
	pre   int    // octets of a Marker before the ULPDU Length
	raw   int    // octets in the stream, Markers included
	sum   uint32 // of an FPDU in pieces: CRC up to what has been consumed
	due   int    // of an FPDU in pieces: octets of the ULPDU not yet consumed
	head  [HeadSize]byte
}

// fpduState says how far an FPDU has been consumed.
//
//	spent --Next--> whole ------------------------Next--> spent
//	      --Next--> partial --Fill---> whole
//	                        --ReadTo-> spent, or broken if the destination failed
//	                                          broken --Next--> spent
type fpduState uint8

const (
	spent   fpduState = iota // none, or consumed: buf[r] is the next FPDU's first octet
	whole                    // all of it at buf[r], checked
	partial                  // its beginning at buf[r], at least the head
	broken                   // in the midst of the ULPDU, due octets before its end
)

// begin starts an FPDU at buf[r], of which the length has been seen.
func (f *FPDU) begin(n, pre, raw int) {
	f.Len, f.pre, f.raw = n, pre, raw
	f.Head, f.Whole, f.state = nil, false, partial
}

// headOnly makes the head available, in a copy: the buffer moves while the rest is read.
func (f *FPDU) headOnly() {
	at := f.in.r + lengthLen
	f.Head = f.head[:copy(f.head[:], f.in.buf[at:at+HeadSize])]
}

// Fill waits until all of the FPDU is buffered, and checks it; then it is Whole. Its error is one of
// Next's.
func (f *FPDU) Fill() error {
	in := f.in
	switch {
	case in.err != nil:
		return in.err
	case f.state != partial:
		return nil
	}
	if err := in.fill(f.raw); err != nil {
		return err
	}
	return f.verify()
}

// verify checks the FPDU that lies complete at buf[r] and takes the Markers out of it.
func (f *FPDU) verify() error {
	in := f.in
	b := in.buf[in.r : in.r+f.raw]
	if in.crc {
		if err := f.compare(crc(0, b[:f.raw-crcLen]), b[f.raw-crcLen:]); err != nil {
			return err
		}
	}
	if in.markers {
		if err := f.stripMarkers(b); err != nil {
			return err
		}
	}
	at := f.pre + lengthLen
	f.Head = b[at : at+f.Len : at+f.Len]
	f.Whole, f.state = true, whole
	f.good()
	return nil
}

// compare holds a computed CRC against the one in the stream.
func (f *FPDU) compare(sum uint32, field []byte) error {
	in := f.in
	bump(&in.count.crcs, 1)
	if got := binary.LittleEndian.Uint32(field); got != sum {
		bump(&in.count.crcErrors, 1)
		return in.fail(errorf(CodeCRC, "FPDU with a ULPDU of %d octets at offset %d: %08x, computed %08x",
			f.Len, in.pos, got, sum))
	}
	return nil
}

// good is called once for each FPDU that has passed all checks.
func (f *FPDU) good() {
	in := f.in
	bump(&in.count.fpdus, 1)
	bump(&in.count.octets, uint64(f.Len))
	if !in.c.gateOpen.Load() {
		in.c.open()
	}
}

// stripMarkers checks the FPDU's Markers and closes the gaps that they leave, so that the ULPDU is
// contiguous. b is the FPDU with its Markers.
func (f *FPDU) stripMarkers(b []byte) error {
	in := f.in
	count := 0
	if f.pre > 0 {
		count++
		if p := markerPtr(b); p != 0 {
			return f.badMarker(0, p, 0)
		}
	}
	start := in.pos + uint64(f.pre) // of the ULPDU Length
	src := f.pre + untilMarker(start)
	dst := src
	for src < len(b) {
		// FPDUPTR has 16 bits; the outermost octets of a huge FPDU are beyond it.
		if p, want := markerPtr(b[src:]), int(uint16(src-f.pre)); p != want {
			return f.badMarker(src, p, want)
		}
		count++
		src += markerLen
		n := copy(b[dst:], b[src:min(src+markerGap, len(b))])
		dst, src = dst+n, src+n
	}
	bump(&in.count.markers, uint64(count))
	return nil
}

func (f *FPDU) badMarker(at, ptr, want int) error {
	return f.in.fail(errorf(CodeMarker, "FPDUPTR %d at offset %d, FPDU begins %d before", ptr, f.in.pos+uint64(at), want))
}

// CopyTo copies octets of a whole FPDU's ULPDU, from offset off on, to dst. It returns how many there
// were: fewer than len(dst) at the ULPDU's end, 0 if the FPDU is not Whole.
func (f *FPDU) CopyTo(off int, dst []byte) int {
	if !f.Whole || off >= f.Len {
		return 0
	}
	return copy(dst, f.Head[off:])
}

// ReadTo moves the ULPDU from offset off to its end into the memory that s lends: first what is
// buffered, then the rest straight from the socket. off must lie within Head. s has to lend at least
// one octet as long as some are due; what it lends beyond the end of the ULPDU is left alone.
//
// The CRC is checked at the end, so memory has been written when ReadTo returns an error. Only when
// it returns nil is the FPDU good. Errors of s.Acquire are returned as they are and do not end the
// connection: the rest of the FPDU is dropped by Next. Other errors are Next's.
func (f *FPDU) ReadTo(off int, s Scatter) error {
	in := f.in
	switch {
	case in.err != nil:
		return in.err
	case off > len(f.Head):
		return errorf(CodeLocal, "placement at offset %d, only %d octets of the ULPDU are looked at", off, len(f.Head))
	case f.state == whole:
		return place(s, f.Head[off:])
	case f.state != partial:
		return errorf(CodeLocal, "FPDU has been read already")
	}
	// What is buffered of the ULPDU. The FPDU has no Markers, or it would be whole.
	at := in.r + lengthLen
	have := min(in.w-at, f.Len)
	if in.crc {
		f.sum = crc(0, in.buf[in.r:at+have])
	}
	err := place(s, in.buf[at+off:at+have])
	f.state, f.due = broken, f.Len-have
	in.r = at + have
	if err != nil {
		return err
	}
	if f.due > 0 {
		if err := f.readRest(s); err != nil {
			return err
		}
	}
	return f.trailer()
}

// readRest reads what is due into s, and on into the buffer, which is empty.
func (f *FPDU) readRest(s Scatter) error {
	in := f.in
	in.r, in.w = 0, 0
	tail := in.buf
	if in.large {
		tail = tail[:readAhead]
	}
	in.win.place(s, f.due, tail)
	in.win.sum = f.sum
	var err error
	for in.win.due > 0 && err == nil {
		err = in.read()
	}
	f.due, f.sum = in.win.due, in.win.sum
	in.win.dst = nil
	return err
}

// trailer reads and checks what follows the ULPDU. The FPDU is spent then.
func (f *FPDU) trailer() error {
	in := f.in
	pad := padLen(f.Len)
	if err := in.fill(pad + crcLen); err != nil {
		return err
	}
	b := in.buf[in.r : in.r+pad+crcLen]
	if in.crc {
		if err := f.compare(crc(f.sum, b[:pad]), b[pad:]); err != nil {
			return err
		}
	}
	in.r += len(b)
	in.pos += uint64(f.raw)
	f.state = spent
	f.good()
	return nil
}

// finish consumes what is left of the FPDU.
func (f *FPDU) finish() error {
	in := f.in
	if f.state == partial {
		if err := f.Fill(); err != nil {
			return err
		}
	}
	switch f.state {
	case whole:
		in.r += f.raw
		in.pos += uint64(f.raw)
		f.state = spent
	case broken:
		for f.due > 0 {
			if err := in.fill(1); err != nil {
				return err
			}
			n := min(f.due, in.w-in.r)
			if in.crc {
				f.sum = crc(f.sum, in.buf[in.r:in.r+n])
			}
			in.r += n
			f.due -= n
		}
		return f.trailer()
	}
	return nil
}

// place copies b into the memory that s lends.
func place(s Scatter, b []byte) error {
	for len(b) > 0 {
		bufs, err := s.Acquire()
		if err != nil {
			return err
		}
		n := 0
		for _, dst := range bufs {
			n += copy(dst, b[n:])
		}
		s.Release(n)
		if n == 0 {
			return &Error{Code: CodeLocal, Detail: "destination is too short", Err: io.ErrShortBuffer}
		}
		b = b[n:]
	}
	return nil
}
