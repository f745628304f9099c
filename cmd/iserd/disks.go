package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// disk is a logical unit that is served, and its store.
type disk struct {
	lun  config.LUN
	spec *store.Spec
	st   store.Store
	lu   *scsi.LU
}

// openDisk opens what l names. The target's name and the number make serial number and NAA stable.
func openDisk(l config.LUN, target string, log *slog.Logger) (*disk, error) {
	spec, cfg, err := l.Parse()
	if err != nil {
		return nil, &config.Error{Pos: l.Pos, Text: err.Error()}
	}
	cfg.Identity, cfg.Log = fmt.Sprintf("%s/%d", target, l.Number), log
	st, err := spec.Open()
	if err != nil {
		return nil, &config.Error{Pos: l.Pos, Text: err.Error()}
	}
	lu, err := scsi.NewLU(st, cfg)
	if err != nil {
		return nil, errors.Join(&config.Error{Pos: l.Pos, Text: l.Spec() + ": " + err.Error()}, st.Close())
	}
	return &disk{lun: l, spec: spec, st: st, lu: lu}, nil
}

// close makes what was written durable and closes the store. It is called after the last command.
func (d *disk) close() error {
	var errs []error
	d.lu.Close()
	if !d.st.Info().ReadOnly {
		if err := d.lu.Sync(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.st.Info().Name, err))
		}
	}
	if err := d.st.Close(); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", d.st.Info().Name, err))
	}
	return errors.Join(errs...)
}

// change is what has to be done to a disk that is to be as another specification says.
type change struct {
	replace  bool  // it is another disk
	size     int64 // 0: as it is
	readOnly *bool // nil: as it is
	limits   *rateLimits
}

// rateLimits are what a logical unit takes per second: commands and octets; 0 is no limit.
type rateLimits struct{ iops, bandwidth int64 }

func (r rateLimits) String() string {
	var parts []string
	if r.iops > 0 {
		parts = append(parts, fmt.Sprintf("%d commands/s", r.iops))
	}
	if r.bandwidth > 0 {
		parts = append(parts, store.FormatSize(r.bandwidth)+"/s")
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, " and ")
}

// changeTo compares. Size, limits and read-only can be changed while the disk serves; everything else is another disk to an initiator.
func (d *disk) changeTo(l config.LUN) (ch change, err error) {
	spec, cfg, err := l.Parse()
	if err != nil {
		return ch, &config.Error{Pos: l.Pos, Text: err.Error()}
	}
	if l.Spec() == d.lun.Spec() {
		return ch, nil
	}
	bare := func(l config.LUN) string {
		for _, name := range []string{"ro", "size", "iops", "bw"} {
			l = l.With(name, "", false)
		}
		if spec.Kind != "file" {
			l = l.Resized(1 << 20) // any size, to compare the rest
		}
		return l.Spec()
	}
	switch {
	case spec.Kind != d.spec.Kind, bare(l) != bare(d.lun), !spec.ReadOnly && d.st.Info().ReadOnly:
		return change{replace: true}, nil
	}
	if spec.Size != 0 && spec.Size != d.st.Size() {
		ch.size = spec.Size
	}
	if _, was := d.lun.Option("ro"); was != spec.ReadOnly {
		ch.readOnly = &spec.ReadOnly
	}
	want := rateLimits{cfg.IOPS, cfg.Bandwidth}
	if iops, bandwidth := d.lu.Limiter().Rates(); want != (rateLimits{iops, bandwidth}) {
		ch.limits = &want
	}
	return ch, nil
}
