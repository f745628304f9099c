package scsi

// writeAndVerify is WRITE AND VERIFY(10), (12) and (16) (SBC-3, section 5.36): each piece is written to the medium,
// read back, and with BYTCHK 1 compared with what was sent. The blocks of a piece are
// locked meanwhile, so that another initiator's write is no miscompare.
func (t *task) writeAndVerify() {
	l := t.lu
	lba, n := extent(t.cdb)
	check := t.cdb[1] >> 1 & 3
	if check > 1 {
		t.badBits(1, check<<1&0x06)
		return
	}
	if !t.transferLength(n) || !t.within(lba, uint64(n)) || !t.writable() {
		return
	}
	bs := int64(l.cfg.BlockSize)
	total := int64(n) * bs
	have := min(total, t.x.OutLength()/bs*bs)
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	chunk := min(t.chunk(), scratchSize)
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
		good := t.writeVerified(b.Bytes()[:size], buf[:size], lba+uint64(off/bs), check == 1, off)
		b.Release()
		if !good {
			return
		}
		off += size
		t.res.Out = off
	}
	if have > 0 {
		if err := l.flush(); err != nil {
			t.storeError(err, true, lba)
			return
		}
	}
	t.res.Out = total
}

// writeVerified writes p, reads it back into buf and, if compare is set, compares. off is where p lies in the
// command's data.
func (t *task) writeVerified(p, buf []byte, lba uint64, compare bool, off int64) bool {
	l := t.lu
	bs := int64(l.cfg.BlockSize)
	s := span{lba: lba, end: lba + uint64(int64(len(p))/bs), exclusive: true}
	if err := l.locks.lock(t.ctx, s); err != nil {
		t.res.Err = err
		return false
	}
	defer l.locks.unlock(s)
	if _, err := l.writeLocked(p, lba, l.info.Volatile); err != nil {
		t.storeError(err, true, lba)
		return false
	}
	if _, err := l.store.ReadAt(buf, int64(lba)*bs); err != nil {
		t.storeError(err, false, lba+uint64(l.readGood(buf, int64(lba)*bs)/bs))
		return false
	}
	if !compare {
		return true
	}
	if i := mismatch(p, buf); i >= 0 {
		t.sense(&Sense{Key: KeyMiscompare, Code: CodeMiscompareDuringVerify, Info: uint64(off) + uint64(i), InfoValid: true})
		return false
	}
	return true
}
