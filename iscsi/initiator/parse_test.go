package initiator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

func TestPortGroupsAreRead(t *testing.T) {
	got, err := parsePortGroups([]byte{
		0, 0, 0, 28,
		0x80, 0x0f, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2,
		0x02, 0x0f, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3,
	})
	require.NoError(t, err)
	require.Equal(t, []PortGroup{{1, ActiveOptimized, true, []uint16{1, 2}}, {2, Standby, false, []uint16{3}}}, got)
	require.True(t, got[0].State.Usable())
	require.False(t, got[1].State.Usable())
	require.Equal(t, "standby", got[1].State.String())
}

func TestLBAStatusIsWithoutGaps(t *testing.T) {
	b := func(d ...byte) []byte { return append([]byte{0, 0, 0, byte(len(d) + 4), 0, 0, 0, 0}, d...) }
	one := []byte{0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 8, 1, 0, 0, 0}
	two := []byte{0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 8, 0, 0, 0, 0}
	got, err := parseLBAStatus(b(append(one, two...)...), 6)
	require.NoError(t, err)
	require.Equal(t, []BlockStatus{{6, 6, Deallocated}, {12, 8, Mapped}}, got)
	for name, bad := range map[string][]byte{
		"gap": b(append(one, one...)...), "elsewhere": b(two...), "nothing": b(), "short": {0, 0},
		"no blocks": b(0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0), "wraps": b(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 0),
	} {
		_, err := parseLBAStatus(bad, 6)
		var de *scsi.DataError
		require.ErrorAs(t, err, &de, name)
	}
}

func TestLogPagesAreRead(t *testing.T) {
	p, err := parseLog([]byte{0x02, 0, 0, 12, 0, 3, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2})
	require.NoError(t, err)
	require.EqualValues(t, 2, p.Page)
	require.EqualValues(t, 3, p.Params[0].Code)
	require.EqualValues(t, 0x102, p.Params[0].Uint())
	p, err = parseLog([]byte{0x00, 0, 0, 2, 0, 2})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 2}, p.Params[0].Value)
}

func TestTransportIDs(t *testing.T) {
	name := "iqn.2026-11.com.example:a,i,0x800000000001"
	id := append([]byte{0x45, 0, 0, byte(len(name) + 2)}, name+"\x00\x00"...)
	require.Equal(t, name, transportID(id))
	require.Equal(t, "0600", transportID([]byte{6, 0}))
}

func TestSplittingKeepsMeaning(t *testing.T) {
	for _, c := range []struct {
		cdb   scsi.CDB
		write bool
		want  span
		ok    bool
	}{
		{scsi.Read(5, 6, scsi.FUA), false, span{5, 6, scsi.FUA, 0}, true},
		{scsi.Write16(1<<40, 1<<20, scsi.DPO), true, span{1 << 40, 1 << 20, scsi.DPO, 0}, true},
		{scsi.CDB{scsi.OpRead12, 0, 0, 0, 1, 0, 0, 1, 0, 0, 3}, false, span{256, 65536, 0, 3}, true},
		{scsi.CDB{scsi.OpRead6, 1, 2, 3, 0}, false, span{0x10203, 256, 0, 0}, true},
		{scsi.Read(5, 6, 0), true, span{}, false},
		{scsi.Verify(5, 6, scsi.VerifyData), true, span{}, false},
	} {
		got, ok := splittable(c.cdb.Bytes(), c.write)
		require.Equal(t, c.ok, ok, "% x", c.cdb)
		require.Equal(t, c.want, got)
	}
	_, ok := splittable([]byte{scsi.OpRead10, 0, 0}, false)
	require.False(t, ok)
}

func FuzzParameterData(f *testing.F) {
	f.Add([]byte{0, 0, 0, 28, 0x80, 0x0f, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1})
	f.Add([]byte{0x02, 0, 0, 12, 0, 3, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		groups, _ := parsePortGroups(b)
		list, _ := parseLBAStatus(b, 0)
		log, _ := parseLog(b)
		cmds, _ := parseSupported(b)
		if len(groups) > len(b) || len(list) > len(b) || len(log.Params) > len(b) || len(cmds) > len(b) {
			t.Fatal("more entries than octets")
		}
		next := uint64(0)
		for _, s := range list {
			if s.LBA != next || s.Blocks == 0 {
				t.Fatalf("gap before block %d", s.LBA)
			}
			next += uint64(s.Blocks)
		}
		_ = transportID(b)
	})
}
