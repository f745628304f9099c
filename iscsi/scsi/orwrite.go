package scsi

import "sync"

// maxAtomicBlocks is the most blocks that one WRITE ATOMIC changes.
const maxAtomicBlocks = 256

// atomicBuffers are for WRITE ATOMIC, whose data has to be there as a whole before any of it is
// written.
var atomicBuffers = sync.Pool{New: func() any { return new([]byte) }}

// orWrite is ORWRITE(16) (SBC-3, section 5.7): the blocks become the bitwise OR of what they held and
// what is sent. Data that fits into one buffer, 128 KiB, is fetched before the blocks are locked, and
// reading, joining and writing are one step for everybody else. Longer data is joined piece by piece,
// each piece in one step: to keep the whole range locked while the initiator sends would let a slow one stop
// others, and since OR knows no order, several ORWRITEs still leave what one after the other would.
func (t *task) orWrite() {
	l := t.lu
	lba, n := extent(t.cdb)
	if !t.transferLength(n) || !t.within(lba, uint64(n)) || !t.writable() {
		return
	}
	bs := int64(l.cfg.BlockSize)
	total := int64(n) * bs
	have := min(total, t.x.OutLength()/bs*bs)
	data := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(data)
	for off := int64(0); off < have; {
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		size := min(have-off, scratchSize)
		if !t.fetch(data[:size], off) || !t.orBlocks(data[:size], lba+uint64(off/bs)) {
			return
		}
		off += size
		t.res.Out = off
	}
	if t.durable() && have > 0 {
		if err := l.flush(); err != nil {
			t.storeError(err, true, lba)
			return
		}
	}
	t.res.Out = total
}

// orBlocks joins p with the blocks from lba on.
func (t *task) orBlocks(p []byte, lba uint64) bool {
	l := t.lu
	bs := int64(l.cfg.BlockSize)
	old := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(old)
	s := span{lba: lba, end: lba + uint64(int64(len(p))/bs), exclusive: true}
	if err := l.locks.lock(t.ctx, s); err != nil {
		t.res.Err = err
		return false
	}
	defer l.locks.unlock(s)
	if _, err := l.store.ReadAt(old[:len(p)], int64(lba)*bs); err != nil {
		t.storeError(err, false, lba+uint64(l.readGood(old[:len(p)], int64(lba)*bs)/bs))
		return false
	}
	for i := range p {
		p[i] |= old[i]
	}
	if _, err := l.writeLocked(p, lba, false); err != nil {
		t.storeError(err, true, lba)
		return false
	}
	return true
}

// durable tells that the command's data has to be on stable storage before it is answered.
func (t *task) durable() bool { return t.cdb[1]&FUA != 0 || !t.lu.wce.Load() }

// atomicWrites tells that WRITE ATOMIC is offered: the store writes that much wholly or not at all.
func (l *LU) atomicWrites() bool { return l.limits.atomic > 0 }

func planWriteAtomic(l *LU, cdb []byte) (in, out int64) {
	return 0, int64(atomicLength(cdb)) * int64(l.cfg.BlockSize)
}

func atomicLength(cdb []byte) uint32 { return uint32(cdb[12])<<8 | uint32(cdb[13]) }

// writeAtomic is WRITE ATOMIC(16) (SBC-4, section 5.46): all of the data is written or nothing. It
// comes into a buffer first, so that an initiator which goes away leaves nothing behind; the store promises the rest for one
// WriteAt (Info.AtomicWrite); and the range lock has other writes, and reads as far as they come in one piece, see
// the blocks before or after it.
//
//	 0       1        2                     10             12            14      15
//	+-------+--------+---------------------+--------------+-------------+-------+---------+
//	|  9Ch  |WRP  DPO|logical block address|atomic        | transfer    | group | CONTROL |
//	|       |     FUA|                     |boundary      | length      |       |         |
//	+-------+--------+---------------------+--------------+-------------+-------+---------+
func (t *task) writeAtomic() {
	l := t.lu
	lba, n := binary64(t.cdb[2:]), atomicLength(t.cdb)
	if !t.within(lba, uint64(n)) {
		return
	}
	if t.cdb[10]|t.cdb[11] != 0 { // MAXIMUM ATOMIC BOUNDARY SIZE is 0
		t.badField(10)
		return
	}
	if n > l.limits.atomic {
		t.badField(12)
		return
	}
	if !t.writable() || n == 0 {
		return
	}
	total := int64(n) * int64(l.cfg.BlockSize)
	if t.x.OutLength() < total {
		t.fail(KeyIllegalRequest, CodeInvalidFieldInCIU)
		return
	}
	buf := atomicBuffers.Get().(*[]byte)
	defer atomicBuffers.Put(buf)
	if int64(cap(*buf)) < total {
		*buf = make([]byte, maxAtomicBlocks*l.cfg.BlockSize)
	}
	data := (*buf)[:total]
	if !t.fetch(data, 0) {
		return
	}
	t.res.Out = total
	s := span{lba: lba, end: lba + uint64(n), exclusive: true}
	if err := l.locks.lock(t.ctx, s); err != nil {
		t.res.Err = err
		return
	}
	_, err := l.store.WriteAt(data, int64(lba)*int64(l.cfg.BlockSize))
	l.locks.unlock(s)
	if err == nil && t.durable() {
		err = l.flush()
	}
	if err != nil {
		t.storeError(err, true, lba)
	}
}
