// Package soft is an RDMA device in software: the verbs of package rnic over RDMAP, DDP and MPA on
// ordinary TCP connections. It needs no RDMA hardware, no kernel module and no privileges, and
// speaks with any iWARP peer (RFC 5040, 5041, 5044, 6581, 7306).
//
//	    PostSend, PostRecv                          CQ: Poll, Wait or Handler
//	        |        |                                       ^
//	+-------v--------v-- QP -----------------------------+   |
//	| work requests -> operations     completions staged |---+ one batch per read
//	+-------|--------------------------------^-----------+
//	        v        rdmap.Stream            |        PD, MR, Window: ddp.Domain, ddp.Region
//	+----------------------------------------------------+
//	|          ddp segments    mpa.Conn                  |
//	+------------------------------|---------------------+
//	                               v
//	              Network: TCP, or memory for tests in virtual time
//
// The goroutine that reads a connection places what arrives, completes work requests and runs the
// CQ's Handler; whoever posts also sends, as far as the socket takes it. So a request that a
// Handler answers crosses no other goroutine.
package soft

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"goiwarp/ddp"
	"goiwarp/rnic"
)

// Limits of the device.
const (
	maxMessage = 1<<32 - 1 // RFC 5041, section 5.2
	maxSGE     = 32
	maxInline  = 256
	maxDepth   = 1 << 16 // work requests of a queue
	maxPrivate = 512 - 4 // RFC 6581, section 6: IRD and ORD take four octets

	// defaultReads is what Linux's soft iWARP offers and accepts at most.
	defaultReads = 128
)

// allCaps is everything.
const allCaps = rnic.CapLocalInvalidate | rnic.CapSendInvalidate | rnic.CapWindows | rnic.CapImmediate |
	rnic.CapAtomics | rnic.CapInline | rnic.CapZeroBased | rnic.CapSRQ | rnic.CapStreamUpgrade |
	rnic.CapAnyMemory | rnic.CapReadSinkNeedsRemoteWrite | rnic.CapWindowSGE

// Config configures a Device. The zero value is right for most uses.
type Config struct {
	// Name is the device's name in attributes, errors and logs; "" means "soft".
	Name string
	// Network makes the connections; nil means TCP.
	Network Network
	// Without takes capabilities away, so that a consumer can be tested against a device that
	// offers less.
	Without rnic.Capability
	// MaxReadSGE limits the scatter list of an RDMA Read; 0 means 32. iWARP hardware has 1. A longer
	// list costs one Read Request per element, since an iWARP Read has one sink.
	MaxReadSGE int
	// MaxIRD and MaxORD limit RDMA Reads and Atomics of a QP, inbound and outbound; 0 means 128.
	MaxIRD, MaxORD int
	// Linger bounds how long the end of a connection may wait for the peer: to take the last
	// messages, and to close its side. 0 means the default of rdmap.
	Linger time.Duration
	// Log takes what happens to connections, at debug level, and their errors, at warn level; nil is silent.
	Log *slog.Logger
}

// Device is an RDMA device in software. It implements rnic.Device and rnic.StreamUpgrader.
type Device struct {
	cfg     Config
	attr    rnic.Attributes
	network Network
	log     *slog.Logger
	table   *ddp.Table

	mu     sync.Mutex // guards what follows
	made   map[any]struct{}
	closed bool
}

var (
	_ rnic.Device         = (*Device)(nil)
	_ rnic.StreamUpgrader = (*Device)(nil)
)

// New makes a device.
func New(cfg Config) *Device {
	d := &Device{cfg: cfg, network: cfg.Network, log: cfg.Log, table: ddp.NewTable(), made: make(map[any]struct{})}
	if d.network == nil {
		d.network = TCP{}
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.attr = rnic.Attributes{
		Name: cfg.Name, Provider: "soft", Caps: allCaps &^ cfg.Without,
		MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxReadSGE: cfg.MaxReadSGE, MaxInline: maxInline,
		MaxIRD: cfg.MaxIRD, MaxORD: cfg.MaxORD, MaxQPWR: maxDepth,
		MaxMsg: maxMessage, MaxPrivate: maxPrivate, PageSizeHint: pageSize,
	}
	if d.attr.Name == "" {
		d.attr.Name = "soft"
	}
	for _, limit := range []struct {
		p   *int
		def int
	}{{&d.attr.MaxReadSGE, maxSGE}, {&d.attr.MaxIRD, defaultReads}, {&d.attr.MaxORD, defaultReads}} {
		if *limit.p <= 0 {
			*limit.p = limit.def
		}
	}
	if cfg.Without.Has(rnic.CapInline) {
		d.attr.MaxInline = 0
	}
	d.log = d.log.With("device", d.attr.Name)
	return d
}

// Attributes implements rnic.Device.
func (d *Device) Attributes() rnic.Attributes { return d.attr }

// need refuses what the device does not claim.
func (d *Device) need(c rnic.Capability, op string) error {
	if d.attr.Caps.Has(c) {
		return nil
	}
	return &rnic.UnsupportedError{Device: d.attr.Name, Op: op}
}

// track notes an object that Close must end.
func (d *Device) track(o any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%w: device %s", rnic.ErrClosed, d.attr.Name)
	}
	d.made[o] = struct{}{}
	return nil
}

func (d *Device) untrack(o any) {
	d.mu.Lock()
	delete(d.made, o)
	d.mu.Unlock()
}

// Close implements rnic.Device. What makes connections ends first, then connections, then what
// they used.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	made := slices.Collect(maps.Keys(d.made))
	d.mu.Unlock()
	for _, o := range made {
		switch o := o.(type) {
		case *listener:
			o.Close()
		case *connector:
			o.Close()
		case *request:
			o.abandon()
		}
	}
	var wg sync.WaitGroup // together: each may wait for its peer for a moment
	for _, o := range made {
		if q, ok := o.(*qp); ok {
			wg.Go(func() { q.Close() })
		}
	}
	wg.Wait()
	for _, o := range made {
		switch o := o.(type) {
		case *srq:
			o.Close()
		case *cq:
			o.Close()
		}
	}
	for _, o := range made {
		if p, ok := o.(*pd); ok {
			p.destroy()
		}
	}
	return nil
}

// Dial implements rnic.Device.
func (d *Device) Dial(ctx context.Context, addr string, opts *rnic.LinkOptions) (rnic.Connector, error) {
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	c, err := d.network.Dial(ctx, addr)
	if err != nil {
		return nil, networkError("dial "+addr, err)
	}
	return d.newConnector(c, opts)
}
