package iser

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// Size classes of buffers: powers of two from minClass on.
const (
	minClass   = 12 // 4 KiB
	maxClass   = 24 // 16 MiB
	numClasses = maxClass - minClass + 1

	// MaxBuffer is the largest buffer that Alloc lends, in octets.
	MaxBuffer = 1 << maxClass

	slabOctets = 256 << 10 // what small buffers are cut from
)

// buffer is registered memory for command data (iscsi.Buffer).
type buffer struct {
	slab  *slab
	off   int // within the slab's region
	n     int // octets asked for
	class uint8
	conn  *Datamover // whose share it counts against; nil: none
	refs  atomic.Int32
	next  *buffer
}

// Bytes is the memory that was asked for.
func (b *buffer) Bytes() []byte {
	return b.slab.mr.Bytes()[b.off : b.off+b.n : b.off+b.n]
}

// Release ends the caller's hold. The memory is lent again when no transfer is under way either.
func (b *buffer) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.slab.pool.put(b)
	case n < 0:
		panic("iser: buffer released more often than it was lent")
	}
}

// retain adds a holder.
func (b *buffer) retain() { b.refs.Add(1) }

// slab is one region that buffers of a class are cut from.
type slab struct {
	pool  *bufferPool
	mr    rnic.MR
	class uint8
	count int
	free  int
	parts []buffer
}

// bufferPool lends the registered buffers of a domain. Its lock is a leaf.
type bufferPool struct {
	dom    *Domain
	access rnic.Access
	single bool // each buffer has a region of its own, because peers are given the region's STag

	mu     sync.Mutex
	max    int // octets of all slabs
	octets int
	lent   int
	free   [numClasses]*buffer
	slabs  []*slab
}

func (p *bufferPool) init(d *Domain) {
	p.dom, p.max = d, d.cfg.BufferMemory
	p.access = rnic.LocalWrite
	caps := d.attr.Caps
	if !caps.Has(rnic.CapWindows) {
		p.single = true
		p.access |= rnic.RemoteRead | rnic.RemoteWrite
	} else if caps.Has(rnic.CapReadSinkNeedsRemoteWrite) && !caps.Has(rnic.CapWindowSGE) {
		p.single = true
		p.access |= rnic.RemoteWrite
	}
}

func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minClass) - minClass }

// get lends n octets on c's account; c may be nil.
func (p *bufferPool) get(n int, c *Datamover) (*buffer, error) {
	if n < 0 || n > MaxBuffer {
		return nil, fmt.Errorf("%w: %w: buffer of %d octets, at most %d", ErrTooLarge, iscsi.ErrNoMemory, n, MaxBuffer)
	}
	class := classOf(n)
	size := 1 << (class + minClass)
	if c != nil {
		if c.lent.Add(int64(size)) > int64(c.cfg.BufferMemory) {
			c.lent.Add(-int64(size))
			return nil, iscsi.ErrNoMemory
		}
	}
	p.mu.Lock()
	if p.free[class] == nil {
		if err := p.grow(class); err != nil {
			p.mu.Unlock()
			if c != nil {
				c.lent.Add(-int64(size))
			}
			return nil, err
		}
	}
	b := p.free[class]
	p.free[class], b.next = b.next, nil
	b.slab.free--
	p.lent++
	p.mu.Unlock()
	b.n, b.conn = n, c
	b.refs.Store(1)
	p.dom.enter(nil)
	return b, nil
}

func (p *bufferPool) put(b *buffer) {
	if b.conn != nil {
		b.conn.lent.Add(-int64(1) << (b.class + minClass))
		b.conn = nil
	}
	p.mu.Lock()
	b.next, p.free[b.class] = p.free[b.class], b
	b.slab.free++
	p.lent--
	p.mu.Unlock()
	p.dom.leave(nil)
}

// grow adds a slab of the class; p.mu is held.
func (p *bufferPool) grow(class int) error {
	size := 1 << (class + minClass)
	total := size
	if !p.single {
		total = max(size, slabOctets)
	}
	if p.octets+total > p.max {
		total = size // less at a time when memory is short
		if p.octets+total > p.max {
			p.trim(p.octets + total - p.max)
		}
		if p.octets+total > p.max {
			return iscsi.ErrNoMemory
		}
	}
	mr, err := p.dom.pd.AllocMR(total, p.access)
	if err != nil {
		return fmt.Errorf("%w: %w", iscsi.ErrNoMemory, err)
	}
	s := &slab{pool: p, mr: mr, class: uint8(class), count: total / size, free: total / size}
	s.parts = make([]buffer, s.count)
	for i := range s.parts {
		b := &s.parts[i]
		b.slab, b.off, b.class = s, i*size, uint8(class)
		b.next, p.free[class] = p.free[class], b
	}
	p.slabs = append(p.slabs, s)
	p.octets += total
	return nil
}

// trim gives slabs that nobody uses back until at least n octets are free; p.mu is held.
func (p *bufferPool) trim(n int) {
	keep := p.slabs[:0]
	for _, s := range p.slabs {
		if n <= 0 || s.free < s.count {
			keep = append(keep, s)
			continue
		}
		for at := &p.free[s.class]; *at != nil; {
			if (*at).slab == s {
				*at = (*at).next
			} else {
				at = &(*at).next
			}
		}
		size := len(s.mr.Bytes())
		if err := s.mr.Deregister(); err != nil {
			p.dom.log.Error("iser: giving memory back", "error", err)
		}
		p.octets -= size
		n -= size
	}
	clear(p.slabs[len(keep):])
	p.slabs = keep
}

func (p *bufferPool) stats(s *DomainStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.BuffersLent, s.BufferOctets = p.lent, p.octets
}

func (p *bufferPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.slabs {
		errs = append(errs, s.mr.Deregister())
	}
	p.slabs, p.free, p.octets = nil, [numClasses]*buffer{}, 0
	return errors.Join(errs...)
}
