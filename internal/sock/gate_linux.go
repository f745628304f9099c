package sock

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// gate waits for a descriptor that the runtime's poller does not know. It is an epoll instance of its own, and that is what the runtime's poller
// knows: while the gate is shut the runtime hears nothing of what arrives, and no thread wakes.
//
//	descriptor --> epoll instance, open or shut --> runtime's poller --> goroutine in wait
//
// The runtime hears of changes only, so a wait begins with an attempt, as with any descriptor. Events stay in the epoll instance, which looks at
// the descriptor itself whenever it is asked.
//
// One goroutine at a time waits; all else may be called by anyone.
type gate struct {
	file                    *os.File // the epoll instance
	raw                     syscall.RawConn
	onOpen, onShut, onClear func(ep uintptr)
	until                   atomic.Int64 // the deadline in nanoseconds of the Unix time, for attempts without a wait; 0 is none

	mu       sync.Mutex // guards what follows, and changes of until
	deadline time.Time
	rung     bool
}

// newGate makes a gate for events of fd, shut.
func newGate(fd int, events uint32) (*gate, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{})
	if err == nil {
		err = unix.SetNonblock(ep, true) // or os.NewFile would leave it out of the poller
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(ep))
	}
	g := &gate{file: os.NewFile(uintptr(ep), "epoll")}
	if err = g.file.SetReadDeadline(time.Time{}); err == nil { // else the runtime's poller has not taken it
		g.raw, err = g.file.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, g.file.Close())
	}
	change := func(ep uintptr, e *unix.EpollEvent) {
		_ = unix.EpollCtl(int(ep), unix.EPOLL_CTL_MOD, fd, e) // fails only when fd is closed
	}
	opened, none, left := &unix.EpollEvent{Events: events}, &unix.EpollEvent{}, make([]unix.EpollEvent, 1)
	g.onOpen = func(ep uintptr) { change(ep, opened) }
	g.onShut = func(ep uintptr) { change(ep, none) }
	g.onClear = func(ep uintptr) { _, _ = unix.EpollWait(int(ep), left, 0) }
	return g, nil
}

// open lets events through. One that is there already counts as new, unless an older one is still in the epoll instance.
func (g *gate) open() { _ = g.raw.Control(g.onOpen) }

// shut lets none through but an error or the peer's end, once.
func (g *gate) shut() { _ = g.raw.Control(g.onShut) }

// clear takes older events out of the epoll instance of a gate that is shut.
func (g *gate) clear() { _ = g.raw.Control(g.onClear) }

// wait attempts f, and does so again after each event, until f is true. rung is true if somebody rang instead.
func (g *gate) wait(f func(ep uintptr) bool) (rung bool, err error) {
	err = g.raw.Read(f)
	switch {
	case err == nil:
		return false, nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return false, net.ErrClosed // nothing else can fail; the runtime's own error for it has no name
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.rung {
		return false, os.ErrDeadlineExceeded
	}
	g.rung = false
	_ = g.file.SetReadDeadline(g.deadline) // fails only when closed, and then so does the next wait
	return true, nil
}

// ring ends a wait, or the next one.
func (g *gate) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rung = true
	_ = g.file.SetReadDeadline(time.Unix(1, 0))
}

func (g *gate) setDeadline(t time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadline = t
	ns := int64(0)
	if !t.IsZero() {
		ns = t.UnixNano()
	}
	g.until.Store(ns)
	if g.rung {
		return nil // wait sets it
	}
	if g.file.SetReadDeadline(t) != nil {
		return net.ErrClosed
	}
	return nil
}

// late tells whether the deadline has passed.
func (g *gate) late() bool {
	t := g.until.Load()
	return t != 0 && time.Now().UnixNano() >= t
}

func (g *gate) close() error { return g.file.Close() }
