package sock

import (
	"sync"
	"sync/atomic"
)

// trial finds out whether polling costs more than it gains, as it does where others want the processor. Requests are counted in blocks; a few blocks
// with polling and without it are timed in turns, then one way goes on for many, and then it is asked again.
//
//	| poll | sleep | poll | sleep |  poll, unless that is clearly slower ...  | poll | sleep | ...
//	 <------- trialBlocks -------> <-------- restBlocks or longRest --------->
type trial struct {
	on atomic.Bool // poll in this block

	mu     sync.Mutex // guards what follows
	block  int        // since the trial began
	n      int        // requests of this block
	skip   int        // so many more are not counted
	losses int        // 1 if polling was slower the last time
	last   int64      // when the last one began, in nanoseconds
	asleep int64      // what the timed requests without polling took
	awake  int64      // and those with it
}

const (
	trialBlocks = 4
	restBlocks  = 64  // without polling
	longRest    = 256 // with it, since each trial costs some of what it gains
	blockLen    = 48  // requests that are timed
	settleLen   = 16  // and those before, and behind a pause, in which the way changes

	// mostTaken is what one request counts for at most, in nanoseconds: one that somebody else's work has held up for long must not decide alone.
	mostTaken = 400_000
)

// next notes that a request begins at now; after is true if nobody had sent one for so long that the time says nothing.
func (t *trial) next(now int64, after bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	took, polled := min(now-t.last, mostTaken), t.on.Load()
	t.last = now
	if after {
		t.skip = settleLen
	}
	if t.skip > 0 {
		t.skip--
		return
	}
	switch {
	case t.block >= trialBlocks:
	case polled:
		t.awake += took
	default:
		t.asleep += took
	}
	t.n++
	if t.n < blockLen {
		return
	}
	t.skip = settleLen
	t.n = 0
	t.block++
	switch {
	case t.block < trialBlocks:
		t.on.Store(!polled)
	case t.block == trialBlocks:
		t.decide()
	case t.block == trialBlocks+restBlocks && !polled, t.block == trialBlocks+longRest:
		t.again()
	}
}

// decide ends a trial. Polling that was clearly slower (what else happens is worth some percent either way) is tried once more at once, since a
// single trial may be spoilt by others' work.
func (t *trial) decide() {
	lost := t.asleep < t.awake-t.awake/8
	switch {
	case !lost:
		t.losses = 0
	case t.losses == 0:
		t.losses++
		t.again()
		return
	}
	t.on.Store(!lost)
}

// again begins a trial, the first as well.
func (t *trial) again() {
	t.block, t.awake, t.asleep = 0, 0, 0
	t.on.Store(true)
}
