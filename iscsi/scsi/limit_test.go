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

// TestLimitedBesideBackground: while the logical unit itself moves data as fast as its limits allow, commands get every other turn, and those
// that are refused meanwhile do not wait for one.
func TestLimitedBesideBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, 8<<20, scsi.LUConfig{Bandwidth: 1 << 20})
		r.overwrite(0x80, 1, []byte{0xa5}).good(t) // 64 pieces of 128 KiB
		synctest.Wait()
		read := scsi.Read(0, 1, 0)
		require.False(t, r.dev.Plan(0, read[:]).Limited)
		begun := time.Now()
		for range 20 {
			for {
				wait := r.lu.Limiter().Take(512)
				if wait == 0 {
					break
				}
				time.Sleep(wait)
			}
		}
		require.Less(t, time.Since(begun), 23*128*time.Second/1024)
		require.False(t, r.dev.Plan(0, read[:]).Limited, "it has not ended")
		r.lu.Close()
	})
}
