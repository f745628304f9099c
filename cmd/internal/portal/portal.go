// Package portal serves iSER and iSCSI on one TCP port: it looks at the first octets of a
// connection and hands it, with what it has read, to the Datamover that it is for.
//
//	"MPA ID Req Frame"            an MPA Request: iSER in Linux's order, RDMA first
//	03h or 43h                    a Login Request: iSCSI over TCP (RFC 7143, section 11.12), which may become iSER
//	                              behind the login (RFC 7145, section 5.1)
//	anything else                 nobody we know: closed
package portal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"goiwarp/iscsi"
)

// Protocol is what a connection begins with.
type Protocol int

// Protocols.
const (
	Unknown Protocol = iota
	ISCSI
	ISER
)

const (
	mpaRequestKey = "MPA ID Req Frame" // RFC 5044, section 7.1.1
	loginRequest  = 0x03
)

// Sniff says what the first octets of a connection are. more is true when it takes more of
// them to tell.
func Sniff(b []byte) (p Protocol, more bool) {
	switch {
	case len(b) == 0:
		return Unknown, true
	case b[0]&0x3f == loginRequest && b[0]&0x80 == 0:
		return ISCSI, false
	}
	n := min(len(b), len(mpaRequestKey))
	if string(b[:n]) != mpaRequestKey[:n] {
		return Unknown, false
	}
	return ISER, n < len(mpaRequestKey)
}

// Defaults of Config.
const (
	DefaultSniffTimeout = 5 * time.Second
	DefaultMaxSniffing  = 256
)

// Config says who takes the connections.
type Config struct {
	// ISCSI and ISER make a Datamover of a connection from which read was already taken. A nil one refuses
	// its protocol. They own the connection, and close it when they fail.
	ISCSI, ISER func(ctx context.Context, conn net.Conn, read []byte) (iscsi.Datamover, error)
	// Serve runs a connection to its end.
	Serve func(dm iscsi.Datamover) error
	// SniffTimeout bounds the wait for the first octets; 0 means DefaultSniffTimeout.
	SniffTimeout time.Duration
	// MaxSniffing bounds the connections that have not told yet what they are, or not finished their handshake; one
	// more takes the place of the oldest, so that the silent shut nobody out. 0 means DefaultMaxSniffing, or a quarter of the descriptors that
	// the process may open, if that is less.
	MaxSniffing int
	Log         *slog.Logger
}

// Serve accepts connections from ln until ctx ends or ln fails. Its connections outlive ctx: they
// end with what Config.Serve runs them on. Serve returns after the last of them.
func Serve(ctx context.Context, ln net.Listener, cfg Config) error {
	if cfg.SniffTimeout == 0 {
		cfg.SniffTimeout = DefaultSniffTimeout
	}
	if cfg.MaxSniffing == 0 {
		cfg.MaxSniffing = max(1, min(DefaultMaxSniffing, maxDescriptors()/4))
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	crowd := newCrowd(cfg.MaxSniffing)
	var conns sync.WaitGroup
	defer conns.Wait()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	refused := false // since the last connection
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if transient(err) {
				if !refused {
					cfg.Log.Warn("connections wait: they cannot be accepted for now", "listener", ln.Addr().String(), "err", err)
				}
				refused = true
				crowd.makeRoom()
				if !pause(ctx, 100*time.Millisecond) {
					return nil
				}
				continue
			}
			return fmt.Errorf("accepting connections on %s: %w", ln.Addr(), err)
		}
		refused = false
		place := crowd.enter(conn)
		conns.Go(func() {
			log := cfg.Log.With("peer", conn.RemoteAddr().String())
			dm, err := cfg.receive(ctx, conn)
			if stayed := crowd.leave(place); !stayed && err != nil {
				err = errCrowded
			}
			if err != nil {
				log.Info("connection refused", "err", err)
				return
			}
			if err := cfg.Serve(dm); err != nil {
				log.Info("connection ended", "err", err)
			}
		})
	}
}

// transient says whether accepting may work again: the process is out of descriptors, say.
func transient(err error) bool {
	var ne net.Error
	return !errors.Is(err, net.ErrClosed) && errors.As(err, &ne)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// receive reads what conn begins with and makes its Datamover.
func (c *Config) receive(ctx context.Context, conn net.Conn) (iscsi.Datamover, error) {
	// A daemon that ends does not wait for those who have not said a word.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	fail := func(err error) (iscsi.Datamover, error) {
		stop()
		_ = conn.Close()
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(c.SniffTimeout)); err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(ctx.Err())
	}
	read := make([]byte, 0, len(mpaRequestKey))
	proto, more := Unknown, true
	for more {
		n, err := conn.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		if n > 0 {
			proto, more = Sniff(read)
		}
		if err != nil && more {
			if errors.Is(err, io.EOF) && len(read) == 0 {
				err = errors.New("closed before it said anything")
			}
			return fail(err)
		}
	}
	stop()
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return fail(err)
	}
	make := c.ISCSI
	switch proto {
	case ISER:
		make = c.ISER
	case Unknown:
		return fail(fmt.Errorf("neither iSCSI nor iSER: it begins with % x", read))
	}
	if make == nil {
		return fail(errors.New("protocol is not served here"))
	}
	return make(ctx, conn, read)
}
