package scsi_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store/storetest"
)

func TestModeSense(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	caching := []byte{0x08, 0x12, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	control := []byte{0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}
	recovery := []byte{0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	exceptions := []byte{0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	descriptor := []byte{0, 0, 0x08, 0, 0, 0, 0x02, 0}
	join := func(p ...[]byte) []byte { return bytes.Join(p, nil) }
	for _, c := range []struct {
		name string
		cdb  []byte
		want []byte
	}{
		{"first the header alone", []byte{0x1a, 0, 0x08, 0, 4, 0}, []byte{0x1f, 0, 0x10, 8}},
		{"then all of it", []byte{0x1a, 0, 0x08, 0, 0x20, 0}, join([]byte{0x1f, 0, 0x10, 8}, descriptor, caching)},
		{"all pages, header alone", []byte{0x1a, 0, 0x3f, 0, 4, 0}, []byte{0x43, 0, 0x10, 8}},
		{"all pages", []byte{0x1a, 0, 0x3f, 0, 0xff, 0}, join([]byte{0x43, 0, 0x10, 8}, descriptor, recovery, caching, control, exceptions)},
		{"all pages and subpages", []byte{0x1a, 0, 0x3f, 0xff, 0xff, 0}, join([]byte{0x43, 0, 0x10, 8}, descriptor, recovery, caching, control, exceptions)},
		{"DBD", []byte{0x1a, 0x08, 0x08, 0, 0xff, 0}, join([]byte{0x17, 0, 0x10, 0}, caching)},
		{"control", []byte{0x1a, 0x08, 0x0a, 0, 0xff, 0}, join([]byte{0x0f, 0, 0x10, 0}, control)},
		{"allocation 0", []byte{0x1a, 0, 0x08, 0, 0, 0}, nil},
		{"changeable", []byte{0x1a, 0x08, 0x7f, 0, 0xff, 0}, join([]byte{0x3b, 0, 0x10, 0}, recovery,
			[]byte{8, 0x12, 4}, make([]byte, 17), []byte{0x0a, 0x0a, 4, 0, 8, 0x40}, make([]byte, 6), []byte{0x1c, 0x0a}, make([]byte, 10))},
		{"defaults", []byte{0x1a, 0x08, 0x88, 0, 0xff, 0}, join([]byte{0x17, 0, 0x10, 0}, caching)},
		{"(10), header alone", []byte{0x5a, 0, 0x08, 0, 0, 0, 0, 0, 8, 0}, []byte{0, 0x22, 0, 0x10, 0, 0, 0, 8}},
		{"(10)", []byte{0x5a, 0, 0x08, 0, 0, 0, 0, 1, 0, 0}, join([]byte{0, 0x22, 0, 0x10, 0, 0, 0, 8}, descriptor, caching)},
		{"(10), long LBA", []byte{0x5a, 0x10, 0x08, 0, 0, 0, 0, 1, 0, 0}, join([]byte{0, 0x2a, 0, 0x10, 1, 0, 0, 16}, []byte{0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0}, caching)},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.as(r.nexus, c.cdb, nil, 1024)
			a.good(t)
			assert.Equal(t, c.want, a.in)
			assert.EqualValues(t, len(c.want), a.In)
		})
	}
	for page, octet := range map[byte]int{0x30: 2, 0x00: 2} {
		r.as(r.nexus, []byte{0x1a, 0, page, 0, 0xff, 0}, nil, 255).pointsTo(t, octet)
	}
	r.as(r.nexus, []byte{0x1a, 0, 0x08, 0x01, 0xff, 0}, nil, 255).pointsTo(t, 3)
	r.as(r.nexus, []byte{0x1a, 0, 0xc8, 0, 0xff, 0}, nil, 255).fails(t, scsi.KeyIllegalRequest, scsi.CodeSavingNotSupported)

	ro := memoryRig(t, 1<<20, scsi.LUConfig{ReadOnly: true, WriteThrough: true})
	a := ro.do(scsi.ModeSense6(0x08, 255), nil, 255)
	m, err := scsi.ParseModeSense6(a.in)
	require.NoError(t, err)
	on, known := m.WriteCache()
	assert.Equal(t, []bool{true, true, false, true}, []bool{m.WriteProtected, m.DPOFUA, on, known})
}

// modeSelect sends what MODE SENSE gave, changed.
func (r *rig) modeSelect(change func(p []byte)) answer {
	r.t.Helper()
	a := r.do(scsi.ModeSense6(0x3f, 255), nil, 255)
	a.good(r.t)
	list := bytes.Clone(a.in)
	list[0], list[2] = 0, 0
	change(list)
	return r.do(scsi.ModeSelect6(uint8(len(list))), list, 0)
}

func TestModeSelect(t *testing.T) {
	log := storetest.Log(storetest.Forget(memory(t, 1<<20)), nil)
	r := newRig(t, log, scsi.LUConfig{})
	other := r.newNexus("b")
	const caching, control = 4 + 8 + 12, 4 + 8 + 12 + 20

	r.modeSelect(func([]byte) {}).good(t, "nothing changed")
	r.as(other, scsi.TestUnitReady().Append(nil), nil, 0).good(t)
	log.Ops()
	r.modeSelect(func(p []byte) { p[caching+2] &^= 0x04 }).good(t)
	assert.False(t, r.lu.WriteCache())
	assert.Equal(t, []storetest.Op{{Kind: storetest.Flush}}, log.Ops(), "what was cached becomes durable")
	r.as(other, scsi.TestUnitReady().Append(nil), nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeModeParametersChanged)
	r.do(scsi.TestUnitReady(), nil, 0).good(t, "the one that did it is not told")
	r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0).good(t)
	assert.Equal(t, storetest.FUA, log.Ops()[0].Kind)

	r.modeSelect(func(p []byte) { p[control+2] |= 0x04 }).good(t)
	a := r.do(scsi.Read(1<<20, 1, 0), nil, 512)
	a.fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)
	assert.EqualValues(t, 0x72, a.Sense()[0], "D_SENSE")

	r.modeSelect(func(p []byte) { p[control+4] |= 0x08 }).good(t)
	r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeSoftwareWriteProtected, "SWP")
	protected := r.do(scsi.ModeSense6(0x0a, 255), nil, 255)
	assert.EqualValues(t, 0x90, protected.in[2], "WP tells it")
	r.modeSelect(func(p []byte) { p[control+4] &^= 0x08 }).good(t)
	r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0).good(t)

	for _, c := range []struct {
		name   string
		change func(p []byte)
		octet  int
	}{
		{"a bit that cannot be changed", func(p []byte) { p[caching+2] |= 0x01 }, caching + 2},
		{"page length", func(p []byte) { p[caching+1]-- }, caching + 1},
		{"unknown page", func(p []byte) { p[caching] = 0x30 }, caching},
		{"a page without anything to change", func(p []byte) { p[4+8+2] = 0x80 }, 4 + 8 + 2},
		{"subpage", func(p []byte) { p[caching] |= 0x40 }, caching},
		{"descriptor length", func(p []byte) { p[3] = 7 }, 3},
		{"block size", func(p []byte) { p[4+6] = 0x10 }, 4 + 5},
		{"number of blocks", func(p []byte) { p[4+3] = 1 }, 4},
	} {
		a := r.modeSelect(c.change)
		a.fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, c.name)
		assert.EqualValues(t, c.octet, a.sense.Field, c.name)
	}
	r.do(scsi.ModeSelect6(0), nil, 0).good(t)
	r.do(scsi.ModeSelect6(3), make([]byte, 3), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	r.do(scsi.ModeSelect6(24), make([]byte, 10), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	r.do(scsi.ModeSelect6(10), append([]byte{0, 0, 0, 0}, 8, 0x12, 0, 0, 0, 0), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	c := scsi.ModeSelect6(0)
	c[1] = 0x11 // SP
	r.do(c, nil, 0).pointsTo(t, 1)
	c[1] = 0x00 // no PF
	r.do(c, nil, 0).pointsTo(t, 1)

	long := append([]byte{0, 0, 0, 0, 0, 0, 0, 0}, 0x08, 0x12, 0x04)
	long = append(long, make([]byte, 17)...)
	r.as(r.nexus, []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(long)), 0}, long, 0).good(t)
	assert.True(t, r.lu.WriteCache())

	r.modeSelect(func(p []byte) { p[caching+2] &^= 0x04 }).good(t)
	r.lu.Reset(r.nexus)
	assert.True(t, r.lu.WriteCache(), "a reset brings the default back")
	a = r.do(scsi.Read(1<<20, 1, 0), nil, 512)
	assert.EqualValues(t, 0x70, a.Sense()[0])
}
