package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Option is a setting of Dial and Open.
type Option func(*options)

type options struct {
	disk    DiskConfig
	dialers map[string]iscsi.Dialer
}

// WithDialer says how connections are made for URLs of one transport: "iscsi" (a *tcp.Dialer) or "iser" (an *iser.Dialer).
func WithDialer(transport string, d iscsi.Dialer) Option {
	return func(o *options) { o.dialers[transport] = d }
}

// WithConfig lets f change any field of the session's Config but Addr and TargetName, which are the URL's.
func WithConfig(f func(*Config)) Option { return func(o *options) { f(&o.disk.Session) } }

// WithDisk lets f change any field of a Disk's configuration; Dial has no use for it.
func WithDisk(f func(*DiskConfig)) Option { return func(o *options) { f(&o.disk) } }

// WithSettings lets f change what is offered in the negotiation: every key that an initiator may offer is a field there.
func WithSettings(f func(*iscsi.Settings)) Option {
	return WithConfig(func(c *Config) { f(&c.Settings) })
}

// WithInitiatorName sets this host's iSCSI name.
func WithInitiatorName(name string) Option {
	return WithConfig(func(c *Config) { c.InitiatorName = name })
}

// WithISID sets the session's ISID; of a Disk, its first path's.
func WithISID(id [6]byte) Option { return WithConfig(func(c *Config) { c.ISID = id }) }

// WithDigests asks for header and data digests, which iSCSI over TCP has.
func WithDigests() Option {
	return WithSettings(func(s *iscsi.Settings) { s.HeaderDigest, s.DataDigest = []string{"CRC32C"}, []string{"CRC32C"} })
}

// WithCHAP is what this side proves itself with, and what it has the target prove (RFC 7143, section 12.1).
func WithCHAP(chap iscsi.CHAPInitiatorConfig) Option {
	return WithConfig(func(c *Config) { c.CHAP = chap })
}

// WithQueueDepth sets how many commands may be on their way at once.
func WithQueueDepth(n int) Option { return WithConfig(func(c *Config) { c.QueueDepth = n }) }

// WithCommandTimeout sets how long a command may take before it is aborted.
func WithCommandTimeout(d time.Duration) Option {
	return WithConfig(func(c *Config) { c.CommandTimeout = d })
}

// WithReplacementTimeout sets how long a Disk's commands wait for a path.
func WithReplacementTimeout(d time.Duration) Option {
	return WithDisk(func(c *DiskConfig) { c.ReplacementTimeout = d })
}

// WithPolicy chooses among a Disk's equally good paths.
func WithPolicy(p Policy) Option { return WithDisk(func(c *DiskConfig) { c.Policy = p }) }

// WithHooks watches the sessions.
func WithHooks(h Hooks) Option { return WithConfig(func(c *Config) { c.Hooks = h }) }

// WithLog says where to tell of what is out of the ordinary.
func WithLog(l *slog.Logger) Option { return WithConfig(func(c *Config) { c.Log = l }) }

func apply(opts []Option) *options {
	o := &options{dialers: map[string]iscsi.Dialer{}}
	for _, f := range opts {
		f(o)
	}
	return o
}

// dialer is the one for a URL.
func (o *options) dialer(u URL) (iscsi.Dialer, error) {
	d := o.dialers[u.Transport]
	if d == nil {
		return nil, fmt.Errorf("initiator: %s: no dialer for %s: give one by WithDialer", u, u.Transport)
	}
	return d, nil
}

// Dial logs in to the target that a URL names. Session.LUN(u.LUN) is the URL's logical unit. The session ends with its connection; for a
// logical unit that outlives connections there is Open.
func Dial(ctx context.Context, url string, opts ...Option) (*Session, error) {
	u, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	o := apply(opts)
	d, err := o.dialer(u)
	if err != nil {
		return nil, err
	}
	cfg := o.disk.Session
	cfg.Addr, cfg.TargetName = u.Portal.String(), u.Target
	return Login(ctx, d, cfg)
}

// Open opens the logical unit that the URLs name: one, or several for as many paths to the same one.
func Open(ctx context.Context, urls []string, opts ...Option) (*Disk, error) {
	o := apply(opts)
	if len(urls) == 0 {
		return nil, errors.New("initiator: no URL")
	}
	paths := make([]PathConfig, len(urls))
	for i, s := range urls {
		u, err := ParseURL(s)
		if err != nil {
			return nil, err
		}
		if !u.HasLUN {
			return nil, fmt.Errorf("initiator: %s names no LUN: add one, as in %s/0", u, u)
		}
		d, err := o.dialer(u)
		if err != nil {
			return nil, err
		}
		paths[i] = PathConfig{Dialer: d, Addr: u.Portal.String(), TargetName: u.Target, LUN: scsi.EncodeLUN(int(u.LUN))}
	}
	return OpenDisk(ctx, o.disk, paths...)
}
