package iscsi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMissingModel: whatever order numbers arrive in, around the wrap as well, Missing knows what a set knows.
func TestMissingModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		start := SN(rapid.SampledFrom([]uint32{0, 1, 1<<31 - 3, 1<<32 - 3}).Draw(rt, "start"))
		var m Missing
		m.Reset(start)
		have := map[uint32]bool{}
		next := uint32(0)
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			k := rapid.Uint32Range(0, 24).Draw(rt, "number")
			if rapid.IntRange(0, 5).Draw(rt, "expect") == 0 {
				hole, ok := m.Expect(start + SN(k))
				require.True(rt, ok)
				require.Equal(rt, k > next, hole.Len > 0)
				next = max(next, k)
			} else {
				fresh, hole, ok := m.Take(start + SN(k))
				require.True(rt, ok)
				require.Equal(rt, !have[k], fresh)
				if k > next {
					require.Equal(rt, Run{start + SN(next), k - next}, hole)
				} else {
					require.Zero(rt, hole.Len)
				}
				have[k] = true
				next = max(next, k+1)
			}
			oldest := uint32(0)
			for have[oldest] {
				oldest++
			}
			require.Equal(rt, start+SN(next), m.Next())
			require.Equal(rt, start+SN(min(oldest, next)), m.Oldest())
			require.Equal(rt, oldest >= next, m.Whole())
		}
	})
}

func TestMissingIsBounded(t *testing.T) {
	var m Missing
	_, _, ok := m.Take(1 << 21)
	require.False(t, ok, "too far ahead")
	for i := range SN(maxHoles) {
		_, _, ok = m.Take(2*i + 1)
		require.True(t, ok)
	}
	_, _, ok = m.Take(2*maxHoles + 1)
	require.False(t, ok, "too many holes")
	fresh, _, ok := m.Take(0)
	require.True(t, ok && fresh)
}
