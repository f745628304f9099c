package sock

import (
	"errors"
	"io"
	"net"
	"time"
)

// DefaultEMSS is assumed where the system does not tell: an Ethernet frame without the IPv4 and TCP
// headers and the timestamp option (RFC 5044, section 5.1).
const DefaultEMSS = 1500 - 20 - 20 - 12

// connBuffer is the size of a connSocket's buffer, in octets.
const connBuffer = 64 << 10

// connSocket carries MPA over any net.Conn. A net.Conn cannot wait without a buffer, nor write
// without waiting: so octets pass through a buffer of its own, and TryWrite leaves all to Write.
type connSocket struct {
	net.Conn
	guard
	buf  []byte
	r, w int
	err  error // what Read returns once the buffer is empty
	list net.Buffers
	out  []byte // what a guarded write copies to
}

// NewConnSocket returns a Socket on any net.Conn, at the price of a copy and of a goroutine switch
// for writes: TryWrite never takes anything. The Socket owns c from then on.
func NewConnSocket(c net.Conn) Socket {
	return &connSocket{Conn: c}
}

func (s *connSocket) Read(into Scatter) (int, error) {
	if s.r == s.w {
		if s.err != nil {
			return 0, s.err
		}
		if s.buf == nil {
			s.buf = make([]byte, connBuffer)
		}
		n, err := 0, error(nil)
		for n == 0 && err == nil {
			n, err = s.Conn.Read(s.buf)
		}
		s.r, s.w = 0, n
		if n == 0 {
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				s.err = err
			}
			return 0, err
		}
	}
	bufs, err := into.Acquire()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, b := range bufs {
		n += copy(b, s.buf[s.r+n:s.w])
	}
	into.Release(n)
	s.r += n
	if n == 0 {
		return 0, io.ErrShortBuffer
	}
	return n, nil
}

func (s *connSocket) TryWrite([][]byte) (int, error) { return 0, nil }

func (s *connSocket) Write(bufs [][]byte) (int, error) {
	if s.g != nil {
		return s.writeGuarded(bufs)
	}
	s.list = append(s.list[:0], bufs...)
	keep := s.list // WriteTo moves s.list along
	n, err := s.list.WriteTo(s.Conn)
	clear(keep)
	s.list = keep[:0]
	return int(n), err
}

// writeGuarded takes a copy while the memory is on loan, and waits without it.
func (s *connSocket) writeGuarded(bufs [][]byte) (int, error) {
	if s.out == nil {
		s.out = make([]byte, connBuffer)
	}
	if err := s.acquire(); err != nil {
		return 0, err
	}
	n := 0
	for _, b := range bufs {
		n += copy(s.out[n:], b)
	}
	s.release()
	return s.Conn.Write(s.out[:n])
}

func (s *connSocket) EMSS() int { return DefaultEMSS }

func (s *connSocket) Readable() int { return s.w - s.r }

func (s *connSocket) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return s.Conn.Close() // no half close: all that is left to say goodbye with
}

// SetReadDeadline bounds the waiting in Read.
func (s *connSocket) SetReadDeadline(t time.Time) error { return s.Conn.SetReadDeadline(t) }
