package sock

import (
	"sync"
	"sync/atomic"
)

// trial finds out whether polling pays, which it does not where others want the processor. Requests are counted in blocks; a few blocks with polling and
// without it are timed in turns, then the better way goes on for many, and then it is asked again.
//
//	| poll | sleep | poll | sleep |  the better one ...  | poll | sleep | ...
//	 <------- trialBlocks -------> <----- restBlocks -----
type trial struct {
	on atomic.Bool // poll in this block

	mu     sync.Mutex // guards what follows
	block  int        // since the trial began
	n      int        // requests of this block
	skip   int        // so many more are not counted
	last   int64      // when the last one began, in nanoseconds
	asleep int64      // what the timed requests without polling took
	awake  int64      // and those with it
}

const (
	trialBlocks = 4
	restBlocks  = 32
	blockLen    = 32 // requests that are timed
	settleLen   = 4  // and those before, and behind a pause, in which the way changes

	// mostTaken is what one request counts for at most, in nanoseconds: one that somebody else's work has held up for long must not decide alone.
	mostTaken = 400_000
)

func (t *trial) init() { t.on.Store(true) }

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
		t.on.Store(t.awake+t.awake/64 < t.asleep) // a processor for less is a bad deal
	case t.block == trialBlocks+restBlocks:
		t.block, t.awake, t.asleep = 0, 0, 0
		t.on.Store(true)
	}
}
