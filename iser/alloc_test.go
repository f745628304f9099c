//go:build !race

package iser_test

import (
	"testing"

	"goiwarp/iscsi/datamovertest"
)

// TestNoAllocations: commands of all kinds run without garbage at either end.
func TestNoAllocations(t *testing.T) {
	datamovertest.CheckAllocs(t, func(t testing.TB) datamovertest.Pair { return newWorld(t, setup{}).pair(t) })
}
