//go:build !(verbs && cgo && linux)

package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic/verbs"
)

// TestNotBuiltIn: a build without the provider says so, and how to get it.
func TestNotBuiltIn(t *testing.T) {
	require.False(t, verbs.BuiltIn)
	for _, name := range []string{"", "siw0"} {
		dev, err := verbs.Open(verbs.Config{Name: name})
		require.Nil(t, dev)
		require.ErrorIs(t, err, verbs.ErrNotBuiltIn)
		require.ErrorContains(t, err, "-tags verbs")
		require.ErrorContains(t, err, name)
	}
}
