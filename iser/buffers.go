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
	// region grants the peer this buffer alone, on devices whose windows cannot; made when it is first needed, and
	// kept. The pool's lock guards it.
	region rnic.MR
	refs   atomic.Int32
	next   *buffer
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

// noBuffer is a buffer of no octets.
type noBuffer struct{}

func (noBuffer) Bytes() []byte { return nil }
func (noBuffer) Release()      {}

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
	remote rnic.Access // rights of a buffer's own region; 0: windows do it all

	mu     sync.Mutex
	max    int // octets of all slabs
	octets int
	lent   int
	free   [numClasses]*buffer
	slabs  []*slab
}

func (p *bufferPool) init(d *Domain) {
	p.dom, p.max = d, d.cfg.BufferMemory
	caps := d.attr.Caps
	if !caps.Has(rnic.CapWindows) {
		p.remote = rnic.LocalWrite | rnic.RemoteRead | rnic.RemoteWrite
	} else if caps.Has(rnic.CapReadSinkNeedsRemoteWrite) && !caps.Has(rnic.CapWindowSGE) {
		p.remote = rnic.LocalWrite | rnic.RemoteWrite
	}
}

// region returns the region of b alone, with remote rights.
func (p *bufferPool) region(b *buffer) (rnic.MR, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.region == nil {
		size := 1 << (b.class + minClass)
		mr, err := p.dom.pd.RegisterMR(b.slab.mr.Bytes()[b.off:b.off+size:b.off+size], p.remote)
		if err != nil {
			return nil, fmt.Errorf("iser: registering a buffer: %w", err)
		}
		b.region = mr
	}
	return b.region, nil
}

// withdraw takes the remote rights of b's own region away. Whatever else uses the buffer at the moment fails.
func (p *bufferPool) withdraw(b *buffer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return b.withdraw()
}

func (b *buffer) withdraw() error {
	mr := b.region
	if mr == nil {
		return nil
	}
	b.region = nil
	return mr.Deregister()
}

// release withdraws the buffers' regions and gives the slab's memory back; the pool's lock is held.
func (s *slab) release() error {
	var errs []error
	for i := range s.parts {
		errs = append(errs, s.parts[i].withdraw())
	}
	return errors.Join(append(errs, s.mr.Deregister())...)
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
	total := max(size, slabOctets)
	if p.octets+total > p.max {
		total = size // less at a time when memory is short
		if p.octets+total > p.max {
			p.trim(p.octets + total - p.max)
		}
		if p.octets+total > p.max {
			return iscsi.ErrNoMemory
		}
	}
	mr, err := p.dom.pd.AllocMR(total, rnic.LocalWrite)
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
		if err := s.release(); err != nil {
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
		errs = append(errs, s.release())
	}
	p.slabs, p.free, p.octets = nil, [numClasses]*buffer{}, 0
	return errors.Join(errs...)
}
