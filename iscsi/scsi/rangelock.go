package scsi

import (
	"context"
	"sync"
)

// rangeLock orders changes of overlapping blocks: any number of shared holders, or one exclusive. A
// WRITE holds its blocks shared (two writes of the same block at the same time are the initiators'
// own affair), COMPARE AND WRITE exclusively, so that nothing changes between the comparison and
// the write.
//
// Waiters are served in the order of arrival, so that none starves. Without contention nothing is
// allocated.
type rangeLock struct {
	mu      sync.Mutex
	held    []span
	waiting []*rangeWaiter
}

// span is a range of blocks and how it is held.
type span struct {
	lba, end  uint64
	exclusive bool
}

func (s span) conflicts(o span) bool {
	return (s.exclusive || o.exclusive) && s.lba < o.end && o.lba < s.end
}

type rangeWaiter struct {
	span
	ready chan struct{} // closed when the range is held
}

// lock waits until s can be held, or ctx ends.
func (r *rangeLock) lock(ctx context.Context, s span) error {
	r.mu.Lock()
	if r.free(s, len(r.waiting)) {
		r.held = append(r.held, s)
		r.mu.Unlock()
		return nil
	}
	w := &rangeWaiter{span: s, ready: make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, have := range r.waiting {
		if have == w {
			r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
			r.wake() // those behind may have waited for this one only
			return ctx.Err()
		}
	}
	// It was granted in the meantime.
	r.release(s)
	return ctx.Err()
}

func (r *rangeLock) unlock(s span) {
	r.mu.Lock()
	r.release(s)
	r.mu.Unlock()
}

func (r *rangeLock) release(s span) {
	for i, h := range r.held {
		if h == s {
			last := len(r.held) - 1
			r.held[i] = r.held[last]
			r.held = r.held[:last]
			break
		}
	}
	r.wake()
}

// wake grants what has become free.
func (r *rangeLock) wake() {
	for i := 0; i < len(r.waiting); {
		w := r.waiting[i]
		if !r.free(w.span, i) {
			i++
			continue
		}
		r.held = append(r.held, w.span)
		r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
		close(w.ready)
	}
}

// free tells whether s conflicts with no holder and none of the first n waiters.
func (r *rangeLock) free(s span, n int) bool {
	for _, h := range r.held {
		if h.conflicts(s) {
			return false
		}
	}
	for _, w := range r.waiting[:n] {
		if w.conflicts(s) {
			return false
		}
	}
	return true
}
