package scsi_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

func (r *rig) vpd(page byte) []byte {
	r.t.Helper()
	a := r.do(scsi.InquiryVPD(page, 512), nil, 512)
	a.good(r.t, page)
	require.Equal(r.t, page, a.in[1])
	require.EqualValues(r.t, len(a.in)-4, binary.BigEndian.Uint16(a.in[2:]), "the page length adds up")
	return a.in
}

func TestInquiry(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{Vendor: "ACME", Product: "Disk", Revision: "7"})
	a := r.do(scsi.Inquiry(255), nil, 255)
	a.good(t)
	require.Len(t, a.in, 96)
	assert.Equal(t, "ACME    Disk            7   ", string(a.in[8:36]))
	d, err := scsi.ParseInquiry(a.in)
	require.NoError(t, err)
	assert.Equal(t, scsi.InquiryData{
		Version: 6, CmdQueue: true, Vendor: "ACME", Product: "Disk", Revision: "7",
		Versions: []uint16{0x00a0, 0x0960, 0x0460, 0x04c0},
	}, d)

	a = r.do(scsi.Inquiry(5), nil, 5)
	a.good(t)
	assert.EqualValues(t, 91, a.in[4], "the additional length is not cut")
	r.do(scsi.Inquiry(0), nil, 0).good(t)
	c := scsi.Inquiry(96)
	c[2] = 0x80
	r.do(c, nil, 96).pointsTo(t, 2)
	c = scsi.Inquiry(96)
	c[1] = 0x02 // CMDDT
	r.do(c, nil, 96).pointsTo(t, 1)
	r.do(scsi.InquiryVPD(0x7b, 96), nil, 96).pointsTo(t, 2)
}

func TestSupportedPages(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	pages, err := scsi.ParseSupportedPages(r.vpd(scsi.PageSupported))
	require.NoError(t, err)
	assert.Equal(t, []byte{0x00, 0x80, 0x83, 0x88, 0x8f, 0xb0, 0xb1, 0xb2}, pages)
	for _, p := range pages {
		r.vpd(p)
	}
	for p := range 256 {
		if !strings.ContainsRune(string(pages), rune(p)) && p < 128 {
			r.do(scsi.InquiryVPD(byte(p), 255), nil, 255).pointsTo(t, 2)
		}
	}
}

// Each logical unit has its own identifiers, the same after a restart, of every kind that hosts
// look for.
func TestIdentification(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"disk0", "disk1"} {
		path := filepath.Join(t.TempDir(), name)
		s, err := store.CreateFile(path, 1<<20)
		require.NoError(t, err)
		var first []scsi.Designator
		for range 2 { // the second round is after a restart
			r := newRig(t, s, scsi.LUConfig{Identity: "iqn.2026-11.com.example:t/" + name})
			list, err := scsi.ParseIdentification(r.vpd(scsi.PageIdentification))
			require.NoError(t, err)
			require.NoError(t, s.Close())
			s, err = store.OpenFile(path, store.FileOptions{})
			require.NoError(t, err)
			if first == nil {
				first = list
			}
			assert.Equal(t, first, list)

			var kinds []string
			for _, d := range list {
				kinds = append(kinds, fmt.Sprintf("association %d type %d code set %d length %d", d.Association, d.Type, d.CodeSet, len(d.Data)))
			}
			assert.Equal(t, []string{
				"association 0 type 3 code set 1 length 8",
				"association 0 type 1 code set 2 length 24",
				"association 1 type 4 code set 1 length 4",
				"association 1 type 8 code set 3 length 40",
				"association 2 type 8 code set 3 length 32",
			}, kinds)
			assert.EqualValues(t, 3, list[0].Data[0]>>4, "locally assigned")
			assert.Equal(t, "GOIWARP ", string(list[1].Data[:8]))
			assert.EqualValues(t, 5, list[3].Protocol)
			assert.Equal(t, testPort.Name, list[3].String())

			serial, err := scsi.ParseSerial(r.vpd(scsi.PageSerial))
			require.NoError(t, err)
			assert.Equal(t, r.lu.Serial(), serial)
			for _, id := range []string{list[0].String(), serial} {
				if owner, ok := seen[id]; ok {
					assert.Equal(t, owner, name, "%s is unique", id)
				}
				seen[id] = name
			}
		}
		require.NoError(t, s.Close())
	}
}

func TestConfiguredIdentity(t *testing.T) {
	naa := []byte{0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	r := memoryRig(t, 1<<20, scsi.LUConfig{Serial: "S-0001", NAA: naa})
	list, err := scsi.ParseIdentification(r.vpd(scsi.PageIdentification))
	require.NoError(t, err)
	assert.Equal(t, "naa.600102030405060708090a0b0c0d0e0f", list[0].String())
	assert.Equal(t, "t10.GOIWARP S-0001", list[1].String())
}

func TestConfigurationIsChecked(t *testing.T) {
	s := memory(t, 1<<20)
	for want, cfg := range map[string]scsi.LUConfig{
		"neither 512 nor 4096":       {BlockSize: 520},
		"not within 0 to 7":          {PhysicalExponent: 8},
		"longer than 8 characters":   {Vendor: "TOO LONG A NAME"},
		"longer than 16 characters":  {Product: "ABCDEFGHIJKLMNOPQ"},
		"longer than 4 characters":   {Revision: "12345"},
		"longer than 36":             {Serial: strings.Repeat("x", 37)},
		"not printable ASCII":        {Serial: "caf\xc3\xa9"},
		"must be 8 or 16":            {NAA: []byte{0x30}},
		"NAA 3h does not have 16":    {NAA: append([]byte{0x30}, make([]byte, 15)...)},
		"is no multiple of the bloc": {MaxTransfer: 1000},
		"above 1 GiB":                {MaxTransfer: 1<<30 + 512},
	} {
		_, err := scsi.NewLU(s, cfg)
		assert.ErrorContains(t, err, want)
	}
	_, err := scsi.NewLU(memory(t, 511), scsi.LUConfig{})
	assert.ErrorContains(t, err, "hold no block")
}

// A long port name is left out rather than cut, and the page still adds up.
func TestLongNames(t *testing.T) {
	name := "iqn.2026-11.com.example:" + strings.Repeat("x", 223-24)
	lu, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{})
	require.NoError(t, err)
	r := &rig{t: t, dev: scsi.NewDevice(scsi.Port{Name: name + ",t,0x0001", DeviceName: name, Relative: 1, Protocol: 5}), lu: lu, chunk: 4096}
	require.NoError(t, r.dev.Add(0, lu))
	r.nexus = r.newNexus("a")
	list, err := scsi.ParseIdentification(r.vpd(scsi.PageIdentification))
	require.NoError(t, err)
	for _, d := range list {
		if d.Type == 8 {
			assert.Contains(t, []string{name, name + ",t,0x0001"}, d.String())
		}
	}
}

// Block size and physical block of a 4096 and of a 512 octet unit, everywhere they are told.
func TestGeometry(t *testing.T) {
	for _, c := range []struct{ bs, exponent int }{{512, 0}, {512, 3}, {4096, 0}} {
		r := memoryRig(t, 1<<20, scsi.LUConfig{BlockSize: c.bs, PhysicalExponent: c.exponent})
		a := r.do(scsi.ReadCapacity16(), nil, 32)
		got, err := scsi.ParseReadCapacity16(a.in)
		require.NoError(t, err)
		assert.EqualValues(t, c.bs, got.BlockSize)
		assert.EqualValues(t, 1<<20/c.bs, got.Blocks)
		assert.EqualValues(t, c.exponent, got.PhysicalExponent)
		assert.EqualValues(t, c.exponent, a.in[13])
		a = r.do(scsi.ReadCapacity10(), nil, 8)
		got10, err := scsi.ParseReadCapacity10(a.in)
		require.NoError(t, err)
		assert.Equal(t, [2]any{got.Blocks, got.BlockSize}, [2]any{got10.Blocks, got10.BlockSize})
		a = r.do(scsi.ModeSense6(scsi.ModePageCaching, 255), nil, 255)
		m, err := scsi.ParseModeSense6(a.in)
		require.NoError(t, err)
		assert.Equal(t, [2]any{got.Blocks, got.BlockSize}, [2]any{m.Blocks, m.BlockSize})
		l := blockLimits(t, r)
		assert.EqualValues(t, 1<<c.exponent, l.OptimalGranularity)
		assert.EqualValues(t, 32<<20/c.bs, l.MaxTransfer)
	}
}

func TestRotation(t *testing.T) {
	for _, rotational := range []bool{false, true} {
		r := memoryRig(t, 1<<20, scsi.LUConfig{Rotational: rotational})
		rate, err := scsi.ParseCharacteristics(r.vpd(scsi.PageCharacteristic))
		require.NoError(t, err)
		assert.Equal(t, rotational, rate != 1)
	}
}
