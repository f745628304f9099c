package ddp

import (
	crand "crypto/rand"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

const tableShards = 64

// maxRegions bounds a table well below its index space, so that a free random index is found
// at once and STags stay sparse (RFC 5040, section 8.1.1, rule 8).
const maxRegions = 1 << 22

// Table holds the STags of one device. All its methods may be called by many goroutines at once.
type Table struct {
	// mu guards rng, count and the choice of new indices.
	mu    sync.Mutex
	rng   *rand.ChaCha8
	count int

	shards [tableShards]tableShard

	streams atomic.Uint64
	// atomics serialises the peers' atomic operations on all memory of the device (RFC 7306, section 5).
	atomics sync.Mutex
}

type tableShard struct {
	mu      sync.RWMutex
	regions map[uint32]*Region
}

// NewTable makes an empty table. STag indices come from a cryptographically strong generator
// seeded by the operating system.
func NewTable() *Table {
	var seed [32]byte
	crand.Read(seed[:]) // never fails
	return &Table{rng: rand.NewChaCha8(seed)}
}

// NewDomain makes a protection domain: regions and streams of different domains never meet.
func (t *Table) NewDomain() *Domain { return &Domain{table: t} }

func (t *Table) random() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rng.Uint64()
}

// insert gives r a free random index.
func (t *Table) insert(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count >= maxRegions {
		return ErrFull
	}
	for {
		i := uint32(t.rng.Uint64()) & maxIndex
		if i == 0 {
			continue
		}
		sh := &t.shards[i%tableShards]
		sh.mu.Lock()
		if _, taken := sh.regions[i]; taken {
			sh.mu.Unlock()
			continue
		}
		if sh.regions == nil {
			sh.regions = make(map[uint32]*Region)
		}
		r.index = i
		sh.regions[i] = r
		sh.mu.Unlock()
		t.count++
		return nil
	}
}

func (t *Table) remove(r *Region) {
	sh := &t.shards[r.index%tableShards]
	sh.mu.Lock()
	delete(sh.regions, r.index)
	sh.mu.Unlock()
	t.mu.Lock()
	t.count--
	t.mu.Unlock()
}

// lookup finds the region that owns s's index, whatever the key.
func (t *Table) lookup(s STag) *Region {
	i := s.Index()
	sh := &t.shards[i%tableShards]
	sh.mu.RLock()
	r := sh.regions[i]
	sh.mu.RUnlock()
	return r
}

// Domain is a protection domain (RFC 5040, section 8.1.1, rule 1).
type Domain struct {
	table *Table

	// mu guards the counts.
	mu      sync.Mutex
	regions int
	streams int
	closed  bool
}

// Join counts a stream into the domain and names it. Leave is its counterpart.
func (d *Domain) Join() StreamID {
	d.mu.Lock()
	d.streams++
	d.mu.Unlock()
	return StreamID(d.table.streams.Add(1))
}

// Leave counts the stream out again.
func (d *Domain) Leave(StreamID) {
	d.mu.Lock()
	d.streams--
	d.mu.Unlock()
}

// shared says whether a region without a stream of its own can be reached by several peers.
func (d *Domain) shared() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams > 1
}

// Close fails with ErrBusy while regions or streams are left.
func (d *Domain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.regions > 0 || d.streams > 0 {
		return ErrBusy
	}
	d.closed = true
	return nil
}

// Reserve makes a region that is not bound to memory yet: a memory window.
func (d *Domain) Reserve() (*Region, error) {
	r := &Region{domain: d}
	r.idle.L = &r.mu
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, ErrFreed
	}
	d.regions++
	d.mu.Unlock()
	if err := d.table.insert(r); err != nil {
		d.mu.Lock()
		d.regions--
		d.mu.Unlock()
		return nil, err
	}
	return r, nil
}

// Register makes a region over mem at once: Reserve and Bind. The Tagged Offset of mem's first octet
// is base. With a stream other than 0 only that stream's peer reaches the region.
func (d *Domain) Register(mem []byte, base uint64, access Access, stream StreamID) (*Region, error) {
	r, err := d.Reserve()
	if err != nil {
		return nil, err
	}
	if _, err := r.Bind(mem, base, access, stream); err != nil {
		r.Free()
		return nil, err
	}
	return r, nil
}

// Fault says why a peer's access was refused. DDP and RDMAP each have their own codes for it.
type Fault uint8

// Faults, in the order in which they are looked for.
const (
	NoFault     Fault = iota
	FaultSTag         // no such STag, or it is not valid
	FaultStream       // it belongs to another domain or stream
	FaultAccess       // it does not grant the right
	FaultWrap         // offset plus length passes 2^64
	FaultBounds       // outside the region
	FaultShared       // several streams share it, so that no peer may invalidate it
)

// Reach finds the octets [to, to+n) behind s for the peer of stream and checks that need is granted. On success
// the region is acquired (the caller releases it) and off is the place in the returned memory.
func (d *Domain) Reach(s STag, to, n uint64, need Access, stream StreamID) (r *Region, mem []byte, off int, f Fault) {
	r = d.table.lookup(s)
	if r == nil {
		return nil, nil, 0, FaultSTag
	}
	mem, ok := r.Acquire(s)
	if !ok {
		return nil, nil, 0, FaultSTag
	}
	switch {
	case r.domain != d || !r.belongs(stream):
		f = FaultStream
	case !r.access.Has(need):
		f = FaultAccess
	case to+n < to:
		f = FaultWrap
	case to < r.base || to-r.base > uint64(len(mem)) || n > uint64(len(mem))-(to-r.base):
		f = FaultBounds
	case !r.claim(stream):
		f = FaultStream
	default:
		return r, mem, int(to - r.base), NoFault
	}
	r.Release()
	return nil, nil, 0, f
}

// InvalidateRemote invalidates s for the peer of stream (Send with Invalidate; RFC 5040, sections 5.3 and 7.2). It
// refuses STags without remote rights and those that peers of several streams share.
func (d *Domain) InvalidateRemote(s STag, stream StreamID) Fault {
	r := d.table.lookup(s)
	if r == nil {
		return FaultSTag
	}
	if _, ok := r.Acquire(s); !ok {
		return FaultSTag
	}
	var f Fault
	switch {
	case r.domain != d || !r.belongs(stream):
		f = FaultStream
	case r.access&remoteRights == 0:
		f = FaultAccess
	case r.stream.Load() == 0 && !r.access.Has(ClaimOnUse) && d.shared():
		f = FaultShared
	case !r.claim(stream):
		f = FaultStream
	}
	r.Release()
	if f != NoFault {
		return f
	}
	if !r.invalidate(s) {
		return FaultSTag
	}
	return NoFault
}

// LockAtomics gives the caller the device's memory for one atomic operation.
func (d *Domain) LockAtomics() { d.table.atomics.Lock() }

// UnlockAtomics ends it.
func (d *Domain) UnlockAtomics() { d.table.atomics.Unlock() }
