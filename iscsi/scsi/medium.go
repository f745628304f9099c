package scsi

import (
	"context"
	"errors"
	"sync"

	"goiwarp/iscsi/store"
)

// scratchSize is the size of the buffers that commands use which compare or repeat data.
const scratchSize = 128 << 10

var scratches = sync.Pool{New: func() any { return new([scratchSize]byte) }}

// write writes p at a block address under a shared range lock. If through is set p is durable
// afterwards, or the caller has to flush: durable tells.
func (l *LU) write(ctx context.Context, p []byte, lba uint64, through bool) (durable bool, err error) {
	s := span{lba: lba, end: lba + uint64(len(p)/l.cfg.BlockSize)}
	if err := l.locks.lock(ctx, s); err != nil {
		return false, err
	}
	defer l.locks.unlock(s)
	return l.writeLocked(p, lba, through)
}

func (l *LU) writeLocked(p []byte, lba uint64, through bool) (durable bool, err error) {
	off := int64(lba) * int64(l.cfg.BlockSize)
	if through {
		if f, ok := l.store.(store.FUAWriter); ok {
			err := f.WriteFUA(p, off)
			if !errors.Is(err, errors.ErrUnsupported) {
				if err != nil && errors.Is(err, store.ErrFlush) {
					l.fail(err)
				}
				return err == nil, err
			}
		}
	}
	_, err = l.store.WriteAt(p, off)
	return false, err
}

// errFlushed is why a logical unit whose flush failed refuses writes.
var errFlushed = errors.New("scsi: an earlier flush failed")

// flush makes everything durable that was written before it was called. Callers that wait for their
// turn while another one's flush begins share it.
//
// A flush that fails makes the logical unit read-only for good: the operating system may have
// dropped what it could not write, so that a later flush would find nothing to do and report
// success.
func (l *LU) flush() error {
	if !l.info.Volatile {
		return nil
	}
	begun := l.flushes.Load()
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	if err := l.broken.Load(); err != nil {
		return *err
	}
	if l.flushes.Load() > begun {
		// One began after this call and has ended well.
		return nil
	}
	l.flushes.Add(1)
	if err := l.store.Flush(); err != nil {
		l.fail(err)
		return *l.broken.Load()
	}
	if err := l.broken.Load(); err != nil {
		// A write through failed meanwhile; whose data was lost is not known.
		return *err
	}
	return nil
}

// fail makes the logical unit read-only.
func (l *LU) fail(cause error) {
	err := errors.Join(errFlushed, cause)
	if l.broken.CompareAndSwap(nil, &err) {
		l.log.Error("flush failed; the logical unit is read-only from now on", "store", l.info.Name, "error", cause)
	}
}

// writable ends the command with WRITE PROTECTED if the logical unit is read-only.
func (t *task) writable() bool {
	if t.lu.readOnly() || t.nexus.readOnly(t.lu) {
		t.fail(KeyDataProtect, CodeWriteProtected)
		return false
	}
	if t.lu.swp.Load() {
		t.fail(KeyDataProtect, CodeSoftwareWriteProtected)
		return false
	}
	return true
}

// within ends the command with LOGICAL BLOCK ADDRESS OUT OF RANGE unless the blocks exist.
func (t *task) within(lba uint64, n uint64) bool {
	if blocks := t.lu.blocks.Load(); lba > blocks || n > blocks-lba {
		t.fail(KeyIllegalRequest, CodeLBAOutOfRange)
		return false
	}
	return true
}

// storeError ends the command with what a store's error means to an initiator; lba is the first
// block that is known to be affected.
func (t *task) storeError(err error, write bool, lba uint64) {
	ctxErr := t.ctx.Err()
	if ctxErr == nil || !errors.Is(err, ctxErr) {
		t.fault("store failed", err, write, lba)
	}
	if ctxErr != nil {
		t.res.Err = ctxErr
		return
	}
	c := causeOf(err)
	t.lu.tallies.errors(find(t.cdb), c)
	switch {
	case c == causeFlush:
		t.fail(KeyMediumError, CodeWriteError)
	case c == causeReadOnly:
		t.fail(KeyDataProtect, CodeWriteProtected)
	case c == causeSpace:
		t.fail(KeyDataProtect, CodeSpaceAllocationFailed)
	case c == causeRange && write:
		// The store was made smaller behind the logical unit's back.
		t.fail(KeyIllegalRequest, CodeLBAOutOfRange)
	case c == causeClosed:
		t.fail(KeyNotReady, CodeManualIntervention)
	case c == causeBusy:
		t.res.Status = StatusBusy
	case write:
		t.sense(&Sense{Key: KeyMediumError, Code: CodeWriteError, Info: lba, InfoValid: true})
	default:
		t.sense(&Sense{Key: KeyMediumError, Code: CodeUnrecoveredRead, Info: lba, InfoValid: true})
	}
}

// chunk is the largest piece of data that the transport moves at once, in whole blocks.
func (t *task) chunk() int64 {
	return max(int64(t.x.Chunk())/int64(t.lu.cfg.BlockSize), 1) * int64(t.lu.cfg.BlockSize)
}

// read is READ(6), (10), (12) and (16). FUA asks for what is on the medium, and that anything newer
// in the cache gets there first (SBC-3, section 5.11): therefore a flush.
func (t *task) read() {
	l := t.lu
	lba, n := extent(t.cdb)
	if !t.transferLength(n) || !t.within(lba, uint64(n)) {
		return
	}
	if t.cdb[0] != OpRead6 && t.cdb[1]&0x08 != 0 && l.wce.Load() {
		if err := l.flush(); err != nil {
			t.storeError(err, true, lba)
			return
		}
	}
	bs := int64(l.cfg.BlockSize)
	total := int64(n) * bs
	// What the initiator does not expect is not read. A last block that it expects in part is.
	want := min(total, t.x.InLength())
	base, chunk := int64(lba)*bs, t.chunk()
	for off := int64(0); off < want; {
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		size := min(total-off, chunk, (want-off+bs-1)/bs*bs)
		b, err := t.x.Buffer(int(size))
		if err != nil {
			t.res.Err = err
			return
		}
		p := b.Bytes()[:size]
		good := size
		readErr := t.readBlocks(p, base+off)
		if t.res.Err != nil {
			b.Release()
			return
		}
		if readErr != nil {
			good = l.readGood(p, base+off)
			if good == size {
				l.tallies.repeated.Add(1)
				t.fault("store failed a read that was good when repeated", readErr, false, uint64((base+off)/bs))
			}
		}
		if good == 0 {
			b.Release()
		} else if err := t.x.In(b, off, int(good)); err != nil {
			t.res.Err = err
			return
		}
		off += good
		t.res.In = off
		if good < size {
			t.storeError(readErr, false, uint64((base+off)/bs))
			return
		}
	}
	l.tallies.read.Add(uint64(want))
	t.res.In = total
}

// readBlocks reads from the store. Where atomic writes are offered, it waits for one of the same blocks, so that it
// shows all of that one or nothing; an end of the context while it waits is in t.res.Err.
func (t *task) readBlocks(p []byte, off int64) error {
	l := t.lu
	if l.limits.atomic == 0 {
		_, err := l.store.ReadAt(p, off)
		return err
	}
	bs := int64(l.cfg.BlockSize)
	s := span{lba: uint64(off / bs), end: uint64((off + int64(len(p))) / bs)}
	if err := l.locks.lock(t.ctx, s); err != nil {
		t.res.Err = err
		return err
	}
	defer l.locks.unlock(s)
	_, err := l.store.ReadAt(p, off)
	return err
}

// readGood reads block by block what could not be read at once, and gives the octets that are good,
// so that the initiator learns which block is at fault.
func (l *LU) readGood(p []byte, off int64) (good int64) {
	bs := int64(l.cfg.BlockSize)
	for good < int64(len(p)) {
		if _, err := l.store.ReadAt(p[good:good+bs], off+good); err != nil {
			break
		}
		good += bs
	}
	return good
}

// transferLength ends the command if it moves more than the block limits page allows.
func (t *task) transferLength(n uint32) bool {
	if n <= t.lu.limits.transfer {
		return true
	}
	switch t.cdb[0] >> 5 {
	case 0:
		t.badField(4)
	case 4:
		t.badField(10)
	case 5:
		t.badField(6)
	default:
		t.badField(7)
	}
	return false
}

// write is WRITE(6), (10), (12) and (16). It takes the whole blocks that the initiator sends, even
// if those are fewer than the CDB says; the residual tells the initiator so.
func (t *task) write() {
	l := t.lu
	lba, n := extent(t.cdb)
	if !t.transferLength(n) || !t.within(lba, uint64(n)) || !t.writable() {
		return
	}
	fua := t.cdb[0] != OpWrite6 && t.cdb[1]&0x08 != 0
	bs := int64(l.cfg.BlockSize)
	total := int64(n) * bs
	have := min(total, t.x.OutLength()/bs*bs)
	chunk := t.chunk()
	// With the cache on, only this command's data has to become durable, piece by piece. With the
	// cache off nothing else is dirty, and one flush costs less than several synchronous writes.
	durable := fua || !l.wce.Load()
	through := l.info.Volatile && durable && (have <= chunk || l.wce.Load())
	flush := false
	for off := int64(0); off < have; {
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		size := min(have-off, chunk)
		b, err := t.x.Out(off, int(size))
		if err != nil {
			t.res.Err = err
			return
		}
		at := lba + uint64(off/bs)
		done, err := l.write(t.ctx, b.Bytes()[:size], at, through)
		b.Release()
		if err != nil {
			t.storeError(err, true, at)
			return
		}
		flush = flush || !done
		off += size
		t.res.Out = off
	}
	if durable && flush {
		if err := l.flush(); err != nil {
			t.storeError(err, true, lba)
			return
		}
	}
	l.tallies.written.Add(uint64(have))
	t.res.Out = total
}

// compareAndWrite writes the second half of its data if the blocks hold the first half (SBC-3,
// section 5.2).
func (t *task) compareAndWrite() {
	l := t.lu
	lba, n := binary64(t.cdb[2:]), int64(t.cdb[13])
	bs := int64(l.cfg.BlockSize)
	// Data for no blocks: 256 were meant, which the octet does not hold.
	if n > int64(l.limits.compareAndWrite) || n == 0 && t.x.OutLength() > 0 {
		t.badField(13)
		return
	}
	if !t.within(lba, uint64(n)) || !t.writable() || n == 0 {
		return
	}
	half := n * bs
	if t.x.OutLength() != 2*half { // less, or blocks whose place is not told
		t.fail(KeyIllegalRequest, CodeInvalidFieldInCIU)
		return
	}
	data := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(data)
	have := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(have)
	if !t.fetch(data[:2*half], 0) {
		return
	}
	t.res.Out = 2 * half
	s := span{lba: lba, end: lba + uint64(n), exclusive: true}
	if err := l.locks.lock(t.ctx, s); err != nil {
		t.res.Err = err
		return
	}
	defer l.locks.unlock(s)
	if _, err := l.store.ReadAt(have[:half], int64(lba)*bs); err != nil {
		t.storeError(err, false, lba)
		return
	}
	if i := mismatch(data[:half], have[:half]); i >= 0 {
		t.sense(&Sense{Key: KeyMiscompare, Code: CodeMiscompareDuringVerify, Info: uint64(i), InfoValid: true})
		return
	}
	durable := t.cdb[1]&0x08 != 0 || !l.wce.Load()
	done, err := l.writeLocked(data[half:2*half], lba, durable && l.info.Volatile)
	if err == nil && durable && !done {
		err = l.flush()
	}
	if err != nil {
		t.storeError(err, true, lba)
	}
}

// verify is VERIFY(10), (12) and (16): BYTCHK 0 reads, 1 compares with as much data, 3 with one
// block.
func (t *task) verify() {
	l := t.lu
	lba, n := extent(t.cdb)
	check := t.cdb[1] >> 1 & 3
	if check == 2 {
		t.badBits(1, 0x04)
		return
	}
	if !t.transferLength(n) || !t.within(lba, uint64(n)) || n == 0 {
		return
	}
	_, out := planVerify(l, t.cdb)
	if t.x.OutLength() < out {
		t.fail(KeyIllegalRequest, CodeInvalidFieldInCIU)
		return
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	data := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(data)
	bs := int64(l.cfg.BlockSize)
	if check == 3 && !t.fetch(data[:bs], 0) {
		return
	}
	for off, total := int64(0), int64(n)*bs; off < total; {
		if err := t.ctx.Err(); err != nil {
			t.res.Err = err
			return
		}
		size := min(total-off, scratchSize)
		at := int64(lba)*bs + off
		if _, err := l.store.ReadAt(buf[:size], at); err != nil {
			off += l.readGood(buf[:size], at)
			t.storeError(err, false, lba+uint64(off/bs))
			return
		}
		bad := -1
		switch check {
		case 1:
			if !t.fetch(data[:size], off) {
				return
			}
			bad = mismatch(data[:size], buf[:size])
		case 3:
			for i := int64(0); i < size && bad < 0; i += bs {
				if at := mismatch(data[:bs], buf[i:i+bs]); at >= 0 {
					bad = at + int(i)
				}
			}
		}
		if bad >= 0 {
			t.sense(&Sense{Key: KeyMiscompare, Code: CodeMiscompareDuringVerify, Info: uint64(off) + uint64(bad), InfoValid: true})
			return
		}
		off += size
	}
	l.tallies.verified.Add(uint64(n) * uint64(bs))
	t.res.Out = out
}

// mismatch is the first octet at which two slices of the same length differ, or -1.
func mismatch(a, b []byte) int {
	if string(a) == string(b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// preFetch has nothing to fetch into: it checks the range, and GOOD tells that not all blocks are
// in a cache.
func (t *task) preFetch() {
	lba, n := extent(t.cdb)
	t.within(lba, uint64(n))
}

// synchronizeCache flushes the whole store, whatever its range; with IMMED, too, it answers at the
// end, when it can tell the outcome.
func (t *task) synchronizeCache() {
	lba, n := extent(t.cdb)
	if !t.within(lba, uint64(n)) {
		return
	}
	if err := t.lu.flush(); err != nil {
		t.storeError(err, true, lba)
	}
}
