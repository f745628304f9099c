package nbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"goiwarp/internal/sock"
)

// acceptPause is how long Listen waits for descriptors to be freed.
const acceptPause = 100 * time.Millisecond

// DefaultPoll is for how long a Server's Poller polls, unless its user says otherwise.
const DefaultPoll = 200 * time.Microsecond

// Config is how a Server serves. Zero values mean the defaults.
type Config struct {
	// Depth is how many requests of one connection are under way at once; more wait in the socket. Default 128, what the kernel sends.
	Depth int
	// Memory is what a connection may use for requests that are longer than 16 KiB, in octets, and so the longest request; default, and at most, 32 MiB. On top
	// come 16 KiB for each request of Depth.
	Memory int
	// Prepare, if above 0, is for how many connections all memory is there from the beginning. Default 0: memory comes as it is needed.
	Prepare int
	// MaxConnections bounds the connections that Listen serves at once; default 16.
	MaxConnections int
	// HandshakeTimeout bounds the handshake; default 30 s.
	HandshakeTimeout time.Duration
	// Poller, if not nil, polls for requests while it waits for the disk: make the disk's connections leaders of it (sock.Poller.Lead).
	Poller *sock.Poller
	// Log takes what happens; nil is silent.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Depth, 128)
	def(&c.Memory, MaxRequest)
	def(&c.MaxConnections, 16)
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Depth < 1 || c.Depth > 4096 || c.Memory < largePiece || c.Memory > MaxRequest || c.Prepare < 0 || c.MaxConnections < 1 || c.HandshakeTimeout < 0 {
		return c, fmt.Errorf("nbd: Config out of range: depth %d, memory %d, %d connections", c.Depth, c.Memory, c.MaxConnections)
	}
	return c, nil
}

// Server exports one disk to any number of connections.
type Server struct {
	disk   Disk
	export Export
	cfg    Config
	log    *slog.Logger
	size   atomic.Int64

	mu    sync.Mutex
	idle  []*pool // of connections that are over, and prepared ones
	live  map[*transmission]struct{}
	stats counters
}

// counters are the Server's, and what Stats tells.
type counters struct{ requests, failed, read, written atomic.Uint64 }

// Stats counts what was served.
type Stats struct {
	Requests, Failed uint64
	Read, Written    uint64 // octets
}

// New makes a server. The disk stays the caller's, and must be there until Close has returned.
func New(disk Disk, x Export, cfg Config) (*Server, error) {
	if err := x.check(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{disk: disk, export: x, cfg: cfg, log: cfg.Log, live: make(map[*transmission]struct{})}
	s.size.Store(x.Size)
	for range cfg.Prepare {
		p, err := newPool(disk, cfg.Depth, cfg.Memory, x.command(), true)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.idle = append(s.idle, p)
	}
	return s, nil
}

// Size is the export's size, in octets.
func (s *Server) Size() int64 { return s.size.Load() }

// Resize changes the size that requests are held against and that new clients are told. The protocol knows no way to tell those that are there.
func (s *Server) Resize(size int64) error {
	x := s.export
	x.Size = size
	if err := x.check(); err != nil {
		return err
	}
	s.size.Store(size)
	return nil
}

// Flags are what clients are told of the export.
func (s *Server) Flags() TransmissionFlags { return s.export.Flags() }

// Largest is the longest read or write that a connection takes, in octets.
func (s *Server) Largest() int { return min(s.cfg.Memory, MaxRequest) }

// Stats are the counts so far.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{c.requests.Load(), c.failed.Load(), c.read.Load(), c.written.Load()}
}

// Close gives the memory back. No connection is served any more.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.idle {
		p.release()
	}
	s.idle = nil
}

// Abandon cuts the connections that are in the transmission phase: requests that were not answered never will be. It is for clients that send them
// again, as the kernel does, and comes before the disk is closed, which would fail them.
func (s *Server) Abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.live {
		t.out.fail(net.ErrClosed)
	}
}

// pool is memory for one more connection.
func (s *Server) pool() (*pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		p := s.idle[n-1]
		s.idle = s.idle[:n-1]
		p.open()
		return p, nil
	}
	return newPool(s.disk, s.cfg.Depth, s.cfg.Memory, s.export.command(), false)
}

// Listen serves whoever connects until ctx ends: handshake and transmission. Then it drains the connections, as Transmit does, and returns
// when all have ended. ln is closed.
func (s *Server) Listen(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, s.cfg.MaxConnections)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			<-room
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // no reason to leave those that are connected
				s.log.Warn("no nbd client can connect now", "error", err)
				select {
				case <-time.After(acceptPause):
				case <-ctx.Done():
				}
				continue
			}
			return fmt.Errorf("nbd: listening: %w", err)
		}
		wg.Go(func() {
			defer func() { <-room }()
			s.log.Info("nbd client connected", "from", c.RemoteAddr())
			err := s.Serve(ctx, c)
			s.log.Info("nbd client is gone", "from", c.RemoteAddr(), "error", err)
		})
	}
}

// Serve serves one connection to its end, and closes it. nil means that the client said goodbye, or that ctx ended.
func (s *Server) Serve(ctx context.Context, c net.Conn) error {
	agreed, err := s.greet(ctx, c)
	if err != nil {
		_ = c.Close()
		if errors.Is(err, ErrAborted) || ctx.Err() != nil {
			return nil
		}
		return err
	}
	return s.transmit(ctx, c, agreed)
}

// Transmit serves a connection that is in the transmission phase already, as the kernel's are, and closes it. When ctx ends no further request is taken,
// those under way are answered, and then it returns nil, as it does after the client's goodbye. It returns when nothing is under way any more, which may
// take as long as the disk's commands do; a connection that has failed is closed at once all the same.
func (s *Server) Transmit(ctx context.Context, c net.Conn) error {
	return s.transmit(ctx, c, agreement{})
}

func (s *Server) transmit(ctx context.Context, c net.Conn, agreed agreement) error {
	p, err := s.pool()
	if err != nil {
		_ = c.Close()
		return err
	}
	t := newTransmission(s, c, p, agreed)
	s.mu.Lock()
	s.live[t] = struct{}{}
	s.mu.Unlock()
	err = t.run(ctx)
	s.mu.Lock()
	delete(s.live, t)
	s.idle = append(s.idle, p)
	s.mu.Unlock()
	return err
}
