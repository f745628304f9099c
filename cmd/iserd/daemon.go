package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/rdma"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/cmd/iserd/internal/ctl"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
)

const (
	// iscsiProtocol and iscsiVersion name iSCSI to SCSI: the protocol identifier (SPC-4, section 7.6.1), and the
	// version descriptor, 0960h and the protocol level (RFC 7144, section 6).
	iscsiProtocol = 5
	iscsiVersion  = 0x0960

	portalGroup = 1
)

// daemon is a running iserd: what is served, and the means to change it.
//
//	flags, file --> config.Config --> apply: prepare all, then change what differs
//	                                    ^
//	   SIGHUP, ctl reload, ctl lun add ... (each makes another Config)
type daemon struct {
	out     io.Writer
	log     *slog.Logger
	level   *slog.LevelVar
	notify  notifier
	sockets sockets
	attend  ctl.Handler                    // of the control socket
	file    string                         // of the configuration; empty: flags alone
	reread  func() (*config.Config, error) // nil without a file

	ctx    context.Context // ends when nothing new is taken any more
	work   sync.WaitGroup  // portals, control socket, metrics, disks whose last command has not ended
	failed chan error      // of a listener
	began  time.Time

	pool   *tcp.Pool
	fabric *fabric
	server *target.Server

	turn    chan struct{} // has an element while something is changed: see begin
	mu      sync.Mutex    // guards what follows, for a moment; who has the turn alone writes, and may read without it
	cfg     *config.Config
	targets map[string]*served
	portals map[string][]*listener
	asides  [numAsides]*aside // nil where nobody asks for it
	ready   bool
	zombies []*disk // taken away, and not yet let go by their last command
}

// served is a target that is served.
type served struct {
	device *scsi.Device
	disks  map[int]*disk
}

func newDaemon(out, errs io.Writer) *daemon {
	level := new(slog.LevelVar)
	return &daemon{
		out: out, level: level, log: slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: level})),
		failed: make(chan error, 1), turn: make(chan struct{}, 1), targets: make(map[string]*served), portals: make(map[string][]*listener),
	}
}

// fail ends the daemon.
func (d *daemon) fail(err error) {
	select {
	case d.failed <- err:
	default:
	}
}

// run serves c until ctx ends. An error that is a config.Errors tells why nothing has been served.
func (d *daemon) run(ctx context.Context, c *config.Config) (err error) {
	d.began, d.attend = time.Now(), d.control
	d.sockets = passedSockets()
	defer d.sockets.close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	d.ctx = serving
	if err := d.open(c); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.fabric.close()) }()
	d.withDefaults(c)
	if open(c) {
		d.log.Warn("whoever can connect can read and write the disks: see --chap-file, --allow-initiator and --allow-network")
	}
	if _, err := d.apply(serving, c, false); err != nil {
		return errors.Join(err, d.end(stop))
	}
	hangup, release := hangups()
	defer release()
	d.announce()
	d.work.Go(func() { d.reloads(hangup) })
	err = d.wait(ctx)
	d.notify.send("STOPPING=1\nSTATUS=Ending sessions")
	return errors.Join(err, d.end(stop))
}

// open makes what the connections share.
func (d *daemon) open(c *config.Config) error {
	if err := d.setLevel(c.LogLevel); err != nil {
		return err
	}
	overTCP, overISER, receives := c.Limits.Shares()
	d.pool = tcp.NewPool(int(overTCP))
	o := rdma.Options{RNIC: c.RDMA.Device, CRC: c.RDMA.CRC, MaxFPDU: c.RDMA.MaxFPDU}
	if err := o.Check(); err != nil {
		return err
	}
	dev, err := o.Open(d.log)
	if err != nil {
		return err
	}
	domain, err := iser.NewDomain(dev, iser.DomainConfig{
		BufferMemory: int(overISER), ReceiveMemory: int(receives), Log: d.log,
	})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	d.server, err = target.New(target.Config{Log: d.log})
	if err == nil {
		err = d.server.Change(settings(c))
	}
	if err != nil {
		return errors.Join(err, domain.Close(), dev.Close())
	}
	d.fabric = &fabric{dev: dev, domain: domain, pool: d.pool, server: d.server, log: d.log}
	d.fabric.shape.Store(shapeOf(c))
	return nil
}

func (f *fabric) close() error { return errors.Join(f.domain.Close(), f.dev.Close()) }

// setLevel changes what is logged.
func (d *daemon) setLevel(level string) error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return cli.Usagef("log level %q: want debug, info, warn or error", level)
	}
	d.level.Set(l)
	return nil
}

// withDefaults adds the portals of a configuration that names none.
func (d *daemon) withDefaults(c *config.Config) {
	switch {
	case len(c.Portals) > 0:
	case d.sockets.any():
		c.Portals = []config.Portal{{Listen: config.Systemd}}
	default:
		c.Portals = []config.Portal{{Listen: defaultListen, Pos: config.Pos{File: "--listen"}}}
	}
}

// memory is what is held outside of the Go heap, in octets.
func (d *daemon) memory() map[string]int64 {
	p, s := d.pool.Stats(), d.fabric.domain.Stats()
	return map[string]int64{
		"tcp data held": p.Held, "tcp data lent": p.Lent, "iser data held": int64(s.BufferOctets), "iser receives held": int64(s.ReceiveOctets),
	}
}

// healthy tells whether the server answers at all.
func (d *daemon) healthy() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.server.Status()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("the sessions do not answer")
	}
}

// isReady tells whether logins are taken.
func (d *daemon) isReady() error {
	if d.ctx.Err() != nil {
		return errors.New("stopping")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ready {
		return errors.New("starting")
	}
	return nil
}

// announce tells people and systemd that logins are taken.
func (d *daemon) announce() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = true
	for i := range d.cfg.Targets {
		for _, k := range portalKeys(d.cfg.Portals) {
			for _, l := range d.portals[k] {
				if _, err := fmt.Fprintf(d.out, "ready: %s on %s\n", d.cfg.Targets[i].Name, l.addr()); err != nil {
					d.fail(err)
				}
			}
		}
	}
	d.notify.send("READY=1\nSTATUS=" + d.summary())
}

// summary is one line about what is served, for who has the turn or d.mu.
func (d *daemon) summary() string {
	luns := 0
	for i := range d.cfg.Targets {
		luns += len(d.cfg.Targets[i].LUNs)
	}
	return fmt.Sprintf("Serving %d targets, %d LUNs on %d portals", len(d.cfg.Targets), luns, len(d.cfg.Portals))
}

// wait serves until ctx ends or a listener fails.
func (d *daemon) wait(ctx context.Context) error {
	var tick <-chan time.Time
	if every := d.notify.watchdog(); every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.failed:
			return err
		case <-tick:
			if err := d.healthy(); err != nil {
				d.log.Error("not healthy", "err", err) // systemd draws the consequence
				continue
			}
			d.notify.send("WATCHDOG=1")
		}
	}
}

// reloads does what SIGHUP asks for, beside wait: signs of life must not wait for sessions to end.
func (d *daemon) reloads(hangup <-chan struct{}) {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-hangup:
			if _, err := d.reload(d.ctx); err != nil {
				d.log.Error("reload failed", "err", cli.OneLine(err))
			}
		}
	}
}

// reload reads the configuration again and changes what differs; without a file it looks at the sizes of the disks.
func (d *daemon) reload(ctx context.Context) (*report, error) {
	done, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	d.notify.reloading()
	defer func() { d.notify.send("READY=1\nSTATUS=" + d.summary()) }()
	r := &report{}
	if d.reread != nil {
		c, err := d.reread()
		if err != nil {
			return nil, err
		}
		d.withDefaults(c)
		if r, err = d.applyInTurn(ctx, c, false); err != nil {
			return r, err
		}
	}
	d.rescan(r)
	for _, s := range r.Changes {
		d.log.Info("reload", "change", s)
	}
	return r, nil
}

// rescan finds the disks that have become larger, and tells their initiators.
func (d *daemon) rescan(r *report) {
	for name, t := range d.targets {
		for n, k := range t.disks {
			if k.lu.Refresh() {
				r.changef("target %s: LUN %d has another size", name, n)
			}
		}
	}
}

// end ends the sessions in order, then everything else.
func (d *daemon) end(stop context.CancelFunc) error {
	stop()
	d.turn <- struct{}{} // what is being changed ends early, as its context has; nothing more is changed
	d.mu.Lock()
	grace := 30 * time.Second
	if d.cfg != nil {
		grace = d.cfg.Timers.Drain
	}
	for _, lns := range d.portals {
		for _, l := range lns {
			l.close()
		}
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), grace)
	defer cancel()
	err := d.server.Shutdown(ctx)
	d.work.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.targets {
		for _, k := range t.disks {
			err = errors.Join(err, k.close())
		}
	}
	for _, k := range d.zombies {
		err = errors.Join(err, k.close())
	}
	return err
}

// closeAll closes listeners that nobody serves yet; nil ones are none.
func closeAll(ls ...net.Listener) {
	for _, l := range ls {
		if l != nil {
			_ = l.Close()
		}
	}
}

// newDevice makes a SCSI device whose first port is that of a portal group, named as RFC 7143, section 4.2.7, has it.
func newDevice(name string, group uint16) *scsi.Device {
	return scsi.NewDevice(scsi.Port{
		Name: fmt.Sprintf("%s,t,0x%04x", name, group), DeviceName: name, Relative: group,
		Protocol: iscsiProtocol, Version: iscsiVersion,
	})
}

// report is what a change has done.
type report struct {
	Changes []string `json:"changes"`
}

func (r *report) changef(format string, args ...any) {
	r.Changes = append(r.Changes, fmt.Sprintf(format, args...))
}

func (r *report) String() string {
	var b strings.Builder
	for _, s := range r.Changes {
		b.WriteString(s + "\n")
	}
	if b.Len() == 0 {
		return "nothing to change\n"
	}
	return b.String()
}
