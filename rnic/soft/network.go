package soft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"goiwarp/internal/sock"
	"goiwarp/mpa"
)

// Network makes and takes the connections under a device, which mpa.NewSocket makes streams of.
type Network interface {
	Dial(ctx context.Context, addr string) (net.Conn, error)
	Listen(ctx context.Context, addr string) (net.Listener, error)
}

// TCP is the host's network. The zero value leaves buffers to the kernel.
type TCP struct {
	// ReadBuffer and WriteBuffer, if above 0, set SO_RCVBUF and SO_SNDBUF, in octets.
	ReadBuffer, WriteBuffer int
}

// Dial implements Network.
func (n TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: n.control}
	return d.DialContext(ctx, "tcp", addr)
}

// Listen implements Network.
func (n TCP) Listen(ctx context.Context, addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: n.control}
	return lc.Listen(ctx, "tcp", addr)
}

// control sizes the buffers before there is a connection: one that shrinks later drops octets for
// which it had offered room.
func (n TCP) control(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = setBuffers(fd, n.ReadBuffer, n.WriteBuffer) }); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

// networkError is a Network's error in doing what; package net's own say that already.
func networkError(what string, err error) error {
	var told *net.OpError
	if errors.As(err, &told) {
		return fmt.Errorf("soft: %w", err)
	}
	return fmt.Errorf("soft: %s: %w", what, err)
}

// MemNetwork is a network in memory. It waits on channels only, so that tests can run it in the
// virtual time of testing/synctest; make it within the bubble. Addresses are "host:port" with any
// host; port 0 picks a free one. Its connections are net.Conns, so that other protocols run on it too.
type MemNetwork struct {
	cfg MemConfig

	mu        sync.Mutex // guards what follows
	listeners map[string]*memListener
	last      int // port picked last
}

// MemConfig sizes a MemNetwork's connections.
type MemConfig struct {
	Buffer int // octets under way in each direction; 0 means 64 KiB
	EMSS   int // effective maximum segment size; 0 means 1460
}

// memBacklog is how many connections may wait for Accept.
const memBacklog = 128

// NewMemNetwork makes a network without listeners.
func NewMemNetwork(cfg MemConfig) *MemNetwork {
	if cfg.Buffer <= 0 {
		cfg.Buffer = 64 << 10
	}
	if cfg.EMSS <= 0 {
		cfg.EMSS = 1460
	}
	return &MemNetwork{cfg: cfg, listeners: make(map[string]*memListener)}
}

// memAddr is an address of a MemNetwork.
type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

// Listen implements Network.
func (n *MemNetwork) Listen(ctx context.Context, addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		n.last++
		port = strconv.Itoa(n.last)
		addr = net.JoinHostPort(host, port)
	}
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: memAddr(addr), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &memListener{n: n, addr: memAddr(addr), backlog: make(chan net.Conn, memBacklog), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dial implements Network.
func (n *MemNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	l := n.listeners[addr]
	n.last++
	from := memAddr(fmt.Sprintf("client:%d", n.last))
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "mem", Addr: memAddr(addr), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	if l == nil {
		return nil, refused
	}
	a, b := mpa.MemPipe(n.cfg.Buffer)
	a.SetEMSS(n.cfg.EMSS)
	b.SetEMSS(n.cfg.EMSS)
	client := &memConn{Conn: sock.NewConn(a), local: from, remote: l.addr}
	server := &memConn{Conn: sock.NewConn(b), local: l.addr, remote: from}
	select {
	case <-l.closed:
		return nil, refused
	default:
	}
	select {
	case l.backlog <- server:
		return client, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memListener struct {
	n       *MemNetwork
	addr    memAddr
	backlog chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed: // before what still waits
		return nil, l.closedError()
	default:
	}
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, l.closedError()
	}
}

func (l *memListener) closedError() error {
	return &net.OpError{Op: "accept", Net: "mem", Addr: l.addr, Err: net.ErrClosed}
}

func (l *memListener) Addr() net.Addr { return l.addr }

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		delete(l.n.listeners, string(l.addr))
		l.n.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.backlog:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// memConn is a connection of a MemNetwork as a net.Conn.
type memConn struct {
	*sock.Conn
	local, remote memAddr
}

func (c *memConn) LocalAddr() net.Addr  { return c.local }
func (c *memConn) RemoteAddr() net.Addr { return c.remote }
