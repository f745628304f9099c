package scsi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

var (
	eject   = scsi.CDB{scsi.OpStartStopUnit, 4: 0x02}
	load    = scsi.CDB{scsi.OpStartStopUnit, 4: 0x03}
	prevent = scsi.CDB{scsi.OpPreventAllow, 4: 0x01}
	allow   = scsi.CDB{scsi.OpPreventAllow}
)

func TestEject(t *testing.T) { // SBC-3, section 5.25
	r := memoryRig(t, 1<<20, scsi.LUConfig{Removable: true})
	b := r.newNexus("b")
	require.EqualValues(t, 0x80, r.do(scsi.Inquiry(96), nil, 96).in[1]&0x80, "RMB")
	r.do(eject, nil, 0).good(t)
	require.True(t, r.lu.Ejected())
	block := make([]byte, 512)
	for _, c := range []struct {
		cdb scsi.CDB
		out []byte
	}{
		{scsi.TestUnitReady(), nil},
		{scsi.ReadCapacity10(), nil},
		{scsi.ReadCapacity16(), nil},
		{scsi.GetLBAStatus(0, 24), nil},
		{scsi.Read(0, 1, 0), nil},
		{scsi.Write(0, 1, 0), block},
		{scsi.Write16(0, 1, 0), block},
		{scsi.Verify(0, 1, scsi.VerifyMedium), nil},
		{scsi.WriteSame(0, 1, false), block},
		{scsi.CompareAndWrite(0, 0, 0), nil},
		{scsi.SynchronizeCache(0, 0), nil},
		{scsi.Unmap(0), scsi.AppendUnmap(nil, nil)},
		{scsi.StartStop(true), nil},
	} {
		r.do(c.cdb, c.out, 4096).fails(t, scsi.KeyNotReady, scsi.CodeMediumTrayOpen, scsi.OpcodeName(c.cdb[:]))
	}
	for _, cdb := range []scsi.CDB{
		scsi.Inquiry(96), scsi.ModeSense6(0x3f, 255), scsi.ReportLUNs(64), scsi.StartStop(false), eject,
	} {
		r.do(cdb, nil, 4096).good(t, scsi.OpcodeName(cdb[:]))
	}
	r.do(load, nil, 0).good(t)
	r.do(load, nil, 0).good(t, "it is in already")
	tur := scsi.TestUnitReady()
	r.do(tur, nil, 0).good(t)
	r.as(b, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeMediumMayHaveChanged)
	r.as(b, tur[:], nil, 0).good(t, "told once")
}

func TestPreventRemoval(t *testing.T) { // SBC-3, section 5.13
	for what, end := range map[string]func(r *rig, b *scsi.Nexus){
		"allow":   func(r *rig, b *scsi.Nexus) { r.as(b, allow[:], nil, 0).good(t) },
		"nexus":   func(_ *rig, b *scsi.Nexus) { b.Close() },
		"reset":   func(r *rig, _ *scsi.Nexus) { r.lu.Reset(r.nexus) },
		"by both": func(r *rig, b *scsi.Nexus) { r.as(b, allow[:], nil, 0).good(t); r.do(allow, nil, 0).good(t) },
	} {
		r := memoryRig(t, 1<<20, scsi.LUConfig{Removable: true})
		b := r.newNexus("b")
		r.as(b, prevent[:], nil, 0).good(t)
		if what == "by both" {
			r.do(prevent, nil, 0).good(t)
		}
		r.do(eject, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeMediumRemovalPrevented, what)
		require.ErrorIs(t, r.lu.Eject(false), scsi.ErrPrevented)
		require.False(t, r.lu.Ejected())
		end(r, b)
		tur := scsi.TestUnitReady()
		r.do(tur, nil, 0) // the unit attention of a reset
		r.do(eject, nil, 0).good(t, what)
		require.True(t, r.lu.Ejected())
		r.lu.Insert()
		r.do(tur, nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeMediumMayHaveChanged)
	}
	r := memoryRig(t, 1<<20, scsi.LUConfig{Removable: true})
	r.do(eject, nil, 0).good(t)
	r.do(prevent, nil, 0).good(t)
	r.do(load, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeMediumRemovalPrevented, "the tray stays open, too")
	r.do(allow, nil, 0).good(t)
	r.do(load, nil, 0).good(t)
	r.do(prevent, nil, 0).good(t)
	require.NoError(t, r.lu.Eject(true), "the operator's word is the last")
	r.do(scsi.CDB{scsi.OpPreventAllow, 4: 0x02}, nil, 0).pointsTo(t, 4)
}

func TestNotRemovable(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	r.do(eject, nil, 0).pointsTo(t, 4)
	r.do(prevent, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
	require.Error(t, r.lu.Eject(true))
	require.Zero(t, r.do(scsi.Inquiry(96), nil, 96).in[1])
}

func TestRotationRate(t *testing.T) {
	for want, cfg := range map[uint16]scsi.LUConfig{1: {}, 0: {Rotational: true}, 7200: {RotationRate: 7200}} {
		r := memoryRig(t, 1<<20, cfg)
		got, err := scsi.ParseCharacteristics(r.do(scsi.InquiryVPD(scsi.PageCharacteristic, 64), nil, 64).in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []int{-1, 1, 1024, 65535} {
		_, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{RotationRate: bad})
		require.ErrorContains(t, err, "revolutions", bad)
	}
}

// TestNoCopyWithoutMedium: EXTENDED COPY needs the medium of both ends.
func TestNoCopyWithoutMedium(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	second := r.withSecond(memory(t, 1<<20), scsi.LUConfig{Removable: true})
	list := copyList1(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(0, 1, 4, 0, 0)})
	r.copy1(list).good(t)
	require.NoError(t, second.Eject(false))
	r.copy1(list).aborted(t, scsi.CodeThirdPartyFailure, 0, 4, "the medium is out")
}
