package main

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// disk is a logical unit as one side of a copy.
type disk struct {
	url     initiator.URL
	session *initiator.Session
	lun     *initiator.LUN
	cap     scsi.Capacity
}

func openDisk(ctx context.Context, u initiator.URL, s *initiator.Session) (*disk, error) {
	d := &disk{url: u, session: s, lun: s.LUN(u.LUN)}
	var err error
	if d.cap, err = d.lun.Capacity(ctx); err != nil {
		var status *scsi.Error
		if errors.As(err, &status) && status.HasSense && status.Sense.Code == scsi.CodeLUNotSupported {
			return nil, fmt.Errorf("%s has no LUN %d; 'iser ls' lists what it has", u.Target, u.LUN)
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
func (d *disk) Alloc(n int) (memory, error) { return d.session.Alloc(n) }

// aligned says whether [off, off+n) is whole blocks of data that m can carry by itself.
func (d *disk) aligned(m memory, n int, off int64) bool {
	bs := int64(d.cap.BlockSize)
	return off%bs == 0 && int64(n)%bs == 0 && n == len(m.Bytes())
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

// Flush makes what was written durable.
func (d *disk) Flush(ctx context.Context) error { return d.lun.Flush(ctx) }

// Close leaves the session to its owner.
func (d *disk) Close() error { return nil }
