package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCoverTakesEachOctetOnce holds a cover against a plain map of octets.
func TestCoverTakesEachOctetOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c cover
		var there [64]bool
		for range rapid.IntRange(1, 40).Draw(t, "spans") {
			from := rapid.IntRange(0, 62).Draw(t, "from")
			to := rapid.IntRange(from+1, 64).Draw(t, "to")
			free := true
			for i := from; i < to; i++ {
				free = free && !there[i]
			}
			require.Equal(t, free, c.add(from, to), "%d to %d: %v", from, to, c)
			for i := from; free && i < to; i++ {
				there[i] = true
			}
		}
		for i := 1; i < len(c); i++ {
			require.Less(t, c[i-1].to, c[i].from)
		}
	})
}
