package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/rdma"
	"goiwarp/internal/sock"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// connectOptions are the flags that say how to connect.
type connectOptions struct {
	initiatorName string
	rnic          rdma.Options
	chap          chapOptions
	handover      handoverOptions
	isidOptions
	digests  bool
	mcs      int // connections of a session
	recovery int // ErrorRecoveryLevel
	revision int // of MPA
	fast     bool
	timeout  time.Duration
	logLevel string
}

func (o *connectOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.initiatorName, "initiator-name", "", "this side's iSCSI `name` (default made from the host's name)")
	o.chap.flags(f)
	o.rnic.Flags(f)
	o.handover.flags(f)
	o.isidOptions.flags(f)
	f.BoolVar(&o.digests, "digests", false, "ask for iSCSI's header and data digests over TCP")
	f.IntVar(&o.mcs, "session-connections", 1, "ask for sessions of `N` connections (MC/S)")
	f.IntVar(&o.recovery, "recovery-level", 0, "ask for ErrorRecoveryLevel `N`: 1 mends lost PDUs, 2 lost connections too")
	f.IntVar(&o.revision, "mpa-revision", 2, "set iWARP connections up with MPA revision `N`: 1 for a peer that closes on RFC 6581's enhanced startup\n"+
		"(with --handover and --hello, iSER's Hello tells the depth of the queue of RDMA Reads instead; soft only)")
	f.BoolVar(&o.fast, "fast-abort", false, "ask that aborts and resets wait for no data (TaskReporting=FastAbort)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long connecting and logging in may take")
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "what to log on standard error: debug, info, warn or error")
}

// fabric is what connections are made with.
type fabric struct {
	opts   *connectOptions
	log    *slog.Logger
	dev    rnic.Device
	domain *iser.Domain
	chap   iscsi.CHAPInitiatorConfig
	isid   [6]byte // of the first session; zero: random ones
	poller *sock.Poller
	logins atomic.Uint32
}

func (o *connectOptions) open() (*fabric, error) { return o.openPolled(0) }

// openPolled is open with connections whose readers poll for up to limit before they sleep.
func (o *connectOptions) openPolled(limit time.Duration) (*fabric, error) {
	log, err := cli.Logger(os.Stderr, o.logLevel)
	if err != nil {
		return nil, err
	}
	if err := o.rnic.Check(); err != nil {
		return nil, err
	}
	if err := o.handover.check(); err != nil {
		return nil, err
	}
	if o.mcs < 1 || o.mcs > 64 {
		return nil, cli.Usagef("--session-connections %d: want 1 to 64", o.mcs)
	}
	if o.recovery < 0 || o.recovery > 2 {
		return nil, cli.Usagef("--recovery-level %d: want 0, 1 or 2", o.recovery)
	}
	if o.revision < 1 || o.revision > 2 {
		return nil, cli.Usagef("--mpa-revision %d: want 1 or 2", o.revision)
	}
	if o.timeout <= 0 {
		return nil, cli.Usagef("--timeout %s: want a time above 0, for example 30s", o.timeout)
	}
	isid, err := o.base(o.initiatorName)
	if err != nil {
		return nil, err
	}
	chap, err := o.chap.load()
	if err != nil {
		return nil, err
	}
	if !o.rnic.Soft() || o.handover.mode != "" {
		limit = 0 // somebody else makes the connections
	}
	poller := sock.NewPoller(limit)
	dev, err := o.rnic.OpenPolled(log, poller)
	if err != nil {
		return nil, err
	}
	if err := o.checkHandover(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	f := &fabric{opts: o, log: log, dev: dev, chap: chap, isid: isid, poller: poller}
	if f.domain, err = iser.NewDomain(f.dev, iser.DomainConfig{Log: log}); err != nil {
		return nil, errors.Join(err, f.dev.Close())
	}
	return f, nil
}

// Close ends all connections.
func (f *fabric) Close() error { return errors.Join(f.domain.Close(), f.dev.Close()) }

func (f *fabric) dialer(transport string) iscsi.Dialer {
	if transport == "iscsi" {
		return &tcp.Dialer{Config: tcp.Config{Log: f.log}, Wrap: f.poller.Lead}
	}
	if f.opts.handover.mode != "" {
		return f.handover()
	}
	return &iser.Dialer{Domain: f.domain, Config: iser.Config{Link: f.opts.link(), Log: f.log}}
}

// link is what the flags say about what lies below iSER.
func (o *connectOptions) link() *rnic.LinkOptions {
	link := o.rnic.Link()
	link.Revision = o.revision
	return link
}

func (f *fabric) config(portal initiator.Portal) initiator.Config {
	cfg := initiator.Config{Addr: portal.String(), InitiatorName: f.opts.initiatorName, CHAP: f.chap, Log: f.log}
	f.opts.handover.settings(&cfg)
	cfg.Settings.MaxConnections, cfg.Settings.ErrorRecoveryLevel = f.opts.mcs, f.opts.recovery
	if f.opts.fast {
		cfg.Settings.TaskReporting = []string{iscsi.ReportFastAbort, iscsi.ReportResponseFence, iscsi.ReportRFC3720}
	}
	if f.opts.digests {
		cfg.Settings.HeaderDigest, cfg.Settings.DataDigest = []string{"CRC32C"}, []string{"CRC32C"}
	}
	return cfg
}

// login opens a session with the URL's target.
func (f *fabric) login(ctx context.Context, u initiator.URL) (*initiator.Session, error) {
	return f.loginWith(ctx, u, func(*initiator.Config) {})
}

// loginWith is login with a configuration that change has been at.
func (f *fabric) loginWith(ctx context.Context, u initiator.URL, change func(*initiator.Config)) (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.timeout)
	defer cancel()
	cfg := f.config(u.Portal)
	cfg.TargetName, cfg.ISID = u.Target, isidOf(f.isid, uint16(f.logins.Add(1)-1))
	change(&cfg)
	s, err := initiator.Login(ctx, f.dialer(u.Transport), cfg)
	if err != nil {
		return nil, f.opts.unreached(u.Portal, err)
	}
	return s, nil
}

// logout ends a session in order; one that does not answer is dropped.
func logout(s *initiator.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.Logout(ctx) // what matters has been answered already
	s.Close()
}

// withSession runs f in a session with the URL's target.
func (o *connectOptions) withSession(ctx context.Context, url string, f func(ctx context.Context, u initiator.URL, s *initiator.Session) error) (err error) {
	u, err := parseURL(url)
	if err != nil {
		return err
	}
	fab, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fab.Close()) }()
	s, err := fab.login(ctx, u)
	if err != nil {
		return err
	}
	defer logout(s)
	return f(ctx, u, s)
}

// parseURL reads a URL of the command line: one that is none is a mistake in usage.
func parseURL(url string) (initiator.URL, error) {
	u, err := initiator.ParseURL(url)
	if err != nil {
		return u, &cli.UsageError{Err: err}
	}
	return u, nil
}

// parseDisk reads the URL of a logical unit.
func parseDisk(url string) (initiator.URL, error) {
	u, err := parseURL(url)
	if err == nil && !u.HasLUN {
		err = cli.Usagef("%s names no LUN: add one, as in %s/0", url, u)
	}
	return u, err
}

// withDisk runs f with the URL's logical unit.
func (o *connectOptions) withDisk(ctx context.Context, url string, f func(ctx context.Context, d *disk) error) error {
	if _, err := parseDisk(url); err != nil {
		return err
	}
	return o.withSession(ctx, url, func(ctx context.Context, u initiator.URL, s *initiator.Session) error {
		d, err := openDisk(ctx, u, s)
		if err != nil {
			return err
		}
		return f(ctx, d)
	})
}

// withDiskUnopened is withDisk for what needs to know nothing of the logical unit before.
func (o *connectOptions) withDiskUnopened(ctx context.Context, url string, f func(ctx context.Context, d *disk) error) error {
	if _, err := parseDisk(url); err != nil {
		return err
	}
	return o.withSession(ctx, url, func(ctx context.Context, u initiator.URL, s *initiator.Session) error {
		return f(ctx, &disk{url: u, session: s, lun: s.LUN(u.LUN)})
	})
}
