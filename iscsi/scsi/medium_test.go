package scsi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// cdbOf builds READ or WRITE in the given length.
func cdbOf(op byte, lba uint64, n uint32) scsi.CDB {
	c := scsi.CDB{op}
	switch op >> 5 {
	case 0:
		c[1], c[4] = byte(lba>>16), byte(n)
		binary.BigEndian.PutUint16(c[2:], uint16(lba))
	case 1, 2:
		binary.BigEndian.PutUint32(c[2:], uint32(lba))
		binary.BigEndian.PutUint16(c[7:], uint16(n))
	case 5:
		binary.BigEndian.PutUint32(c[2:], uint32(lba))
		binary.BigEndian.PutUint32(c[6:], n)
	default:
		binary.BigEndian.PutUint64(c[2:], lba)
		binary.BigEndian.PutUint32(c[10:], n)
	}
	return c
}

func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7) ^ byte(i>>9)*31 ^ seed
	}
	return p
}

func TestReadBackInEveryLength(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		r := memoryRig(t, 4<<20, scsi.LUConfig{BlockSize: bs})
		r.chunk = 10_000 // no multiple of a block
		for i, op := range [][2]byte{
			{scsi.OpWrite6, scsi.OpRead6},
			{scsi.OpWrite10, scsi.OpRead10},
			{scsi.OpWrite12, scsi.OpRead12},
			{scsi.OpWrite16, scsi.OpRead16},
		} {
			const n = 33
			data := pattern(n*bs, byte(i))
			a := r.do(cdbOf(op[0], uint64(17*i), n), data, 0)
			a.good(t)
			assert.EqualValues(t, len(data), a.Out)
			a = r.do(cdbOf(op[1], uint64(17*i), n), nil, int64(len(data)))
			a.good(t)
			assert.EqualValues(t, len(data), a.In)
			assert.True(t, bytes.Equal(data, a.in))
		}
	}
}

// A length of 0 is 256 blocks in the 6 octet commands and nothing in the others.
func TestLengthZero(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	c := cdbOf(scsi.OpRead6, 0, 0)
	assert.EqualValues(t, 256*512, r.lu.Plan(c[:]).DataIn)
	a := r.do(c, nil, 256*512)
	a.good(t)
	assert.Len(t, a.in, 256*512)
	for _, op := range []byte{scsi.OpRead10, scsi.OpRead12, scsi.OpRead16, scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16, scsi.OpVerify10} {
		a := r.do(cdbOf(op, 5, 0), nil, 0)
		a.good(t)
		assert.Zero(t, a.In+a.Out)
		r.do(cdbOf(op, 1<<20/512+1, 0), nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	}
}

// Disks at and around 2 TiB: the last address is one less than the number of blocks, the 10 octet
// form says FFFFFFFFh when it cannot tell, and no arithmetic wraps.
func TestLargeDisks(t *testing.T) {
	for _, size := range []int64{2<<40 - 512, 2 << 40, 2<<40 + 512, 16 << 40} {
		t.Run(store.FormatSize(size), func(t *testing.T) {
			r := memoryRig(t, size, scsi.LUConfig{})
			blocks := uint64(size / 512)
			a := r.do(scsi.ReadCapacity10(), nil, 8)
			a.good(t)
			want := uint32(min(blocks-1, math.MaxUint32))
			assert.Equal(t, want, binary.BigEndian.Uint32(a.in))
			a = r.do(scsi.ReadCapacity16(), nil, 32)
			a.good(t)
			c, err := scsi.ParseReadCapacity16(a.in)
			require.NoError(t, err)
			assert.Equal(t, blocks, c.Blocks)
			assert.Equal(t, size, c.Size())

			data := pattern(512, 3)
			r.do(scsi.Write16(blocks-1, 1, 0), data, 0).good(t)
			a = r.do(scsi.Read16(blocks-1, 1, 0), nil, 512)
			a.good(t)
			assert.Equal(t, data, a.in)
			if blocks <= 1<<32 {
				a = r.do(cdbOf(scsi.OpRead10, blocks-1, 1), nil, 512)
				a.good(t)
				assert.Equal(t, data, a.in)
			}
			for _, bad := range []struct {
				lba uint64
				n   uint32
			}{{blocks, 1}, {blocks - 1, 2}, {math.MaxUint64, 1}, {math.MaxUint64, 2}, {math.MaxUint64 - 1, 60000}, {blocks + 1, 0}} {
				for _, op := range []byte{scsi.OpRead16, scsi.OpWrite16, scsi.OpVerify16, scsi.OpSynchronizeCache16, scsi.OpPreFetch16} {
					r.do(cdbOf(op, bad.lba, bad.n), make([]byte, 512), 512).
						fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange, op, bad)
				}
			}
		})
	}
}

// More or less expected than the CDB asks to move: the result says what the CDB means, the data is
// what both agree on.
func TestResiduals(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	data := pattern(4*512, 1)
	r.do(scsi.Write(0, 4, 0), data, 0).good(t)

	a := r.do(scsi.Read(0, 2, 0), nil, 10_000) // underflow
	a.good(t)
	assert.Equal(t, data[:1024], a.in)
	over, under := scsi.Residual(a.In, 10_000)
	assert.EqualValues(t, []int64{0, 10_000 - 1024}, []int64{over, under})

	for _, edtl := range []int64{0, 100, 512, 700} { // overflow
		a = r.do(scsi.Read(0, 2, 0), nil, edtl)
		a.good(t)
		assert.Equal(t, data[:edtl], append([]byte{}, a.in...))
		over, under = scsi.Residual(a.In, edtl)
		assert.EqualValues(t, []int64{1024 - edtl, 0}, []int64{over, under})
	}

	a = r.do(scsi.Write(8, 1, 0), pattern(2048, 2), 0)
	a.good(t)
	assert.EqualValues(t, 512, a.Out)
	a = r.do(scsi.Write(20, 3, 0), pattern(700, 2), 0)
	a.good(t)
	assert.EqualValues(t, 3*512, a.Out, "the residual tells of what was not sent")
	a = r.do(scsi.Read(8, 16, 0), nil, 16*512)
	want := make([]byte, 16*512)
	copy(want, pattern(512, 2))
	copy(want[12*512:], pattern(700, 2)[:512]) // whole blocks only
	assert.Equal(t, want, a.in)

	a = r.do(scsi.Inquiry(255), nil, 255)
	over, under = scsi.Residual(a.In, 255)
	assert.EqualValues(t, []int64{0, 255 - 96}, []int64{over, under})
	a = r.do(scsi.ReadCapacity10(), nil, 32)
	assert.EqualValues(t, 8, a.In)
}

func TestMaximumTransfer(t *testing.T) {
	r := memoryRig(t, 1<<30, scsi.LUConfig{MaxTransfer: 64 << 10})
	limits := blockLimits(t, r)
	assert.EqualValues(t, 128, limits.MaxTransfer)
	r.do(scsi.Read16(0, 128, 0), nil, 128*512).good(t)
	r.do(scsi.Read16(0, 129, 0), nil, 129*512).pointsTo(t, 10)
	r.do(scsi.Read(0, 129, 0), nil, 129*512).pointsTo(t, 7)
	r.do(cdbOf(scsi.OpWrite12, 0, math.MaxUint32), nil, 0).pointsTo(t, 6)
	r.do(cdbOf(scsi.OpRead6, 0, 0), nil, 0).pointsTo(t, 4)
	c := cdbOf(scsi.OpWrite16, 0, math.MaxUint32)
	assert.EqualValues(t, math.MaxUint32*512, r.lu.Plan(c[:]).DataOut, "the plan does not wrap")
}

func TestProtectionInformationIsRefused(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for _, op := range []byte{
		scsi.OpRead10, scsi.OpRead12, scsi.OpRead16, scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16,
		scsi.OpVerify10, scsi.OpVerify12, scsi.OpVerify16, scsi.OpWriteSame10, scsi.OpWriteSame16, scsi.OpCompareAndWrite,
	} {
		c := cdbOf(op, 0, 1)
		c[1] = 0x20
		a := r.do(c, make([]byte, 1024), 512)
		a.pointsTo(t, 1, op)
		assert.EqualValues(t, 5, a.sense.Bit)
		c[1], c[c.Len()-1] = 0, 0x04 // NACA
		a = r.do(c, make([]byte, 1024), 512)
		a.pointsTo(t, c.Len()-1, op)
		assert.EqualValues(t, 2, a.sense.Bit)
	}
}

// What reaches the store, and in which order, for each cache setting.
func TestDurability(t *testing.T) {
	const (
		read  = storetest.Read
		write = storetest.Write
		fua   = storetest.FUA
		flush = storetest.Flush
	)
	for _, c := range []struct {
		name    string
		through bool
		noFUA   bool
		cdb     scsi.CDB
		want    []storetest.Kind
	}{
		{"cached write", false, false, scsi.Write(0, 8, 0), []storetest.Kind{write}},
		{"cached write, FUA", false, false, scsi.Write(0, 8, scsi.FUA), []storetest.Kind{fua}},
		{"cached long write, FUA", false, false, scsi.Write(0, 16, scsi.FUA), []storetest.Kind{fua, fua}},
		{"cached write, FUA, store without", false, true, scsi.Write(0, 16, scsi.FUA), []storetest.Kind{write, write, flush}},
		{"write through", true, false, scsi.Write(0, 8, 0), []storetest.Kind{fua}},
		{"long write through", true, false, scsi.Write(0, 16, 0), []storetest.Kind{write, write, flush}},
		{"write through, store without", true, true, scsi.Write(0, 8, 0), []storetest.Kind{write, flush}},
		{"synchronize", false, false, scsi.SynchronizeCache(0, 0), []storetest.Kind{flush}},
		{"read", false, false, scsi.Read(0, 8, 0), []storetest.Kind{read}},
		{"read, FUA", false, false, scsi.Read(0, 8, scsi.FUA), []storetest.Kind{flush, read}},
		{"write same", true, false, scsi.WriteSame(0, 8, false), []storetest.Kind{storetest.Zero, flush}},
		{"write same, unmap, cached", false, false, scsi.WriteSame(0, 8, true), []storetest.Kind{storetest.Discard}},
		{"compare and write, FUA", false, false, scsi.CompareAndWrite(0, 4, scsi.FUA), []storetest.Kind{read, fua}},
		{"stop", false, false, scsi.StartStop(false), []storetest.Kind{flush}},
		{"start", false, false, scsi.StartStop(true), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s store.Store = storetest.Forget(memory(t, 1<<20))
			if c.noFUA {
				s = struct {
					store.Store
					store.Discarder
				}{s, s.(store.Discarder)}
			}
			log := storetest.Log(s, nil)
			r := newRig(t, log, scsi.LUConfig{WriteThrough: c.through})
			r.chunk = 4096
			out := r.dev.Plan(0, c.cdb[:]).DataOut
			r.do(c.cdb, make([]byte, out), 8192).good(t)
			var got []storetest.Kind
			for _, op := range log.Ops() {
				if op.Kind == storetest.FUA && c.noFUA {
					continue // refused as unsupported
				}
				got = append(got, op.Kind)
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// A store without volatile data needs no flush.
func TestNoFlushWithoutVolatileData(t *testing.T) {
	log := storetest.Log(memory(t, 1<<20), nil)
	r := newRig(t, log, scsi.LUConfig{WriteThrough: true})
	r.do(scsi.Write(0, 1, scsi.FUA), make([]byte, 512), 0).good(t)
	r.do(scsi.SynchronizeCache(0, 0), nil, 0).good(t)
	assert.Equal(t, []storetest.Op{{Kind: storetest.Write, N: 512}}, log.Ops())
}

// A flush that fails fails its command, and the logical unit takes no write and no flush from then
// on, though the disk seems well again.
func TestFailedFlush(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    storetest.Kind
		err     error
		through bool
		cdb     scsi.CDB
	}{
		{"synchronize cache", storetest.Flush, syscall.EIO, false, scsi.SynchronizeCache(0, 0)},
		{"full disk at writeback", storetest.Flush, syscall.ENOSPC, false, scsi.SynchronizeCache(0, 0)},
		{"write through", storetest.Flush, syscall.EIO, true, scsi.Write(0, 1024, 0)},
		{"force unit access", storetest.FUA, fmt.Errorf("%w: %w", store.ErrFlush, syscall.EIO), false, scsi.Write(0, 1, scsi.FUA)},
		{"stop", storetest.Flush, syscall.EIO, false, scsi.StartStop(false)},
		{"cache off", storetest.Flush, syscall.EIO, false, scsi.ModeSelect6(24)},
	} {
		t.Run(c.name, func(t *testing.T) {
			fail := storetest.Fail(storetest.Forget(memory(t, 1<<20)), nil)
			r := newRig(t, fail, scsi.LUConfig{WriteThrough: c.through})
			out := make([]byte, 1024*512)
			if c.cdb[0] == scsi.OpModeSelect6 {
				out[4], out[5] = scsi.ModePageCaching, 18
			}
			fail.Next(c.kind, c.err)
			r.do(c.cdb, out, 0).fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
			for range 2 {
				r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
				r.do(scsi.SynchronizeCache(0, 0), nil, 0).fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
				r.do(scsi.WriteSame(0, 1, true), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
			}
			r.do(scsi.Read(0, 1, 0), nil, 512).good(t)
			a := r.do(scsi.ModeSense6(scsi.ModePageCaching, 255), nil, 255)
			m, err := scsi.ParseModeSense6(a.in)
			require.NoError(t, err)
			assert.True(t, m.WriteProtected)
			assert.ErrorIs(t, r.lu.Sync(), c.err)
		})
	}
}

// What the store's errors become.
func TestStoreErrors(t *testing.T) {
	read, write := storetest.Read, storetest.Write
	for _, c := range []struct {
		kind storetest.Kind
		err  error
		key  scsi.Key
		code scsi.Code
		lba  int // INFORMATION; -1 for none
	}{
		{write, syscall.ENOSPC, scsi.KeyDataProtect, scsi.CodeSpaceAllocationFailed, -1},
		{write, syscall.EDQUOT, scsi.KeyDataProtect, scsi.CodeSpaceAllocationFailed, -1},
		{write, syscall.EIO, scsi.KeyMediumError, scsi.CodeWriteError, 8},
		{write, io.ErrShortWrite, scsi.KeyMediumError, scsi.CodeWriteError, 8},
		{write, syscall.EROFS, scsi.KeyDataProtect, scsi.CodeWriteProtected, -1},
		{write, store.ErrReadOnly, scsi.KeyDataProtect, scsi.CodeWriteProtected, -1},
		{write, store.ErrClosed, scsi.KeyNotReady, scsi.CodeManualIntervention, -1},
		{read, syscall.EIO, scsi.KeyMediumError, scsi.CodeUnrecoveredRead, 8},
		{read, io.ErrUnexpectedEOF, scsi.KeyMediumError, scsi.CodeUnrecoveredRead, 8},
		{read, store.ErrClosed, scsi.KeyNotReady, scsi.CodeManualIntervention, -1},
	} {
		fail := storetest.Fail(memory(t, 1<<20), nil)
		r := newRig(t, fail, scsi.LUConfig{})
		fail.Always(c.kind, c.err)
		cdb := scsi.Write(8, 4, 0)
		if c.kind == read {
			cdb = scsi.Read(8, 4, 0)
		}
		a := r.do(cdb, make([]byte, 2048), 2048)
		a.fails(t, c.key, c.code, c.err)
		assert.Equal(t, c.lba >= 0, a.sense.InfoValid, c.err)
		if c.lba >= 0 {
			assert.EqualValues(t, c.lba, a.sense.Info)
		}
		assert.Zero(t, a.In+a.Out)
		fail.Set(nil)
		r.do(cdb, make([]byte, 2048), 2048).good(t, "and works again")
	}
	for _, err := range []error{syscall.EAGAIN, syscall.ETIMEDOUT, context.DeadlineExceeded} {
		for _, cdb := range []scsi.CDB{scsi.Read(8, 4, 0), scsi.Write(8, 4, 0)} {
			fail := storetest.Fail(memory(t, 1<<20), func(storetest.Op) error { return err })
			r := newRig(t, fail, scsi.LUConfig{})
			assert.Equal(t, scsi.StatusBusy, r.do(cdb, make([]byte, 2048), 2048).Status, err)
		}
	}
}

// A bad block in the middle is named, and the blocks before it arrive.
func TestReadErrorNamesTheBlock(t *testing.T) {
	const bad = 77
	s := memory(t, 1<<20)
	fail := storetest.Fail(s, func(op storetest.Op) error {
		if op.Kind == storetest.Read && op.Off <= bad*512 && bad*512 < op.Off+op.N {
			return syscall.EIO
		}
		return nil
	})
	r := newRig(t, fail, scsi.LUConfig{})
	r.chunk = 8192
	data := pattern(128*512, 9)
	r.do(scsi.Write(0, 128, 0), data, 0).good(t)
	a := r.do(scsi.Read(10, 100, 0), nil, 100*512)
	a.fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	assert.EqualValues(t, bad, a.sense.Info)
	assert.EqualValues(t, (bad-10)*512, a.In)
	assert.Equal(t, data[10*512:bad*512], a.in)
	a = r.do(scsi.Verify(10, 100, scsi.VerifyMedium), nil, 0)
	a.fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	assert.EqualValues(t, bad, a.sense.Info)
}

func TestReadOnly(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{ReadOnly: true})
	for _, c := range []scsi.CDB{
		scsi.Write(0, 1, 0), cdbOf(scsi.OpWrite6, 0, 1), scsi.WriteSame(0, 1, true), scsi.WriteZeroes(0, 1, false),
		scsi.CompareAndWrite(0, 1, 0), scsi.Unmap(1),
	} {
		out := scsi.AppendUnmap(nil, []scsi.Extent{{LBA: 0, Blocks: 1}})
		out = append(out, make([]byte, 1024)...)
		r.do(c, out, 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected, c[0])
	}
	r.do(scsi.Read(0, 1, 0), nil, 512).good(t)
	r.do(scsi.SynchronizeCache(0, 0), nil, 0).good(t)
}

func TestVerify(t *testing.T) {
	r := memoryRig(t, 4<<20, scsi.LUConfig{})
	r.chunk = 4096
	const n = 600 // more than one buffer
	data := pattern(n*512, 4)
	r.do(scsi.Write(3, n, 0), data, 0).good(t)
	r.do(scsi.Verify(3, n, scsi.VerifyMedium), nil, 0).good(t)
	a := r.do(scsi.Verify(3, n, scsi.VerifyData), data, 0)
	a.good(t)
	assert.EqualValues(t, len(data), a.Out)
	wrong := bytes.Clone(data)
	wrong[300_000] ^= 1
	a = r.do(scsi.Verify(3, n, scsi.VerifyData), wrong, 0)
	a.fails(t, scsi.KeyMiscompare, scsi.CodeMiscompareDuringVerify)
	assert.EqualValues(t, 300_000, a.sense.Info)
	r.do(scsi.Verify(3, n, scsi.VerifyData), data[:1000], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCIU)

	block := data[:512]
	r.do(scsi.WriteSame(1000, 50, false), block, 0).good(t)
	a = r.do(scsi.Verify(1000, 50, scsi.VerifySame), block, 0)
	a.good(t)
	assert.EqualValues(t, 512, a.Out)
	a = r.do(scsi.Verify(1000, 51, scsi.VerifySame), block, 0)
	a.fails(t, scsi.KeyMiscompare, scsi.CodeMiscompareDuringVerify)
	r.do(scsi.Verify(0, 1, 2), block, 0).pointsTo(t, 1)
	for _, op := range []byte{scsi.OpVerify12, scsi.OpVerify16} {
		c := cdbOf(op, 1000, 50)
		c[1] = 3 << 1
		r.do(c, block, 0).good(t)
	}
}

func TestCompareAndWrite(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	old, next := make([]byte, 1024), pattern(1024, 8)
	a := r.do(scsi.CompareAndWrite(4, 2, 0), append(bytes.Clone(old), next...), 0)
	a.good(t)
	assert.EqualValues(t, 2048, a.Out)
	a = r.do(scsi.Read(4, 2, 0), nil, 1024)
	assert.Equal(t, next, a.in)
	a = r.do(scsi.CompareAndWrite(4, 2, 0), append(bytes.Clone(old), next...), 0)
	a.fails(t, scsi.KeyMiscompare, scsi.CodeMiscompareDuringVerify)
	r.do(scsi.CompareAndWrite(4, 0, 0), nil, 0).good(t)
	r.do(scsi.CompareAndWrite(4, 0, 0), make([]byte, 2*256*512), 0).pointsTo(t, 13, "256 blocks do not fit into the field")
	r.do(scsi.CompareAndWrite(4, 2, 0), make([]byte, 1024), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCIU)
	most := blockLimits(t, r).MaxCompareAndWrite
	assert.EqualValues(t, 128, most)
	r.do(scsi.CompareAndWrite(0, most+1, 0), make([]byte, 2*512*(int(most)+1)), 0).pointsTo(t, 13)
}

// Counters that many nexuses raise by COMPARE AND WRITE lose no step.
func TestCompareAndWriteIsAtomic(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	const workers, steps = 4, 100
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for done := 0; done < steps; {
				w := &wire{expect: 512, chunk: 4096}
				c := scsi.Read(9, 1, 0)
				r.lu.Execute(context.Background(), nil, c[:], w)
				next := bytes.Clone(w.in)
				binary.BigEndian.PutUint64(next, binary.BigEndian.Uint64(next)+1)
				c = scsi.CompareAndWrite(9, 1, 0)
				if r.lu.Execute(context.Background(), nil, c[:], &wire{out: append(w.in, next...), chunk: 4096}).Status == scsi.StatusGood {
					done++
				}
			}
		})
	}
	wg.Wait()
	a := r.do(scsi.Read(9, 1, 0), nil, 512)
	assert.EqualValues(t, workers*steps, binary.BigEndian.Uint64(a.in))
}

// An abort ends a command between its pieces, and one that waits for blocks that another one holds.
func TestAbort(t *testing.T) {
	delay := storetest.Delay(memory(t, 1<<20))
	r := newRig(t, delay, scsi.LUConfig{})
	r.chunk = 4096
	assert.True(t, r.lu.Blocks())
	ctx, cancel := context.WithCancel(context.Background())
	delay.Hold(storetest.Write)
	done := make(chan scsi.Result)
	run := func(ctx context.Context, c scsi.CDB, out []byte) {
		done <- r.lu.Execute(ctx, r.nexus, c[:], &wire{out: out, chunk: 4096})
	}
	go run(ctx, scsi.Write(0, 64, 0), make([]byte, 64*512))
	<-delay.Arrived()
	cancel()
	delay.Step()
	res := <-done
	assert.ErrorIs(t, res.Err, context.Canceled)
	assert.LessOrEqual(t, res.Out, int64(4096), "nothing after the piece that was under way")

	go run(context.Background(), scsi.Write(0, 1, 0), make([]byte, 512))
	<-delay.Arrived()
	ctx, cancel = context.WithCancel(context.Background())
	go run(ctx, scsi.CompareAndWrite(0, 1, 0), make([]byte, 1024))
	cancel()
	assert.ErrorIs(t, (<-done).Err, context.Canceled)
	delay.Release()
	assert.NoError(t, (<-done).Err)
}

func TestTransferFails(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	gone := errors.New("connection lost")
	for _, c := range []scsi.CDB{scsi.Read(0, 1, 0), scsi.Write(0, 1, 0), scsi.Inquiry(96), scsi.CompareAndWrite(0, 1, 0), scsi.Verify(0, 1, 1)} {
		res := r.lu.Execute(context.Background(), r.nexus, c[:], &wire{expect: 512, out: make([]byte, 1024), chunk: 4096, err: gone})
		assert.ErrorIs(t, res.Err, gone)
	}
}

func TestWithoutTransfer(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for _, c := range []scsi.CDB{scsi.TestUnitReady(), scsi.Read(0, 1, 0), scsi.Write(0, 1, 0), scsi.Inquiry(96)} {
		res := r.lu.Execute(context.Background(), r.nexus, c[:], nil)
		assert.NoError(t, res.Err)
		assert.Equal(t, scsi.StatusGood, res.Status)
	}
}
