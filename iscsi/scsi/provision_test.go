package scsi_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

func blockLimits(t *testing.T, r *rig) scsi.BlockLimits {
	t.Helper()
	a := r.do(scsi.InquiryVPD(scsi.PageBlockLimits, 255), nil, 255)
	a.good(t)
	l, err := scsi.ParseBlockLimits(a.in)
	require.NoError(t, err)
	return l
}

func (r *rig) read(lba uint64, n uint32) []byte {
	r.t.Helper()
	a := r.do(scsi.Read16(lba, n, 0), nil, int64(n)*int64(r.lu.BlockSize()))
	a.good(r.t)
	return a.in
}

func (r *rig) unmap(extents ...scsi.Extent) answer {
	r.t.Helper()
	return r.do(scsi.Unmap(len(extents)), scsi.AppendUnmap(nil, extents), 0)
}

func TestUnmap(t *testing.T) {
	s := memory(t, 1<<30)
	r := newRig(t, s, scsi.LUConfig{})
	limits := blockLimits(t, r)
	data := pattern(1<<20, 5)
	for off := range uint64(4) {
		r.do(scsi.Write16(off*2048, 2048, 0), data, 0).good(t)
	}

	r.unmap(scsi.Extent{LBA: 7, Blocks: 3000}).good(t)
	got := r.read(0, 4096)
	assert.Equal(t, data[:7*512], got[:7*512], "blocks before it are untouched")
	assert.Equal(t, make([]byte, 3000*512), got[7*512:3007*512], "LBPRZ: unmapped blocks read as zeros")
	assert.Equal(t, data[959*512:], got[3007*512:], "blocks after it are untouched")

	r.unmap(scsi.Extent{LBA: 4096, Blocks: 100}, scsi.Extent{LBA: 4150, Blocks: 100}, scsi.Extent{LBA: 5000, Blocks: 0}).good(t, "overlapping and empty ones")
	assert.Equal(t, make([]byte, 154*512), r.read(4096, 154))

	r.unmap().good(t, "no descriptors")
	r.do(scsi.CDB{scsi.OpUnmap}, nil, 0).good(t, "no parameter list")

	before := r.read(6000, 8)
	r.unmap(scsi.Extent{LBA: 6000, Blocks: 8}, scsi.Extent{LBA: 1 << 21, Blocks: 1}).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	assert.Equal(t, before, r.read(6000, 8), "everything is checked before anything happens")
	r.unmap(scsi.Extent{LBA: 1<<64 - 1, Blocks: 2}).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)

	tooMany := make([]scsi.Extent, limits.MaxUnmapDescriptors+1)
	a := r.unmap(tooMany...)
	a.fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)
	assert.True(t, a.sense.FieldValid && !a.sense.InCDB)
	r.unmap(tooMany[1:]...).good(t, "as many as page B0h says")
	r.unmap(scsi.Extent{Blocks: limits.MaxUnmap}, scsi.Extent{Blocks: 1}).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)

	// A descriptor length of 15 leaves no whole descriptor.
	list := scsi.AppendUnmap(nil, []scsi.Extent{{LBA: 6000, Blocks: 8}})
	binary.BigEndian.PutUint16(list[2:], 15)
	r.do(scsi.Unmap(1), list, 0).good(t)
	assert.Equal(t, before, r.read(6000, 8))
	// So does a list that is cut.
	c := scsi.Unmap(1)
	c[8] = 20
	r.do(c, list[:20], 0).good(t)
	assert.Equal(t, before, r.read(6000, 8))
	c[8] = 7
	r.do(c, list[:7], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	r.do(scsi.Unmap(1), list[:20], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	c = scsi.Unmap(1)
	c[1] = 0x01 // ANCHOR
	r.do(c, list, 0).pointsTo(t, 1)
}

// Pages and bits about provisioning say the same, whether the unit is thin or not.
func TestProvisioningIsConsistent(t *testing.T) {
	thinDisk := memory(t, 1<<20)
	for _, c := range []struct {
		name  string
		store store.Store
		cfg   scsi.LUConfig
		thin  bool
	}{
		{"by the store", thinDisk, scsi.LUConfig{}, true},
		{"thin", thinDisk, scsi.LUConfig{Provisioning: scsi.ProvisionThin}, true},
		{"full", thinDisk, scsi.LUConfig{Provisioning: scsi.ProvisionFull}, false},
		{"store that cannot", struct{ store.Store }{thinDisk}, scsi.LUConfig{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.store, c.cfg)
			a := r.do(scsi.ReadCapacity16(), nil, 32)
			capacity, err := scsi.ParseReadCapacity16(a.in)
			require.NoError(t, err)
			a = r.do(scsi.InquiryVPD(scsi.PageProvisioning, 255), nil, 255)
			p, err := scsi.ParseProvisioning(a.in)
			require.NoError(t, err)
			l := blockLimits(t, r)
			assert.Equal(t, c.thin, capacity.Thin)
			assert.Equal(t, c.thin, capacity.ReadsZeros)
			assert.Equal(t, c.thin, p.Unmap && p.WriteSame10 && p.WriteSame16 && p.ReadsZeros && p.Type == 2)
			assert.Equal(t, c.thin, l.MaxUnmap > 0 && l.MaxUnmapDescriptors > 0 && l.UnmapGranularity > 0)
			unmap := r.unmap(scsi.Extent{Blocks: 1})
			same := r.do(scsi.WriteSame(0, 1, true), make([]byte, 512), 0)
			status := r.do(scsi.GetLBAStatus(0, 24), nil, 24)
			if c.thin {
				unmap.good(t)
				same.good(t)
				status.good(t)
			} else {
				unmap.fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
				same.pointsTo(t, 1)
				status.pointsTo(t, 1)
			}
		})
	}
	_, err := scsi.NewLU(struct{ store.Store }{thinDisk}, scsi.LUConfig{Provisioning: scsi.ProvisionThin})
	assert.ErrorContains(t, err, "thin provisioning needs a store that can discard")
}

func TestWriteSame(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		log := storetest.Log(memory(t, 8<<20), nil)
		r := newRig(t, log, scsi.LUConfig{BlockSize: bs})
		block, n := pattern(bs, 6), uint32(8<<20/bs)
		log.Ops()
		a := r.do(scsi.WriteSame(1, n-2, false), block, 0)
		a.good(t)
		assert.EqualValues(t, bs, a.Out)
		assert.Equal(t, make([]byte, bs), r.read(0, 1))
		assert.Equal(t, make([]byte, bs), r.read(uint64(n-1), 1))
		assert.Equal(t, bytes.Repeat(block, int(n-2)), r.read(1, n-2))

		c := cdbOf(scsi.OpWriteSame10, 5, 10)
		r.do(c, make([]byte, bs), 0).good(t)
		assert.Equal(t, make([]byte, 10*bs), r.read(5, 10))
		log.Ops()
		r.do(scsi.WriteZeroes(20, 10, false), nil, 0).good(t)
		r.do(scsi.WriteZeroes(40, 10, true), nil, 0).good(t)
		assert.Equal(t, []storetest.Op{
			{Kind: storetest.Zero, Off: 20 * int64(bs), N: 10 * int64(bs)},
			{Kind: storetest.Discard, Off: 40 * int64(bs), N: 10 * int64(bs)},
		}, log.Ops())
		r.do(scsi.WriteSame(60, 10, true), block, 0).good(t, "UNMAP with data is a write")
		assert.Equal(t, bytes.Repeat(block, 10), r.read(60, 10))

		r.do(scsi.WriteSame(uint64(n-3), 0, false), block, 0).good(t, "to the end")
		assert.Equal(t, bytes.Repeat(block, 3), r.read(uint64(n-3), 3))
		r.do(cdbOf(scsi.OpWriteSame10, uint64(n-3), 0), make([]byte, bs), 0).good(t)
		assert.Equal(t, make([]byte, 3*bs), r.read(uint64(n-3), 3))
		r.do(scsi.WriteSame(uint64(n), 0, false), block, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
		r.do(scsi.WriteSame(uint64(n-1), 2, false), block, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
		r.do(scsi.WriteSame(0, 1, false), block[:bs-1], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCIU)
		r.do(scsi.WriteSame(0, 1, false), append(bytes.Clone(block), block...), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCIU, "two blocks")
		limit := blockLimits(t, r)
		assert.False(t, limit.WriteSameNonZero)
		assert.Zero(t, limit.MaxWriteSame, "none")
		for _, bits := range []byte{0x02, 0x04, 0x10} { // LBDATA, PBDATA, ANCHOR
			c := scsi.WriteSame(0, 1, false)
			c[1] |= bits
			r.do(c, block, 0).pointsTo(t, 1)
		}
	}
}

// A store that cannot write zeros by itself gets them written.
func TestWriteSameWithoutHelp(t *testing.T) {
	s := struct{ store.Store }{memory(t, 1<<20)}
	r := newRig(t, s, scsi.LUConfig{})
	r.do(scsi.Write(0, 8, 0), pattern(4096, 1), 0).good(t)
	r.do(scsi.WriteZeroes(2, 4, false), nil, 0).good(t)
	assert.Equal(t, make([]byte, 4*512), r.read(2, 4))
	fail := storetest.Fail(memory(t, 1<<20), func(op storetest.Op) error {
		if op.Kind == storetest.Zero {
			return errors.ErrUnsupported
		}
		return nil
	})
	r = newRig(t, fail, scsi.LUConfig{})
	r.do(scsi.Write(0, 8, 0), pattern(4096, 1), 0).good(t)
	r.do(scsi.WriteZeroes(2, 4, false), nil, 0).good(t)
	assert.Equal(t, make([]byte, 4*512), r.read(2, 4))
}

func TestGetLBAStatus(t *testing.T) {
	r := memoryRig(t, 1<<30, scsi.LUConfig{})
	r.do(scsi.Write16(2048, 128, 0), make([]byte, 64<<10), 0).good(t)
	a := r.do(scsi.GetLBAStatus(100, 512), nil, 512)
	a.good(t)
	require.Len(t, a.in, 8+3*16)
	assert.EqualValues(t, len(a.in)-4, binary.BigEndian.Uint32(a.in))
	type extent struct {
		lba    uint64
		blocks uint32
		status byte
	}
	var got []extent
	for d := a.in[8:]; len(d) > 0; d = d[16:] {
		got = append(got, extent{binary.BigEndian.Uint64(d), binary.BigEndian.Uint32(d[8:]), d[12]})
	}
	assert.Equal(t, []extent{{100, 1948, 1}, {2048, 128, 0}, {2176, 1<<21 - 2176, 1}}, got)
	r.do(scsi.GetLBAStatus(1<<21, 512), nil, 512).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	a = r.do(scsi.GetLBAStatus(100, 8), nil, 8)
	assert.Len(t, a.in, 8)
}
