package blockdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"goiwarp/cmd/iser/internal/nbd"
)

// Attachment is a device and the connections that serve it.
//
//	Attach: CONNECT --\
//	                   serving --connection lost--> RECONFIGURE with a new socket --> serving
//	Adopt: RECONFIGURE-/   \--goodbye from the kernel--> detached
type Attachment struct {
	d    Driver
	s    *nbd.Server
	set  Settings
	log  *slog.Logger
	ours []net.Conn // first connections; nil: to be made
}

// Pauses before a lost connection is made again.
const (
	pauseFirst = 50 * time.Millisecond
	pauseLast  = 2 * time.Second
	steady     = 10 * time.Second // a connection that lasted so long was a good one
)

// socketBuffer is what the kernel holds of each direction of a connection, in octets: the longest request that is usual.
const socketBuffer = 1 << 20

// Attach sets a device up with so many connections.
func Attach(d Driver, s *nbd.Server, set Settings, connections int, log *slog.Logger) (*Attachment, error) {
	a := &Attachment{d: d, s: s, set: set, log: log, ours: make([]net.Conn, connections)}
	theirs := make([]int, 0, connections)
	defer func() {
		for _, fd := range theirs {
			_ = unix.Close(fd)
		}
	}()
	for i := range a.ours {
		c, fd, err := socketPair()
		if err != nil {
			a.close()
			return nil, err
		}
		a.ours[i], theirs = c, append(theirs, fd)
	}
	index, err := d.Connect(set, theirs)
	if err != nil {
		a.close()
		return nil, err
	}
	a.set.Index = index
	tune(index, s.Largest(), set.Flags&nbd.Rotational != 0)
	return a, nil
}

// Adopt takes over a device that nobody serves any more.
func Adopt(d Driver, s *nbd.Server, set Settings, connections int, log *slog.Logger) *Attachment {
	return &Attachment{d: d, s: s, set: set, log: log, ours: make([]net.Conn, connections)}
}

// Index is the device's number.
func (a *Attachment) Index() int { return a.set.Index }

// Resize tells the kernel of another size.
func (a *Attachment) Resize(size int64) error {
	set := a.set
	set.Size = size
	return a.d.Reconfigure(set, nil)
}

func (a *Attachment) close() {
	for i, c := range a.ours {
		if c != nil {
			_ = c.Close()
		}
		a.ours[i] = nil
	}
}

// Run serves the device until ctx ends, which leaves it as it is for another process (nil), or the kernel gives it up (ErrDetached).
func (a *Attachment) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, c := range a.ours {
		wg.Go(func() {
			if err := a.serve(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	clear(a.ours)
	wg.Wait()
	if err := context.Cause(ctx); errors.Is(err, ErrDetached) {
		return err
	}
	return nil
}

// serve keeps one connection up.
func (a *Attachment) serve(ctx context.Context, c net.Conn) error {
	pause := pauseFirst
	for {
		if c == nil {
			var err error
			if c, err = a.connect(); err != nil {
				if !a.d.Bound(a.set.Index) {
					return ErrDetached
				}
				a.log.Warn("nbd connection cannot be made again", "device", Path(a.set.Index), "error", err)
			}
		}
		begun := time.Now()
		if c != nil {
			err := a.s.Transmit(ctx, c)
			c = nil
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil: // the kernel's goodbye
				return ErrDetached
			case !a.d.Bound(a.set.Index):
				return ErrDetached
			}
			a.log.Info("nbd connection lost", "device", Path(a.set.Index), "error", err)
		}
		if time.Since(begun) > steady {
			pause = pauseFirst
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		pause = min(2*pause, pauseLast)
	}
}

// connect gives the kernel a new socket. If there is no dead one that it can stand for, the kernel drops it, and the connection ends at once.
func (a *Attachment) connect() (net.Conn, error) {
	c, fd, err := socketPair()
	if err != nil {
		return nil, err
	}
	set := a.set
	set.Size = 0 // Resize alone changes it
	err = a.d.Reconfigure(set, []int{fd})
	_ = unix.Close(fd)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// socketPair makes a connection: our end, and the kernel's as a descriptor.
func socketPair() (net.Conn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("socket pair: %w", err)
	}
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) // slower without
	}
	f := os.NewFile(uintptr(fds[0]), "nbd")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, 0, fmt.Errorf("socket pair: %w", err)
	}
	return c, fds[1], nil
}
