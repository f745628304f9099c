package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/store"
)

func TestLUNOptions(t *testing.T) {
	l, err := ParseLUN("mem:1MiB,removable,iops=500,bw=10MiB/s,rotational=7200,reservations=/run/pr", 0, Pos{})
	require.NoError(t, err)
	_, cfg, err := l.Parse()
	require.NoError(t, err)
	require.True(t, cfg.Removable)
	require.EqualValues(t, 500, cfg.IOPS)
	require.EqualValues(t, 10<<20, cfg.Bandwidth)
	require.Equal(t, 7200, cfg.RotationRate)
	require.Equal(t, store.StateFile("/run/pr"), cfg.Reservations)
}

// TestReservationsBeside: a file's reservations are kept beside it, those of anything else nowhere unless told.
func TestReservationsBeside(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "disk.img")
	for spec, want := range map[string]any{
		image + ",size=1MiB":                   store.StateFile(image + ".pr"),
		image + ",size=1MiB,reservations=off":  nil,
		image + ",size=1MiB,reservations=/x/y": store.StateFile("/x/y"),
		"mem:1MiB":                             nil,
		os.DevNull:                             nil,
	} {
		l, err := ParseLUN(spec, 0, Pos{})
		require.NoError(t, err)
		_, cfg, err := l.Parse()
		require.NoError(t, err)
		if want == nil {
			require.Nil(t, cfg.Reservations, spec)
		} else {
			require.Equal(t, want, cfg.Reservations, spec)
		}
		if strings.HasPrefix(spec, image) {
			require.Equal(t, store.StateFile(image+".sanitize"), cfg.Sanitizing, spec)
		} else {
			require.Nil(t, cfg.Sanitizing, spec)
		}
	}
}
