package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"goiwarp/iscsi"
)

// Config shapes a Datamover. The zero value works.
type Config struct {
	// Memory is the connection's share of buffer memory in octets: what Alloc lends at most at a time. 0 means DefaultMemory.
	Memory int
	// Pool is where the memory comes from. nil means a pool that all such connections share.
	Pool *Pool
	// Linger bounds how long a graceful end waits for the peer to take the last PDUs and to close
	// its side. 0 means DefaultLinger.
	Linger time.Duration
	// DeadPeer bounds how long a peer may be unreachable before the connection is given up, by TCP
	// keepalive probes when idle and by an unacknowledged-data timeout where the system has one.
	// 0 means DefaultDeadPeer; below 0 leaves the system's defaults.
	DeadPeer time.Duration
	// MaxQueued bounds the octets of control PDUs that wait to be sent. It only stops peers that
	// do not read what they asked for: the command window is the bound in ordinary use. 0 means DefaultMaxQueued.
	MaxQueued int
	// Keep bounds the octets of data-in that a target keeps to send them again, at ErrorRecoveryLevel > 0 only; what is given up beyond
	// it makes a SNACK fail, and its command with it. 0 means DefaultKeep.
	Keep int
	// SequenceTimeout is how long a target waits for the next Data-Out PDU that it has asked for before it asks again
	// (RFC 7143, section 7.1.4.1), at ErrorRecoveryLevel > 0 only. 0 means DefaultSequenceTimeout.
	SequenceTimeout time.Duration
	// Log gets one line per connection error at debug level. nil means no log.
	Log *slog.Logger
}

// Defaults of Config.
const (
	DefaultMemory    = 32 << 20
	DefaultLinger    = 3 * time.Second
	DefaultDeadPeer  = 30 * time.Second
	DefaultMaxQueued = 64 << 20
	DefaultKeep      = 16 << 20

	DefaultSequenceTimeout = 5 * time.Second
)

// maxQueuedPDUs bounds the number of control PDUs that wait to be sent, next to MaxQueued.
const maxQueuedPDUs = 16384

func (c Config) withDefaults() Config {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.Pool == nil {
		c.Pool = sharedPool()
	}
	if c.Linger == 0 {
		c.Linger = DefaultLinger
	}
	if c.DeadPeer == 0 {
		c.DeadPeer = DefaultDeadPeer
	}
	if c.MaxQueued == 0 {
		c.MaxQueued = DefaultMaxQueued
	}
	if c.Keep == 0 {
		c.Keep = DefaultKeep
	}
	if c.SequenceTimeout == 0 {
		c.SequenceTimeout = DefaultSequenceTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Dialer makes an initiator's connections. It implements iscsi.Dialer; the zero value works.
type Dialer struct {
	Config Config
	// Net dials; its keepalive settings are replaced as Config.DeadPeer says.
	Net net.Dialer
	// Wrap, if not nil, gives the connection to use for the one that was dialled.
	Wrap func(net.Conn) net.Conn
}

var _ iscsi.Dialer = (*Dialer)(nil)

// Dial connects to the portal at addr ("host:port").
func (d *Dialer) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	conn, err := d.Net.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return newOnConn(conn, d.Config, false, nil, d.Wrap), nil
}

// tune sets the connection's options. A system that does not know one works without it.
func tune(conn net.Conn, deadPeer time.Duration) {
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetNoDelay(true)
	if deadPeer < 0 {
		return
	}
	// A quarter for the first probe and one quarter per probe, so that the last goes unanswered in time.
	quarter := max(deadPeer/4, time.Second)
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: quarter, Interval: quarter, Count: 3})
	setUserTimeout(t, deadPeer)
}
