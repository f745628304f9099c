package scsi

import (
	"encoding/binary"
	"errors"

	"goiwarp/iscsi/store"
)

// discard unmaps blocks, or anchors them, which keeps their space and gives space to those that have none. They read as zeros afterwards,
// those in a granule that is not wholly inside, too.
func (t *task) discard(lba, n uint64, anchor bool) error {
	l := t.lu
	s := span{lba: lba, end: lba + n}
	if err := l.locks.lock(t.ctx, s); err != nil {
		return err
	}
	defer l.locks.unlock(s)
	bs := int64(l.cfg.BlockSize)
	if anchor {
		return l.store.(store.Anchorer).Anchor(int64(lba)*bs, int64(n)*bs)
	}
	return l.store.(store.Discarder).Discard(int64(lba)*bs, int64(n)*bs)
}

// zero writes zeros without data, if the store can.
func (t *task) zero(lba, n uint64) error {
	l := t.lu
	z, ok := l.store.(store.Zeroer)
	if !ok {
		return errors.ErrUnsupported
	}
	s := span{lba: lba, end: lba + n}
	if err := l.locks.lock(t.ctx, s); err != nil {
		return err
	}
	defer l.locks.unlock(s)
	bs := int64(l.cfg.BlockSize)
	return z.WriteZeroes(int64(lba)*bs, int64(n)*bs)
}

// settle makes a change durable if the write cache is off.
func (t *task) settle(err error, lba uint64) {
	if err == nil && !t.lu.wce.Load() {
		err = t.lu.flush()
	}
	if err != nil {
		t.storeError(err, true, lba)
	}
}

// unmap is UNMAP (SBC-3, section 5.28). The parameter list is a header of 8 octets and descriptors
// of 16:
//
//	 0            2             4        8                16            20        24
//	+------------+-------------+--------+----------------+-------------+---------+---
//	| data length| descr length|  0...  |      LBA       |   blocks    |  0...   | ...
//	+------------+-------------+--------+----------------+-------------+---------+---
//
// Everything is checked before the first block is unmapped. A last descriptor that is not whole is
// ignored. With ANCHOR the blocks keep their space, or get it.
func (t *task) unmap() {
	l := t.lu
	length := int64(binary.BigEndian.Uint16(t.cdb[7:]))
	if length == 0 {
		return
	}
	if length < 8 {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	list, ok := t.parameterList(buf[:], length)
	if !ok || !t.writable() {
		return
	}
	n := min(int(binary.BigEndian.Uint16(list[2:])), len(list)-8) / 16
	if n > maxUnmapDescriptors {
		t.badParameter(2)
		return
	}
	total := uint64(0)
	for i := range n {
		d := list[8+16*i:]
		blocks := uint64(binary.BigEndian.Uint32(d[8:]))
		total += blocks
		if total > uint64(l.limits.unmap) {
			t.badParameter(8 + 16*i + 8)
			return
		}
	}
	for i := range n {
		d := list[8+16*i:]
		if !t.within(binary64(d), uint64(binary.BigEndian.Uint32(d[8:]))) {
			return
		}
	}
	for i := range n {
		d := list[8+16*i:]
		lba, blocks := binary64(d), uint64(binary.BigEndian.Uint32(d[8:]))
		if blocks == 0 {
			continue
		}
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		if err := t.discard(lba, blocks, t.cdb[1]&0x01 != 0); err != nil {
			t.storeError(err, true, lba)
			return
		}
	}
	if total > 0 {
		t.settle(nil, 0)
	}
}

// writeSame is WRITE SAME(10) and (16): one block of data, or zeros with NDOB, for all blocks; a length of 0
// reaches to the end. With UNMAP and zeros the blocks are unmapped, with ANCHOR anchored, which reads the same (SBC-3, section 5.43).
// It can take long, and ends between two pieces when it is aborted.
func (t *task) writeSame() {
	l := t.lu
	lba, count := extent(t.cdb)
	n := uint64(count)
	bs := int64(l.cfg.BlockSize)
	if !t.writable() {
		return
	}
	unmap, anchor := t.cdb[1]&0x08 != 0, t.cdb[1]&0x10 != 0
	ndob := t.cdb[0] == OpWriteSame16 && t.cdb[1]&0x01 != 0
	if unmap && !l.thin {
		t.badBits(1, 0x08)
		return
	}
	if anchor && !unmap { // SBC-3, table 128
		t.badBits(1, 0x10)
		return
	}
	if !t.within(lba, n) {
		return
	}
	if n == 0 { // WSNZ is 0: all that follows
		if n = l.blocks.Load() - lba; n == 0 {
			t.fail(KeyIllegalRequest, CodeLBAOutOfRange)
			return
		}
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	if ndob {
		clear(buf[:bs])
	} else {
		if t.x.OutLength() != bs { // one block, neither less nor more
			t.fail(KeyIllegalRequest, CodeInvalidFieldInCIU)
			return
		}
		if !t.fetch(buf[:bs], 0) {
			return
		}
		t.res.Out = bs
	}
	if ndob || isZero(buf[:bs]) {
		var err error
		if unmap {
			err = t.discard(lba, n, anchor)
		} else {
			err = t.zero(lba, n)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			t.settle(err, lba)
			return
		}
	}
	for filled := bs; filled < scratchSize; filled *= 2 {
		copy(buf[filled:], buf[:filled])
	}
	for off, total := int64(0), int64(n)*bs; off < total; {
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		size := min(total-off, scratchSize)
		at := lba + uint64(off/bs)
		if _, err := l.write(t.ctx, buf[:size], at, false); err != nil {
			t.storeError(err, true, at)
			return
		}
		off += size
	}
	t.settle(nil, lba)
}

func isZero(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}

// maxStatusDescriptors bounds what one GET LBA STATUS answers; the initiator asks again from there
// on.
const maxStatusDescriptors = 31

// getLBAStatus tells from which block on how many are mapped or not (SBC-3, section 5.6): a header
// of 8 octets, then descriptors of LBA (8), blocks (4), provisioning status (1: 0 mapped, 1 not, 2 anchored)
// and 3 of nothing.
func (t *task) getLBAStatus() {
	l := t.lu
	lba := binary64(t.cdb[2:])
	allocation := int64(binary.BigEndian.Uint32(t.cdb[10:]))
	blocks := l.blocks.Load()
	if lba >= blocks {
		t.fail(KeyIllegalRequest, CodeLBAOutOfRange)
		return
	}
	data := t.reply[:8]
	clear(data)
	for n := 0; n < maxStatusDescriptors && lba < blocks; n++ {
		status, count, err := l.blockStatus(lba, min(blocks-lba, 0xffffffff))
		if err != nil {
			t.storeError(err, false, lba)
			return
		}
		data = binary.BigEndian.AppendUint64(data, lba)
		data = binary.BigEndian.AppendUint32(data, uint32(count))
		data = append(data, status, 0, 0, 0)
		lba += count
		if int64(len(data)) >= allocation {
			break
		}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	t.answer(data, allocation)
}

// Provisioning statuses of GET LBA STATUS.
const (
	statusMapped      = 0 // or unknown
	statusDeallocated = 1
	statusAnchored    = 2
)

// blockStatus rounds a store's extents to blocks: one that is not the same throughout is mapped.
func (l *LU) blockStatus(lba, most uint64) (status byte, blocks uint64, err error) {
	bs := int64(l.cfg.BlockSize)
	off, size := int64(lba)*bs, int64(most)*bs
	var n int64
	if l.anchors {
		var p store.Provision
		p, n, err = l.store.(store.Anchorer).Provisioned(off, size)
		status = [...]byte{store.Mapped: statusMapped, store.Deallocated: statusDeallocated, store.Anchored: statusAnchored}[p]
	} else {
		status, n, err = l.mapped(off, size)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return statusMapped, most, nil
	case err != nil:
		return statusMapped, 0, err
	case status == statusMapped:
		return statusMapped, uint64((n + bs - 1) / bs), nil
	case n < bs:
		return statusMapped, 1, nil
	}
	return status, uint64(n / bs), nil
}

func (l *LU) mapped(off, size int64) (status byte, n int64, err error) {
	m, ok := l.store.(store.Mapper)
	if !ok {
		return statusMapped, size, nil
	}
	mapped, n, err := m.Extent(off, size)
	if mapped || err != nil {
		return statusMapped, n, err
	}
	return statusDeallocated, n, nil
}
