package soft

import (
	"fmt"
	"sync"

	"goiwarp/ddp"
	"goiwarp/rdmap"
	"goiwarp/rnic"
)

// recvQueue holds posted receives: a QP's own, or those of an SRQ. Its size follows what is posted.
type recvQueue struct {
	dev   *Device
	pd    *pd
	depth int

	mu      sync.Mutex // guards what follows
	ring    []*rdmap.Receive
	head, n int
	out     int // posted and not completed: in the ring, or with a stream
	free    *rdmap.Receive
	closed  error

	limit   int // of SRQConfig
	armed   bool
	onLimit func()
}

// post appends a chain as a whole or not at all.
func (q *recvQueue) post(wr *rnic.RecvWR) error {
	count := 0
	for w := wr; w != nil; w = w.Next {
		if count++; count > q.depth {
			return fmt.Errorf("%w: receives of a chain exceed depth %d", rnic.ErrQueue, q.depth)
		}
		if len(w.SGE) > q.dev.attr.MaxRecvSGE {
			return fmt.Errorf("%w: %d scatter elements, limit %d", rnic.ErrTooLarge, len(w.SGE), q.dev.attr.MaxRecvSGE)
		}
		if _, err := checkSGE(q.pd, w.SGE, rnic.LocalWrite); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return q.closed
	}
	if q.out+count > q.depth {
		return fmt.Errorf("%w: %d of %d receives are posted, %d more do not fit", rnic.ErrQueue, q.out, q.depth, count)
	}
	for w := wr; w != nil; w = w.Next {
		r := q.free
		if r == nil {
			r = new(rdmap.Receive)
			r.Segs = r.Own()
		} else {
			q.free, r.Next = r.Next, nil
		}
		r.User = w.ID
		r.Segs = appendSegs(r.Segs[:0], w.SGE)
		q.push(r)
	}
	q.out += count
	if q.n >= q.limit {
		q.armed = q.limit > 0
	}
	return nil
}

// push appends to the ring. Called with mu held.
func (q *recvQueue) push(r *rdmap.Receive) {
	if q.n == len(q.ring) {
		ring := make([]*rdmap.Receive, min(max(2*len(q.ring), 8), q.depth))
		k := copy(ring, q.ring[q.head:])
		copy(ring[k:], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	at := q.head + q.n
	if at >= len(q.ring) {
		at -= len(q.ring)
	}
	q.ring[at] = r
	q.n++
}

// take removes the oldest receive; nil when there is none.
func (q *recvQueue) take() *rdmap.Receive {
	q.mu.Lock()
	if q.n == 0 {
		q.mu.Unlock()
		return nil
	}
	r := q.ring[q.head]
	q.ring[q.head] = nil
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	low := q.armed && q.n < q.limit
	if low {
		q.armed = false
	}
	q.mu.Unlock()
	if low && q.onLimit != nil {
		q.onLimit()
	}
	return r
}

// put ends the life of a receive that take gave out.
func (q *recvQueue) put(r *rdmap.Receive) {
	clear(r.Segs) // holds no region for the collector
	q.mu.Lock()
	q.out--
	r.Next, q.free = q.free, r
	q.mu.Unlock()
}

// close refuses further receives.
func (q *recvQueue) close(err error) {
	q.mu.Lock()
	if q.closed == nil {
		q.closed = err
	}
	q.mu.Unlock()
}

// srq is a shared receive queue.
type srq struct {
	recvQueue
	qps int // guarded by recvQueue.mu
}

// CreateSRQ implements rnic.Device.
func (d *Device) CreateSRQ(domain rnic.PD, cfg rnic.SRQConfig) (rnic.SRQ, error) {
	if err := d.need(rnic.CapSRQ, "shared receive queues"); err != nil {
		return nil, err
	}
	p, ok := domain.(*pd)
	if !ok || p.dev != d {
		return nil, fmt.Errorf("%w: protection domain of another device", rnic.ErrBadWR)
	}
	if cfg.Depth < 0 || cfg.Limit < 0 {
		return nil, fmt.Errorf("%w: SRQ depth %d, limit %d", rnic.ErrBadWR, cfg.Depth, cfg.Limit)
	}
	s := &srq{recvQueue: recvQueue{dev: d, pd: p, depth: cfg.Depth, limit: cfg.Limit, onLimit: cfg.OnLimit}}
	if s.depth == 0 {
		s.depth = defaultSRQDepth
	}
	if err := p.use(&p.srqs, 1); err != nil {
		return nil, err
	}
	if err := d.track(s); err != nil {
		p.use(&p.srqs, -1)
		return nil, err
	}
	return s, nil
}

// PostRecv implements rnic.SRQ.
func (s *srq) PostRecv(wr *rnic.RecvWR) error {
	if wr == nil {
		return fmt.Errorf("%w: no work request", rnic.ErrBadWR)
	}
	return s.post(wr)
}

// Close implements rnic.SRQ. It fails with ErrBusy while QPs draw from the queue; receives that
// nobody took are dropped.
func (s *srq) Close() error {
	s.mu.Lock()
	if s.closed != nil {
		s.mu.Unlock()
		return nil
	}
	if s.qps > 0 {
		n := s.qps
		s.mu.Unlock()
		return fmt.Errorf("%w: %d queue pairs use this shared receive queue", rnic.ErrBusy, n)
	}
	s.closed = fmt.Errorf("%w: shared receive queue", rnic.ErrClosed)
	s.ring, s.n, s.head, s.free = nil, 0, 0, nil
	s.mu.Unlock()
	s.pd.use(&s.pd.srqs, -1)
	s.dev.untrack(s)
	return nil
}

func (s *srq) attach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return s.closed
	}
	s.qps++
	return nil
}

func (s *srq) detach() {
	s.mu.Lock()
	s.qps--
	s.mu.Unlock()
}

// checkSGE checks a scatter/gather list against its regions and returns its length in octets.
func checkSGE(p *pd, list []rnic.SGE, need rnic.Access) (int64, error) {
	var total int64
	for i := range list {
		g := &list[i]
		m, ok := g.MR.(*mr)
		if w, isWindow := g.Window.(*window); isWindow && g.MR == nil {
			if err := w.checkSGE(p, g, need); err != nil {
				return 0, fmt.Errorf("element %d: %w", i, err)
			}
			total += int64(g.Len)
			continue
		}
		switch {
		case !ok || g.Window != nil:
			return 0, fmt.Errorf("%w: element %d names no region of this device", rnic.ErrBadWR, i)
		case m.pd != p:
			return 0, fmt.Errorf("%w: element %d is of another protection domain", rnic.ErrAccess, i)
		case g.Off < 0 || g.Len < 0 || g.Off > len(m.mem) || g.Len > len(m.mem)-g.Off:
			return 0, fmt.Errorf("%w: element %d: %d octets at %d in a region of %d", rnic.ErrBounds, i, g.Len, g.Off, len(m.mem))
		case m.access&need != need:
			return 0, fmt.Errorf("%w: element %d needs access %#x, its region has %#x", rnic.ErrAccess, i, need, m.access)
		case m.region.STag() == 0:
			return 0, fmt.Errorf("%w: element %d's region was withdrawn", rnic.ErrClosed, i)
		}
		total += int64(g.Len)
	}
	if total > maxMessage {
		return 0, fmt.Errorf("%w: message of %d octets", rnic.ErrTooLarge, total)
	}
	return total, nil
}

func appendSegs(segs []rdmap.Seg, list []rnic.SGE) []rdmap.Seg {
	for i := range list {
		if list[i].Len > 0 {
			segs = append(segs, rdmap.Seg{Region: regionOf(&list[i]), Off: list[i].Off, Len: list[i].Len})
		}
	}
	return segs
}

// regionOf is the region behind an element that was checked.
func regionOf(g *rnic.SGE) *ddp.Region {
	if w, ok := g.Window.(*window); ok {
		return w.region
	}
	return g.MR.(*mr).region
}
