package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iser/internal/nbd"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iser"
)

// residentOptions are the flags of commands that keep a disk for as long as they run, whatever becomes of its connections.
type residentOptions struct {
	paths       []string
	replacement time.Duration
	sizeCheck   time.Duration
	readOnly    bool
}

func (o *residentOptions) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.paths, "path", nil, "`URL` of another way to the same disk; may be repeated")
	f.DurationVar(&o.replacement, "replacement-timeout", initiator.DefaultReplacementTimeout, "how long requests wait for a lost connection before they fail; below 0: for ever")
	f.DurationVar(&o.sizeCheck, "size-check", 10*time.Second, "how often to ask whether the disk has another size; 0: never")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse writes")
}

func (o *residentOptions) check() error {
	switch {
	case o.replacement == 0:
		return cli.Usagef("--replacement-timeout 0: want a time, for example 2m, or one below 0 to wait for ever")
	case o.sizeCheck < 0:
		return cli.Usagef("--size-check %v: want 0 or more", o.sizeCheck)
	}
	return nil
}

// resident is a disk that outlives its sessions, and what it can do.
type resident struct {
	url    initiator.URL
	fabric *fabric
	disk   *initiator.Disk
	export nbd.Export
}

// memoryBeside is what a session needs of registered memory besides the requests' own, in octets.
const memoryBeside = 16 << 20

// openResident opens the disk that url and o.paths lead to. lend is how much registered memory will be lent for requests. isid, if not
// zero, is the sessions' own, so that those of a predecessor end when these begin.
func (c *connectOptions) openResident(ctx context.Context, url string, o *residentOptions, lend int, isid [6]byte) (r *resident, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	urls := make([]initiator.URL, 0, 1+len(o.paths))
	for _, s := range append([]string{url}, o.paths...) {
		u, err := lunURL(s)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	f, err := c.open()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	cfg := initiator.DiskConfig{Session: f.config(urls[0].Portal), ReplacementTimeout: o.replacement, OnPath: f.path}
	if isid != [6]byte{} {
		cfg.Session.ISID = isid
	}
	paths := make([]initiator.PathConfig, len(urls))
	for i, u := range urls {
		d := f.dialer(u.Transport)
		switch d := d.(type) {
		case *iser.Dialer:
			d.Config.BufferMemory = lend + memoryBeside
		case *iser.HandoverDialer:
			d.Config.Config.BufferMemory = lend + memoryBeside
		}
		paths[i] = initiator.PathConfig{Dialer: d, Addr: u.Portal.String(), TargetName: u.Target, LUN: scsi.EncodeLUN(int(u.LUN))}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	d, err := initiator.OpenDisk(ctx, cfg, paths...)
	if err != nil {
		return nil, c.unreached(urls[0].Portal, err)
	}
	x, err := nbd.Describe(ctx, d.LUN)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", urls[0], err), d.Close())
	}
	x.ReadOnly = x.ReadOnly || o.readOnly
	x.Description = urls[0].String()
	return &resident{urls[0], f, d, x}, nil
}

// lunURL reads a URL that names a LUN.
func lunURL(s string) (initiator.URL, error) {
	u, err := initiator.ParseURL(s)
	if err == nil && !u.HasLUN {
		err = fmt.Errorf("%s names no LUN: add one, as in %s/0", s, u)
	}
	return u, err
}

// path logs what becomes of a path.
func (f *fabric) path(e initiator.PathEvent) {
	if e.Up {
		f.log.Info("path changed", "path", e.PathInfo.String(), "active", e.ActivePaths)
	} else {
		f.log.Warn("path changed", "path", e.PathInfo.String(), "active", e.ActivePaths, "error", e.Err)
	}
}

// Close ends the sessions.
func (r *resident) Close() error { return errors.Join(r.disk.Close(), r.fabric.Close()) }

// watchSize asks every so often for the disk's size, and calls changed with another one, until ctx ends.
func (r *resident) watchSize(ctx context.Context, every time.Duration, changed func(size int64)) {
	if every == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	size := r.export.Size
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c, err := r.disk.Capacity(ctx)
		if err != nil || c.Size() == size || int(c.BlockSize) != r.export.BlockSize {
			continue // a disk that cannot be asked now is asked later
		}
		size = c.Size()
		changed(size)
	}
}
