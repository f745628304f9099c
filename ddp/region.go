package ddp

import (
	"sync"
	"sync/atomic"
)

// Region is memory behind an STag: a registered region, or a window when it is bound and
// invalidated again and again. The life of its STag:
//
//	Reserve --> invalid --Bind--> valid (new key) --Invalidate, Send with Invalidate--> invalid --Free--> gone
//
// Who touches the memory holds the region for as long as a non-blocking operation lasts (a
// copy, a readv, a writev), never while it waits for a peer. So Invalidate can promise that
// the memory is out of everybody's reach when it returns, and needs no peer's goodwill for it.
type Region struct {
	domain *Domain
	index  uint32

	// state is the valid STag in the upper half (0: not valid) and the number of holders in the
	// lower half. The fields below are written while both are 0 and read while held.
	state  atomic.Uint64
	mem    []byte
	base   uint64
	access Access
	stream atomic.Uint64 // StreamID; 0: any stream of the domain
	placed atomic.Uint64 // octets, by tagged segments since Bind

	// mu guards binding; idle wakes those who wait for the last holder.
	mu    sync.Mutex
	idle  sync.Cond
	keys  keySequence
	freed bool
}

// holders is the part of the state that counts holders.
const holders = 1<<32 - 1

// Bind makes the region valid over mem under a new key and returns the STag. mem stays the
// caller's to keep alive until Invalidate or Free has returned.
func (r *Region) Bind(mem []byte, base uint64, access Access, stream StreamID) (STag, error) {
	if base+uint64(len(mem)) < base {
		return 0, ErrWrap
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed {
		return 0, ErrFreed
	}
	if r.state.Load()>>32 != 0 {
		return 0, ErrBound
	}
	r.wait()
	r.mem, r.base, r.access = mem, base, access
	r.stream.Store(uint64(stream))
	r.placed.Store(0)
	s := makeSTag(r.index, r.keys.next(r.domain.table.random))
	r.state.Store(uint64(s) << 32)
	return s, nil
}

// wait returns once nobody holds the region; r.mu is held and the region is not valid.
func (r *Region) wait() {
	for r.state.Load()&holders != 0 {
		r.idle.Wait()
	}
}

// STag is the current one; 0 while the region is not valid.
func (r *Region) STag() STag { return STag(r.state.Load() >> 32) }

// Count notes that a peer has placed n octets. The caller holds the region, which may be bound anew as soon as nobody does.
func (r *Region) Count(n int) { r.placed.Add(uint64(n)) }

// Placed is how many octets peers have placed by tagged segments since the last Bind, those placed twice counted twice.
func (r *Region) Placed() uint64 { return r.placed.Load() }

// Domain is the protection domain that the region belongs to.
func (r *Region) Domain() *Domain { return r.domain }

// Hold acquires the region under whatever STag it has and returns its memory, for local use.
// Every successful Hold needs one Release.
func (r *Region) Hold() (mem []byte, ok bool) {
	for {
		v := r.state.Load()
		if v>>32 == 0 {
			return nil, false
		}
		if r.state.CompareAndSwap(v, v+1) {
			return r.mem, true
		}
	}
}

// Acquire is Hold under the very STag s.
func (r *Region) Acquire(s STag) (mem []byte, ok bool) {
	for {
		v := r.state.Load()
		if STag(v>>32) != s || s == 0 {
			return nil, false
		}
		if r.state.CompareAndSwap(v, v+1) {
			return r.mem, true
		}
	}
}

// Release ends a Hold or an Acquire.
func (r *Region) Release() {
	if r.state.Add(^uint64(0)) == 0 {
		// Not valid any more, and the last holder: somebody may wait for this.
		r.mu.Lock()
		r.idle.Broadcast()
		r.mu.Unlock()
	}
}

// Held describes the region to a caller that holds it.
func (r *Region) Held() (base uint64, access Access) { return r.base, r.access }

// belongs says whether the region, which is held, may be used by stream's peer.
func (r *Region) belongs(stream StreamID) bool {
	s := r.stream.Load()
	return s == 0 || StreamID(s) == stream
}

// claim gives a region with ClaimOnUse to stream, unless another stream was faster.
func (r *Region) claim(stream StreamID) bool {
	if !r.access.Has(ClaimOnUse) || StreamID(r.stream.Load()) == stream {
		return true
	}
	return r.stream.CompareAndSwap(0, uint64(stream))
}

// Invalidate withdraws the STag. When it returns no peer reaches the memory any more and no
// operation on it is half done. It is harmless on a region that is not valid.
func (r *Region) Invalidate() { r.invalidate(0) }

// invalidate withdraws the STag s, or any if s is 0, and says whether it was valid.
func (r *Region) invalidate(s STag) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	valid := false
	for {
		v := r.state.Load()
		cur := STag(v >> 32)
		if cur == 0 {
			break
		}
		if s != 0 && cur != s {
			return false
		}
		if r.state.CompareAndSwap(v, v&holders) {
			valid = true
			break
		}
	}
	r.wait()
	if valid {
		r.mem = nil
	}
	return valid
}

// Free invalidates the region and gives its STag index back. It is harmless when repeated.
func (r *Region) Free() {
	r.mu.Lock()
	if r.freed {
		r.mu.Unlock()
		return
	}
	r.freed = true
	r.mu.Unlock()
	r.Invalidate()
	r.domain.table.remove(r)
	r.domain.mu.Lock()
	r.domain.regions--
	r.domain.mu.Unlock()
}

// Seg is a piece of a region: Len octets at Off. Lists of them are what messages are gathered
// from and scattered to.
type Seg struct {
	Region   *Region
	Off, Len int
}

// CheckSegs says whether every element lies within its valid region and grants need, and returns
// their total length. It looks at the present moment: a region may be invalidated right after.
func CheckSegs(d *Domain, segs []Seg, need Access) (uint64, error) {
	var total uint64
	for i := range segs {
		g := &segs[i]
		if g.Region == nil || g.Region.domain != d {
			return 0, ErrInvalid
		}
		mem, ok := g.Region.Hold()
		if !ok {
			return 0, ErrInvalid
		}
		fits := g.Off >= 0 && g.Len >= 0 && g.Off <= len(mem) && g.Len <= len(mem)-g.Off
		granted := g.Region.access.Has(need)
		g.Region.Release()
		switch {
		case !fits:
			return 0, ErrBounds
		case !granted:
			return 0, ErrAccess
		}
		total += uint64(g.Len)
	}
	if total > 1<<32-1 {
		return 0, ErrMessageTooLong
	}
	return total, nil
}

// Target is how a peer names the element: the region's STag and the Tagged Offset of the element's first octet. ok is
// false if the region is not valid.
func (g *Seg) Target() (s STag, to uint64, access Access, ok bool) {
	for {
		v := g.Region.state.Load()
		if v>>32 == 0 {
			return 0, 0, 0, false
		}
		if g.Region.state.CompareAndSwap(v, v+1) {
			s, to, access = STag(v>>32), g.Region.base+uint64(g.Off), g.Region.access
			g.Region.Release()
			return s, to, access, true
		}
	}
}
