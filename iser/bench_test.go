package iser_test

import (
	"testing"

	"goiwarp/iscsi/datamovertest"
)

// BenchmarkDatamover times the shared suite's commands over the software device.
func BenchmarkDatamover(b *testing.B) {
	datamovertest.Benchmark(b, func(t testing.TB) datamovertest.Pair { return newWorld(t, setup{}).pair(t) })
}
