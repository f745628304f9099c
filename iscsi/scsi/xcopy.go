package scsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
)

// Operation codes and service actions of third-party copy (SPC-4, section 5.17).
const (
	OpExtendedCopy       = 0x83
	OpReceiveCopyResults = 0x84

	SAExtendedCopyLID1        = 0x00 // service actions of OpExtendedCopy
	SAExtendedCopyLID4        = 0x01
	SACopyStatusLID1          = 0x00 // service actions of OpReceiveCopyResults
	SACopyOperatingParameters = 0x03
	SACopyFailedSegment       = 0x04
	SACopyStatusLID4          = 0x05
)

var copyCommands = []command{
	{
		op: OpExtendedCopy, action: SAExtendedCopyLID1, name: "EXTENDED COPY(LID1)", flags: action | medium | waits,
		usage: []byte{OpExtendedCopy, SAExtendedCopyLID1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  parameters(copyListLength), run: (*task).extendedCopy,
	},
	{
		op: OpExtendedCopy, action: SAExtendedCopyLID4, name: "EXTENDED COPY(LID4)", flags: action | medium | waits,
		usage: []byte{OpExtendedCopy, SAExtendedCopyLID4, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  parameters(copyListLength), run: (*task).extendedCopy,
	},
	{
		op: OpReceiveCopyResults, action: SACopyStatusLID1, name: "RECEIVE COPY STATUS(LID1)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyStatusLID1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyStatus,
	},
	{
		op: OpReceiveCopyResults, action: SACopyOperatingParameters, name: "RECEIVE COPY OPERATING PARAMETERS", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyOperatingParameters, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyOperatingParameters,
	},
	{
		op: OpReceiveCopyResults, action: SACopyFailedSegment, name: "RECEIVE COPY FAILURE DETAILS(LID1)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyFailedSegment, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyFailedSegment,
	},
	{
		op: OpReceiveCopyResults, action: SACopyStatusLID4, name: "RECEIVE COPY STATUS(LID4)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyStatusLID4, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyStatusLID4,
	},
}

func copyListLength(cdb []byte) int64 { return int64(binary.BigEndian.Uint32(cdb[10:])) }

// extendedCopy is EXTENDED COPY(LID1) and (LID4) (SPC-4, sections 6.4 and 6.5): it copies blocks between
// logical units of this device, or within one, without their data passing the initiator. The list is
// checked as a whole before the first block is copied.
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
	r := &copyResult{list: list.id, lid4: lid4, action: t.cdb[1] & 0x1f}
	if list.tracked {
		if !t.lu.copies.begin(t.nexus, r) {
			t.fail(KeyIllegalRequest, CodeOperationInProgress)
			return
		}
	}
	failed := t.copySegments(list, r)
	if failed != nil && t.res.Err == nil {
		t.sense(failed)
	}
	t.lu.copies.end(r, failed, t.res.Err != nil)
}

// copySegments copies one segment after the other, and gives the sense data of the one that could not be
// copied. If the task was aborted, it is in t.res.Err.
func (t *task) copySegments(list *copyList, r *copyResult) *Sense {
	var written []*LU // whose caches are off
	for i := range list.segments {
		s := &list.segments[i]
		dst, left, failed := t.copySegment(list, s, r)
		if failed != nil {
			// SPC-4, section 6.4.3.2: the residue in blocks of the destination, and which segment.
			failed.Info, failed.InfoValid = left, true
			failed.CommandInfo = uint64(i)
			return failed
		}
		if t.res.Err != nil {
			return copyAborted(CodeNone)
		}
		r.segment()
		if dst != nil && !dst.wce.Load() {
			written = append(written, dst)
		}
	}
	for _, l := range written {
		if err := l.flush(); err != nil {
			failed := copyAborted(CodeThirdPartyFailure)
			failed.CommandInfo = uint64(len(list.segments) - 1)
			return failed
		}
	}
	return nil
}

func copyAborted(code Code) *Sense { return &Sense{Key: KeyCopyAborted, Code: code} }

// copySegment copies the blocks of one segment. left is how many blocks of the destination were not
// written.
func (t *task) copySegment(list *copyList, s *copySegment, r *copyResult) (dst *LU, left uint64, failed *Sense) {
	left = uint64(s.blocks)
	src, failed := t.copyEnd(list, s.source, s.at+4)
	if failed == nil {
		dst, failed = t.copyEnd(list, s.dest, s.at+6)
	}
	if failed != nil {
		return nil, left, failed
	}
	from, to := int64(src.cfg.BlockSize), int64(dst.cfg.BlockSize)
	size := int64(s.blocks) * from
	if s.byDestination {
		size = int64(s.blocks) * to
	}
	if size%from != 0 || size%to != 0 {
		// A part of a block would be left over, which CAT could only hold for a segment to come.
		return dst, left, copyAborted(CodeInexactSegment)
	}
	left = uint64(size / to)
	if !src.has(s.sourceLBA, uint64(size/from)) {
		return dst, left, copyOutOfRange(s.at + 12)
	}
	if !dst.has(s.toLBA, left) {
		return dst, left, copyOutOfRange(s.at + 20)
	}
	if src.sanitizing.Load() != nil || dst.sanitizing.Load() != nil || t.copyConflict(src, false) || t.copyConflict(dst, true) ||
		dst.ReadOnly() || t.nexus.readOnly(dst) || src.Ejected() || dst.Ejected() {
		return dst, left, copyAborted(CodeThirdPartyFailure)
	}
	done, err := copyBlocks(t.ctx, dst, int64(s.toLBA)*to, src, int64(s.sourceLBA)*from, size, r)
	if err == nil {
		return dst, 0, nil
	}
	if ctxErr := t.ctx.Err(); ctxErr != nil && errors.Is(err, ctxErr) {
		t.res.Err = ctxErr
		return dst, 0, nil
	}
	t.fault("store failed a copy", err, true, s.toLBA+uint64(done/to))
	return dst, uint64((size - done) / to), copyAborted(CodeThirdPartyFailure)
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

// copyConflict tells that another nexus reserves a logical unit against what the copy does there.
func (t *task) copyConflict(l *LU, write bool) bool {
	if holder := l.reservation.Load(); holder != nil && holder != t.nexus {
		return true
	}
	a := accessRead
	if write {
		a = accessWrite
	}
	s := l.persistent.active.Load()
	return s != nil && s.conflicts(t.nexus.id(), a)
}

// copyEnd finds the logical unit that a CSCD descriptor ID names; octet is where the ID is in the list.
func (t *task) copyEnd(list *copyList, id uint16, octet int) (*LU, *Sense) {
	if id == cscdSelf {
		return t.lu, nil
	}
	if int(id) >= len(list.targets) {
		return nil, &Sense{Key: KeyCopyAborted, Code: CodeUnreachableCopyTarget, FieldValid: true, Field: uint16(octet)}
	}
	c := &list.targets[id]
	if c.device != 0 {
		return nil, copyAborted(CodeCopyTargetWrongType)
	}
	l := t.designated(c)
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
func (t *task) designated(c *copyTarget) *LU {
	if t.lu.ident.is(c) {
		return t.lu
	}
	if t.dev == nil {
		return nil
	}
	for _, n := range t.dev.LUNs() {
		if l := t.dev.LU(n); l != nil && l.ident.is(c) && t.nexus.Sees(l) {
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

// copyBlocks copies size octets between stores; done is how many were written from the beginning on, or
// from the end on if the ranges overlap so that it has to begin there.
func copyBlocks(ctx context.Context, dst *LU, to int64, src *LU, from, size int64, r *copyResult) (done int64, err error) {
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	backward := src.store == dst.store && from < to && to < from+size
	for done < size {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		// Both block sizes divide a piece, as they divide the whole.
		n := min(size-done, scratchSize)
		off := done
		if backward {
			off = size - done - n
		}
		if err := src.pace(ctx, n); err != nil {
			return done, err
		}
		if dst != src {
			if err := dst.pace(ctx, n); err != nil {
				return done, err
			}
		}
		if _, err := src.store.ReadAt(buf[:n], from+off); err != nil {
			return done, err
		}
		if _, err := dst.write(ctx, buf[:n], uint64(to+off)/uint64(dst.cfg.BlockSize), false); err != nil {
			return done, err
		}
		done += n
		r.moved.Add(uint64(n))
	}
	return done, nil
}

// copyOperatingParameters is RECEIVE COPY OPERATING PARAMETERS (SPC-4, section 6.19).
func (t *task) copyOperatingParameters() {
	p := t.reply[:44]
	clear(p)
	p[4] = 0x01 // SNLID: a list needs no identifier
	binary.BigEndian.PutUint16(p[8:], maxCopyTargets)
	binary.BigEndian.PutUint16(p[10:], maxCopySegments)
	binary.BigEndian.PutUint32(p[12:], maxCopyList)
	// Segments have no bound but their 16 bits of blocks; inline, held and stream data do not exist.
	binary.BigEndian.PutUint16(p[34:], maxCopies)
	p[36] = math.MaxUint8
	p[37] = 9 // data segment granularity: 512 octets
	p[43] = 2
	p = append(p, segmentBlockBlock, cscdIdentification)
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	t.answer(p, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}

// vpdThirdPartyCopy appends the third-party copy page's descriptors (SPC-4, section 7.8.17): the commands,
// the limits, the descriptor types, the one CSCD descriptor ID without a descriptor, and the general limits.
func (t *task) vpdThirdPartyCopy(p []byte) []byte {
	commands := []byte{
		OpExtendedCopy, 2, SAExtendedCopyLID1, SAExtendedCopyLID4,
		OpReceiveCopyResults, 4, SACopyStatusLID1, SACopyOperatingParameters, SACopyFailedSegment, SACopyStatusLID4,
	}
	p = appendCopyDescriptor(p, 0x0001, append([]byte{byte(len(commands))}, commands...))

	limits := make([]byte, 28)
	binary.BigEndian.PutUint16(limits[4:], maxCopyTargets)
	binary.BigEndian.PutUint16(limits[6:], maxCopySegments)
	binary.BigEndian.PutUint32(limits[8:], maxCopyList)
	p = appendCopyDescriptor(p, 0x0004, limits)

	p = appendCopyDescriptor(p, 0x0008, []byte{2, segmentBlockBlock, cscdIdentification})
	p = appendCopyDescriptor(p, 0x000c, []byte{0, 2, cscdSelf >> 8, cscdSelf & 0xff})

	general := make([]byte, 32)
	binary.BigEndian.PutUint32(general, maxCopies)
	binary.BigEndian.PutUint32(general[4:], maxCopies)
	general[12] = 9
	return appendCopyDescriptor(p, 0x8001, general)
}

// appendCopyDescriptor appends a third-party copy descriptor, padded to four octets.
func appendCopyDescriptor(p []byte, kind uint16, body []byte) []byte {
	n := (len(body) + 3) &^ 3
	p = binary.BigEndian.AppendUint16(p, kind)
	p = binary.BigEndian.AppendUint16(p, uint16(n))
	p = append(p, body...)
	for range n - len(body) {
		p = append(p, 0)
	}
	return p
}
