package scsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
)

// copyJob is one copy while it runs: as long as its command, or with IMMED after it.
type copyJob struct {
	ctx   context.Context
	dev   *Device // nil for a logical unit that is used alone
	lu    *LU     // the copy manager
	nexus *Nexus  // whose copy it is; may be nil
	cdb   [16]byte
	list  *copyList
	res   *copyResult
}

// extendedCopy is EXTENDED COPY(LID1) and (LID4) (SPC-4, sections 6.4 and 6.5): it copies blocks between
// logical units of this device, or within one, without their data passing the initiator. The list is
// checked as a whole before the first block is copied. With IMMED the command ends after that check, and the copy goes on in the
// background until it is done, COPY OPERATION ABORT names it, the copy manager is reset or closed, or the nexus ends. No other task
// management function reaches it there, since it belongs to no task any more.
func (t *task) extendedCopy() {
	length := copyListLength(t.cdb)
	if length == 0 {
		return
	}
	if length > maxCopyList+48 {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	b, ok := t.parameterList(buf[:], length)
	if !ok {
		return
	}
	lid4 := t.cdb[1]&0x1f == SAExtendedCopyLID4
	// The buffer is not used below while the list is: designators lie in it.
	list, bad := parseCopyList(b, lid4)
	if bad != nil {
		t.sense(bad)
		return
	}
	parent := t.ctx
	if list.immed {
		parent = context.WithoutCancel(parent)
		list.keep()
	}
	ctx, cancel := context.WithCancel(parent)
	r := &copyResult{list: list.id, lid4: lid4, action: t.cdb[1] & 0x1f, background: list.immed, stop: cancel, done: make(chan struct{})}
	if list.tracked {
		switch t.lu.copies.begin(t.nexus, r) {
		case copyInUse:
			cancel()
			t.fail(KeyIllegalRequest, CodeOperationInProgress)
			return
		case copyTooMany:
			cancel()
			t.res.Status = StatusBusy
			return
		}
	} else {
		t.lu.copies.beginUnnamed(t.nexus, r)
	}
	if err := t.ctx.Err(); err != nil { // aborted meanwhile: whoever ends the copies of this nexus may have been here
		cancel()
		t.lu.copies.end(r, copyAborted(CodeNone), true)
		t.res.Err = err
		return
	}
	j := &copyJob{ctx: ctx, dev: t.dev, lu: t.lu, nexus: t.nexus, list: list, res: r}
	copy(j.cdb[:], t.cdb)
	if list.immed {
		go func() { _, _ = j.run() }()
		return
	}
	failed, aborted := j.run()
	switch {
	case aborted && t.ctx.Err() != nil:
		t.res.Err = t.ctx.Err()
	case failed != nil:
		t.sense(failed)
	}
}

// abortCopy is COPY OPERATION ABORT (SPC-4, section 6.3): it ends the copies of this nexus that the list identifier names, and is
// answered once they write no more. RECEIVE COPY STATUS tells that they were terminated.
func (t *task) abortCopy() {
	id := binary.BigEndian.Uint32(t.cdb[2:])
	mine := t.lu.copies.running(func(r *copyResult) bool { return r.nexus == t.nexus && r.list == id && !r.orphaned })
	if len(mine) == 0 {
		t.badField(2)
		return
	}
	for _, r := range mine {
		r.stop()
	}
	for _, r := range mine {
		select {
		case <-r.done:
		case <-t.ctx.Done():
			t.res.Err = t.ctx.Err()
			return
		}
	}
}

// run copies, and notes how it ended. failed is the sense data of a copy that did not succeed, aborted that somebody ended it.
func (j *copyJob) run() (failed *Sense, aborted bool) {
	failed, aborted = j.segments()
	j.res.stop()
	j.lu.copies.end(j.res, failed, aborted)
	return failed, aborted
}

// segments copies one segment after the other, and gives the sense data of the one that could not be copied.
func (j *copyJob) segments() (failed *Sense, aborted bool) {
	var written []*LU // whose caches are off
	for i := range j.list.segments {
		var dst *LU
		var left uint64
		dst, left, failed, aborted = j.segment(&j.list.segments[i])
		if dst != nil && !dst.wce.Load() && !slices.Contains(written, dst) {
			written = append(written, dst)
		}
		if failed != nil {
			// SPC-4, section 6.4.3.2: the residue in blocks of the destination, and which segment.
			failed.Info, failed.InfoValid = left, true
			failed.CommandInfo = uint64(i)
			break
		}
		j.res.segment()
	}
	// What a failure says was copied before it is durable, too.
	for _, l := range written {
		if err := l.flush(); err != nil && failed == nil {
			failed = copyAborted(CodeThirdPartyFailure)
			failed.CommandInfo = uint64(len(j.list.segments) - 1)
		}
	}
	return failed, aborted
}

func copyAborted(code Code) *Sense { return &Sense{Key: KeyCopyAborted, Code: code} }

// segment copies the blocks of one segment. left is how many blocks of the destination were not written.
func (j *copyJob) segment(s *copySegment) (dst *LU, left uint64, failed *Sense, aborted bool) {
	left = uint64(s.blocks)
	src, failed := j.end(s.source, s.at+4)
	if failed == nil {
		dst, failed = j.end(s.dest, s.at+6)
	}
	if failed != nil {
		return nil, left, failed, false
	}
	from, to := int64(src.cfg.BlockSize), int64(dst.cfg.BlockSize)
	size := int64(s.blocks) * from
	if s.byDestination {
		size = int64(s.blocks) * to
	}
	if size%from != 0 || size%to != 0 {
		// A part of a block would be left over, which CAT could only hold for a segment to come.
		return dst, left, copyAborted(CodeInexactSegment), false
	}
	left = uint64(size / to)
	if !src.has(s.sourceLBA, uint64(size/from)) {
		return dst, left, copyOutOfRange(s.at + 12), false
	}
	if !dst.has(s.toLBA, left) {
		return dst, left, copyOutOfRange(s.at + 20), false
	}
	j.res.into.Store(dst)   // before the look: see stopCopiesOf
	if j.barred(dst, src) { // though there may be no block to copy
		return dst, left, copyAborted(CodeThirdPartyFailure), false
	}
	done, err := j.blocks(dst, int64(s.toLBA)*to, src, int64(s.sourceLBA)*from, size)
	left = uint64((size - done) / to)
	switch ended := j.ctx.Err(); {
	case err == nil:
		return dst, 0, nil, false
	case ended != nil && errors.Is(err, ended):
		return dst, left, copyAborted(CodeNone), true
	case !errors.Is(err, errCopyBarred):
		j.lu.fault(j.cdb[:], "store failed a copy", err, true, s.toLBA+uint64(done/to))
	}
	return dst, left, copyAborted(CodeThirdPartyFailure), false
}

// copyOutOfRange is a segment that reaches beyond a logical unit's end.
func copyOutOfRange(octet int) *Sense {
	return &Sense{Key: KeyCopyAborted, FieldValid: true, Field: uint16(octet)}
}

// has tells whether the blocks exist.
func (l *LU) has(lba, n uint64) bool {
	blocks := l.blocks.Load()
	return lba <= blocks && n <= blocks-lba
}

// errCopyBarred ends a copy that would do what a command of its nexus could not.
var errCopyBarred = errors.New("scsi: the nexus of the copy has no access")

// barred tells that the nexus could not do now with commands of its own what the copy does: a reservation, write protection, a medium
// that is out, a sanitize operation.
func (j *copyJob) barred(dst, src *LU) bool {
	return src.sanitizing.Load() != nil || dst.sanitizing.Load() != nil || j.conflict(src, false) || j.conflict(dst, true) ||
		dst.ReadOnly() || j.nexus.readOnly(dst) || src.Ejected() || dst.Ejected()
}

// conflict tells that another nexus reserves a logical unit against what the copy does there.
func (j *copyJob) conflict(l *LU, write bool) bool {
	if holder := l.reservation.Load(); holder != nil && holder != j.nexus {
		return true
	}
	a := accessRead
	if write {
		a = accessWrite
	}
	s := l.persistent.active.Load()
	return s != nil && s.conflicts(j.nexus.id(), a)
}

// end finds the logical unit that a CSCD descriptor ID names; octet is where the ID is in the list.
func (j *copyJob) end(id uint16, octet int) (*LU, *Sense) {
	if id == cscdSelf {
		return j.lu, nil
	}
	if int(id) >= len(j.list.targets) {
		return nil, &Sense{Key: KeyCopyAborted, Code: CodeUnreachableCopyTarget, FieldValid: true, Field: uint16(octet)}
	}
	c := &j.list.targets[id]
	if c.device != 0 {
		return nil, copyAborted(CodeCopyTargetWrongType)
	}
	l := j.designated(c)
	switch {
	case l == nil:
		return nil, copyAborted(CodeCopyTargetNotReachable)
	case c.blockSize != uint32(l.cfg.BlockSize):
		return nil, copyAborted(CodeCopyTargetWrongType)
	}
	return l, nil
}

// designated finds the logical unit of a designator as page 83h has them: by NAA, or by T10 vendor
// identification. What the nexus does not see is not there.
func (j *copyJob) designated(c *copyTarget) *LU {
	if j.lu.ident.is(c) {
		return j.lu
	}
	if j.dev == nil {
		return nil
	}
	for _, n := range j.dev.LUNs() {
		if l := j.dev.LU(n); l != nil && l.ident.is(c) && j.nexus.Sees(l) {
			return l
		}
	}
	return nil
}

func (id *identity) is(c *copyTarget) bool {
	switch {
	case c.kind == designatorNAA && c.codeSet == codeSetBinary:
		return bytes.Equal(c.designator, id.naa)
	case c.kind == designatorT10 && c.codeSet == codeSetASCII && len(c.designator) > 8:
		var vendor [8]byte
		padded(vendor[:], id.vendor)
		return bytes.Equal(c.designator[:8], vendor[:]) && string(c.designator[8:]) == id.serial
	}
	return false
}

// blocks copies size octets between stores; done is how many were written from the beginning on, or from the end on if the ranges
// overlap so that it has to begin there. Whether the copy may go on is asked for each piece: it can run for longer than a command, and a
// reservation or a sanitize operation that comes meanwhile holds for it, too.
func (j *copyJob) blocks(dst *LU, to int64, src *LU, from, size int64) (done int64, err error) {
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	backward := src.store == dst.store && from < to && to < from+size
	for done < size {
		if err := j.ctx.Err(); err != nil {
			return done, err
		}
		if j.barred(dst, src) {
			return done, errCopyBarred
		}
		// Both block sizes divide a piece, as they divide the whole.
		n := min(size-done, scratchSize)
		off := done
		if backward {
			off = size - done - n
		}
		if err := src.pace(j.ctx, n); err != nil {
			return done, err
		}
		if dst != src {
			if err := dst.pace(j.ctx, n); err != nil {
				return done, err
			}
		}
		if _, err := src.store.ReadAt(buf[:n], from+off); err != nil {
			return done, err
		}
		if _, err := dst.write(j.ctx, buf[:n], uint64(to+off)/uint64(dst.cfg.BlockSize), false); err != nil {
			return done, err
		}
		done += n
		j.res.moved.Add(uint64(n))
	}
	return done, nil
}
