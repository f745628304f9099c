//go:build unix

package secret

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFIFO: a pipe without a writer is refused at once.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := File(path)
	require.ErrorContains(t, err, "not a regular file")
}
