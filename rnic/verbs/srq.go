//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// recvBatch encodes receives.
type recvBatch struct {
	wrs    []C.struct_gw_wr
	sges   []C.struct_ibv_sge
	posted C.int // by the call
}

// checkRecv checks a chain and counts it.
func (p *pd) checkRecv(wr *rnic.RecvWR, depth int) (int, error) {
	if wr == nil {
		return 0, fmt.Errorf("%w: no work request", rnic.ErrBadWR)
	}
	count := 0
	for w := wr; w != nil; w = w.Next {
		if count++; count > depth {
			return 0, fmt.Errorf("%w: receives of a chain exceed depth %d", rnic.ErrQueue, depth)
		}
		if limit := p.dev.attr.MaxRecvSGE; len(w.SGE) > limit {
			return 0, fmt.Errorf("%w: %d scatter elements, limit %d", rnic.ErrTooLarge, len(w.SGE), limit)
		}
		if _, err := p.checkSGE(w.SGE, rnic.LocalWrite); err != nil {
			return 0, err
		}
	}
	return count, nil
}

// add encodes a receive under the given ID.
func (b *recvBatch) add(p *pd, w *rnic.RecvWR, id uint64) {
	first := len(b.sges)
	b.sges = appendSGE(b.sges, w.SGE)
	if len(b.sges) == first && p.empty != nil {
		b.sges = append(b.sges, C.struct_ibv_sge{addr: C.uint64_t(p.empty.Addr()), lkey: p.empty.lkey})
	}
	b.wrs = append(b.wrs, C.struct_gw_wr{id: C.uint64_t(id), first: C.uint32_t(first), count: C.uint32_t(len(b.sges) - first)})
}

func (b *recvBatch) reset() { b.wrs, b.sges = b.wrs[:0], b.sges[:0] }

// post hands the batch to the device and returns how many it took.
func (b *recvBatch) post(q *C.struct_ibv_qp, s *C.struct_ibv_srq) (int, error) {
	var sge *C.struct_ibv_sge
	if len(b.sges) > 0 {
		sge = &b.sges[0]
	}
	if rc := C.gw_post_recv(q, s, &b.wrs[0], C.int(len(b.wrs)), sge, &b.posted); rc != 0 {
		return int(b.posted), fmt.Errorf("verbs: posting receives: %w", unix.Errno(rc))
	}
	return int(b.posted), nil
}

// srq is a shared receive queue.
type srq struct {
	pd    *pd
	c     *C.struct_ibv_srq
	depth int
	limit int
	low   func()

	mu     sync.Mutex // guards what follows
	ids    []uint64   // the consumer's, by slot
	free   []uint32   // slots that are not posted
	armed  bool
	batch  recvBatch
	qps    int
	closed bool
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
	s := &srq{pd: p, depth: cfg.Depth, limit: cfg.Limit, low: cfg.OnLimit}
	if s.depth == 0 {
		s.depth = defaultSRQDepth
	}
	if s.depth > d.attr.MaxQPWR {
		return nil, fmt.Errorf("%w: SRQ depth %d, limit %d", rnic.ErrTooLarge, s.depth, d.attr.MaxQPWR)
	}
	s.ids = make([]uint64, s.depth)
	s.free = make([]uint32, 0, s.depth)
	for i := range s.depth {
		s.free = append(s.free, uint32(s.depth-1-i))
	}
	if err := p.use(1); err != nil {
		return nil, err
	}
	if err := d.track(s); err != nil {
		_ = p.use(-1)
		return nil, err
	}
	attr := C.struct_ibv_srq_init_attr{attr: C.struct_ibv_srq_attr{max_wr: C.uint32_t(s.depth), max_sge: C.uint32_t(d.attr.MaxRecvSGE)}}
	var err error
	if s.c, err = C.ibv_create_srq(p.c, &attr); s.c == nil {
		d.untrack(s)
		_ = p.use(-1)
		return nil, d.resource("a shared receive queue", 0, err)
	}
	return s, nil
}

// PostRecv implements rnic.SRQ.
func (s *srq) PostRecv(wr *rnic.RecvWR) error {
	count, err := s.pd.checkRecv(wr, s.depth)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: shared receive queue", rnic.ErrClosed)
	}
	if count > len(s.free) {
		return fmt.Errorf("%w: %d of %d receives are posted, %d more do not fit", rnic.ErrQueue, s.depth-len(s.free), s.depth, count)
	}
	s.batch.reset()
	for w := wr; w != nil; w = w.Next {
		slot := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.ids[slot] = w.ID
		s.batch.add(s.pd, w, recvBit|uint64(slot))
	}
	n, err := s.batch.post(nil, s.c)
	for _, w := range s.batch.wrs[n:] {
		s.free = append(s.free, uint32(w.id))
	}
	if s.depth-len(s.free) >= s.limit {
		s.armed = s.limit > 0
	}
	return err
}

// take ends the life of a posted receive and returns the consumer's ID.
func (s *srq) take(slot uint32) uint64 {
	s.mu.Lock()
	id := s.ids[slot]
	s.free = append(s.free, slot)
	low := s.armed && s.depth-len(s.free) < s.limit
	if low {
		s.armed = false
	}
	s.mu.Unlock()
	if low && s.low != nil {
		s.low()
	}
	return id
}

// attach counts a QP in; detach counts it out.
func (s *srq) attach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return rnic.ErrClosed
	}
	s.qps++
	return nil
}

func (s *srq) detach() {
	s.mu.Lock()
	s.qps--
	s.mu.Unlock()
}

// Close implements rnic.SRQ.
func (s *srq) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.qps > 0 {
		return fmt.Errorf("%w: %d queue pairs use this shared receive queue", rnic.ErrBusy, s.qps)
	}
	if s.closed {
		return nil
	}
	s.closed = true
	s.pd.dev.untrack(s)
	_ = s.pd.use(-1)
	if rc := C.ibv_destroy_srq(s.c); rc != 0 {
		return fmt.Errorf("verbs: closing a shared receive queue: %w", unix.Errno(rc))
	}
	return nil
}
