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

// startup is the part of an iSER connection's life between the end of the login in the byte stream and the first message that
// the iSCSI layer may have sent. Other connections have none of it.
type startup struct {
	up    rnic.StreamUpgrader
	conn  net.Conn
	ctx   context.Context // ends with the connection
	stop  context.CancelFunc
	over  chan struct{} // closed when startUp has returned
	ready chan struct{} // closed when PDUs pass, or never will
	once  sync.Once     // of ready
}

// cancel makes startUp give up.
func (s *startup) cancel() {
	if s != nil {
		s.stop()
	}
}

// wait returns when startUp has.
func (s *startup) wait() {
	if s != nil {
		<-s.over
	}
}

// settle closes ready.
func (s *startup) settle() {
	if s != nil {
		s.once.Do(func() { close(s.ready) })
	}
}

// newUpgrade makes an iSER connection without a queue pair, for a stream whose login is not over. It ends in abort, or
// in enableUpgrade and then startUp or startFailed.
func newUpgrade(cfg Config, up rnic.StreamUpgrader, conn net.Conn, target bool) (*Datamover, error) {
	d, err := newDatamover(cfg, target)
	if err != nil {
		return nil, err
	}
	s := &startup{up: up, conn: conn, over: make(chan struct{}), ready: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	d.start = s
	// Neither CM header nor Send with Invalidate nor zero-based addresses: RFC 7145 knows no private data.
	d.agree(Private{NoZeroBased: true, NoSendInvalidate: true}, nil)
	return d, nil
}

// enableUpgrade is EnableDatamover behind a login in the byte stream: what is sent from now on waits for the queue pair.
func (d *Datamover) enableUpgrade(n iscsi.Notifier) {
	d.up.Lock()
	d.n = n
	d.up.Unlock()
	d.mu.Lock()
	d.phase = phaseFull
	d.expectHello()
	d.mu.Unlock()
}

// startFailed is for a connection whose final Login Response did not leave.
func (d *Datamover) startFailed(err error) {
	d.fail(err)
	close(d.start.over)
}

// startUp makes the stream an RDMA connection. Its errors are the connection's.
func (d *Datamover) startUp() {
	defer close(d.start.over)
	var err error
	if d.target {
		err = d.respond()
	} else {
		err = d.initiate()
	}
	if err != nil {
		d.fail(&HandoverError{Phase: PhaseMPA, Remote: d.start.conn.RemoteAddr(), Err: err})
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase >= phaseDraining {
		return
	}
	info := d.qp.Info()
	d.log.Debug("iser: handed over", "remote", info.RemoteAddr, "IRD", info.IRD, "ORD", d.ord)
	d.watchHello()
	switch {
	case d.target:
	case d.helloWait:
		if err := d.sendHello(AppendHello(nil, info.IRD)); err != nil {
			d.failLocked(err)
			return
		}
	default:
		d.start.settle()
	}
	d.pump()
}

// respond is the target's side: MPA's responder.
func (d *Datamover) respond() error {
	s := d.start
	req, err := s.up.UpgradeRequest(s.ctx, s.conn, nil, d.cfg.Link)
	if err != nil {
		return err // the connection is closed
	}
	info := req.Info()
	ird, ord := d.depths(info)
	if ord == 0 && !d.cfg.AllowNoReads {
		return errors.Join(ErrNoReads, req.Reject(nil))
	}
	if err := d.openQP(req.CreateQP); err != nil {
		return errors.Join(err, req.Reject(nil))
	}
	d.mu.Lock()
	d.ord = ord
	d.mu.Unlock()
	return req.Accept(s.ctx, rnic.ConnParams{IRD: ird, ORD: ord})
}

// initiate is the initiator's side: MPA's initiator.
func (d *Datamover) initiate() error {
	s := d.start
	c, err := s.up.UpgradeConnector(s.ctx, s.conn, d.cfg.Link)
	if err != nil {
		return errors.Join(err, s.conn.Close())
	}
	if err := d.openQP(c.CreateQP); err != nil {
		return errors.Join(err, c.Close())
	}
	ci, err := c.Connect(s.ctx, rnic.ConnParams{IRD: d.serves(), ORD: 1})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	d.mu.Lock()
	d.ord = ci.ORD
	d.mu.Unlock()
	return nil
}

// expectHello begins full feature phase, whose first message is the initiator's; with iSERHelloRequired=Yes a Hello. d.mu is held.
func (d *Datamover) expectHello() {
	d.fullFirst = true
	if !d.params.ISERHelloRequired {
		return
	}
	d.helloWait = !d.target
	d.helloHold = d.waiting.head == nil
}

// watchHello bounds the wait for the Hello exchange; d.mu is held.
func (d *Datamover) watchHello() {
	if d.params.ISERHelloRequired {
		d.helloTimer = time.AfterFunc(d.cfg.HelloTimeout, d.helloLate)
	}
}

// helloLate ends a connection whose peer says no Hello.
func (d *Datamover) helloLate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.helloWait || d.target && d.fullFirst {
		d.failLocked(&HandoverError{Phase: PhaseHello, Remote: d.remoteAddr(), Err: ErrHelloTimeout})
	}
}

// remoteAddr is the peer's; d.mu is held.
func (d *Datamover) remoteAddr() net.Addr {
	if d.qp == nil {
		return d.start.conn.RemoteAddr()
	}
	return d.qp.Info().RemoteAddr
}

// serves is how many RDMA Reads an initiator offers to serve at once.
func (d *Datamover) serves() int {
	if m := d.dom.attr.MaxIRD; m > 0 {
		return min(d.cfg.IRD, m)
	}
	return d.cfg.IRD
}

// depths are what a target answers an initiator's.
func (d *Datamover) depths(info rnic.ConnInfo) (ird, ord int) {
	ird, ord = 1, d.cfg.ORD
	if m := d.dom.attr.MaxIRD; m > 0 {
		ird = min(ird, m)
	}
	if m := d.dom.attr.MaxORD; m > 0 {
		ord = min(ord, m)
	}
	switch {
	case info.NoDepths:
		ord = min(ord, 1) // what an initiator that expects R2Ts serves at least (RFC 7145, section 5.1.1)
	case info.PeerIRD != unnegotiated:
		ord = min(ord, info.PeerIRD)
	}
	return ird, ord
}

// link is what is known of the connection below, before there is a queue pair as well.
func (d *Datamover) link() (rnic.ConnInfo, rnic.Stats) {
	d.mu.Lock()
	qp := d.qp
	d.mu.Unlock()
	if qp == nil {
		return rnic.ConnInfo{LocalAddr: d.start.conn.LocalAddr(), RemoteAddr: d.start.conn.RemoteAddr()}, rnic.Stats{}
	}
	return qp.Info(), qp.Stats()
}

// Phase is a part of a handover.
type Phase string

// Phases.
const (
	PhaseSetup Phase = "setup"
	PhaseLogin Phase = "login"
	PhaseMPA   Phase = "MPA startup"
	PhaseHello Phase = "Hello exchange"
)

// HandoverError says in which part of RFC 7145's order a connection failed, and why.
type HandoverError struct {
	Phase  Phase
	Remote net.Addr
	Err    error
}

func (e *HandoverError) Error() string {
	return fmt.Sprintf("iser: handover with %v: %s: %v", e.Remote, e.Phase, e.Err)
}

func (e *HandoverError) Unwrap() error { return e.Err }

// Errors of the handover.
var (
	// ErrNoUpgrade: the device cannot make an RDMA connection of a TCP connection that carried something else.
	ErrNoUpgrade = errors.New("iser: the device cannot take over a TCP connection")
	// ErrHelloTimeout: the Hello, or its answer, did not come in time (Config.HelloTimeout).
	ErrHelloTimeout = errors.New("iser: no Hello exchange in time")
)
