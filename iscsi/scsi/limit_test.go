package scsi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/scsi"
)

func TestLimiterOff(t *testing.T) {
	var m scsi.Limiter
	require.False(t, m.Limits())
	require.Zero(t, m.Take(1<<40))
	require.ErrorIs(t, m.Set(-1, 0), scsi.ErrRate)
	require.ErrorIs(t, m.Set(0, -1), scsi.ErrRate)
	_, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{IOPS: -1})
	require.ErrorIs(t, err, scsi.ErrRate)
}

// TestLimiterRates: over any stretch of time, whatever is asked for, no more passes than the rates bring, a burst and one command
// aside; and whoever asks again when told to passes.
func TestLimiterRates(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		iops := rapid.Int64Range(0, 5000).Draw(rt, "iops")
		bandwidth := rapid.Int64Range(0, 1<<30).Draw(rt, "bandwidth")
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 4<<20), 1, 200).Draw(rt, "sizes")
		synctest.Test(t, func(t *testing.T) {
			var m scsi.Limiter
			require.NoError(t, m.Set(iops, bandwidth))
			gotIOPS, gotBandwidth := m.Rates()
			require.Equal(t, []int64{iops, bandwidth}, []int64{gotIOPS, gotBandwidth})
			start := time.Now()
			var passed, octets, largest int64
			for _, n := range sizes {
				for tries := 0; ; tries++ {
					wait := m.Take(n)
					if wait == 0 {
						break
					}
					require.Less(t, tries, 2, "it says how long to wait")
					time.Sleep(wait)
				}
				passed, octets, largest = passed+1, octets+n, max(largest, n)
				seconds := time.Since(start).Seconds()
				if iops > 0 {
					require.LessOrEqual(t, float64(passed), float64(iops)*(seconds+0.1)+2.001)
				}
				if bandwidth > 0 {
					require.LessOrEqual(t, float64(octets-n), float64(bandwidth)*(seconds+0.1)+1.001)
				}
			}
			if iops > 0 && bandwidth == 0 {
				require.LessOrEqual(t, time.Since(start).Seconds(), float64(passed)/float64(iops)+0.001, "and no slower")
			}
		})
	})
}

func TestPlanLimited(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{IOPS: 10})
	plan := func(c scsi.CDB) bool { return r.dev.Plan(0, c[:]).Limited }
	require.True(t, plan(scsi.Read(0, 1, 0)))
	require.True(t, plan(scsi.Write16(0, 1, 0)))
	require.True(t, plan(scsi.SynchronizeCache(0, 0)))
	require.False(t, plan(scsi.TestUnitReady()))
	require.False(t, plan(scsi.Inquiry(96)))
	require.False(t, plan(scsi.StartStop(true)))
	require.NoError(t, r.lu.Limiter().Set(0, 0))
	require.False(t, plan(scsi.Read(0, 1, 0)))
}
