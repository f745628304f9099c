package scsi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// cscd is an identification CSCD descriptor of a logical unit by NAA.
func cscd(l *scsi.LU) []byte {
	d := make([]byte, 32)
	d[0], d[4], d[5], d[7] = 0xe4, 0x01, 0x03, byte(len(l.NAA()))
	copy(d[8:], l.NAA())
	binary.BigEndian.PutUint32(d[28:], uint32(l.BlockSize()))
	return d
}

// segment is a block to block segment descriptor.
func segment(src, dst, blocks uint16, from, to uint64) []byte {
	d := make([]byte, 28)
	d[0], d[3] = 0x02, 0x18
	binary.BigEndian.PutUint16(d[4:], src)
	binary.BigEndian.PutUint16(d[6:], dst)
	binary.BigEndian.PutUint16(d[10:], blocks)
	binary.BigEndian.PutUint64(d[12:], from)
	binary.BigEndian.PutUint64(d[20:], to)
	return d
}

func lists(header int, targets, segments [][]byte) ([]byte, int, int) {
	p := make([]byte, header)
	t, s := bytes.Join(targets, nil), bytes.Join(segments, nil)
	return append(append(p, t...), s...), len(t), len(s)
}

// copyList1 is a LID1 parameter list.
func copyList1(id byte, targets, segments [][]byte) []byte {
	p, t, s := lists(16, targets, segments)
	p[0] = id
	binary.BigEndian.PutUint16(p[2:], uint16(t))
	binary.BigEndian.PutUint32(p[8:], uint32(s))
	return p
}

// copyList4 is a LID4 parameter list.
func copyList4(id uint32, targets, segments [][]byte) []byte {
	p, t, s := lists(48, targets, segments)
	p[0], p[3], p[16] = 0x01, 0x20, 0xff
	binary.BigEndian.PutUint32(p[20:], id)
	binary.BigEndian.PutUint16(p[42:], uint16(t))
	binary.BigEndian.PutUint16(p[44:], uint16(s))
	return p
}

func copyCDB(action byte, length int) scsi.CDB {
	c := scsi.CDB{scsi.OpExtendedCopy, action}
	binary.BigEndian.PutUint32(c[10:], uint32(length))
	return c
}

func (r *rig) copy1(list []byte) answer {
	r.t.Helper()
	return r.do(copyCDB(scsi.SAExtendedCopyLID1, len(list)), list, 0)
}

// results is RECEIVE COPY RESULTS with a service action.
func (r *rig) results(action byte, id uint32) answer {
	r.t.Helper()
	c := scsi.CDB{scsi.OpReceiveCopyResults, action}
	if action == scsi.SACopyStatusLID4 {
		binary.BigEndian.PutUint32(c[2:], id)
	} else {
		c[2] = byte(id)
	}
	binary.BigEndian.PutUint32(c[10:], 512)
	return r.do(c, nil, 512)
}

// withSecond adds a second logical unit, 1, to the device.
func (r *rig) withSecond(s store.Store, cfg scsi.LUConfig) *scsi.LU {
	r.t.Helper()
	cfg.Identity = "the second"
	l, err := scsi.NewLU(s, cfg)
	require.NoError(r.t, err)
	require.NoError(r.t, r.dev.Add(1, l))
	for range 2 {
		r.do(scsi.TestUnitReady(), nil, 0) // REPORTED LUNS DATA HAS CHANGED
	}
	return l
}

func contents(t *testing.T, s store.Store, off int64, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	_, err := s.ReadAt(p, off)
	require.NoError(t, err)
	return p
}

func TestExtendedCopy(t *testing.T) { // SPC-4, sections 6.4 and 6.5
	r := memoryRig(t, 4<<20, scsi.LUConfig{})
	other := memory(t, 4<<20)
	second := r.withSecond(other, scsi.LUConfig{BlockSize: 4096, WriteThrough: true})
	data := pattern(1<<20, 6)
	r.do(scsi.Write(16, 2048, 0), data, 0).good(t)

	t.Run("across logical units and block sizes", func(t *testing.T) {
		r.copy1(copyList1(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(0, 1, 2048, 16, 8)})).good(t)
		assert.True(t, bytes.Equal(data, contents(t, other, 8*4096, len(data))))
		a := r.results(scsi.SACopyStatusLID1, 1)
		a.good(t)
		assert.Equal(t, []byte{0, 0, 0, 8, 1, 0, 1, 0, 0, 0x10, 0, 0}, a.in, "done, one segment, 1 MiB")
		r.results(scsi.SACopyStatusLID1, 1).pointsTo(t, 2, "told once")
	})
	t.Run("LID4, in blocks of the destination, and back", func(t *testing.T) {
		s := segment(1, 0, 2, 8, 4096)
		s[1] = 0x02 // DC: as many blocks as the destination counts
		s[11] = 16
		list := copyList4(0xdeadbeef, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{s})
		r.do(copyCDB(scsi.SAExtendedCopyLID4, len(list)), list, 0).good(t)
		assert.True(t, bytes.Equal(data[:16*512], r.read(4096, 16)))
		a := r.results(scsi.SACopyStatusLID4, 0xdeadbeef)
		a.good(t)
		assert.Equal(t, []byte{scsi.SAExtendedCopyLID4, 0x01}, a.in[4:6])
		assert.EqualValues(t, 16*512, binary.BigEndian.Uint64(a.in[16:]))
		assert.EqualValues(t, 1, binary.BigEndian.Uint16(a.in[24:]))
	})
	t.Run("itself without a descriptor, and overlapping both ways", func(t *testing.T) {
		self := uint16(0xffff)
		r.copy1(copyList1(1, nil, [][]byte{segment(self, self, 2048, 16, 17)})).good(t)
		assert.True(t, bytes.Equal(data, r.read(17, 2048)))
		r.copy1(copyList1(1, nil, [][]byte{segment(self, self, 2048, 17, 3)})).good(t)
		assert.True(t, bytes.Equal(data, r.read(3, 2048)))
	})
	t.Run("by T10 vendor identification", func(t *testing.T) {
		d := cscd(r.lu)
		serial := r.lu.Serial()
		d[4], d[5], d[7] = 0x02, 0x01, byte(8+min(len(serial), 12))
		copy(d[8:], "GOIWARP ")
		copy(d[16:], serial)
		a := r.copy1(copyList1(1, [][]byte{d}, [][]byte{segment(0, 0, 1, 3, 0)}))
		if len(serial) > 12 {
			a.fails(t, scsi.KeyCopyAborted, scsi.CodeCopyTargetNotReachable, "a designator holds 20 octets")
		} else {
			a.good(t)
		}
	})
	r.do(copyCDB(scsi.SAExtendedCopyLID1, 0), nil, 0).good(t, "no list")
	r.copy1(copyList1(1, [][]byte{cscd(r.lu)}, nil)).good(t, "no segments")
	r.copy1(copyList1(1, [][]byte{cscd(r.lu)}, [][]byte{segment(0, 0, 0, 8192, 8192)})).good(t, "no blocks")
}

func TestExtendedCopyRefusesLists(t *testing.T) {
	r := memoryRig(t, 4<<20, scsi.LUConfig{})
	before := r.read(0, 64)
	one := func(change func(p []byte)) []byte {
		p := copyList1(1, [][]byte{cscd(r.lu)}, [][]byte{segment(0, 0, 1, 0, 100)})
		change(p)
		return p
	}
	many := func(targets, segments int) []byte {
		var t, s [][]byte
		for range targets {
			t = append(t, cscd(r.lu))
		}
		for range segments {
			s = append(s, segment(0, 0, 1, 0, 100))
		}
		return copyList1(1, t, s)
	}
	const target, seg = 16, 16 + 32
	for _, c := range []struct {
		name string
		list []byte
		code scsi.Code
	}{
		{"short header", make([]byte, 15), scsi.CodeParameterListLength},
		{"cut in a target", one(func([]byte) {})[:16+31], scsi.CodeParameterListLength},
		{"cut in a segment", one(func([]byte) {})[:16+32+27], scsi.CodeParameterListLength},
		{"too many targets", many(17, 1), scsi.CodeTooManyTargetDescriptors},
		{"too many segments", many(1, 65), scsi.CodeTooManySegments},
		{"longer than a list may be", many(17, 65), scsi.CodeParameterListLength},
		{"inline data", one(func(p []byte) { p[15] = 1 }), scsi.CodeInlineDataLength},
		{"target type", one(func(p []byte) { p[target] = 0xe0 }), scsi.CodeTargetDescriptorType},
		{"segment type", one(func(p []byte) { p[seg] = 0x03 }), scsi.CodeSegmentDescriptorType},
		{"segment length", one(func(p []byte) { p[seg+3] = 0x14 }), scsi.CodeInvalidFieldInParameters},
		{"designator length", one(func(p []byte) { p[target+7] = 21 }), scsi.CodeInvalidFieldInParameters},
		{"association", one(func(p []byte) { p[target+5] |= 0x10 }), scsi.CodeInvalidFieldInParameters},
		{"reserved list identifier usage", one(func(p []byte) { p[1] = 0x08 }), scsi.CodeInvalidFieldInParameters},
		{"an identifier that is none", one(func(p []byte) { p[1] = 0x18 }), scsi.CodeInvalidFieldInParameters},
	} {
		r.copy1(c.list).fails(t, scsi.KeyIllegalRequest, c.code, c.name)
	}
	four := copyList4(1, [][]byte{cscd(r.lu)}, [][]byte{segment(0, 0, 1, 0, 100)})
	for octet, v := range map[int]byte{0: 0, 3: 0x1f, 16: 0} {
		list := bytes.Clone(four)
		list[octet] = v
		r.do(copyCDB(scsi.SAExtendedCopyLID4, len(list)), list, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, octet)
	}
	anonymous := copyList4(0, nil, [][]byte{segment(0xffff, 0xffff, 1, 0, 100)})
	anonymous[1], anonymous[15] = 0x18, 0x01
	r.do(copyCDB(scsi.SAExtendedCopyLID4, len(anonymous)), anonymous, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "IMMED without an identifier")
	r.do(copyCDB(scsi.SAExtendedCopyLID1, 4096), make([]byte, 4096), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	assert.Equal(t, before, r.read(0, 64))
}

// aborted checks which segment failed, and how many blocks of it are missing.
func (a answer) aborted(t *testing.T, code scsi.Code, segment, residue uint64, what string) {
	t.Helper()
	a.fails(t, scsi.KeyCopyAborted, code, what)
	assert.True(t, a.sense.InfoValid, what)
	assert.Equal(t, residue, a.sense.Info, what)
	assert.Equal(t, segment, a.sense.CommandInfo, what)
}

func TestExtendedCopyAborts(t *testing.T) {
	r := memoryRig(t, 4<<20, scsi.LUConfig{})
	second := r.withSecond(memory(t, 1<<20), scsi.LUConfig{BlockSize: 4096, ReadOnly: true})
	good := segment(0, 0, 1, 0, 100)
	for _, c := range []struct {
		name    string
		change  func(target []byte)
		segment []byte
		code    scsi.Code
		residue uint64
	}{
		{"no such target", nil, segment(0, 2, 5, 0, 1), scsi.CodeUnreachableCopyTarget, 5},
		{"nobody's name", func(d []byte) { d[9] ^= 1 }, segment(0, 0, 5, 0, 1), scsi.CodeCopyTargetNotReachable, 5},
		{"another kind of designator", func(d []byte) { d[5] = 2 }, segment(0, 0, 5, 0, 1), scsi.CodeCopyTargetNotReachable, 5},
		{"a tape", func(d []byte) { d[1] = 1 }, segment(0, 0, 5, 0, 1), scsi.CodeCopyTargetWrongType, 5},
		{"block length", func(d []byte) { d[30] = 0x10 }, segment(0, 0, 5, 0, 1), scsi.CodeCopyTargetWrongType, 5},
		{"source beyond the end", nil, segment(0, 0, 5, 8188, 0), scsi.CodeNone, 5},
		{"destination beyond the end", nil, segment(0, 0, 5, 0, 8188), scsi.CodeNone, 5},
		{"address that wraps", nil, segment(0, 0, 5, 0, 1<<64-2), scsi.CodeNone, 5},
		{"part of a block", nil, segment(0, 1, 5, 0, 0), scsi.CodeInexactSegment, 5},
		{"read-only destination", nil, segment(0, 1, 16, 0, 0), scsi.CodeThirdPartyFailure, 2},
	} {
		d := cscd(r.lu)
		segments := [][]byte{c.segment}
		index := uint64(0)
		if c.change != nil {
			c.change(d)
		} else {
			segments, index = [][]byte{good, c.segment}, 1
		}
		a := r.copy1(copyList1(1, [][]byte{d, cscd(second)}, segments))
		a.aborted(t, c.code, index, c.residue, c.name)

		status := r.results(scsi.SACopyStatusLID1, 1)
		status.good(t, c.name)
		assert.Equal(t, []byte{2, 0, byte(index)}, status.in[4:7], c.name)
		details := r.results(scsi.SACopyFailedSegment, 1)
		details.good(t, c.name)
		s, ok := scsi.ParseSense(details.in[60:])
		require.True(t, ok)
		assert.EqualValues(t, scsi.StatusCheckCondition, details.in[56])
		assert.Equal(t, a.sense.Code, s.Code, c.name)
		r.results(scsi.SACopyFailedSegment, 1).pointsTo(t, 2)
	}
	// Another nexus's reservation of either end stops a copy.
	holder := r.newNexus("holder")
	r.at(holder, scsi.EncodeLUN(1), scsi.TestUnitReady().Append(nil), nil, 0)
	r.at(holder, scsi.EncodeLUN(1), scsi.Reserve6().Append(nil), nil, 0)
	r.copy1(copyList1(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(1, 0, 1, 0, 0)})).aborted(t, scsi.CodeThirdPartyFailure, 0, 8, "reserved")
}

// A copy reaches no further than the commands of its nexus do.
func TestExtendedCopyRespectsViews(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	second := r.withSecond(memory(t, 1<<20), scsi.LUConfig{})
	there := copyList1(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(0, 1, 4, 0, 0)})
	back := copyList1(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(1, 0, 4, 0, 0)})
	set := func(luns map[int]scsi.Mapping) {
		v, err := scsi.NewView(luns, false)
		require.NoError(t, err)
		r.nexus.SetView(v)
		r.do(scsi.TestUnitReady(), nil, 0)
	}
	set(map[int]scsi.Mapping{0: {Number: 0}})
	r.copy1(there).aborted(t, scsi.CodeCopyTargetNotReachable, 0, 4, "not seen")
	r.copy1(back).aborted(t, scsi.CodeCopyTargetNotReachable, 0, 4, "not seen")
	set(map[int]scsi.Mapping{0: {Number: 0}, 1: {Number: 1, ReadOnly: true}})
	r.copy1(there).aborted(t, scsi.CodeThirdPartyFailure, 0, 4, "read-only for this nexus")
	r.copy1(back).good(t)
}

func TestExtendedCopyStoreErrors(t *testing.T) {
	broken := errors.New("broken")
	fail := storetest.Fail(memory(t, 4<<20), func(op storetest.Op) error {
		if op.Kind == storetest.Write && op.Off >= 3<<20 {
			return broken
		}
		return nil
	})
	r := newRig(t, fail, scsi.LUConfig{})
	// 128 KiB fit before the blocks that cannot be written.
	to := uint64(3<<20/512 - 256)
	r.copy1(copyList1(1, [][]byte{cscd(r.lu)}, [][]byte{segment(0, 0, 1024, 0, to)})).aborted(t, scsi.CodeThirdPartyFailure, 0, 768, "write")
}

// An identifier names one copy at a time, and each nexus has its own.
func TestCopyStatusInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		list := copyList1(7, nil, [][]byte{segment(0xffff, 0xffff, 8, 0, 100)})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan scsi.Result)
		c := copyCDB(scsi.SAExtendedCopyLID1, len(list))
		run := func() { done <- r.dev.Execute(ctx, r.nexus, 0, c[:], &wire{out: list, chunk: 4096}) }
		go run()
		<-h.entered
		a := r.results(scsi.SACopyStatusLID1, 7)
		a.good(t)
		assert.Zero(t, a.in[4], "in progress")
		r.results(scsi.SACopyFailedSegment, 7).pointsTo(t, 2)
		r.copy1(list).fails(t, scsi.KeyIllegalRequest, scsi.CodeOperationInProgress)
		h.release <- nil
		res := <-done
		assert.Equal(t, scsi.StatusGood, res.Status)

		// One that is aborted says so.
		h.mu.Lock()
		h.hold, h.entered = true, make(chan struct{})
		h.mu.Unlock()
		list = copyList4(7, nil, [][]byte{segment(0xffff, 0xffff, 600, 0, 1000)})
		c = copyCDB(scsi.SAExtendedCopyLID4, len(list))
		go run()
		<-h.entered
		cancel()
		h.release <- nil
		res = <-done
		assert.ErrorIs(t, res.Err, context.Canceled)
		a = r.results(scsi.SACopyStatusLID4, 7)
		a.good(t)
		assert.EqualValues(t, 0x60, a.in[5], "terminated")

		r.copy1(copyList1(9, nil, nil)).good(t)
		first := r.nexus
		r.nexus = r.newNexus("b")
		r.results(scsi.SACopyStatusLID1, 9).pointsTo(t, 2, "another nexus's")
		r.nexus = first
		r.lu.Reset(nil)
		r.do(scsi.TestUnitReady(), nil, 0)
		r.results(scsi.SACopyStatusLID1, 9).pointsTo(t, 2, "forgotten by a reset")
		untracked := copyList1(0, nil, nil)
		untracked[1] = 0x18
		r.copy1(untracked).good(t)
		r.results(scsi.SACopyStatusLID1, 0).pointsTo(t, 2)
		// More copies than are remembered drop the oldest.
		for id := range 70 {
			r.copy1(copyList1(byte(id), nil, nil)).good(t)
		}
		r.results(scsi.SACopyStatusLID1, 0).pointsTo(t, 2)
		r.results(scsi.SACopyStatusLID1, 69).good(t)
	})
}

func TestThirdPartyCopyPages(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	a := r.results(scsi.SACopyOperatingParameters, 0)
	a.good(t)
	require.Len(t, a.in, 46)
	assert.EqualValues(t, 42, binary.BigEndian.Uint32(a.in))
	assert.Equal(t, []uint16{16, 64}, []uint16{binary.BigEndian.Uint16(a.in[8:]), binary.BigEndian.Uint16(a.in[10:])})
	assert.Equal(t, []byte{2, 0x02, 0xe4}, a.in[43:])

	page := r.vpd(scsi.PageThirdPartyCopy)
	assert.EqualValues(t, len(page)-4, binary.BigEndian.Uint16(page[2:]))
	found := map[uint16][]byte{}
	for d := page[4:]; len(d) > 0; {
		n := int(binary.BigEndian.Uint16(d[2:]))
		require.Zero(t, n%4)
		found[binary.BigEndian.Uint16(d)] = d[4 : 4+n]
		d = d[4+n:]
	}
	assert.Len(t, found, 5)
	// The commands that it lists are those that REPORT SUPPORTED OPERATION CODES knows.
	list := found[0x0001][1 : 1+found[0x0001][0]]
	for len(list) > 0 {
		for _, action := range list[2 : 2+list[1]] {
			c := scsi.ReportSupportedOpcodes(64)
			c[2], c[3], c[5] = 2, list[0], action
			a := r.do(c, nil, 64)
			a.good(t)
			assert.EqualValues(t, 3, a.in[1]&7, "%02x/%02x", list[0], action)
		}
		list = list[2+list[1]:]
	}
	assert.EqualValues(t, 0x08, r.do(scsi.Inquiry(96), nil, 96).in[5], "3PC")
}

// FuzzParameterLists feeds parameter lists from the wire to EXTENDED COPY, MODE SELECT, SANITIZE and
// UNMAP: they never panic, and what they refuse changes nothing.
func FuzzParameterLists(f *testing.F) {
	newUnit := func() (*scsi.Device, *scsi.LU, *scsi.Nexus) {
		s, err := store.NewMemory(64 << 10)
		if err != nil {
			f.Fatal(err)
		}
		l, err := scsi.NewLU(s, scsi.LUConfig{})
		if err != nil {
			f.Fatal(err)
		}
		d := scsi.NewDevice(testPort)
		if err := d.Add(0, l); err != nil {
			f.Fatal(err)
		}
		n := d.NewNexus("f")
		tur := scsi.TestUnitReady()
		d.Execute(context.Background(), n, 0, tur[:], nil)
		return d, l, n
	}
	_, l, _ := newUnit()
	f.Add(byte(0), copyList1(1, [][]byte{cscd(l)}, [][]byte{segment(0, 0xffff, 4, 0, 8)}))
	f.Add(byte(1), copyList4(1, [][]byte{cscd(l)}, [][]byte{segment(0, 0, 4, 0, 8)}))
	immed := copyList4(1, nil, [][]byte{segment(0xffff, 0xffff, 4, 0, 8)})
	immed[15] = 0x01
	f.Add(byte(1), immed)
	f.Add(byte(2), []byte{0, 0, 0, 8, 0, 0, 0, 128, 0, 0, 2, 0, 0x0a, 0x0a, 4, 0x10, 8, 0, 0, 0, 0, 0, 0, 0})
	f.Add(byte(3), []byte{0, 0, 0, 0, 0, 0, 0, 0, 8, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(byte(4), []byte{0x82, 0, 0, 3, 1, 2, 3})
	f.Add(byte(5), scsi.AppendUnmap(nil, []scsi.Extent{{LBA: 3, Blocks: 5}}))
	f.Fuzz(func(t *testing.T, which byte, list []byte) {
		if len(list) > 4096 {
			return
		}
		d, l, n := newUnit()
		defer l.Close() // and what runs in the background
		before := bytes.Repeat([]byte{0x5a}, 64<<10)
		w := scsi.Write(0, 128, 0)
		d.Execute(context.Background(), n, 0, w[:], &wire{out: before, chunk: 64 << 10})
		var c scsi.CDB
		switch which % 6 {
		case 0:
			c = copyCDB(scsi.SAExtendedCopyLID1, len(list))
		case 1:
			c = copyCDB(scsi.SAExtendedCopyLID4, len(list))
		case 2:
			c = scsi.ModeSelect6(uint8(len(list)))
		case 3:
			c = scsi.CDB{scsi.OpModeSelect10, 0x10, 7: byte(len(list) >> 8), 8: byte(len(list))}
		case 4:
			c = sanitizeCDB(scsi.SASanitizeOverwrite, len(list))
		case 5:
			c = scsi.Unmap(0)
			binary.BigEndian.PutUint16(c[7:], uint16(len(list)))
		}
		res := d.Execute(context.Background(), n, 0, c[:], &wire{out: list, chunk: 4096})
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		s, _ := scsi.ParseSense(res.Sense())
		if res.Status != scsi.StatusCheckCondition || s.Key != scsi.KeyIllegalRequest {
			return
		}
		after := make([]byte, 64<<10)
		if _, err := l.Store().ReadAt(after, 0); err != nil || !bytes.Equal(before, after) {
			t.Fatal("a list that was refused changed blocks")
		}
	})
}
