package sock

import (
	"net"
	"time"
)

// Socket is the byte stream under MPA. Reads and writes attempt first and wait only if nothing
// moves, so that the goroutine that posts work can also send it.
//
// One goroutine at a time may use the reading half (Read), one the writing half (TryWrite, Write,
// EMSS); the two do not disturb each other. Close and the deadlines may be called by anyone.
type Socket interface {
	// Read waits until it can read at least one octet, into the buffers that s acquires. It
	// returns io.EOF after the peer's FIN, and an error of s.Acquire as it is.
	Read(s Scatter) (int, error)
	// TryWrite writes what the socket takes now, without waiting: (0, nil) when it is full.
	TryWrite(bufs [][]byte) (int, error)
	// Write waits until the socket has taken at least one octet.
	Write(bufs [][]byte) (int, error)
	// EMSS is the effective maximum segment size now, in octets of payload (RFC 5044, section 2).
	// It may change as TCP learns about the path. It may cost a system call.
	EMSS() int
	// CloseWrite sends the FIN behind what was written.
	CloseWrite() error
	// Close frees the socket; a Read or Write that waits returns an error.
	Close() error
	// SetReadDeadline and SetWriteDeadline bound the waiting in Read and in Write, as net.Conn
	// does; the zero time means no bound.
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// Scatter lends memory to a read. Memory is lent only while octets are being copied, never while
// the read waits for the peer: so a memory region can be invalidated at any time without waiting
// for octets that may never come.
type Scatter interface {
	// Acquire returns the buffers that the next octets go to, in order. It is called right before
	// each attempt to read. If it returns an error, Release is not called.
	Acquire() ([][]byte, error)
	// Release ends the loan; n octets have been written to the buffers, 0 if the attempt found
	// none. The list that Acquire returned is not used afterwards.
	Release(n int)
}

// NewSocket returns a Socket on c: c's own if c has a method Socket, a non-blocking and vectored one if it is a TCP or a Unix connection,
// else NewConnSocket.
func NewSocket(c net.Conn) Socket {
	switch c := c.(type) {
	case interface{ Socket() Socket }:
		return c.Socket()
	case *net.TCPConn:
		return NewTCPSocket(c)
	case *net.UnixConn:
		return newUnixSocket(c)
	}
	return NewConnSocket(c)
}

// EarlyReader is a Socket that knows whether octets wait to be read. A responder asks before it
// answers a Request, since an initiator may send nothing before the Reply.
type EarlyReader interface {
	Readable() int
}

// SliceScatter is a Scatter into one slice; Read octets go to B, which shrinks from the front.
type SliceScatter struct {
	B    []byte // what is still to be filled
	list [1][]byte
}

// Acquire lends B.
func (s *SliceScatter) Acquire() ([][]byte, error) {
	s.list[0] = s.B
	return s.list[:], nil
}

// Release cuts the filled n octets off B.
func (s *SliceScatter) Release(n int) {
	s.B = s.B[n:]
	s.list[0] = nil
}
