package scsi_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// groupsOf are the identifiers that REPORT TARGET PORT GROUPS tells a nexus.
func groupsOf(t *testing.T, r *rig, n *scsi.Nexus) (ids []byte) {
	t.Helper()
	cdb := reportGroups(0)
	a := r.as(n, cdb[:], nil, 256)
	a.good(t)
	for at := 4; at < len(a.in); at += 8 + 4*int(a.in[at+7]) {
		ids = append(ids, a.in[at+3])
	}
	return ids
}

// portsOf are the relative identifiers that the SCSI Ports page tells a nexus (SPC-4, section 7.8.14); each has its name.
func portsOf(t *testing.T, r *rig, n *scsi.Nexus) (ids []uint16) {
	t.Helper()
	cdb := scsi.InquiryVPD(scsi.PagePorts, 65535)
	a := r.as(n, cdb[:], nil, 65535)
	a.good(t)
	require.EqualValues(t, len(a.in)-4, binary.BigEndian.Uint16(a.in[2:]))
	for list := a.in[4:]; len(list) > 0; {
		require.Equal(t, make([]byte, 2), list[:2])
		require.Equal(t, make([]byte, 6), list[4:10], "no initiator port")
		size := int(binary.BigEndian.Uint16(list[10:]))
		names, err := scsi.ParseIdentification(append([]byte{0, 0x83, 0, byte(size)}, list[12:12+size]...))
		require.NoError(t, err)
		require.Len(t, names, 1)
		require.EqualValues(t, 1, names[0].Association)
		require.EqualValues(t, 8, names[0].Type)
		ids = append(ids, binary.BigEndian.Uint16(list[2:]))
		list = list[12+size:]
	}
	return ids
}

// toldOfPorts takes the two unit attentions of a nexus that a port which comes or goes brings (SPC-4, sections 5.15.2.3 and 7.8.14).
func toldOfPorts(t *testing.T, r *rig, n *scsi.Nexus) {
	t.Helper()
	tur := scsi.TestUnitReady()
	r.as(n, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeInquiryDataChanged)
	r.as(n, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeAsymmetricAccessChanged)
	r.as(n, tur[:], nil, 0).good(t)
}

// TestPortsComeAndGo: a port that is taken away is out of all that names ports at once, and everybody is told; its group's states are gone,
// too. One that a nexus goes through leaves with it.
func TestPortsComeAndGo(t *testing.T) {
	r, first, second := pathRig(t)
	require.NoError(t, r.dev.SetAccessState(2, scsi.Standby))
	tur := scsi.TestUnitReady()
	r.as(first, tur[:], nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeAsymmetricAccessChanged)

	require.NoError(t, r.dev.RemovePort(2))
	r.as(first, tur[:], nil, 0).good(t)
	require.Equal(t, []byte{1, 2}, groupsOf(t, r, first), "a nexus goes through it")
	second.Close()
	toldOfPorts(t, r, first)
	require.Equal(t, []byte{1}, groupsOf(t, r, first))
	require.Equal(t, []uint16{1}, portsOf(t, r, first))
	require.Zero(t, r.do(scsi.Inquiry(96), nil, 96).in[6]&0x10, "MULTIP")
	require.ErrorIs(t, r.dev.RemovePort(2), scsi.ErrNoPort)
	require.ErrorIs(t, r.dev.RemovePort(1), scsi.ErrNoPort, "the only one stays")
	require.ErrorIs(t, r.dev.SetAccessState(2, scsi.Standby), scsi.ErrNoGroup)

	port := testPort
	port.Relative, port.Group = 2, 2
	require.NoError(t, r.dev.EnsurePort(port))
	toldOfPorts(t, r, first)
	require.Equal(t, []uint16{1, 2}, portsOf(t, r, first))
	require.NotZero(t, r.do(scsi.Inquiry(96), nil, 96).in[6]&0x10, "MULTIP")
	require.NoError(t, r.dev.EnsurePort(port))
	r.as(first, tur[:], nil, 0).good(t)
	require.Equal(t, scsi.ActiveOptimized, r.lu.AccessState(2), "a new group has no old state")

	// A port that is wanted again before its last nexus went stays, without a word.
	again := r.dev.NewNexusThrough(port, "a")
	require.NoError(t, r.dev.RemovePort(2))
	require.NoError(t, r.dev.EnsurePort(port))
	again.Close()
	r.as(first, tur[:], nil, 0).good(t)
	require.Equal(t, []byte{1, 2}, groupsOf(t, r, first))

	// As many ports as there can be, with names as long as they can be.
	for i := uint16(3); i < 100; i++ {
		p := port
		p.Relative, p.Name = i, strings.Repeat("n", 223)
		_ = r.dev.EnsurePort(p)
	}
	require.Len(t, r.dev.Ports(), 64)
	require.Len(t, portsOf(t, r, first), 64)
	for i := uint16(3); i < 100; i++ {
		_ = r.dev.RemovePort(i)
	}

	// The first port leaves like any other.
	require.NoError(t, r.dev.RemovePort(1))
	first.Close()
	require.Equal(t, []scsi.Port{port}, r.dev.Ports())
}
