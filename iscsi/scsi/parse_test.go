package scsi_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

func TestParseReadCapacity(t *testing.T) {
	c, err := scsi.ParseReadCapacity10([]byte{0, 0, 7, 0xff, 0, 0, 2, 0})
	require.NoError(t, err)
	assert.Equal(t, scsi.Capacity{Blocks: 2048, BlockSize: 512}, c)
	c, err = scsi.ParseReadCapacity10([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0})
	require.NoError(t, err)
	assert.Zero(t, c.Blocks, "ask with (16)")
	for _, b := range [][]byte{
		nil, make([]byte, 7),
		make([]byte, 8),                // block size 0
		{0, 0, 0, 1, 0x80, 0, 0, 0},    // absurd block size
		{0, 0, 0, 1, 0x01, 0, 0, 0x01}, // just over
	} {
		_, err := scsi.ParseReadCapacity10(b)
		var d *scsi.DataError
		assert.ErrorAs(t, err, &d)
	}
	all := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0}
	_, err = scsi.ParseReadCapacity16(all)
	assert.ErrorContains(t, err, "all ones")
	all[7] = 0xfe
	_, err = scsi.ParseReadCapacity16(all)
	assert.ErrorContains(t, err, "beyond 63 bits")
	_, err = scsi.ParseReadCapacity16(all[:11])
	assert.EqualError(t, err, "scsi: READ CAPACITY(16) data: 11 octets, must be at least 12")
}

// Old devices send less; what is missing is 0.
func TestParseShortData(t *testing.T) {
	l, err := scsi.ParseBlockLimits([]byte{0, 0xb0, 0, 12, 0, 1, 0, 8, 0, 0, 0x10, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	assert.Equal(t, scsi.BlockLimits{MaxCompareAndWrite: 1, OptimalGranularity: 8, MaxTransfer: 4096}, l)
	_, err = scsi.ParseBlockLimits([]byte{0, 0xb2, 0, 12})
	assert.EqualError(t, err, "scsi: VPD page b0h: is page b2h")
	_, err = scsi.ParseBlockLimits([]byte{0, 0xb0, 0})
	assert.Error(t, err)
	d, err := scsi.ParseInquiry(append([]byte{0, 0, 2, 2, 31, 0, 0, 0}, "AB\x00\x01\xff   PRODUCT         1.0 "...))
	require.NoError(t, err)
	assert.Equal(t, "AB???", d.Vendor, "what cannot be printed does not reach a terminal")
	_, err = scsi.ParseInquiry([]byte{0, 0, 2, 2, 3, 0, 0, 0})
	assert.Error(t, err)
	luns, n, err := scsi.ParseReportLUNs([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9})
	require.NoError(t, err)
	assert.Equal(t, []uint64{1 << 48}, luns)
	assert.Equal(t, 1<<29-1, n)
	ids, err := scsi.ParseIdentification([]byte{0, 0x83, 0, 12, 1, 3, 0, 4, 0x30, 1, 2, 3, 1, 3, 0, 200})
	require.NoError(t, err)
	assert.Len(t, ids, 1, "one that is cut is left out")
}

func TestModeDataPages(t *testing.T) {
	m, err := scsi.ParseModeSense10([]byte{
		0, 33, 0, 0x90, 0, 0, 0, 0,
		0x88, 2, 4, 0, // PS set
		0x4a, 1, 0, 3, 1, 2, 3, // a subpage
		0x0a, 2, 5, 6,
		0x1c, 10, 1, // cut
	})
	require.NoError(t, err)
	assert.True(t, m.WriteProtected && m.DPOFUA)
	assert.Equal(t, []byte{0x88, 2, 4, 0}, m.Page(8))
	assert.Equal(t, []byte{0x0a, 2, 5, 6}, m.Page(0x0a))
	assert.Nil(t, m.Page(0x1c))
	on, known := m.WriteCache()
	assert.True(t, on && known)
	_, known = scsi.ModeData{}.WriteCache()
	assert.False(t, known)
	for _, b := range [][]byte{nil, {3, 0, 0}} {
		_, err = scsi.ParseModeSense6(b)
		assert.Error(t, err)
		_, err = scsi.ParseModeSense10(b)
		assert.Error(t, err)
	}
}

// FuzzParse gives any octets to every parser of what a device sends.
func FuzzParse(f *testing.F) {
	for _, s := range [][]byte{
		{0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 2},
		{0x72, 3, 0x0c, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0},
		{0, 0x83, 0, 12, 1, 3, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7},
		{0x1f, 0, 0x10, 8, 0, 0, 8, 0, 0, 0, 2, 0, 8, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0},
		{0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0},
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := scsi.ParseSense(b); ok {
			_ = s.String()
			again, ok := scsi.ParseSense(s.AppendDescriptor(nil))
			if s.CommandInfo == 0 && s.Info == 0 && (!ok || again != s) {
				t.Fatalf("%+v comes back as %+v", s, again)
			}
		}
		_ = scsi.NewError(b, scsi.StatusCheckCondition, b).Error()
		_, _ = scsi.ParseInquiry(b)
		_, _ = scsi.ParseSupportedPages(b)
		_, _ = scsi.ParseSerial(b)
		if ids, err := scsi.ParseIdentification(b); err == nil {
			for _, d := range ids {
				_ = d.String()
			}
		}
		_, _ = scsi.ParseBlockLimits(b)
		_, _ = scsi.ParseCharacteristics(b)
		_, _ = scsi.ParseProvisioning(b)
		for _, parse := range []func([]byte) (scsi.Capacity, error){scsi.ParseReadCapacity10, scsi.ParseReadCapacity16} {
			if c, err := parse(b); err == nil && (c.Size() < 0 || c.BlockSize == 0) {
				t.Fatalf("a capacity of %+v", c)
			}
		}
		if luns, n, err := scsi.ParseReportLUNs(b); err == nil && (len(luns) > n || n < 0) {
			t.Fatalf("%d LUNs of %d", len(luns), n)
		}
		for _, parse := range []func([]byte) (scsi.ModeData, error){scsi.ParseModeSense6, scsi.ParseModeSense10} {
			if m, err := parse(b); err == nil {
				for page := range 64 {
					m.Page(byte(page))
				}
				m.WriteCache()
			}
		}
	})
}
