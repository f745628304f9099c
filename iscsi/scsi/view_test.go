package scsi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

func newView(t *testing.T, luns map[int]scsi.Mapping, readOnly bool) *scsi.View {
	t.Helper()
	v, err := scsi.NewView(luns, readOnly)
	require.NoError(t, err)
	return v
}

func TestViewRefused(t *testing.T) {
	for _, luns := range []map[int]scsi.Mapping{
		{-1: {}}, {scsi.MaxLUN + 1: {}}, {0: {Number: -1}}, {0: {Number: scsi.MaxLUN + 1}}, {0: {Number: 3}, 1: {Number: 3}},
	} {
		_, err := scsi.NewView(luns, false)
		require.ErrorIs(t, err, scsi.ErrView, "%v", luns)
	}
}

func TestViewEqual(t *testing.T) {
	all, none := newView(t, nil, false), newView(t, map[int]scsi.Mapping{}, false)
	one := newView(t, map[int]scsi.Mapping{0: {Number: 1}}, false)
	require.True(t, all.Equal(nil))
	require.True(t, (*scsi.View)(nil).Equal(all))
	require.False(t, none.Equal(all), "nothing is not all")
	require.False(t, newView(t, nil, true).Equal(nil))
	require.True(t, one.Equal(newView(t, map[int]scsi.Mapping{0: {Number: 1}}, false)))
	require.False(t, one.Equal(newView(t, map[int]scsi.Mapping{0: {Number: 1, ReadOnly: true}}, false)))
}

// TestViewResolves: numbers of the view become the device's, in both LUN forms; what is left out becomes one that is not there;
// logical units that come later are in the view.
func TestViewResolves(t *testing.T) {
	d := scsi.NewDevice(scsi.Port{})
	add := func(n int) *scsi.LU {
		m, err := store.NewMemory(1 << 20)
		require.NoError(t, err)
		lu, err := scsi.NewLU(m, scsi.LUConfig{})
		require.NoError(t, err)
		require.NoError(t, d.Add(n, lu))
		return lu
	}
	seen, masked := add(300), add(1)
	n := d.NewNexus("a")
	defer n.Close()
	require.Equal(t, scsi.EncodeLUN(1), n.Resolve(scsi.EncodeLUN(1)))
	require.False(t, n.Masked())
	n.SetView(newView(t, map[int]scsi.Mapping{0: {Number: 300}, 7: {Number: 8, ReadOnly: true}}, false))
	require.True(t, n.Masked())
	require.Equal(t, scsi.EncodeLUN(300), n.Resolve(0))
	require.Equal(t, scsi.EncodeLUN(300), n.Resolve(1<<62), "flat space addressing")
	for _, lun := range []uint64{scsi.EncodeLUN(1), scsi.EncodeLUN(300), 1 << 48 << 8, 5} {
		_, ok := scsi.DecodeLUN(n.Resolve(lun))
		require.False(t, ok, "%x", lun)
	}
	require.Equal(t, []int{0}, n.LUNs())
	require.True(t, n.Sees(seen))
	require.False(t, n.Sees(masked))
	late := add(8)
	require.Equal(t, []int{0, 7}, n.LUNs())
	require.True(t, n.Sees(late))
	n.SetView(nil)
	require.Equal(t, []int{1, 8, 300}, n.LUNs())
	require.Equal(t, uint64(0), (*scsi.Nexus)(nil).Resolve(0))
	require.True(t, (*scsi.Nexus)(nil).Sees(seen))
	require.False(t, (*scsi.Nexus)(nil).Masked())
}
