package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/store"
)

// TestSizeIsOneReading: a size means the same in every flag and in a LUN's specification, and what a flag prints can be given to it again.
func TestSizeIsOneReading(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "512": 512, "4k": 4096, "1M": 1 << 20, "1m": 1 << 20, "1MiB": 1 << 20, "1MB": 1e6, "2g": 2 << 30, "3 KiB": 3072, "1000": 1000, "5tb": 5e12,
	} {
		var s, again cli.Size
		require.NoError(t, s.Set(text), text)
		require.Equal(t, want, s.N, text)
		if want == 0 {
			continue
		}
		require.NoError(t, again.Set(s.String()))
		require.Equal(t, want, again.N, s.String())
		n, err := store.ParseSize(text)
		require.NoError(t, err)
		require.EqualValues(t, want, n)
	}
	for text, want := range map[string]string{
		"":     `bad size "" (for example 1GiB)`,
		"-1":   `bad size "-1" (for example 1GiB)`,
		"1.5M": `bad size "1.5M" (for example 1GiB)`,
		"1X":   `bad size "1X" (for example 1GiB)`,
		"9E":   `size "9E" is too large`,
	} {
		var s cli.Size
		require.EqualError(t, s.Set(text), want)
	}
}
