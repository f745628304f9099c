package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// disk is a logical unit as one side of a copy.
type disk struct {
	url     initiator.URL
	session *initiator.Session // nil with whole
	whole   *initiator.Disk    // what outlives its sessions; nil with session
	lun     *initiator.LUN
	cap     scsi.Capacity

	mapMu  sync.Mutex // guards what follows
	mapped []initiator.BlockStatus
	noMap  bool // it does not tell
}

func openDisk(ctx context.Context, u initiator.URL, s *initiator.Session) (*disk, error) {
	d, err := newDisk(ctx, u, s.LUN(u.LUN))
	if err != nil {
		return nil, err
	}
	d.session = s
	return d, nil
}

func newDisk(ctx context.Context, u initiator.URL, lun *initiator.LUN) (*disk, error) {
	d := &disk{url: u, lun: lun}
	var err error
	if d.cap, err = d.lun.Capacity(ctx); err != nil {
		if noLUN(err) {
			return nil, missingLUN(u)
		}
		return nil, fmt.Errorf("LUN %d: %w", u.LUN, err)
	}
	if d.cap.BlockSize == 0 {
		return nil, fmt.Errorf("LUN %d: block size 0", u.LUN)
	}
	return d, nil
}

func (d *disk) String() string { return fmt.Sprintf("LUN %d of %s", d.url.LUN, d.url.Target) }
func (d *disk) Size() int64    { return d.cap.Size() }

// Alloc lends registered memory.
func (d *disk) Alloc(n int) (memory, error) { return d.lun.Alloc(n) }

// aligned says whether [off, off+n) is whole blocks of data that m can carry by itself.
func (d *disk) aligned(m memory, n int, off int64) bool {
	bs := int64(d.cap.BlockSize)
	return off%bs == 0 && int64(n)%bs == 0 && n <= len(m.Bytes())
}

func (d *disk) blocks(n int, off int64) (lba uint64, count uint32) {
	bs := int64(d.cap.BlockSize)
	return uint64(off / bs), uint32(int64(n) / bs)
}

func (d *disk) Read(ctx context.Context, m memory, n int, off int64) error {
	if d.aligned(m, n, off) {
		lba, count := d.blocks(n, off)
		return d.lun.ReadBuf(ctx, lba, count, m)
	}
	_, err := d.lun.ReadAtContext(ctx, m.Bytes()[:n], off)
	return err
}

func (d *disk) Write(ctx context.Context, m memory, n int, off int64) error {
	if d.aligned(m, n, off) {
		lba, count := d.blocks(n, off)
		return d.lun.WriteBuf(ctx, lba, count, m)
	}
	_, err := d.lun.WriteAtContext(ctx, m.Bytes()[:n], off)
	return err
}

// Begin has nothing to prepare.
func (d *disk) Begin(int64) error { return nil }

// Grain is the logical block.
func (d *disk) Grain() int64 { return int64(d.cap.BlockSize) }

// Extent asks by GET LBA STATUS, and keeps the answer for what lies behind. Only a disk whose unmapped blocks read as zeros (LBPRZ) can tell.
func (d *disk) Extent(ctx context.Context, off int64) (zero bool, n int64, err error) {
	bs := int64(d.cap.BlockSize)
	left := d.Size() - off
	d.mapMu.Lock()
	defer d.mapMu.Unlock()
	if d.noMap || !d.cap.Thin || !d.cap.ReadsZeros {
		return false, left, nil
	}
	lba := uint64(off / bs)
	for fresh := false; ; fresh = true {
		for _, s := range d.mapped {
			if end := s.LBA + uint64(s.Blocks); s.LBA <= lba && lba < end {
				return s.State != initiator.Mapped, min(int64(end)*bs-off, left), nil
			}
		}
		if fresh {
			return false, left, nil // it answers with what was not asked for
		}
		if d.mapped, err = d.lun.GetLBAStatus(ctx, lba); errors.Is(err, scsi.KeyIllegalRequest.Err()) {
			d.noMap = true
			return false, left, nil
		} else if err != nil {
			return false, 0, err
		}
	}
}

// Zero implements endpoint.
func (d *disk) Zero(ctx context.Context, off, n int64, unmap bool) error {
	d.mapMu.Lock()
	d.mapped = nil // it is another now
	d.mapMu.Unlock()
	lba, count := uint64(off)/uint64(d.cap.BlockSize), uint64(n)/uint64(d.cap.BlockSize)
	return d.lun.WriteZeroes(ctx, lba, count, unmap)
}

// Identity is the disk's name, not where it is: NAA, EUI-64 and the like, or the serial number.
func (d *disk) Identity(ctx context.Context, _ bool) (string, error) {
	id := fmt.Sprintf("%d blocks of %d octets", d.cap.Blocks, d.cap.BlockSize)
	names, err := d.lun.Designators(ctx)
	if err != nil && !errors.Is(err, scsi.KeyIllegalRequest.Err()) {
		return "", err
	}
	known := false
	for _, n := range names {
		if n.Association == 0 { // of the logical unit; the others are of the way to it
			id += ", " + n.String()
			known = true
		}
	}
	if serial, err := d.lun.Serial(ctx); err == nil && serial != "" {
		id += ", serial " + serial
		known = true
	}
	if !known {
		id += ", " + d.url.String()
	}
	return id, nil
}

// Flush makes what was written durable. What was mapped before is asked anew afterwards.
func (d *disk) Flush(ctx context.Context) error {
	d.mapMu.Lock()
	d.mapped = nil
	d.mapMu.Unlock()
	return d.lun.Flush(ctx)
}

// Close leaves the session to its owner.
func (d *disk) Close() error { return nil }
