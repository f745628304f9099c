package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExercise: a file system that works passes, and one that loses a write is found out.
func TestExercise(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for seed := range uint64(3) {
		require.NoError(t, exercise(name, "300", seed))
	}
	x := &exerciser{name: name, model: []byte("what was written")}
	var err error
	x.f, err = os.Create(name)
	require.NoError(t, err)
	defer x.f.Close()
	_, err = x.f.WriteAt([]byte("what was lost..."), 0)
	require.NoError(t, err)
	require.ErrorContains(t, x.whole(), "octet 9 is 6c, and should be 77")
}
