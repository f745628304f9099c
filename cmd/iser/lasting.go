package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
)

// commandTimeout is how long one command of a tool may take before it is aborted: flushes and zeroing take longer than reads and writes.
const commandTimeout = 60 * time.Second

// lastingOptions are the flags of commands whose disk outlives its connections.
type lastingOptions struct {
	paths       []string
	replacement time.Duration
}

func (o *lastingOptions) flags(f *pflag.FlagSet) {
	o.waitFlag(f)
	f.StringArrayVar(&o.paths, "path", nil, "`URL` of another way to the same disk; may be repeated")
}

// waitFlag is for commands with more than one disk.
func (o *lastingOptions) waitFlag(f *pflag.FlagSet) {
	f.DurationVar(&o.replacement, "replacement-timeout", initiator.DefaultReplacementTimeout, "how long requests wait for a lost connection before they fail; below 0: for ever")
}

func (o *lastingOptions) check() error {
	if o.replacement == 0 {
		return cli.Usagef("--replacement-timeout 0: want a time, for example 2m, or one below 0 to wait for ever")
	}
	return nil
}

// urls are url and the other ways to the disk, checked.
func (o *lastingOptions) urls(url string) ([]initiator.URL, error) {
	urls := make([]initiator.URL, 0, 1+len(o.paths))
	for _, s := range append([]string{url}, o.paths...) {
		u, err := parseDisk(s)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// openPaths opens the disk that urls lead to. lend is how much memory each connection will lend for requests; 0 leaves that to the Datamover. Before
// that change may change anything.
func (f *fabric) openPaths(ctx context.Context, urls []initiator.URL, o *lastingOptions, lend int, change func(*initiator.DiskConfig)) (*initiator.Disk, error) {
	cfg := initiator.DiskConfig{Session: f.config(urls[0].Portal), ReplacementTimeout: o.replacement, OnPath: f.path}
	n := uint32(len(urls)) // each path has an ISID of its own
	cfg.Session.ISID = isidOf(f.isid, uint16(f.logins.Add(n)-n))
	change(&cfg)
	paths := make([]initiator.PathConfig, len(urls))
	for i, u := range urls {
		d := f.dialer(u.Transport)
		if lend > 0 {
			switch d := d.(type) {
			case *iser.Dialer:
				d.Config.BufferMemory = lend + memoryBeside
			case *iser.HandoverDialer:
				d.Config.Config.BufferMemory = lend + memoryBeside
			case *tcp.Dialer:
				d.Config.Memory = lend + memoryBeside
			}
		}
		paths[i] = initiator.PathConfig{Dialer: d, Addr: u.Portal.String(), TargetName: u.Target, LUN: scsi.EncodeLUN(int(u.LUN))}
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.timeout)
	defer cancel()
	d, err := initiator.OpenDisk(ctx, cfg, paths...)
	if err != nil {
		if noLUN(err) {
			return nil, missingLUN(urls[0])
		}
		return nil, f.opts.unreached(urls[0].Portal, err)
	}
	return d, nil
}

// openLasting opens the disk of a command that reads and writes it, whatever becomes of its connections. lend is as for openPaths. Close ends it.
func (f *fabric) openLasting(ctx context.Context, url string, o *lastingOptions, lend int, change func(*initiator.DiskConfig)) (*disk, error) {
	urls, err := o.urls(url)
	if err != nil {
		return nil, err
	}
	whole, err := f.openPaths(ctx, urls, o, lend, func(c *initiator.DiskConfig) {
		c.Session.CommandTimeout = commandTimeout
		change(c)
	})
	if err != nil {
		return nil, err
	}
	d, err := newDisk(ctx, urls[0], whole.LUN)
	if err != nil {
		return nil, errors.Join(err, whole.Close())
	}
	d.whole = whole
	return d, nil
}

// withLasting runs f with the URL's disk.
func (o *connectOptions) withLasting(ctx context.Context, url string, l *lastingOptions, f func(ctx context.Context, d *disk) error) (err error) {
	if err := l.check(); err != nil {
		return err
	}
	fab, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fab.Close()) }()
	d, err := fab.openLasting(ctx, url, l, 0, func(*initiator.DiskConfig) {})
	if err != nil {
		return err
	}
	defer d.end()
	return f(ctx, d)
}

// end ends a lasting disk's sessions; one that another command's session has is its owner's.
func (d *disk) end() {
	if d.whole != nil {
		_ = d.whole.Close() // what matters has been answered already
	}
}

// facts are what the Datamover of the first path that is up tells.
func (d *disk) facts() (iscsi.DatamoverInfo, bool) {
	for _, p := range d.whole.Paths() {
		if s := d.whole.PathSession(p.Index); s != nil {
			return s.Info(), true
		}
	}
	return iscsi.DatamoverInfo{}, false
}

// recoveries tells of lost connections, if there were any.
func (d *disk) recoveries() string {
	if s := d.whole.Stats(); s.Lost > 0 {
		return fmt.Sprintf("%s: %s, %s", d, plural(s.Lost, "lost connection was made", "lost connections were made")+" again", plural(s.Resent, "command", "commands")+" sent again")
	}
	return ""
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// noLUN tells that a target does not know the LUN.
func noLUN(err error) bool {
	var status *scsi.Error
	return errors.Is(err, initiator.ErrNoLogicalUnit) || errors.As(err, &status) && status.HasSense && status.Sense.Code == scsi.CodeLUNotSupported
}

func missingLUN(u initiator.URL) error {
	return fmt.Errorf("%s has no LUN %d; 'iser ls' lists what it has", u.Target, u.LUN)
}
