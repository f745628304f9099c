package scsi

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Bounds of what a logical unit keeps of its copies with a list identifier.
const (
	// maxCopies is how many it remembers, those under way included. Beyond it the oldest that has ended is forgotten.
	maxCopies = 64
	// maxCopiesRunning is how many are under way at the same time. In the background each has a goroutine, and a buffer of
	// scratchSize.
	maxCopiesRunning = 16
)

// copyResult is what RECEIVE COPY STATUS tells of a copy.
type copyResult struct {
	nexus      *Nexus
	list       uint32
	lid4       bool
	background bool
	action     byte // service action of the command

	into     atomic.Pointer[LU] // what its segment under way writes to
	moved    atomic.Uint64      // octets written
	segments atomic.Uint32      // segments copied

	stop context.CancelFunc // ends a copy that is under way
	done chan struct{}      // closed at its end

	// copyLog.mu guards the rest.
	ended    bool
	aborted  bool
	orphaned bool   // nobody is left who could ask for its result
	sense    *Sense // of a failure
}

func (r *copyResult) segment() { r.segments.Add(1) }

// copyLog holds the copies of a logical unit, oldest first: those under way, and the results of others until they are asked for,
// their nexus is gone, or a reset (SPC-4, section 5.17.4.3). Its zero value is empty.
type copyLog struct {
	mu      sync.Mutex // guards what follows
	list    []*copyResult
	unnamed []*copyResult // under way, without a list identifier
	closed  bool
}

// copyRefusal is why a copy cannot begin.
type copyRefusal uint8

const (
	copyMay     copyRefusal = iota
	copyInUse               // one with that identifier of the same nexus is under way
	copyTooMany             // as many are under way as may be
)

// begin adds a copy, or says why it may not begin.
func (g *copyLog) begin(n *Nexus, r *copyResult) copyRefusal {
	r.nexus = n
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.index(n, r.list, r.lid4)
	running := 0
	for _, o := range g.list {
		if !o.ended {
			running++
		}
	}
	switch {
	case i >= 0 && !g.list[i].ended:
		return copyInUse
	case g.closed || running >= maxCopiesRunning:
		return copyTooMany
	}
	if i < 0 && len(g.list) == maxCopies {
		i = slices.IndexFunc(g.list, func(r *copyResult) bool { return r.ended })
	}
	if i >= 0 {
		g.list = slices.Delete(g.list, i, i+1)
	}
	g.list = append(g.list, r)
	return copyMay
}

func (g *copyLog) index(n *Nexus, list uint32, lid4 bool) int {
	return slices.IndexFunc(g.list, func(r *copyResult) bool { return r.nexus == n && r.list == list && r.lid4 == lid4 && !r.orphaned })
}

// beginUnnamed adds a copy that RECEIVE COPY STATUS is not to know of.
func (g *copyLog) beginUnnamed(n *Nexus, r *copyResult) {
	r.nexus, r.orphaned = n, true
	g.mu.Lock()
	g.unnamed = append(g.unnamed, r)
	g.mu.Unlock()
}

// end notes how a copy has ended.
func (g *copyLog) end(r *copyResult, failed *Sense, aborted bool) {
	g.mu.Lock()
	r.ended, r.sense, r.aborted = true, failed, aborted
	if r.orphaned {
		is := func(o *copyResult) bool { return o == r }
		g.list, g.unnamed = slices.DeleteFunc(g.list, is), slices.DeleteFunc(g.unnamed, is)
	}
	g.mu.Unlock()
	close(r.done)
}

// find gives a copy of a nexus.
func (g *copyLog) find(n *Nexus, list uint32, lid4 bool) *copyResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.index(n, list, lid4); i >= 0 {
		return g.list[i]
	}
	return nil
}

// state gives what a copy has come to.
func (g *copyLog) state(r *copyResult) (ended, aborted bool, failed *Sense) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return r.ended, r.aborted, r.sense
}

func (g *copyLog) drop(which func(r *copyResult) bool) {
	g.mu.Lock()
	g.list = slices.DeleteFunc(g.list, which)
	g.mu.Unlock()
}

// forget drops the results of a nexus that is gone. What is under way is dropped when it ends: close waits for it.
func (g *copyLog) forget(n *Nexus) {
	g.drop(func(r *copyResult) bool {
		r.orphaned = r.orphaned || r.nexus == n
		return r.nexus == n && r.ended
	})
}

// clear drops the results of all copies that have ended, and those in the background when they do.
func (g *copyLog) clear() {
	g.drop(func(r *copyResult) bool {
		r.orphaned = r.orphaned || r.background
		return r.ended
	})
}

// running gives the copies that are under way.
func (g *copyLog) running(which func(r *copyResult) bool) []*copyResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []*copyResult
	for _, list := range [...][]*copyResult{g.list, g.unnamed} {
		for _, r := range list {
			if !r.ended && which(r) {
				found = append(found, r)
			}
		}
	}
	return found
}

// stop ends copies that are under way, and gives them, for awaitCopies.
func (g *copyLog) stop(which func(r *copyResult) bool) []*copyResult {
	found := g.running(which)
	for _, r := range found {
		r.stop()
	}
	return found
}

// awaitCopies waits until none of those that were stopped writes any more: an initiator that was told of the end may reuse the blocks at
// once. The wait is as long as a piece takes in the store, which may be for ever, so that no lock may be held.
func awaitCopies(ctx context.Context, list []*copyResult) error {
	for _, r := range list {
		select {
		case <-r.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close ends the copies in the background and lets none begin.
func (g *copyLog) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	_ = awaitCopies(context.Background(), g.stop(func(r *copyResult) bool { return r.background })) // that has no end
}
