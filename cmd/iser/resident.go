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
)

// residentOptions are the flags of commands that keep a disk for as long as they run, whatever becomes of its connections.
type residentOptions struct {
	lastingOptions
	sizeCheck time.Duration
	readOnly  bool
	poll      time.Duration
}

// flags adds the flags; poll is the default of --poll.
func (o *residentOptions) flags(f *pflag.FlagSet, poll time.Duration) {
	o.lastingOptions.flags(f)
	f.DurationVar(&o.sizeCheck, "size-check", 10*time.Second, "how often to ask whether the disk has another size; 0: never")
	f.DurationVar(&o.poll, "poll", poll, "how long to poll for requests and answers before sleeping, as long as they come faster than that; 0: never")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse writes")
}

// maxPoll bounds --poll: polling for longer saves nothing that could be noticed.
const maxPoll = 100 * time.Millisecond

func (o *residentOptions) check() error {
	if o.sizeCheck < 0 {
		return cli.Usagef("--size-check %v: want 0 or more", o.sizeCheck)
	}
	if o.poll < 0 || o.poll > maxPoll {
		return cli.Usagef("--poll %v: want 0 to %v", o.poll, maxPoll)
	}
	return o.lastingOptions.check()
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
	urls, err := o.urls(url)
	if err != nil {
		return nil, err
	}
	f, err := c.openPolled(o.poll)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	d, err := f.openPaths(ctx, urls, &o.lastingOptions, lend, func(c *initiator.DiskConfig) {
		if isid != [6]byte{} {
			c.Session.ISID = isid
		}
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	x, err := nbd.Describe(ctx, d.LUN)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", urls[0], err), d.Close())
	}
	x.ReadOnly = x.ReadOnly || o.readOnly
	x.Description = urls[0].String()
	return &resident{urls[0], f, d, x}, nil
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
