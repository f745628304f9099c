package iser

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

const (
	slabReceives = 32   // receives that are registered together
	queueDepth   = 4096 // of the shared queue

	// spareReceives is what reservations leave alone, so that one connection's flood, which is noticed only after a
	// batch was read, does not take the receives of the others.
	spareReceives = 1024
	// recvID marks the IDs of receives among the completions of a connection.
	recvID = 1 << 63
)

// receive is one slot of registered memory that takes one iSER message, with the PDU that the message
// is handed up as. The same slots carry outgoing PDUs that are too large to be sent inline.
//
//	free --post--> posted --completion--> held by the iSCSI layer --Release--> posted or free
//	  '--borrow--> outgoing --completion of the Send--> free
type receive struct {
	pdu  iscsi.PDU
	pool *receivePool
	mr   rnic.MR
	off  int
	mem  []byte
	wr   rnic.RecvWR
	sge  [1]rnic.SGE
	conn *Datamover // who holds it, or who posted it to its own queue
	len  int        // octets received
	next *receive
}

// ReleasePDU gives the slot back (iscsi.PDUOwner).
func (r *receive) ReleasePDU(*iscsi.PDU) {
	c := r.conn
	c.held.Add(-1)
	r.pool.put(r, c)
	r.pool.dom.leave(nil)
}

// receivePool keeps the receives of a domain. Its lock is a leaf: only the device is called below it.
type receivePool struct {
	dom  *Domain
	size int      // octets of a slot
	srq  rnic.SRQ // nil: each connection posts receives of its own

	slots atomic.Pointer[[]*receive] // by ID; copied when it grows

	mu       sync.Mutex
	free     *receive
	posted   int // in the shared queue, or taken from it and not completed yet
	level    int // wanted in the shared queue
	total    int
	max      int
	promised int // by an earlier max: see most
	reserved int // credits of connections
	held     int
	sends    int
	slabs    []rnic.MR
}

func (p *receivePool) init(d *Domain) error {
	p.dom = d
	p.size = (HeaderLen + iscsi.BHSLen + d.cfg.MaxAHS + d.cfg.RecvDataSegment + 63) &^ 63
	p.max = d.cfg.ReceiveMemory / p.size
	p.slots.Store(new([]*receive))
	if !d.attr.Caps.Has(rnic.CapSRQ) {
		return nil
	}
	depth := min(queueDepth, max(p.max, 1))
	if m := d.attr.MaxQPWR; m > 0 {
		depth = min(depth, m)
	}
	p.level = min(16, depth)
	limit := max(min(d.cfg.SharedReceives, depth)/2, 1)
	var err error
	if p.srq, err = d.dev.CreateSRQ(d.pd, rnic.SRQConfig{Depth: depth, Limit: limit, OnLimit: p.refill}); err != nil {
		return fmt.Errorf("iser: shared receive queue: %w", err)
	}
	p.mu.Lock()
	err = p.top(0)
	p.mu.Unlock()
	if err != nil {
		return errors.Join(err, p.close())
	}
	return nil
}

// take returns a free slot; p.mu is held.
func (p *receivePool) take() (*receive, error) {
	if p.free == nil {
		if err := p.grow(); err != nil {
			return nil, err
		}
	}
	r := p.free
	p.free, r.next = r.next, nil
	return r, nil
}

// grow registers another slab; p.mu is held.
func (p *receivePool) grow() error {
	n := min(slabReceives, p.most()-p.total)
	if n <= 0 {
		return &ResourceError{What: "receives", Asked: 1}
	}
	mr, err := p.dom.pd.AllocMR(n*p.size, rnic.LocalWrite)
	if err != nil {
		return fmt.Errorf("iser: memory for receives: %w", err)
	}
	p.slabs = append(p.slabs, mr)
	old := *p.slots.Load()
	slots := make([]*receive, len(old), len(old)+n)
	copy(slots, old)
	slab := make([]receive, n)
	for i := range slab {
		r := &slab[i]
		r.pool, r.mr, r.off = p, mr, i*p.size
		r.mem = mr.Bytes()[r.off : r.off+p.size : r.off+p.size]
		r.sge[0] = rnic.SGE{MR: mr, Off: r.off, Len: p.size}
		r.wr = rnic.RecvWR{ID: recvID | uint64(len(slots)), SGE: r.sge[:]}
		r.pdu.Owner, r.pdu.Handle = r, uint64(len(slots))
		slots = append(slots, r)
		r.next, p.free = p.free, r
	}
	p.slots.Store(&slots)
	p.total += n
	return nil
}

// slot finds a receive by the ID of its completion; nil if there is none.
func (p *receivePool) slot(id uint64) *receive {
	slots := *p.slots.Load()
	if i := id &^ uint64(recvID); i < uint64(len(slots)) {
		return slots[i]
	}
	return nil
}

// top posts receives to the shared queue until its level is reached, and extra more; p.mu is held.
func (p *receivePool) top(extra int) error {
	for want := p.level + extra; p.posted < want; p.posted++ {
		r, err := p.take()
		if err != nil {
			return err
		}
		if err = p.srq.PostRecv(&r.wr); err != nil {
			r.next, p.free = p.free, r
			if errors.Is(err, rnic.ErrQueue) {
				return nil
			}
			return fmt.Errorf("iser: posting a receive: %w", err)
		}
	}
	return nil
}

// refill is the shared queue's low-water mark: what was read but not handled yet has used up half of
// it, so the level is raised for a moment without waiting for the completions.
func (p *receivePool) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.top(p.posted - p.level + max(p.level/2, slabReceives)); err != nil {
		p.dom.log.Warn("iser: receives run low", "error", err)
	}
}

// completed takes a receive from the queue's account for the connection that it came to.
func (p *receivePool) completed(r *receive, c *Datamover, ok bool) {
	p.mu.Lock()
	r.conn = c
	if p.srq != nil {
		p.posted--
		if err := p.top(0); err != nil {
			p.dom.log.Warn("iser: receives run low", "error", err)
		}
	}
	if ok {
		p.held++
	} else {
		p.recycle(r)
	}
	p.mu.Unlock()
}

// put takes a slot back from the iSCSI layer. With a queue of its own, c posts it again as long as it is up.
func (p *receivePool) put(r *receive, c *Datamover) {
	r.pdu.AHS, r.pdu.Data = nil, nil
	if p.srq == nil && c.repost(r) {
		p.mu.Lock()
		p.held--
		p.mu.Unlock()
		return
	}
	p.mu.Lock()
	p.held--
	p.recycle(r)
	p.mu.Unlock()
}

// recycle posts a slot to the shared queue if it has room, else frees it; p.mu is held.
func (p *receivePool) recycle(r *receive) {
	r.conn = nil
	if p.srq != nil && p.posted < p.level && p.srq.PostRecv(&r.wr) == nil {
		p.posted++
		return
	}
	r.next, p.free = p.free, r
}

// borrow lends a slot for an outgoing PDU, or for a connection's own queue.
func (p *receivePool) borrow(send bool) (*receive, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.take()
	if err == nil && send {
		p.sends++
	}
	return r, err
}

// giveBack ends borrow.
func (p *receivePool) giveBack(r *receive, send bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if send {
		p.sends--
	}
	p.recycle(r)
}

// reserve changes a connection's credits from old to n and adapts the level. It fails, without a
// change, when the domain cannot back them with memory.
func (p *receivePool) reserve(old, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.max - p.reserved + old
	if p.max > 2*spareReceives {
		have -= spareReceives
	}
	if n > old && n > have {
		return &ResourceError{What: "receives", Asked: n, Have: max(have, 0)}
	}
	p.reserved += n - old
	if p.srq == nil {
		return nil
	}
	p.level = max(min(p.reserved, p.dom.cfg.SharedReceives, queueDepth), min(16, p.max))
	return p.top(0)
}

func (p *receivePool) stats(s *DomainStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.ReceivesHeld, s.ReceivesPosted, s.ReceiveOctets, s.CreditsGiven, s.SendsHeld = p.held, p.posted, p.total*p.size, p.reserved, p.sends
}

func (p *receivePool) close() error {
	var errs []error
	if p.srq != nil {
		errs = append(errs, p.srq.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, mr := range p.slabs {
		errs = append(errs, mr.Deregister())
	}
	p.slabs, p.free = nil, nil
	return errors.Join(errs...)
}
