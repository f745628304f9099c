//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// qpState is how far a QP has come.
//
//	idle --open--> up --end--> ending --> dead
//	  |                          ^
//	  +-----------end------------+
type qpState uint8

const (
	idle   qpState = iota // sends are held: there is no connection, or this side may not speak first
	up                    // what is posted goes to the device
	ending                // nothing is accepted; what is outstanding comes back
	dead
)

const (
	// recvBit marks the IDs of receives; the rest is the slot.
	recvBit = 1 << 63
	// pollBatch is how many completions one call takes.
	pollBatch = 64
	// quiet is how long a failed queue pair may give nothing back before the rest is flushed without it.
	quiet = 200 * time.Millisecond
)

// errFlushed is the error of work that never ran, or nobody knows.
var errFlushed = errors.New("verbs: flushed")

// slot is a work request of the send queue. The device gets each as a signaled one, whatever the consumer asked for:
// so it is known when the queue is empty, and every request comes back when the connection ends.
type slot struct {
	id       uint64
	octets   int
	op       rnic.Opcode
	signaled bool
	done     bool
	status   uint32
}

// qp is a queue pair.
type qp struct {
	dev                  *Device
	pd                   *pd
	scq, rcq             *cq
	srq                  *srq
	sendDepth, recvDepth int
	onEvent              func(rnic.Event)
	ep                   *endpoint
	c                    *C.struct_ibv_qp
	hw                   [2]*C.struct_ibv_cq // of sends and of receives; the second is nil if they share
	handle               uintptr
	counts               counts

	mu        sync.Mutex // guards what follows; held in calls that post, never in callbacks
	state     qpState
	started   bool  // setup succeeded, so that the end is an event
	connected bool  // the connection manager has, or may have, a connection
	gated     bool  // connected, but the peer speaks first
	leaving   bool  // Disconnect was called
	cause     error // of the end
	doubt     error // what went wrong, as far as the device told
	info      rnic.ConnInfo
	slots     []slot // a ring: head, n of them
	head, n   int
	wrs       []C.struct_gw_wr // what is held; scratch when up
	posted    C.int            // of them, by the call; here since what C writes to is never on the stack
	sges      []C.struct_ibv_sge
	inline    []byte // a place for each slot, mapped when first needed
	inlineMR  *mr    // covers it where the device needs that
	recvs     []uint64
	rhead, rn int
	batch     recvBatch
	empty     chan struct{} // closed when leaving and no send is outstanding

	poll   sync.Mutex // guards what follows: whoever holds it translates completions and delivers them
	gone   bool       // the device's queues are
	wc     [pollBatch]C.struct_gw_wc
	staged [2][]rnic.Completion // for scq and rcq; only the first if they are the same
	broken error                // of the first failure: nothing behind it succeeds

	telling sync.Mutex // guards what follows, and orders events
	told    bool       // Established
	final   bool

	done   chan struct{} // closed when dead, after the last callback
	detach sync.Once
}

// counts are what the device's completions tell.
type counts struct {
	sends, writes, reads, invalidates, received counter
	octetsOut, octetsIn                         counter
}

// newQP makes a queue pair for an endpoint.
func (d *Device) newQP(ep *endpoint, cfg rnic.QPConfig) (*qp, error) {
	p, ok := cfg.PD.(*pd)
	scq, ok2 := cfg.SendCQ.(*cq)
	rcq, ok3 := cfg.RecvCQ.(*cq)
	if !ok || !ok2 || !ok3 || p.dev != d || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("%w: a queue pair needs a protection domain and completion queues of its device", rnic.ErrBadWR)
	}
	q := &qp{
		dev: d, pd: p, scq: scq, rcq: rcq, sendDepth: cfg.SendDepth, recvDepth: cfg.RecvDepth, onEvent: cfg.OnEvent, ep: ep,
		done: make(chan struct{}), empty: make(chan struct{}),
	}
	for _, n := range []*int{&q.sendDepth, &q.recvDepth} {
		if *n == 0 {
			*n = defaultQPDepth
		}
		if *n < 0 || *n > d.attr.MaxQPWR {
			return nil, fmt.Errorf("%w: queue depths %d and %d, limit %d", rnic.ErrTooLarge, cfg.SendDepth, cfg.RecvDepth, d.attr.MaxQPWR)
		}
	}
	if cfg.SRQ != nil {
		if q.srq, ok = cfg.SRQ.(*srq); !ok || q.srq.pd.dev != d {
			return nil, fmt.Errorf("%w: shared receive queue of another device", rnic.ErrBadWR)
		}
	}
	q.slots = make([]slot, q.sendDepth)
	if q.srq == nil {
		q.recvs = make([]uint64, q.recvDepth)
	}
	if err := q.attach(); err != nil {
		return nil, err
	}
	if err := d.track(q); err != nil {
		q.detachAll()
		return nil, err
	}
	if err := q.create(); err != nil {
		q.detachAll()
		return nil, err
	}
	return q, nil
}

// create makes the device's queues.
func (q *qp) create() error {
	d := q.dev
	q.handle = newHandle(q)
	inbound := q.recvDepth
	var s *C.struct_ibv_srq
	if q.srq != nil {
		inbound, s = q.srq.depth, q.srq.c
	}
	err := func() error {
		depth := q.sendDepth
		if q.rcq == q.scq {
			depth += inbound
		}
		var err error
		if q.hw[0], err = C.gw_create_cq(d.ctx, C.int(depth), C.uintptr_t(q.handle), q.scq.channel); q.hw[0] == nil {
			return d.resource("a completion queue", 0, err)
		}
		if q.rcq != q.scq {
			if q.hw[1], err = C.gw_create_cq(d.ctx, C.int(inbound), C.uintptr_t(q.handle), q.rcq.channel); q.hw[1] == nil {
				return d.resource("a completion queue", 0, err)
			}
		}
		for _, c := range q.queues() {
			if rc := C.gw_arm(c); rc != 0 {
				return fmt.Errorf("verbs: arming a completion queue: %w", unix.Errno(rc))
			}
		}
		rc := C.gw_create_qp(q.ep.id, q.pd.c, q.hw[0], q.queues()[len(q.queues())-1], s, C.uint32_t(q.sendDepth), C.uint32_t(inbound),
			C.uint32_t(d.attr.MaxSendSGE), C.uint32_t(d.attr.MaxRecvSGE), C.uint32_t(d.attr.MaxInline))
		if rc != 0 {
			return d.resource("a queue pair", 0, unix.Errno(rc))
		}
		q.c = q.ep.id.qp
		queuePairs.Store(uintptr(unsafe.Pointer(q.c)), q)
		return nil
	}()
	if err != nil {
		q.destroy()
	}
	return err
}

// queues are the device's completion queues.
func (q *qp) queues() []*C.struct_ibv_cq {
	if q.hw[1] == nil {
		return q.hw[:1]
	}
	return q.hw[:]
}

// destroy gives the device's queues back. Called with poll held, or before anybody knows q.
func (q *qp) destroy() {
	q.gone = true
	dropHandle(q.handle)
	if q.c != nil {
		C.rdma_destroy_qp(q.ep.id)
		queuePairs.Delete(uintptr(unsafe.Pointer(q.c)))
	}
	for _, c := range q.hw {
		if c != nil {
			C.ibv_destroy_cq(c)
		}
	}
	if q.inlineMR != nil {
		_ = q.inlineMR.free()
	}
	if q.inline != nil {
		_ = unix.Munmap(q.inline)
	}
}

// attach marks what the QP uses as used; detachAll undoes it.
func (q *qp) attach() error {
	var undo []func()
	for _, u := range []struct {
		in  func() error
		out func()
	}{
		{func() error { return q.pd.use(1) }, func() { _ = q.pd.use(-1) }},
		{q.scq.attach, q.scq.detach},
		{q.rcq.attach, q.rcq.detach},
		{func() error {
			if q.srq == nil {
				return nil
			}
			return q.srq.attach()
		}, func() {}},
	} {
		if err := u.in(); err != nil {
			for _, f := range undo {
				f()
			}
			return err
		}
		undo = append(undo, u.out)
	}
	return nil
}

func (q *qp) detachAll() {
	q.detach.Do(func() {
		if q.srq != nil {
			q.srq.detach()
		}
		q.rcq.detach()
		q.scq.detach()
		_ = q.pd.use(-1)
		q.dev.untrack(q)
	})
}

// Info implements rnic.QP.
func (q *qp) Info() rnic.ConnInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.info
}

// Stats implements rnic.QP. A device tells a consumer of what the consumer's own work became; what the peer did to
// this side's memory, and frames, it does not tell.
func (q *qp) Stats() rnic.Stats {
	return rnic.Stats{
		OctetsSent: q.counts.octetsOut.Load(), OctetsReceived: q.counts.octetsIn.Load(),
		SendsSent: q.counts.sends.Load(), SendsReceived: q.counts.received.Load(),
		WritesSent: q.counts.writes.Load(), ReadsSent: q.counts.reads.Load(),
		InvalidatesSent: q.counts.invalidates.Load(),
	}
}

// Disconnect implements rnic.QP.
func (q *qp) Disconnect() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state >= ending || q.leaving:
		return nil
	case !q.connected:
		return fmt.Errorf("%w: the queue pair is not connected", rnic.ErrState)
	}
	q.leaving = true
	if q.n == 0 {
		close(q.empty)
	}
	go func() {
		limit := time.NewTimer(q.dev.cfg.Removal)
		defer limit.Stop()
		select {
		case <-q.empty:
		case <-limit.C:
		case <-q.done:
		}
		q.end(nil)
	}()
	return nil
}

// Close implements rnic.QP.
func (q *qp) Close() error {
	q.end(rnic.ErrClosed)
	<-q.done
	q.detachAll()
	return nil
}

// tell reports an event, each kind once and none behind the last.
func (q *qp) tell(e rnic.Event) {
	q.telling.Lock()
	defer q.telling.Unlock()
	if q.final || e.Kind == rnic.Established && q.told {
		return
	}
	if e.Kind == rnic.Established {
		q.told = true
	} else {
		q.final = true
	}
	if q.onEvent != nil {
		q.onEvent(e)
	}
}

// endedError refuses work on a connection that has ended.
func endedError(cause error) error {
	if cause == nil || errors.Is(cause, rnic.ErrClosed) {
		return fmt.Errorf("%w: the connection has ended", rnic.ErrClosed)
	}
	return fmt.Errorf("%w: the connection has ended: %w", rnic.ErrClosed, cause)
}
