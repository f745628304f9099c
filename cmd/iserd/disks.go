package main

import (
	"errors"
	"fmt"
	"log/slog"

	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// disks are the stores behind the LUNs.
type disks struct {
	log    *slog.Logger
	stores []store.Store
	lus    []*scsi.LU
}

// open makes the logical unit of a --lun flag. Its identity makes serial number and NAA stable.
func (d *disks) open(spec, identity string) (*scsi.LU, error) {
	l, err := config.ParseLUN(spec, 0, config.Pos{})
	if err != nil {
		return nil, err
	}
	named, cfg, err := l.Parse()
	if err != nil {
		return nil, err
	}
	cfg.Identity, cfg.Log = identity, d.log
	st, err := named.Open()
	if err != nil {
		return nil, err
	}
	lu, err := scsi.NewLU(st, cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", spec, err), st.Close())
	}
	d.stores, d.lus = append(d.stores, st), append(d.lus, lu)
	return lu, nil
}

// rescan finds the disks that have become larger, and tells their initiators.
func (d *disks) rescan() {
	for _, lu := range d.lus {
		lu.Refresh()
	}
}

// close makes what was written durable and closes the stores. It is called after the last command.
func (d *disks) close() error {
	var errs []error
	for i, st := range d.stores {
		d.lus[i].Close()
		if !st.Info().ReadOnly {
			if err := d.lus[i].Sync(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", st.Info().Name, err))
			}
		}
		if err := st.Close(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", st.Info().Name, err))
		}
	}
	return errors.Join(errs...)
}
