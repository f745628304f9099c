package sock

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bare is a stream socket outside the runtime's poller, as a connection and as a syscall.RawConn: who waits does so at its gates.
type bare struct {
	file          *os.File // counts the users of the descriptor, and never waits
	raw           syscall.RawConn
	in, out       *gate
	local, remote net.Addr
	poller        *Poller // of a leader, else nil
	shut          bool    // the gate in is, of a leader

	rd, wr attempt
}

// attempt is a half's callback and its calls. They are built once, so that a call allocates nothing.
type attempt struct {
	f    func(fd uintptr) bool
	done bool
	err  error
	call func(fd uintptr)      // f, through file
	wait func(ep uintptr) bool // the same, through a gate
}

func (a *attempt) init(b *bare) {
	a.call = func(fd uintptr) { a.done = a.f(fd) }
	a.wait = func(uintptr) bool {
		a.once(b)
		return a.done || a.err != nil
	}
}

// once calls f if the descriptor is still there.
func (a *attempt) once(b *bare) {
	a.done, a.err = false, nil
	if b.raw.Control(a.call) != nil {
		a.err = net.ErrClosed
	}
}

// newBare makes one of a connection's descriptor, which it duplicates.
func newBare(of syscall.RawConn, local, remote net.Addr) (*bare, error) {
	fd := -1
	var err error
	if e := of.Control(func(was uintptr) { fd, err = unix.FcntlInt(was, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	b := &bare{local: local, remote: remote}
	b.rd.init(b)
	b.wr.init(b)
	// A file that blocks is left out of the poller, and os.NewFile asks only once whether it does.
	e1 := unix.SetNonblock(fd, false)
	b.file = os.NewFile(uintptr(fd), "socket")
	e2 := unix.SetNonblock(fd, true)
	if err = os.NewSyscallError("fcntl", errors.Join(e1, e2)); err == nil {
		b.raw, err = b.file.SyscallConn()
	}
	if err == nil {
		b.in, err = newGate(fd, unix.EPOLLIN|unix.EPOLLRDHUP)
	}
	if err == nil {
		b.out, err = newGate(fd, unix.EPOLLOUT)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.in.open()
	return b, nil
}

// attempt makes one attempt to read.
func (b *bare) attempt(f func(fd uintptr) bool) (done bool, err error) {
	if b.in.late() {
		return false, os.ErrDeadlineExceeded
	}
	b.rd.f = f
	b.rd.once(b)
	return b.rd.done, b.rd.err
}

// Read implements syscall.RawConn.
func (b *bare) Read(f func(fd uintptr) bool) error {
	if b.poller != nil {
		done, err := b.attempt(f)
		if !done && err == nil {
			done, err = b.poller.poll(b, f)
		}
		if done || err != nil {
			return err
		}
		if b.shut {
			b.shut = false
			b.in.open()
		}
	}
	b.rd.f = f
	for {
		if rung, err := b.in.wait(b.rd.wait); err != nil {
			return err
		} else if !rung {
			return b.rd.err
		}
	}
}

// Write implements syscall.RawConn.
func (b *bare) Write(f func(fd uintptr) bool) error {
	if b.out.late() {
		return os.ErrDeadlineExceeded
	}
	b.wr.f = f
	b.wr.once(b)
	if b.wr.done || b.wr.err != nil {
		return b.wr.err
	}
	b.out.open()
	defer b.out.shut()
	if _, err := b.out.wait(b.wr.wait); err != nil {
		return err
	}
	return b.wr.err
}

// Control implements syscall.RawConn.
func (b *bare) Control(f func(fd uintptr)) error { return b.raw.Control(f) }

func (b *bare) CloseWrite() error {
	var err error
	if b.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }) != nil {
		return net.ErrClosed
	}
	return os.NewSyscallError("shutdown", err)
}

// SetLinger is that of net.TCPConn: with 0, Close drops what the peer has not acknowledged and resets the connection.
func (b *bare) SetLinger(sec int) error {
	l := unix.Linger{Onoff: 1, Linger: int32(sec)}
	if sec < 0 {
		l = unix.Linger{}
	}
	var err error
	if b.raw.Control(func(fd uintptr) { err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &l) }) != nil {
		return net.ErrClosed
	}
	return os.NewSyscallError("setsockopt", err)
}

func (b *bare) Close() error {
	err := b.file.Close()
	for _, g := range []*gate{b.in, b.out} {
		if g != nil {
			_ = g.close()
		}
	}
	if errors.Is(err, os.ErrClosed) {
		return net.ErrClosed
	}
	return err
}

func (b *bare) SetReadDeadline(t time.Time) error  { return b.in.setDeadline(t) }
func (b *bare) SetWriteDeadline(t time.Time) error { return b.out.setDeadline(t) }
func (b *bare) LocalAddr() net.Addr                { return b.local }
func (b *bare) RemoteAddr() net.Addr               { return b.remote }
