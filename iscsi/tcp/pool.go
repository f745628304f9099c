package tcp

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
)

const (
	page     = 4096
	maxOrder = 12               // 16 MiB: the largest buffer, and a zone
	zoneSize = page << maxOrder // octets
	blocks   = 1 << maxOrder    // pages of a zone
)

// DefaultPool is the bound, in octets, of the pool that connections without one of their own share.
const DefaultPool = 1 << 30

var sharedPool = sync.OnceValue(func() *Pool { return NewPool(DefaultPool) })

// Pool lends page-aligned memory outside the Go heap to the connections that share it. It takes zones of 16 MiB
// from the system as they are needed, up to a bound, and gives empty ones back but for one.
type Pool struct {
	mu    sync.Mutex // guards what follows, and what is in the zones
	limit int        // zones
	zones []*zone
}

// NewPool returns a pool of at most limit octets, rounded up to whole zones of 16 MiB.
func NewPool(limit int) *Pool {
	return &Pool{limit: zonesOf(limit)}
}

// zonesOf is how many zones hold that many octets.
func zonesOf(limit int) int { return max(1, (limit+zoneSize-1)/zoneSize) }

// zone is one stretch of memory under a buddy system: blocks of 1, 2, 4 ... pages, each on a multiple of its
// own size, where two free halves become one block again.
type zone struct {
	mem  []byte
	free [maxOrder + 1]int16 // first free block of each order; none if below 0
	next [blocks]int16       // list of free blocks, by the block's first page
	prev [blocks]int16
	tag  [blocks]int8 // order+1 of the free block that begins here; 0 elsewhere
	used int          // pages
}

const none = -1

func newZone() (*zone, error) {
	mem, err := mapZone(zoneSize)
	if err != nil {
		return nil, err
	}
	z := &zone{mem: mem}
	for i := range z.free {
		z.free[i] = none
	}
	z.push(0, maxOrder)
	return z, nil
}

func (z *zone) push(i, order int) {
	head := z.free[order]
	z.next[i], z.prev[i] = head, none
	if head != none {
		z.prev[head] = int16(i)
	}
	z.free[order] = int16(i)
	z.tag[i] = int8(order + 1)
}

func (z *zone) remove(i, order int) {
	n, p := z.next[i], z.prev[i]
	if p != none {
		z.next[p] = n
	} else {
		z.free[order] = n
	}
	if n != none {
		z.prev[n] = p
	}
	z.tag[i] = 0
}

// take returns the first page of a block of this order, or none.
func (z *zone) take(order int) int {
	o := order
	for o <= maxOrder && z.free[o] == none {
		o++
	}
	if o > maxOrder {
		return none
	}
	i := int(z.free[o])
	z.remove(i, o)
	for o > order {
		o--
		z.push(i+1<<o, o)
	}
	z.used += 1 << order
	return i
}

// give frees the block at page i.
func (z *zone) give(i, order int) {
	z.used -= 1 << order
	for order < maxOrder {
		buddy := i ^ 1<<order
		if z.tag[buddy] != int8(order+1) {
			break
		}
		z.remove(buddy, order)
		i &^= 1 << order
		order++
	}
	z.push(i, order)
}

// orderOf is the order of the smallest block that holds n octets.
func orderOf(n int) int {
	return bits.Len(uint(max(n-1, 0) / page))
}

func (p *Pool) take(order int) (*zone, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, z := range p.zones {
		if i := z.take(order); i != none {
			return z, i, nil
		}
	}
	if len(p.zones) >= p.limit {
		return nil, 0, errPoolUsed
	}
	z, err := newZone()
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", iscsi.ErrNoMemory, err)
	}
	p.zones = append(p.zones, z)
	return z, z.take(order), nil
}

func (p *Pool) give(z *zone, i, order int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	z.give(i, order)
	if z.used > 0 {
		return
	}
	// One empty zone is kept, since the next buffer would have to fault its pages in again.
	self, spare := none, false
	for j, other := range p.zones {
		if other == z {
			self = j
		} else if other.used == 0 {
			spare = true
		}
	}
	if spare || len(p.zones) > p.limit {
		p.zones = append(p.zones[:self], p.zones[self+1:]...)
		unmapZone(z.mem)
		z.mem = nil
	}
}

// Errors of Alloc that need no formatting.
var (
	errPoolUsed  = fmt.Errorf("%w: all connections together use what the pool has", iscsi.ErrNoMemory)
	errShareUsed = fmt.Errorf("%w: the connection uses its share", iscsi.ErrNoMemory)
	errTooLong   = fmt.Errorf("%w: a buffer has at most %d octets", iscsi.ErrNoMemory, zoneSize)
)

// share is what one connection has of a pool. Buffers outlive the connection, so that it is a value of its own.
type share struct {
	pool  *Pool
	limit int64
	used  atomic.Int64 // octets, as whole blocks
	lent  atomic.Int64 // buffers
}

// buffer is a lent block.
type buffer struct {
	mem   []byte
	zone  *zone
	page  int
	order int
	share *share
	lent  atomic.Bool
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func (s *share) alloc(n int) (iscsi.Buffer, error) {
	if n > zoneSize || n < 0 {
		return nil, errTooLong
	}
	order := orderOf(n)
	size := int64(page) << order
	if s.used.Add(size) > s.limit {
		s.used.Add(-size)
		return nil, errShareUsed
	}
	z, i, err := s.pool.take(order)
	if err != nil {
		s.used.Add(-size)
		return nil, err
	}
	s.lent.Add(1)
	b := buffers.Get().(*buffer)
	b.mem, b.zone, b.page, b.order, b.share = z.mem[i*page:][:n:page<<order], z, i, order, s
	b.lent.Store(true)
	return b, nil
}

// Bytes implements iscsi.Buffer.
func (b *buffer) Bytes() []byte { return b.mem }

// Release implements iscsi.Buffer. It panics if b is not lent: its memory may belong to another task already.
func (b *buffer) Release() {
	if !b.lent.CompareAndSwap(true, false) {
		panic("iscsi/tcp: buffer released twice")
	}
	s, z, i, order := b.share, b.zone, b.page, b.order
	b.mem, b.zone, b.share = nil, nil, nil
	buffers.Put(b)
	s.pool.give(z, i, order)
	s.used.Add(-int64(page) << order)
	s.lent.Add(-1)
}
