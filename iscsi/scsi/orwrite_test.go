package scsi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

func atomicCDB(lba uint64, n uint16) scsi.CDB {
	c := scsi.CDB{scsi.OpWriteAtomic16}
	binary.BigEndian.PutUint64(c[2:], lba)
	binary.BigEndian.PutUint16(c[12:], n)
	return c
}

func TestORWrite(t *testing.T) { // SBC-3, section 5.7
	for _, bs := range []int{512, 4096} {
		r := memoryRig(t, 4<<20, scsi.LUConfig{BlockSize: bs})
		n := 300 << 10 / bs // more than a buffer holds
		old, more := pattern(n*bs, 1), pattern(n*bs, 2)
		r.do(scsi.Write16(3, uint32(n), 0), old, 0).good(t)
		a := r.do(cdbOf(scsi.OpORWrite16, 3, uint32(n)), more, 0)
		a.good(t)
		assert.EqualValues(t, n*bs, a.Out)
		want := make([]byte, n*bs)
		for i := range want {
			want[i] = old[i] | more[i]
		}
		assert.True(t, bytes.Equal(want, r.read(3, uint32(n))))
	}
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	r.do(cdbOf(scsi.OpORWrite16, 2047, 2), make([]byte, 1024), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	r.do(cdbOf(scsi.OpORWrite16, 2048, 0), nil, 0).good(t, "nothing at the end")
	c := cdbOf(scsi.OpORWrite16, 0, 1)
	c[1] = 0x20 // WRPROTECT
	r.do(c, make([]byte, 512), 0).pointsTo(t, 1)
	// An initiator that sends less than the CDB says changes as much as it sent.
	a := r.do(cdbOf(scsi.OpORWrite16, 0, 2), bytes.Repeat([]byte{1}, 512), 0)
	a.good(t)
	assert.EqualValues(t, 1024, a.Out)
	assert.Equal(t, append(bytes.Repeat([]byte{1}, 512), make([]byte, 512)...), r.read(0, 2))

	ro := memoryRig(t, 1<<20, scsi.LUConfig{ReadOnly: true})
	ro.do(cdbOf(scsi.OpORWrite16, 0, 1), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
}

// Every bit that anybody set is there at the end: ORWRITE reads and writes in one step.
func TestORWriteIsOneStep(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	var wg sync.WaitGroup
	for bit := range 8 {
		wg.Go(func() {
			for i := range 100 {
				data := make([]byte, 512)
				data[i] = 1 << bit
				c := cdbOf(scsi.OpORWrite16, 0, 1)
				r.dev.Execute(context.Background(), r.nexus, 0, c[:], &wire{out: data, chunk: 4096})
			}
		})
	}
	wg.Wait()
	assert.Equal(t, bytes.Repeat([]byte{0xff}, 100), r.read(0, 1)[:100])
}

func TestWriteAtomic(t *testing.T) { // SBC-4, section 5.46
	r := memoryRig(t, 4<<20, scsi.LUConfig{})
	page := r.vpd(scsi.PageBlockLimits)
	most := binary.BigEndian.Uint32(page[44:])
	require.EqualValues(t, 256, most)
	assert.Equal(t, make([]byte, 16), page[48:64], "no alignment, granularity or boundary")
	data := pattern(int(most)*512, 3)
	a := r.do(atomicCDB(5, uint16(most)), data, 0)
	a.good(t)
	assert.EqualValues(t, len(data), a.Out)
	assert.True(t, bytes.Equal(data, r.read(5, most)))

	r.do(atomicCDB(0, uint16(most)+1), make([]byte, (most+1)*512), 0).pointsTo(t, 12)
	r.do(atomicCDB(8191, 2), make([]byte, 1024), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	c := atomicCDB(0, 1)
	c[11] = 1 // ATOMIC BOUNDARY
	r.do(c, make([]byte, 512), 0).pointsTo(t, 10)
	r.do(atomicCDB(0, 0), nil, 0).good(t)
	// Half of the data changes nothing.
	before := r.read(0, 2)
	r.do(atomicCDB(0, 2), bytes.Repeat([]byte{7}, 512), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCIU)
	assert.Equal(t, before, r.read(0, 2))

	// A store that promises nothing has no WRITE ATOMIC, and the page says so.
	info := memory(t, 1<<20)
	plain := newRig(t, promiseless{info}, scsi.LUConfig{})
	plain.do(atomicCDB(0, 1), make([]byte, 512), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
	assert.Equal(t, make([]byte, 20), plain.vpd(scsi.PageBlockLimits)[44:64])
}

type promiseless struct{ store.Store }

func (p promiseless) Info() store.Info {
	i := p.Store.Info()
	i.AtomicWrite = 0
	return i
}

// One WriteAt carries all of an atomic write, and one that fails leaves the blocks as they were.
func TestWriteAtomicIsOneWrite(t *testing.T) {
	log := storetest.Log(memory(t, 1<<20), nil)
	r := newRig(t, log, scsi.LUConfig{})
	log.Ops()
	r.chunk = 4096
	r.do(atomicCDB(8, 64), make([]byte, 64*512), 0).good(t)
	assert.Equal(t, []storetest.Op{{Kind: storetest.Write, Off: 8 * 512, N: 64 * 512}}, log.Ops())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := atomicCDB(8, 64)
	res := r.dev.Execute(ctx, r.nexus, 0, c[:], &wire{out: bytes.Repeat([]byte{1}, 64*512), chunk: 4096})
	assert.ErrorIs(t, res.Err, context.Canceled)
	gone := errors.New("initiator gone")
	res = r.dev.Execute(context.Background(), r.nexus, 0, c[:], &wire{out: bytes.Repeat([]byte{1}, 64*512), chunk: 4096, err: gone})
	assert.ErrorIs(t, res.Err, gone)
	assert.Empty(t, log.Ops())
}

// Reads and atomic writes of the same blocks never mix.
func TestWriteAtomicAgainstReads(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	const n = 256 // blocks over several pages of the store
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			c := atomicCDB(64, n)
			for i := byte(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				data := bytes.Repeat([]byte{i&0x7f | byte(w)<<7}, n*512)
				r.dev.Execute(context.Background(), r.nexus, 0, c[:], &wire{out: data, chunk: 64 << 10})
			}
		})
	}
	for range 300 {
		c := scsi.Read(64, n, 0)
		w := &wire{expect: n * 512, chunk: 256 << 10}
		res := r.dev.Execute(context.Background(), r.nexus, 0, c[:], w)
		require.Equal(t, scsi.StatusGood, res.Status)
		require.Equal(t, bytes.Repeat(w.in[:1], n*512), w.in)
	}
	close(stop)
	wg.Wait()
}

func TestWriteAndVerify(t *testing.T) { // SBC-3, section 5.36
	for _, op := range []byte{scsi.OpWriteAndVerify10, scsi.OpWriteAndVerify12, scsi.OpWriteAndVerify16} {
		log := storetest.Log(storetest.Forget(memory(t, 1<<20)), nil)
		r := newRig(t, log, scsi.LUConfig{})
		r.chunk = 4096
		data := pattern(20*512, 4)
		for _, check := range []byte{0, 0x02} {
			log.Ops()
			c := cdbOf(op, 9, 20)
			c[1] |= check
			a := r.do(c, data, 0)
			a.good(t)
			assert.EqualValues(t, len(data), a.Out)
			assert.Equal(t, data, r.read(9, 20))
			reads, last := 0, storetest.Op{}
			for _, op := range log.Ops() {
				if op.Kind == storetest.Read {
					reads++
				} else {
					last = op
				}
			}
			assert.GreaterOrEqual(t, reads, 3, "what was written is read back")
			assert.Equal(t, storetest.Flush, last.Kind, "from the medium")
		}
		for _, check := range []byte{0x04, 0x06} {
			c := cdbOf(op, 9, 1)
			c[1] |= check
			r.do(c, data[:512], 0).pointsTo(t, 1)
		}
		r.do(cdbOf(op, 2047, 2), data[:1024], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	}
	ro := memoryRig(t, 1<<20, scsi.LUConfig{ReadOnly: true})
	ro.do(cdbOf(scsi.OpWriteAndVerify16, 0, 1), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
}

// liar reads back something else than was written.
type liar struct{ store.Store }

func (s liar) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Store.ReadAt(p, off)
	if len(p) > 700 {
		p[700] ^= 1
	}
	return n, err
}

func TestWriteAndVerifyFindsWhatDiffers(t *testing.T) {
	r := newRig(t, liar{memory(t, 1<<20)}, scsi.LUConfig{})
	c := cdbOf(scsi.OpWriteAndVerify16, 0, 4)
	r.do(c, pattern(2048, 1), 0).good(t, "BYTCHK 0 only reads")
	c[1] = 0x02
	a := r.do(c, pattern(2048, 1), 0)
	a.fails(t, scsi.KeyMiscompare, scsi.CodeMiscompareDuringVerify)
	assert.EqualValues(t, 700, a.sense.Info)

	bad := storetest.Fail(memory(t, 1<<20), func(op storetest.Op) error {
		if op.Kind == storetest.Read && op.Off <= 3*512 && op.Off+int64(op.N) > 3*512 {
			return errors.New("unreadable")
		}
		return nil
	})
	r = newRig(t, bad, scsi.LUConfig{})
	a = r.do(cdbOf(scsi.OpWriteAndVerify16, 0, 8), pattern(4096, 1), 0)
	a.fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	assert.EqualValues(t, 3, a.sense.Info)
}

func TestReadDefectData(t *testing.T) { // SBC-3, sections 5.12 and 5.13
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for _, c := range []struct {
		lists byte
		code  scsi.Code
		given byte
	}{
		{0x18, 0, 0x18},
		{0x08 | 3, 0, 0x0b},
		{0x10 | 5, scsi.CodeDefectListNotFound, 0x13}, // physical sectors
	} {
		ten := scsi.CDB{scsi.OpReadDefectData10, 0, c.lists, 8: 32}
		twelve := scsi.CDB{scsi.OpReadDefectData12, c.lists, 9: 32}
		for _, cdb := range []scsi.CDB{ten, twelve} {
			a := r.do(cdb, nil, 32)
			if c.code != 0 {
				a.fails(t, scsi.KeyRecoveredError, c.code)
			} else {
				a.good(t)
			}
			assert.Equal(t, c.given, a.in[1])
			assert.Equal(t, make([]byte, len(a.in)-2), a.in[2:], "no defects")
		}
	}
}

func TestLogSense(t *testing.T) { // SPC-4, section 6.10
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	sense := func(page, subpage byte, pointer uint16) scsi.CDB {
		c := scsi.CDB{scsi.OpLogSense, 2: 0x40 | page, 3: subpage, 8: 255}
		binary.BigEndian.PutUint16(c[5:], pointer)
		return c
	}
	for _, c := range []struct {
		name string
		cdb  scsi.CDB
		want []byte
	}{
		{"supported pages", sense(0, 0, 0), []byte{0x80, 0, 0, 7, 0x00, 0x02, 0x03, 0x05, 0x06, 0x0d, 0x2f}},
		{"supported pages and subpages", sense(0, 0xff, 0), []byte{0xc0, 0xff, 0, 16, 0, 0, 0, 0xff, 2, 0, 3, 0, 5, 0, 6, 0, 0x0d, 0, 0x2f, 0}},
		{"temperature", sense(0x0d, 0, 0), []byte{0x8d, 0, 0, 12, 0, 0, 3, 2, 0, 0xff, 0, 1, 3, 2, 0, 0xff}},
		{"from a parameter on", sense(0x0d, 0, 1), []byte{0x8d, 0, 0, 6, 0, 1, 3, 2, 0, 0xff}},
		{"informational exceptions", sense(0x2f, 0, 0), []byte{0xaf, 0, 0, 8, 0, 0, 3, 4, 0, 0, 0xff, 0}},
	} {
		a := r.do(c.cdb, nil, 255)
		a.good(t, c.name)
		assert.Equal(t, c.want, a.in, c.name)
	}
	r.do(sense(0x0c, 0, 0), nil, 255).pointsTo(t, 2)
	r.do(sense(0x0d, 1, 0), nil, 255).pointsTo(t, 3)
	r.do(sense(0x0d, 0, 2), nil, 255).pointsTo(t, 5)
	c := sense(0, 0, 0)
	c[2] = 0 // thresholds
	r.do(c, nil, 255).pointsTo(t, 2)
	c = sense(0, 0, 0)
	c[1] = 0x01 // SP
	r.do(c, nil, 255).pointsTo(t, 1)

	broken := newRig(t, storetest.Fail(storetest.Forget(memory(t, 1<<20)), func(op storetest.Op) error {
		if op.Kind == storetest.Flush {
			return store.ErrFlush
		}
		return nil
	}), scsi.LUConfig{})
	broken.do(scsi.SynchronizeCache(0, 0), nil, 0).fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
	a := broken.do(sense(0x2f, 0, 0), nil, 255)
	a.good(t)
	assert.Equal(t, []byte{0x0c, 0x00}, a.in[8:10], "an operator can ask why it is read-only")
}
