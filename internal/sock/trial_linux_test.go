package sock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTrial: nearly all requests are polled for, unless that is clearly slower, and it is found out when that changes.
func TestTrial(t *testing.T) {
	const most, least = 80, 20 // percent of the requests; a trial may be spoilt by what else happens
	for name, c := range map[string]struct {
		poll, sleep int64 // what a request takes
		pays        bool
	}{
		"polling pays":                {80_000, 100_000, true},
		"it does not":                 {100_000, 80_000, false},
		"it is all the same":          {100_000, 100_000, true},
		"slow machine, polling pays":  {5 * mostTaken / 10, 9 * mostTaken / 10, true},
		"slow machine, it does not":   {9 * mostTaken / 10, 5 * mostTaken / 10, false},
		"much slower than is counted": {3 * mostTaken, 2 * mostTaken, true},
	} {
		t.Run(name, func(t *testing.T) {
			var x trial
			x.again()
			now := int64(1e9)
			x.next(now, true)
			run := func(poll, sleep int64) int {
				const rounds = 10
				polled, all := 0, rounds*((trialBlocks+longRest)*(settleLen+blockLen))
				for i := range all {
					if x.on.Load() {
						polled++
						now += poll
					} else {
						now += sleep
					}
					if i%1000 == 0 {
						now += 50e6 // somebody else's work
					}
					x.next(now, false)
				}
				return 100 * polled / all
			}
			check := func(pays bool, share int) {
				if pays {
					require.Greater(t, share, most)
				} else {
					require.Less(t, share, least)
				}
			}
			check(c.pays, run(c.poll, c.sleep))
			run(c.sleep, c.poll) // the rest of the last decision
			check(min(c.poll, mostTaken) > min(c.sleep, mostTaken)*7/8, run(c.sleep, c.poll))
		})
	}
}

// TestTrialSkipsPauses: a block in which somebody paused is timed from the pause on.
func TestTrialSkipsPauses(t *testing.T) {
	var x trial
	x.again()
	now := int64(0)
	for i := range 100 * trialBlocks * (settleLen + blockLen) {
		pause := i%50 == 0
		if pause {
			now += 1e9
		}
		x.next(now, pause)
		if x.on.Load() {
			now += 80
		} else {
			now += 100
		}
		require.LessOrEqual(t, x.awake+x.asleep, int64(trialBlocks*blockLen*100))
	}
}
