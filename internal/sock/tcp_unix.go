//go:build linux || freebsd || darwin

package sock

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tcpSocket does vectored, non-blocking reads and writes on the descriptor of a TCP connection. The
// attempts run inside the callbacks of its syscall.RawConn: the runtime's poller reports edges, so
// only an attempt made after the poller was armed may decide to wait. The callbacks are built once,
// and their arguments travel in fields, so that a call allocates nothing.
type tcpSocket struct {
	guard
	conn streamConn
	raw  syscall.RawConn

	rd struct {
		attempt func(fd uintptr) bool
		into    Scatter
		n       int
		err     error
		iov     iovec
	}
	wr struct {
		attempt func(fd uintptr) bool
		bufs    [][]byte
		wait    bool
		n       int
		err     error
		iov     iovec
	}
	ctl struct {
		sync.Mutex
		emss     func(fd uintptr)
		readable func(fd uintptr)
		value    int
		err      error
	}
}

// NewTCPSocket returns a Socket on c and turns Nagle's algorithm off, so that segments begin with
// FPDUs (RFC 5044, section 5.1). The Socket owns c from then on.
func NewTCPSocket(c *net.TCPConn) Socket {
	raw, err := c.SyscallConn()
	if err != nil {
		return NewConnSocket(c) // a closed or invalid connection: its methods tell why
	}
	_ = c.SetNoDelay(true)
	return newStreamSocket(c, raw)
}

// streamConn is what a tcpSocket needs of its connection besides the descriptor.
type streamConn interface {
	CloseWrite() error
	Close() error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// newUnixSocket returns a Socket on c, which it owns from then on.
func newUnixSocket(c *net.UnixConn) Socket {
	raw, err := c.SyscallConn()
	if err != nil {
		return NewConnSocket(c)
	}
	return newStreamSocket(c, raw)
}

func newStreamSocket(c streamConn, raw syscall.RawConn) *tcpSocket {
	s := &tcpSocket{conn: c, raw: raw}
	s.rd.attempt = s.tryRead
	s.wr.attempt = s.tryWrite
	s.ctl.emss = func(fd uintptr) {
		s.ctl.value, s.ctl.err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	}
	s.ctl.readable = func(fd uintptr) {
		s.ctl.value, s.ctl.err = unix.IoctlGetInt(int(fd), fionread)
	}
	return s
}

func (s *tcpSocket) Read(into Scatter) (int, error) {
	s.rd.into, s.rd.n, s.rd.err = into, 0, nil
	err := s.raw.Read(s.rd.attempt)
	s.rd.into = nil
	if s.rd.err != nil {
		err = s.rd.err
	}
	return s.rd.n, err
}

func (s *tcpSocket) tryRead(fd uintptr) bool {
	bufs, err := s.rd.into.Acquire()
	if err != nil {
		s.rd.err = err
		return true
	}
	n, err := s.rd.iov.readv(fd, bufs)
	if err != nil {
		s.rd.into.Release(0)
		if again(err) {
			return false
		}
		s.rd.err = os.NewSyscallError("readv", err)
		return true
	}
	s.rd.into.Release(n)
	if n == 0 {
		s.rd.err = io.EOF
	}
	s.rd.n = n
	return true
}

func (s *tcpSocket) TryWrite(bufs [][]byte) (int, error) { return s.write(bufs, false) }

func (s *tcpSocket) Write(bufs [][]byte) (int, error) { return s.write(bufs, true) }

func (s *tcpSocket) write(bufs [][]byte, wait bool) (int, error) {
	s.wr.bufs, s.wr.wait, s.wr.n, s.wr.err = bufs, wait, 0, nil
	err := s.raw.Write(s.wr.attempt)
	s.wr.bufs = nil
	if s.wr.err != nil {
		err = s.wr.err
	}
	return s.wr.n, err
}

func (s *tcpSocket) tryWrite(fd uintptr) bool {
	if s.wr.err = s.acquire(); s.wr.err != nil {
		return true
	}
	n, err := s.wr.iov.writev(fd, s.wr.bufs)
	s.release()
	if err != nil {
		if again(err) {
			return !s.wr.wait
		}
		s.wr.err = os.NewSyscallError("writev", err)
		return true
	}
	s.wr.n = n
	return true
}

func again(err error) bool { return err == unix.EAGAIN }

func (s *tcpSocket) control(f func(fd uintptr)) (int, bool) {
	s.ctl.Lock()
	defer s.ctl.Unlock()
	if err := s.raw.Control(f); err != nil {
		return 0, false
	}
	return s.ctl.value, s.ctl.err == nil
}

func (s *tcpSocket) EMSS() int {
	if n, ok := s.control(s.ctl.emss); ok && n > 0 {
		return n
	}
	return DefaultEMSS
}

func (s *tcpSocket) Readable() int {
	n, _ := s.control(s.ctl.readable)
	return n
}

func (s *tcpSocket) SetLinger(sec int) error            { return setLinger(s.conn, sec) }
func (s *tcpSocket) CloseWrite() error                  { return s.conn.CloseWrite() }
func (s *tcpSocket) Close() error                       { return s.conn.Close() }
func (s *tcpSocket) SetReadDeadline(t time.Time) error  { return s.conn.SetReadDeadline(t) }
func (s *tcpSocket) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }
func (s *tcpSocket) LocalAddr() net.Addr                { return s.conn.LocalAddr() }
func (s *tcpSocket) RemoteAddr() net.Addr               { return s.conn.RemoteAddr() }
