//go:build unix

package portal

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDescriptorsBoundTheSilent: what the process may open is asked for when it serves.
func TestDescriptorsBoundTheSilent(t *testing.T) {
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &l))
	require.Positive(t, maxDescriptors())
	if uint64(l.Cur) <= math.MaxInt32 {
		require.EqualValues(t, l.Cur, maxDescriptors())
	}
}
