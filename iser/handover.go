package iser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// HandoverConfig is what a Handover needs.
type HandoverConfig struct {
	// Config is that of the iSER connection. Its Domain is required; WriteBaseAuto means WriteBaseRFC, since the iSER CM header is
	// neither sent nor looked for in this order.
	Config Config
	// Plain makes the Datamover that goes on without iSER, of either role as the Handover has it; it owns conn. Without
	// it a login that agrees on no RDMAExtensions=Yes fails, and so does any Discovery session.
	Plain func(conn net.Conn) iscsi.Datamover
	// Linger bounds how long a graceful end during login waits for the peer to take the last PDU and to close; default 3 s.
	Linger time.Duration
}

// DefaultLinger is the default of HandoverConfig.Linger.
const DefaultLinger = 3 * time.Second

// loginAccept is the longest data segment taken during login, in octets: more than RFC 7143 allows (section 6.3), for peers that take
// that less seriously.
const loginAccept = 64 << 10

// Handover is the Datamover of a connection in RFC 7145's own order (section 5.1): it carries the login in TCP's byte stream, and
// then either an iSER Datamover on that same connection takes over, or plain iSCSI does (iscsi.Switch).
//
//	stream --EnableDatamover, RDMAExtensions=Yes--> MPA startup --> Hello, if required --> iSER
//	   |  \--EnableDatamover, else----------------> Config.Plain
//	   +-----refused, lost, terminated------------> down
//
// What follows the login on the stream is never read by who reads the login: each PDU is read by its exact length, so that
// no octet of an MPA frame, or of a PDU with digests, ends up in the wrong hands, however TCP cuts the stream.
//
// The target is MPA's responder, since it is the one that sends the last octets of the stream (RFC 5044, section 7.1.3).
type Handover struct {
	cfg    HandoverConfig
	up     rnic.StreamUpgrader
	target bool
	conn   net.Conn
	read   []byte // taken from conn by who found out what it speaks
	n      iscsi.Notifier

	ready chan struct{} // closed with what follows known, or never to come
	done  chan struct{}
	wake  chan struct{} // has room for one: something to do for run

	mu        sync.Mutex // guards what follows
	started   bool
	out       []*iscsi.PDU
	quiet     bool  // ConnectionTerminate was called
	ending    bool  // nothing more is taken
	failed    error // why the login phase was cut
	resources iscsi.ConnectionResources
	allocated bool
	params    *iscsi.Params
	iser      *Datamover // made by AllocateConnectionResources
	next      iscsi.Datamover
}

var _ iscsi.Switch = (*Handover)(nil)

// NewTargetHandover makes the target's end of a TCP connection that begins with an iSCSI login. read are the octets already taken
// from conn, of which there may be a BHS's at most. The Handover owns conn, unless it fails.
func NewTargetHandover(conn net.Conn, read []byte, cfg HandoverConfig) (*Handover, error) {
	if len(read) > iscsi.BHSLen {
		return nil, fmt.Errorf("iser: %d octets read ahead of a login, at most %d can be taken over", len(read), iscsi.BHSLen)
	}
	return newHandover(conn, read, cfg, true)
}

// NewInitiatorHandover makes the initiator's end of a TCP connection to a portal. The Handover owns conn, unless it fails.
func NewInitiatorHandover(conn net.Conn, cfg HandoverConfig) (*Handover, error) {
	return newHandover(conn, nil, cfg, false)
}

func newHandover(conn net.Conn, read []byte, cfg HandoverConfig, target bool) (*Handover, error) {
	if cfg.Linger <= 0 {
		cfg.Linger = DefaultLinger
	}
	if cfg.Config.WriteBase == WriteBaseAuto {
		cfg.Config.WriteBase = WriteBaseRFC
	}
	if _, err := cfg.Config.withDefaults(); err != nil {
		return nil, err
	}
	dev := cfg.Config.Domain.dev
	up, ok := dev.(rnic.StreamUpgrader)
	if !ok || !dev.Attributes().Caps.Has(rnic.CapStreamUpgrade) {
		return nil, fmt.Errorf("iser: %w", &HandoverError{Phase: PhaseSetup, Remote: conn.RemoteAddr(), Err: ErrNoUpgrade})
	}
	return &Handover{
		cfg: cfg, up: up, target: target, conn: conn, read: append([]byte(nil), read...),
		ready: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}, nil
}

// HandoverDialer makes an initiator's connections in RFC 7145's order (iscsi.Dialer).
type HandoverDialer struct {
	// Config of each connection.
	Config HandoverConfig
	// Net makes the TCP connections.
	Net net.Dialer
}

var _ iscsi.Dialer = (*HandoverDialer)(nil)

// Dial connects to the portal addr ("host:port").
func (d *HandoverDialer) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	conn, err := d.Net.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	h, err := NewInitiatorHandover(conn, d.Config)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return h, nil
}

// Successor implements iscsi.Switch.
func (h *Handover) Successor() iscsi.Datamover {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// Ready implements iscsi.Switch.
func (h *Handover) Ready() <-chan struct{} {
	if d, ok := h.Successor().(*Datamover); ok {
		return d.start.ready
	}
	return h.ready
}

// Info implements iscsi.Datamover.
func (h *Handover) Info() iscsi.DatamoverInfo {
	if d := h.Successor(); d != nil {
		return d.Info()
	}
	return iscsi.DatamoverInfo{
		Transport: "tcp", LocalAddr: h.conn.LocalAddr(), RemoteAddr: h.conn.RemoteAddr(), Handover: true, MaxPutData: loginDataSegment,
	}
}

// Start implements iscsi.Datamover.
func (h *Handover) Start(n iscsi.Notifier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started {
		return
	}
	h.started, h.n = true, n
	if h.ending { // terminated before
		h.closeLocked()
		return
	}
	go h.run()
}

// errLoginPhase: a primitive of full feature phase.
var errLoginPhase = errors.New("iser: not during the login phase")

// Alloc implements iscsi.Datamover.
func (h *Handover) Alloc(n int) (iscsi.Buffer, error) {
	if d := h.Successor(); d != nil {
		return d.Alloc(n)
	}
	return nil, errLoginPhase
}

// AllocateConnectionResources implements iscsi.Datamover. An initiator allocates what iSER needs before it knows whether that will
// be used, since the answer to its final Login Request may bring the switch (RFC 7145, section 5.1.1). A target does once
// RDMAExtensions=Yes is agreed (NoticeKeyValues), and by that time the initiator has authenticated itself (section 5.1.2).
func (h *Handover) AllocateConnectionResources(r iscsi.ConnectionResources) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.next != nil:
		return h.next.AllocateConnectionResources(r)
	case h.ending:
		return h.lost()
	case h.target && h.params == nil:
		return errors.New("iser: a target's AllocateConnectionResources before NoticeKeyValues")
	}
	h.resources, h.allocated = r, true
	if r.Discovery || h.target && !h.params.RDMAExtensions {
		return nil
	}
	if h.iser == nil {
		d, err := newUpgrade(h.cfg.Config, h.up, h.conn, h.target)
		if err != nil {
			return err
		}
		h.iser = d
	}
	if h.params != nil {
		h.iser.NoticeKeyValues(h.params)
	}
	if err := h.iser.AllocateConnectionResources(r); err != nil {
		h.dropISER()
		return err
	}
	return nil
}

// dropISER gives the iSER connection's resources back; mu is held.
func (h *Handover) dropISER() {
	if h.iser != nil {
		h.iser.abort(nil)
		h.iser = nil
	}
}

// DeallocateConnectionResources implements iscsi.Datamover.
func (h *Handover) DeallocateConnectionResources() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next != nil {
		h.next.DeallocateConnectionResources()
		return
	}
	h.dropISER()
	h.allocated = false
}

// NoticeKeyValues implements iscsi.Datamover.
func (h *Handover) NoticeKeyValues(p *iscsi.Params) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next != nil {
		h.next.NoticeKeyValues(p)
		return
	}
	own := *p
	h.params = &own
	if h.iser != nil && p.RDMAExtensions {
		h.iser.NoticeKeyValues(p)
	}
}

// EnableDatamover implements iscsi.Datamover. The target's final Login Response is the last PDU of the byte stream. Nothing
// is read from the connection any more but by the successor, and by that from when the response was sent.
func (h *Handover) EnableDatamover(final *iscsi.PDU) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.enable(final)
	if err != nil && final != nil {
		final.Release()
	}
	return err
}

// enable is EnableDatamover below mu; on an error final is the caller's.
func (h *Handover) enable(final *iscsi.PDU) error {
	switch {
	case h.ending:
		return h.lost()
	case h.next != nil:
		return errors.New("iser: EnableDatamover called twice")
	case h.params == nil || !h.allocated:
		return errors.New("iser: EnableDatamover comes behind NoticeKeyValues and AllocateConnectionResources")
	case h.target != (final != nil):
		return errors.New("iser: the final Login Response is the target's to send")
	}
	if h.params.RDMAExtensions {
		h.iser.enableUpgrade(h.n)
		h.next = h.iser
		if final != nil {
			h.out = append(h.out, final)
		}
		h.poke()
		return nil
	}
	h.dropISER()
	if h.cfg.Plain == nil {
		return &HandoverError{Phase: PhaseLogin, Remote: h.conn.RemoteAddr(), Err: iscsi.ErrNoRDMA}
	}
	next := h.cfg.Plain(h.conn)
	next.NoticeKeyValues(h.params)
	err := next.AllocateConnectionResources(h.resources)
	if err == nil {
		err = next.EnableDatamover(final)
	}
	// The connection is the other's now, whatever came of it.
	h.next = next
	close(h.ready)
	h.poke()
	if err != nil {
		next.ConnectionTerminate(false)
		return fmt.Errorf("iser: going on without iSER: %w", err)
	}
	return nil
}

// SendControl implements iscsi.Datamover.
func (h *Handover) SendControl(p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	h.mu.Lock()
	if d := h.next; d != nil {
		h.mu.Unlock()
		return d.SendControl(p, t)
	}
	defer h.mu.Unlock()
	if h.ending {
		p.Release()
		return h.lost()
	}
	h.out = append(h.out, p)
	h.poke()
	return nil
}

// PutData implements iscsi.Datamover.
func (h *Handover) PutData(in *iscsi.DataIn) error {
	if d := h.Successor(); d != nil {
		return d.PutData(in)
	}
	in.Buf.Release()
	return errLoginPhase
}

// GetData implements iscsi.Datamover.
func (h *Handover) GetData(out *iscsi.DataOut) error {
	if d := h.Successor(); d != nil {
		return d.GetData(out)
	}
	return errLoginPhase
}

// DeallocateTaskResources implements iscsi.Datamover.
func (h *Handover) DeallocateTaskResources(itt uint32) {
	if d := h.Successor(); d != nil {
		d.DeallocateTaskResources(itt)
	}
}

// ConnectionTerminate implements iscsi.Datamover.
func (h *Handover) ConnectionTerminate(graceful bool) {
	h.mu.Lock()
	if d := h.next; d != nil {
		h.mu.Unlock()
		d.ConnectionTerminate(graceful)
		return
	}
	defer h.mu.Unlock()
	h.quiet = true
	if h.ending {
		return
	}
	h.ending = true
	if !h.started {
		h.closeLocked()
		return
	}
	if graceful {
		_ = h.conn.SetReadDeadline(time.Unix(1, 0)) // run is to look up
	} else {
		h.failed = iscsi.ErrConnection
		_ = h.conn.Close()
	}
	h.poke()
}

// closeLocked ends a connection that run does not run on.
func (h *Handover) closeLocked() {
	select {
	case <-h.done:
		return
	default:
	}
	h.dropISER()
	_ = h.conn.Close()
	close(h.ready)
	close(h.done)
}

// Done implements iscsi.Datamover.
func (h *Handover) Done() <-chan struct{} {
	if d := h.Successor(); d != nil {
		return d.Done()
	}
	return h.done
}

// lost is what methods fail with on a connection that is down; mu is held.
func (h *Handover) lost() error { return &connectionError{h.failed} }

func (h *Handover) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
