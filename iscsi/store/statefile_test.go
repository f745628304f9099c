package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/store"
)

func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	f := store.StateFile(filepath.Join(dir, "disk.img.pr"))
	got, err := f.Load()
	require.NoError(t, err)
	require.Empty(t, got, "there is none yet")
	require.NoError(t, f.Save(nil), "nothing, twice")
	for _, text := range []string{"one", "another, longer", "x"} {
		require.NoError(t, f.Save([]byte(text)))
		got, err = f.Load()
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1, "no temporary file stays")
	require.NoError(t, f.Save(nil))
	names, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}

// TestStateFileFails: what was there stays where the new state cannot be written.
func TestStateFileFails(t *testing.T) {
	dir := t.TempDir()
	f := store.StateFile(filepath.Join(dir, "state"))
	require.NoError(t, os.Mkdir(string(f), 0o700), "a directory is in the way")
	require.Error(t, f.Save([]byte("new")))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
	_, err = f.Load()
	require.Error(t, err)
	require.Error(t, store.StateFile(filepath.Join(dir, "none", "state")).Save([]byte("new")))
}

func TestStateFileTooLarge(t *testing.T) {
	f := store.StateFile(filepath.Join(t.TempDir(), "state"))
	require.NoError(t, f.Save(make([]byte, 4<<20+1)))
	_, err := f.Load()
	require.ErrorContains(t, err, "more than 4MiB")
}
