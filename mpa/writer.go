package mpa

import (
	"encoding/binary"
	"sync"

	"goiwarp/internal/sock"
)

const (
	// chunkLen is the size of the pieces that the arena grows by: headers, trailers and copied
	// payload lie in them.
	chunkLen = 16 << 10
	// CopyLen is the ULPDU length up to which payload is copied behind its header, unless there are Markers: one
	// piece is cheaper than a list of pieces, here and in the kernel. A block of 4 KiB with its headers is one.
	CopyLen = 4<<10 + 64
	// emssRefresh is after how many octets the socket is asked for its EMSS again.
	emssRefresh = 32 << 10
	// keepList is the capacity up to which an idle connection keeps its list of buffers.
	keepList = 1024
)

// chunk is a piece of arena. end is the stream offset behind the last octet that lies in it.
type chunk struct {
	b   [chunkLen]byte
	end uint64
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// writer is the writing half of a Conn: a list of the buffers that have to go to the socket. Some
// refer to payload in its place, the others to the arena. The octets are counted from the beginning
// of full operation, queued ahead of sent.
type writer struct {
	c       *Conn
	crc     bool
	markers bool
	queued  uint64
	sent    uint64
	list    [][]byte // list[first:] are due
	first   int
	inArena bool // the last entry ends where the arena's next octet goes
	arena   []*chunk
	used    int // octets of the arena's last chunk
	err     error

	largest int    // ULPDU size allowed beyond the segment, or 0
	mulpdu  int    // as of the last look at the EMSS
	lookAt  uint64 // when queued has come here, look again

	// The FPDU with Markers in work: stream offset of its ULPDU Length, CRC so far, room for a field.
	start uint64
	sum   uint32
	field [lengthLen]byte

	count counters
}

func (o *writer) init(c *Conn, largest int) {
	o.c = c
	o.crc = c.params.CRC
	o.markers = c.params.MarkersOut
	o.largest = largest
	if o.markers {
		o.largest = min(largest, MaxMULPDU)
	}
	o.look()
}

func (o *writer) look() {
	o.mulpdu = max(mulpdu(o.c.sock.EMSS(), o.markers), o.largest)
	o.lookAt = o.queued + emssRefresh
}

// MULPDU is the largest ULPDU that should be appended now: what fits a TCP segment of the present
// EMSS (RFC 5044, section 4.5), or Options.MaxFPDU if that is more. It follows the EMSS as that
// changes.
func (c *Conn) MULPDU() int {
	o := &c.out
	if o.queued >= o.lookAt {
		o.look()
	}
	return o.mulpdu
}

// Append queues the FPDU around one ULPDU: head and then the payload. head is copied; the payload is
// referred to and must hold still until Sent has reached end, the stream offset behind the FPDU: the
// CRC is computed now. A ULPDU beyond MaxULPDU panics, for the caller knows better.
func (c *Conn) Append(head []byte, payload [][]byte) (end uint64) {
	return c.out.append(head, payload, false)
}

// AppendCopy is Append for payload that may change before it is sent: it is copied.
func (c *Conn) AppendCopy(head []byte, payload [][]byte) (end uint64) {
	return c.out.append(head, payload, true)
}

func (o *writer) append(head []byte, payload [][]byte, copied bool) uint64 {
	n := len(head)
	for _, b := range payload {
		n += len(b)
	}
	if n > MaxULPDU {
		panic("mpa: ULPDU is longer than its length field can say")
	}
	switch {
	case o.markers:
		o.appendMarked(n, head, payload)
	case n <= CopyLen:
		o.appendSmall(n, head, payload)
	default:
		o.appendPlain(n, head, payload, copied)
	}
	bump(&o.count.fpdus, 1)
	bump(&o.count.octets, uint64(n))
	if o.crc {
		bump(&o.count.crcs, 1)
	}
	return o.queued
}

// appendSmall queues an FPDU without Markers as one piece of the arena.
func (o *writer) appendSmall(n int, head []byte, payload [][]byte) {
	b := o.reserve(fpduLen(n))
	binary.BigEndian.PutUint16(b, uint16(n))
	at := lengthLen + copy(b[lengthLen:], head)
	for _, p := range payload {
		at += copy(b[at:], p)
	}
	clear(b[at:]) // pad, and the CRC where there is none
	if at = len(b) - crcLen; o.crc {
		binary.LittleEndian.PutUint32(b[at:], crc(0, b[:at]))
	}
}

// appendPlain queues an FPDU without Markers. The CRC is computed over the arena where octets are
// copied there: they are in the cache.
func (o *writer) appendPlain(n int, head []byte, payload [][]byte, copied bool) {
	h := o.reserve(lengthLen + min(len(head), chunkLen/2))
	binary.BigEndian.PutUint16(h, uint16(n))
	rest := head[copy(h[lengthLen:], head):]
	sum := uint32(0)
	if o.crc {
		sum = crc(0, h)
	}
	if len(rest) > 0 {
		sum = o.copyIn(sum, rest)
	}
	for _, b := range payload {
		switch {
		case len(b) == 0:
		case copied:
			sum = o.copyIn(sum, b)
		default:
			if o.crc {
				sum = crc(sum, b)
			}
			o.push(b, false)
		}
	}
	t := o.reserve(padLen(n) + crcLen)
	clear(t)
	pad := t[:len(t)-crcLen]
	if o.crc {
		binary.LittleEndian.PutUint32(t[len(pad):], crc(sum, pad))
	}
}

// appendMarked queues an FPDU with Markers, all of it in the arena.
func (o *writer) appendMarked(n int, head []byte, payload [][]byte) {
	o.sum = 0
	if o.queued%markerStep == 0 {
		o.mark(0)
	}
	o.start = o.queued
	binary.BigEndian.PutUint16(o.field[:], uint16(n))
	o.through(o.field[:lengthLen])
	o.through(head)
	for _, b := range payload {
		o.through(b)
	}
	o.through(zeros[:padLen(n)])
	if o.queued%markerStep == 0 {
		o.mark(int(o.queued - o.start)) // between pad and CRC: still this FPDU's
	}
	t := o.reserve(crcLen)
	clear(t)
	if o.crc {
		binary.LittleEndian.PutUint32(t, o.sum)
	}
}

var zeros [crcLen]byte

// through copies b to the arena and puts Markers where they are due before an octet of b.
func (o *writer) through(b []byte) {
	for len(b) > 0 {
		if o.queued%markerStep == 0 {
			o.mark(int(o.queued - o.start))
		}
		n := min(len(b), untilMarker(o.queued))
		o.sum = o.copyIn(o.sum, b[:n])
		b = b[n:]
	}
}

// mark puts a Marker into the stream, back octets behind the ULPDU Length that it points to.
func (o *writer) mark(back int) {
	m := o.reserve(markerLen)
	putMarker(m, back)
	if o.crc {
		o.sum = crc(o.sum, m)
	}
	bump(&o.count.markers, 1)
}

// reserve queues n octets of the arena, in one piece; n is at most chunkLen.
func (o *writer) reserve(n int) []byte {
	if len(o.arena) == 0 || o.used+n > chunkLen {
		o.arena = append(o.arena, chunks.Get().(*chunk))
		o.used, o.inArena = 0, false
	}
	c := o.arena[len(o.arena)-1]
	b := c.b[o.used : o.used+n]
	o.used += n
	o.push(b, true)
	c.end = o.queued
	return b
}

// copyIn copies b to the arena, across pieces, and continues the CRC over the copy.
func (o *writer) copyIn(sum uint32, b []byte) uint32 {
	for len(b) > 0 {
		room := chunkLen - o.used
		if len(o.arena) == 0 || room == 0 {
			room = chunkLen
		}
		to := o.reserve(min(room, len(b)))
		copy(to, b)
		if o.crc {
			sum = crc(sum, to)
		}
		b = b[len(to):]
	}
	return sum
}

// push queues b. Neighbours in the arena become one entry.
func (o *writer) push(b []byte, arena bool) {
	o.queued += uint64(len(b))
	if arena && o.inArena {
		last := &o.list[len(o.list)-1]
		*last = (*last)[:len(*last)+len(b)]
		return
	}
	o.list = append(o.list, b)
	o.inArena = arena
}

// Pending is the number of octets that are queued and not yet taken by the socket. The caller bounds
// it: memory for headers and copies grows with it.
func (c *Conn) Pending() int { return int(c.out.queued - c.out.sent) }

// Sent is the number of octets that the socket has taken since full operation began. The memory of
// an FPDU is free again once Sent has reached what Append returned for it.
func (c *Conn) Sent() uint64 { return c.out.sent }

// TryFlush hands to the socket what it takes without waiting, many FPDUs with one vectored write. done
// reports that nothing is pending any more. A responder's FPDUs stay until the initiator's first has
// arrived. Errors are *Error with CodeLost, and stay.
func (c *Conn) TryFlush() (done bool, err error) {
	o := &c.out
	if !c.gateOpen.Load() {
		if err := c.refused(); err != nil && o.err == nil {
			o.wrote(0, err)
		}
		return o.queued == o.sent && o.err == nil, o.err
	}
	for o.queued != o.sent && o.err == nil {
		bufs := o.next()
		n, err := c.sock.TryWrite(bufs)
		full := n < sizeOf(bufs)
		o.wrote(n, err)
		if full {
			break
		}
	}
	return o.queued == o.sent && o.err == nil, o.err
}

// Flush hands everything to the socket and waits as long as that takes. For a responder this
// includes the wait for the initiator's first FPDU.
func (c *Conn) Flush() error {
	o := &c.out
	if o.queued == o.sent {
		return o.err
	}
	<-c.gate
	if err := c.refused(); err != nil && o.err == nil {
		o.wrote(0, err)
	}
	for o.queued != o.sent && o.err == nil {
		o.wrote(c.sock.Write(o.next()))
	}
	return o.err
}

// next is what one vectored write can take.
func (o *writer) next() [][]byte {
	return o.list[o.first:min(len(o.list), o.first+sock.MaxIovec)]
}

func sizeOf(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return n
}

// wrote accounts for the outcome of a write.
func (o *writer) wrote(n int, err error) {
	if err != nil {
		if e, ok := err.(*Error); ok {
			o.err = e
		} else {
			o.err = &Error{Code: CodeLost, Err: err}
		}
	}
	o.sent += uint64(n)
	for n > 0 {
		b := o.list[o.first]
		if n < len(b) {
			o.list[o.first] = b[n:]
			break
		}
		n -= len(b)
		o.list[o.first] = nil
		o.first++
	}
	if o.first == len(o.list) {
		o.first, o.list, o.inArena = 0, o.list[:0], false
		if cap(o.list) > keepList {
			o.list = nil
		}
	} else if o.first >= keepList && o.first > len(o.list)/2 {
		n := copy(o.list, o.list[o.first:])
		clear(o.list[n:])
		o.first, o.list = 0, o.list[:n]
	}
	o.free()
}

// free gives back the arena's pieces that have been sent. One stays, for the next small message.
func (o *writer) free() {
	n := 0
	for n < len(o.arena)-1 && o.arena[n].end <= o.sent {
		chunks.Put(o.arena[n])
		n++
	}
	if n > 0 {
		o.arena = append(o.arena[:0], o.arena[n:]...)
		clear(o.arena[len(o.arena):cap(o.arena)])
	}
	if o.sent == o.queued {
		o.used = 0
	}
}
