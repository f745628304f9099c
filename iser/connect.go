package iser

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// unnegotiated is the IRD or ORD of a peer that leaves them to its consumer (RFC 6581, section 9.1).
const unnegotiated = 0x3fff

// Dialer makes iSER connections of one domain (iscsi.Dialer): the factory that an initiator is given.
type Dialer struct {
	// Domain has the device and the memory. Required.
	Domain *Domain
	// Config of each connection; its Domain is ignored.
	Config Config
}

var _ iscsi.Dialer = (*Dialer)(nil)

// Dial connects to the portal addr ("host:port").
func (d *Dialer) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	if d.Domain == nil {
		return nil, errors.New("iser: Dialer.Domain is nil")
	}
	cfg := d.Config
	cfg.Domain = d.Domain
	dm, err := Dial(ctx, d.Domain.dev, addr, cfg)
	if err != nil {
		return nil, err
	}
	return dm, nil
}

// Dial connects an initiator over dev to addr ("host:port"). With cfg.Domain nil the connection has a
// domain of its own, which goes with it.
func Dial(ctx context.Context, dev rnic.Device, addr string, cfg Config) (*Datamover, error) {
	own := cfg.Domain == nil
	if own {
		dom, err := NewDomain(dev, DomainConfig{Log: cfg.Log})
		if err != nil {
			return nil, err
		}
		cfg.Domain = dom
	}
	d, err := dial(ctx, dev, addr, cfg, own)
	if err != nil && own {
		err = errors.Join(err, cfg.Domain.Close())
	}
	return d, err
}

func dial(ctx context.Context, dev rnic.Device, addr string, cfg Config, own bool) (*Datamover, error) {
	if cfg.Domain.dev != dev {
		return nil, errors.New("iser: Config.Domain belongs to another device")
	}
	c, err := dev.Dial(ctx, addr, cfg.Link)
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err) // it names addr
	}
	return connect(ctx, c, cfg, own)
}

// Connect makes the initiator's end over a connection that was prepared but not connected. c belongs to
// Connect: it is closed on failure. A peer that refuses gives a *rnic.RejectedError.
func Connect(ctx context.Context, c rnic.Connector, cfg Config) (*Datamover, error) {
	return connect(ctx, c, cfg, false)
}

func connect(ctx context.Context, c rnic.Connector, cfg Config, own bool) (*Datamover, error) {
	d, err := newDatamover(cfg, false)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	d.own = own
	addr := c.RemoteAddr()
	if err := d.makeQP(c.CreateQP); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	mine := d.private()
	ci, err := c.Connect(ctx, rnic.ConnParams{PrivateData: mine.Append(nil), IRD: d.serves(), ORD: 1})
	if err != nil {
		d.abort(err)
		var refused *rnic.RejectedError
		if errors.As(err, &refused) {
			err = fmt.Errorf("%v: %w", addr, err) // the device names it in all other errors
		}
		return nil, errors.Join(fmt.Errorf("iser: %w", err), c.Close())
	}
	d.mu.Lock()
	d.agree(mine, ci.PrivateData)
	d.ord = ci.ORD
	d.mu.Unlock()
	d.log.Debug("iser: connected", "remote", ci.RemoteAddr, "peer", d.peer, "IRD", ci.IRD, "ORD", ci.ORD)
	return d, nil
}

// Accept makes the target's end of a connection request and answers it. On failure the request is rejected. Nothing
// is sent before the initiator's first message (RFC 5044, section 7.1.2).
func Accept(ctx context.Context, req rnic.Request, cfg Config) (*Datamover, error) {
	info := req.Info()
	d, err := newDatamover(cfg, true)
	if err != nil {
		return nil, errors.Join(err, req.Reject(nil))
	}
	ird, ord := d.depths(info)
	if ord == 0 && !d.cfg.AllowNoReads {
		d.abort(ErrNoReads)
		return nil, errors.Join(fmt.Errorf("iser: %v: %w", info.RemoteAddr, ErrNoReads), req.Reject(d.private().Append(nil)))
	}
	if err := d.makeQP(req.CreateQP); err != nil {
		return nil, errors.Join(err, req.Reject(nil))
	}
	mine := d.private()
	d.mu.Lock()
	d.agree(mine, info.PrivateData)
	d.ord = ord
	if d.peerCM && d.peer.NoSendInvalidate {
		mine.NoSendInvalidate = true // as isert answers: what is not agreed on is not offered
	}
	d.mu.Unlock()
	if err := req.Accept(ctx, rnic.ConnParams{PrivateData: mine.Append(nil), IRD: ird, ORD: ord}); err != nil {
		d.abort(err)
		return nil, fmt.Errorf("iser: accepting %v: %w", info.RemoteAddr, err)
	}
	d.log.Debug("iser: accepted", "remote", info.RemoteAddr, "peer", d.peer, "ORD", ord)
	return d, nil
}

// newDatamover makes a connection without a queue pair; it must end in makeQP or abort.
func newDatamover(cfg Config, target bool) (*Datamover, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Datamover{
		dom: cfg.Domain, cfg: cfg, log: cfg.Log, target: target, limit: loginReceives,
		tasks: make(map[uint32]*task), remote: make(map[uint32]mapping), done: make(chan struct{}),
	}
	if !d.dom.enter(d) {
		return nil, fmt.Errorf("iser: domain: %w", rnic.ErrClosed)
	}
	return d, nil
}

// makeQP makes the queues and provides the receives of the login phase. On failure the connection is gone.
func (d *Datamover) makeQP(create func(rnic.QPConfig) (rnic.QP, error)) error {
	err := d.openQP(create)
	if err != nil {
		d.abort(err)
	}
	return err
}

// openQP is makeQP that leaves the connection to its caller.
func (d *Datamover) openQP(create func(rnic.QPConfig) (rnic.QP, error)) error {
	var err error
	if d.cq, err = d.dom.dev.CreateCQ(rnic.CQConfig{Depth: d.cfg.SendDepth + d.cfg.RecvDepth, Handler: d.complete}); err != nil {
		return fmt.Errorf("iser: completion queue: %w", err)
	}
	qp, err := create(rnic.QPConfig{
		PD: d.dom.pd, SendCQ: d.cq, RecvCQ: d.cq, SRQ: d.dom.receives.srq,
		SendDepth: d.cfg.SendDepth, RecvDepth: d.cfg.RecvDepth, OnEvent: d.event,
	})
	if err != nil {
		return fmt.Errorf("iser: queue pair: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qp = qp
	return d.provision()
}

// abort takes down a connection that was never handed out.
func (d *Datamover) abort(cause error) {
	if d.qp != nil {
		d.mu.Lock()
		d.quiet = true
		d.shutdown(cause)
		d.mu.Unlock()
		<-d.done
		return
	}
	d.start.cancel()
	d.mu.Lock()
	d.giveBackReceives()
	d.mu.Unlock()
	if d.cq != nil {
		if err := d.cq.Close(); err != nil {
			d.log.Warn("iser: closing the completion queue", "error", err)
		}
	}
	d.dom.leave(d)
	close(d.done)
}

// private is the CM header that says what this end can do.
func (d *Datamover) private() Private {
	caps := d.dom.attr.Caps
	p := Private{
		NoZeroBased:      !d.cfg.ZeroBased || !caps.Has(rnic.CapZeroBased),
		NoSendInvalidate: d.cfg.NoSendInvalidate,
	}
	if d.target {
		p.NoSendInvalidate = p.NoSendInvalidate || !caps.Has(rnic.CapSendInvalidate)
	} else {
		// Only windows can be taken away: an STag of a whole region must outlive the task.
		p.NoSendInvalidate = p.NoSendInvalidate || !caps.Has(rnic.CapWindows|rnic.CapLocalInvalidate)
	}
	return p
}

// agree settles what the two CM headers leave; d.mu is held. A peer that sent none gets the common
// core: virtual addresses, plain Sends and the RFC's reading of the Write Base Offset.
func (d *Datamover) agree(mine Private, peer []byte) {
	d.peer, d.peerCM = ParsePrivate(peer)
	d.sendInv = !mine.NoSendInvalidate && !d.peer.NoSendInvalidate
	d.zeroBased = !mine.NoZeroBased && !d.peer.NoZeroBased
	switch d.cfg.WriteBase {
	case WriteBaseAuto:
		d.linuxBase = d.peerCM
	default:
		d.linuxBase = d.cfg.WriteBase == WriteBaseLinux
	}
}
