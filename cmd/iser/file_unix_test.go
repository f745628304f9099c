//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCopyRefusesWhatHasNoSize: a copy needs to know how much there is and to go to any place of it. What cannot serve is refused
// in words, and without opening it: a named pipe would wait for its other end for ever.
func TestCopyRefusesWhatHasNoSize(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))

	for path, says := range map[string]string{
		dir:         "is a directory",
		pipe:        "iser write",
		os.DevNull:  "iser write",
		dir + "/no": "no such file",
	} {
		_, err := openSource(path)
		require.Error(t, err, path)
		assert.Contains(t, err.Error(), says)
	}
	_, err := openDestination(pipe, 512)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "iser read")
}
