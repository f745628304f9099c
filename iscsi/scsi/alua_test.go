package scsi_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// pathRig has a device with two ports in two groups, and a nexus through each.
func pathRig(t *testing.T) (r *rig, first, second *scsi.Nexus) {
	lu, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{})
	require.NoError(t, err)
	port := testPort
	port.Group = 1
	r = &rig{t: t, dev: scsi.NewDevice(port), lu: lu, chunk: 64 << 10}
	other := port
	other.Relative, other.Group, other.Name = 2, 2, "iqn.2026-11.com.example:disk,t,0x0002"
	require.NoError(t, r.dev.AddPort(other))
	require.NoError(t, r.dev.Add(0, lu))
	r.nexus = r.newNexus("a")
	second = r.dev.NewNexusOn(2, "a")
	tur := scsi.TestUnitReady()
	r.as(second, tur[:], nil, 0)
	return r, r.nexus, second
}

func reportGroups(format byte) scsi.CDB {
	c := scsi.CDB{scsi.OpMaintenanceIn, scsi.SAReportTargetPortGroups | format<<5}
	binary.BigEndian.PutUint32(c[6:], 256)
	return c
}

func setGroups(length uint32) scsi.CDB {
	c := scsi.CDB{scsi.OpMaintenanceOut, scsi.SASetTargetPortGroups}
	binary.BigEndian.PutUint32(c[6:], length)
	return c
}

func TestReportTargetPortGroups(t *testing.T) { // SPC-4, section 6.37
	r, _, second := pathRig(t)
	a := r.do(reportGroups(0), nil, 256)
	a.good(t)
	require.Equal(t, []byte{
		0, 0, 0, 24,
		0x00, 0x8f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,
		0x00, 0x8f, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2,
	}, a.in)
	require.NoError(t, r.dev.SetAccessState(2, scsi.ActiveNonOptimized))
	tur := scsi.TestUnitReady()
	r.as(second, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeAsymmetricAccessChanged)
	r.do(tur, nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeAsymmetricAccessChanged)
	a = r.do(reportGroups(1), nil, 256)
	a.good(t)
	require.Equal(t, []byte{
		0, 0, 0, 28, 0x10, 0, 0, 0,
		0x00, 0x8f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,
		0x01, 0x8f, 0, 2, 0, 2, 0, 1, 0, 0, 0, 2,
	}, a.in)
	r.do(reportGroups(2), nil, 256).pointsTo(t, 1)
	require.ErrorIs(t, r.dev.SetAccessState(3, scsi.Standby), scsi.ErrNoGroup)
	require.Error(t, r.dev.SetAccessState(2, 7))
}

// TestPortsTellApart: INQUIRY and its identification page are about the port that they came through.
func TestPortsTellApart(t *testing.T) {
	r, first, second := pathRig(t)
	for port, n := range map[byte]*scsi.Nexus{1: first, 2: second} {
		cdb := scsi.Inquiry(96)
		a := r.as(n, cdb[:], nil, 96)
		require.EqualValues(t, 0x30, a.in[5]&0x30, "TPGS")
		cdb = scsi.InquiryVPD(scsi.PageIdentification, 512)
		a = r.as(n, cdb[:], nil, 512)
		list, err := scsi.ParseIdentification(a.in)
		require.NoError(t, err)
		found := map[byte][]byte{}
		for _, d := range list {
			if d.Association == 1 {
				found[d.Type] = d.Data
			}
		}
		require.Equal(t, []byte{0, 0, 0, port}, found[4], "relative target port")
		require.Equal(t, []byte{0, 0, 0, port}, found[5], "target port group")
	}
	plain := memoryRig(t, 1<<20, scsi.LUConfig{})
	require.Zero(t, plain.do(scsi.Inquiry(96), nil, 96).in[5]&0x30, "no groups, no TPGS")
	plain.do(reportGroups(0), nil, 256).pointsTo(t, 1)
	plain.do(setGroups(8), make([]byte, 8), 0).pointsTo(t, 1)
}

// TestAccessStates: what runs in each state, through a port of the group, and that the other port does not care (SPC-4, section
// 5.15.2.4). Columns: active/optimized, active/non-optimized, standby, unavailable, transitioning; A runs.
func TestAccessStates(t *testing.T) {
	states := []scsi.AccessState{scsi.ActiveOptimized, scsi.ActiveNonOptimized, scsi.Standby, scsi.Unavailable, scsi.Transitioning}
	codes := map[scsi.AccessState]scsi.Code{
		scsi.Standby: scsi.CodeNotAccessibleStandby, scsi.Unavailable: scsi.CodeNotAccessibleUnavailable,
		scsi.Transitioning: scsi.CodeNotAccessibleTransition,
	}
	for _, c := range []struct {
		name string
		cdb  scsi.CDB
		out  []byte
		want string
	}{
		{"INQUIRY", scsi.Inquiry(96), nil, "AAAAA"},
		{"REPORT LUNS", scsi.ReportLUNs(64), nil, "AAAAA"},
		{"REQUEST SENSE", scsi.RequestSense(18), nil, "AAAAA"},
		{"REPORT TARGET PORT GROUPS", reportGroups(0), nil, "AAAAA"},
		{"SET TARGET PORT GROUPS", setGroups(0), nil, "AAAA-"},
		{"PERSISTENT RESERVE IN", scsi.PersistentReserveIn(0, 64), nil, "AAA--"},
		{"PERSISTENT RESERVE OUT", scsi.PersistentReserveOut(0, 0, 24), make([]byte, 24), "AAA--"},
		{"MODE SENSE", scsi.ModeSense6(0x3f, 255), nil, "AAA--"},
		{"TEST UNIT READY", scsi.TestUnitReady(), nil, "AA---"},
		{"READ CAPACITY(16)", scsi.ReadCapacity16(), nil, "AA---"},
		{"READ(10)", scsi.Read(0, 1, 0), nil, "AA---"},
		{"WRITE(10)", scsi.Write(0, 1, 0), make([]byte, 512), "AA---"},
		{"RESERVE(6)", scsi.Reserve6(), nil, "AA---"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, first, second := pathRig(t)
			got := ""
			for _, s := range states {
				r.lu.SetAccessState(2, s)
				require.Equal(t, s, r.lu.AccessState(2))
				tur := scsi.TestUnitReady()
				r.as(first, tur[:], nil, 0)
				r.as(second, tur[:], nil, 0) // unit attentions
				a := r.as(second, c.cdb[:], c.out, 4096)
				if a.Status == scsi.StatusGood {
					got += "A"
				} else {
					got += "-"
					a.fails(t, scsi.KeyNotReady, codes[s])
				}
				rel := scsi.Release6()
				r.as(second, rel[:], nil, 0)
				r.lu.SetAccessState(2, scsi.ActiveOptimized)
				r.as(second, tur[:], nil, 0)
				r.as(second, rel[:], nil, 0)
				r.lu.SetAccessState(2, s)
				r.as(first, tur[:], nil, 0)
				require.Equal(t, scsi.StatusGood, r.as(first, c.cdb[:], c.out, 4096).Status, s)
				r.as(first, rel[:], nil, 0)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestSetTargetPortGroups(t *testing.T) { // SPC-4, section 6.45
	r, first, second := pathRig(t)
	tur := scsi.TestUnitReady()
	list := []byte{0, 0, 0, 0, 0x02, 0, 0, 1, 0x00, 0, 0, 2}
	r.as(second, setGroups(12).Append(nil), list, 0).good(t)
	require.Equal(t, scsi.Standby, r.lu.AccessState(1))
	r.as(first, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeAsymmetricAccessChanged)
	r.as(first, tur[:], nil, 0).fails(t, scsi.KeyNotReady, scsi.CodeNotAccessibleStandby)
	r.as(second, tur[:], nil, 0).good(t, "who asked is not told")
	groups := reportGroups(0)
	a := r.as(second, groups[:], nil, 256)
	require.Equal(t, []byte{0x02, 0x8f, 0, 1, 0, 1}, a.in[4:10], "explicit")
	for what, bad := range map[string][]byte{
		"transitioning": {0, 0, 0, 0, 0x00, 0, 0, 1, 0x0f, 0, 0, 2},
		"no such group": {0, 0, 0, 0, 0x00, 0, 0, 1, 0x00, 0, 0, 3},
		"twice":         {0, 0, 0, 0, 0x00, 0, 0, 1, 0x01, 0, 0, 1},
	} {
		r.as(second, setGroups(12).Append(nil), bad, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, what)
	}
	r.as(second, setGroups(7).Append(nil), list[:7], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	require.Equal(t, scsi.Standby, r.lu.AccessState(1), "nothing changed")
	r.lu.Reset(nil)
	require.Equal(t, scsi.Standby, r.lu.AccessState(1), "a reset changes no state")
}

// TestAccessStateOfLaterLUN: what was set for the device holds for logical units that come after it.
func TestAccessStateOfLaterLUN(t *testing.T) {
	r, _, _ := pathRig(t)
	require.NoError(t, r.dev.SetAccessState(2, scsi.Standby))
	lu, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{})
	require.NoError(t, err)
	require.NoError(t, r.dev.Add(1, lu))
	require.Equal(t, scsi.Standby, lu.AccessState(2))
	require.Equal(t, scsi.ActiveOptimized, lu.AccessState(1))
}

func TestAccessStateNames(t *testing.T) {
	for _, s := range []scsi.AccessState{scsi.ActiveOptimized, scsi.ActiveNonOptimized, scsi.Standby, scsi.Unavailable, scsi.Transitioning} {
		got, err := scsi.ParseAccessState(s.String())
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	_, err := scsi.ParseAccessState("on")
	require.Error(t, err)
}

func TestReportTaskFunctions(t *testing.T) { // SPC-4, section 6.36
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	cdb := scsi.CDB{scsi.OpMaintenanceIn, scsi.SAReportSupportedTaskFunctions, 9: 16}
	a := r.do(cdb, nil, 16)
	a.good(t)
	require.Equal(t, []byte{0xdc, 0x07, 0, 0}, a.in)
	cdb[2] = 0x80
	a = r.do(cdb, nil, 16)
	require.Equal(t, []byte{0xdc, 0x07, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, a.in)
	cdb[9] = 3
	r.do(cdb, nil, 16).pointsTo(t, 6)
}
