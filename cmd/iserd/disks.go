package main

import (
	"errors"
	"fmt"
	"log/slog"

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
	named, err := store.Parse(spec, "block", "wce")
	if err != nil {
		return nil, err
	}
	cfg := scsi.LUConfig{Identity: identity, ReadOnly: named.ReadOnly, Log: d.log}
	if err := luOptions(named.Options, &cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", spec, err)
	}
	if block := int64(max(cfg.BlockSize, 512)); named.Size > 0 && named.Size < block {
		return nil, fmt.Errorf("%s: %d octets hold no block of %d", spec, named.Size, block) // before a file is made of that size
	}
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

// luOptions sets what a SPEC says about the logical unit rather than its store.
func luOptions(opts map[string]string, cfg *scsi.LUConfig) error {
	if v, ok := opts["block"]; ok {
		switch v {
		case "512":
			cfg.BlockSize = 512
		case "4096":
			cfg.BlockSize = 4096
		default:
			return fmt.Errorf("block=%s: want 512 or 4096", v)
		}
	}
	if v, ok := opts["wce"]; ok {
		switch v {
		case "on":
		case "off":
			cfg.WriteThrough = true
		default:
			return fmt.Errorf("wce=%s: want on or off", v)
		}
	}
	return nil
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
