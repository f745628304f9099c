package soft

import (
	"fmt"
	"sync"

	"goiwarp/ddp"
	"goiwarp/mpa"
	"goiwarp/rdmap"
	"goiwarp/rnic"
)

// qpState is how far a QP has come.
//
//	idle --start--> up --closed--> dead
//	  |                             ^
//	  +------- fail, Close ---------+
type qpState uint8

const (
	idle qpState = iota // work is accepted and waits
	up                  // there is a stream, which may be ending
	dead                // all work was completed or flushed
)

// qp is a queue pair. What is posted becomes operations of an rdmap.Stream; what the stream gives
// back becomes completions, staged until the end of a batch of messages (completions.go).
type qp struct {
	dev       *Device
	pd        *pd
	scq, rcq  *cq
	rq        *recvQueue
	srq       *srq // nil if rq is the QP's own
	sendDepth int
	onEvent   func(rnic.Event)

	mu          sync.Mutex // guards what follows
	state       qpState
	cause       error // of the end, once dead or closing
	out         int   // sends posted and not completed
	free        *sendOp
	first, last *rdmap.Op // posted while idle
	stream      *rdmap.Stream
	conn        *mpa.Conn
	info        rnic.ConnInfo
	cancel      func() // aborts connection setup
	closing     bool

	done chan struct{} // closed when dead, after the last callback
	once sync.Once     // of detaching from what the QP used

	// The stream's callbacks, which come one at a time, own what follows.
	staged [2][]rnic.Completion // of scq and of rcq; only the first if they are the same
	read   split
	broken error // of the first failure: nothing behind it succeeds
}

// sendOp is an operation with what its completion needs.
type sendOp struct {
	rdmap.Op
	code     rnic.Opcode
	signaled bool
	part     bool // not the last Read of a work request with several sinks
	octets   int
	inline   []byte
	next     *sendOp
}

// split gathers the outcome of the Reads that one work request became.
type split struct {
	octets int
	err    error
}

func (d *Device) newQP(cfg rnic.QPConfig) (*qp, error) {
	p, ok := cfg.PD.(*pd)
	scq, ok2 := cfg.SendCQ.(*cq)
	rcq, ok3 := cfg.RecvCQ.(*cq)
	if !ok || !ok2 || !ok3 || p.dev != d || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("%w: a queue pair needs a protection domain and completion queues of its device", rnic.ErrBadWR)
	}
	if cfg.SendDepth < 0 || cfg.SendDepth > maxDepth || cfg.RecvDepth < 0 || cfg.RecvDepth > maxDepth {
		return nil, fmt.Errorf("%w: queue depths %d and %d, limit %d", rnic.ErrTooLarge, cfg.SendDepth, cfg.RecvDepth, maxDepth)
	}
	q := &qp{dev: d, pd: p, scq: scq, rcq: rcq, sendDepth: cfg.SendDepth, onEvent: cfg.OnEvent, done: make(chan struct{})}
	if q.sendDepth == 0 {
		q.sendDepth = defaultQPDepth
	}
	if cfg.SRQ != nil {
		if q.srq, ok = cfg.SRQ.(*srq); !ok || q.srq.dev != d {
			return nil, fmt.Errorf("%w: shared receive queue of another device", rnic.ErrBadWR)
		}
		q.rq = &q.srq.recvQueue
	} else {
		q.rq = &recvQueue{dev: d, pd: p, depth: cfg.RecvDepth}
		if q.rq.depth == 0 {
			q.rq.depth = defaultQPDepth
		}
	}
	if err := q.attach(); err != nil {
		return nil, err
	}
	if err := d.track(q); err != nil {
		q.detach()
		return nil, err
	}
	return q, nil
}

// attach marks what the QP uses as used; detach undoes it.
func (q *qp) attach() error {
	if err := q.pd.use(&q.pd.qps, 1); err != nil {
		return err
	}
	if err := q.scq.attach(); err != nil {
		q.pd.use(&q.pd.qps, -1)
		return err
	}
	if err := q.rcq.attach(); err != nil {
		q.scq.detach()
		q.pd.use(&q.pd.qps, -1)
		return err
	}
	if q.srq != nil {
		if err := q.srq.attach(); err != nil {
			q.rcq.detach()
			q.scq.detach()
			q.pd.use(&q.pd.qps, -1)
			return err
		}
	}
	return nil
}

func (q *qp) detach() {
	if q.srq != nil {
		q.srq.detach()
	}
	q.rcq.detach()
	q.scq.detach()
	q.pd.use(&q.pd.qps, -1)
	q.dev.untrack(q)
}

// start gives the QP its connection.
func (q *qp) start(c *mpa.Conn, cfg rdmap.Config, info rnic.ConnInfo) error {
	cfg.Domain, cfg.Handler = q.pd.domain, q
	cfg.Depth = q.sendDepth * q.dev.attr.MaxReadSGE
	cfg.Linger = q.dev.cfg.Linger
	cfg.Log = q.dev.log
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing || q.state != idle {
		c.Close()
		return fmt.Errorf("%w: queue pair", rnic.ErrClosed)
	}
	q.state, q.conn, q.info = up, c, info
	q.stream = rdmap.NewStream(c, cfg)
	if q.first != nil {
		first := q.first
		q.first, q.last = nil, nil
		if err := q.stream.Post(first); err != nil {
			// An operation that cannot run on this connection, such as a Read with ORD 0:
			// what was accepted completes, in error.
			q.first = first
			q.stream.Abort(err)
		}
	}
	go func() {
		q.stream.Run()
		close(q.done)
	}()
	return nil
}

// PostRecv implements rnic.QP.
func (q *qp) PostRecv(wr *rnic.RecvWR) error {
	if q.srq != nil {
		return fmt.Errorf("%w: the queue pair draws from a shared receive queue", rnic.ErrState)
	}
	if wr == nil {
		return fmt.Errorf("%w: no work request", rnic.ErrBadWR)
	}
	return q.rq.post(wr)
}

// PostSend implements rnic.QP.
func (q *qp) PostSend(wr *rnic.SendWR) error {
	if wr == nil {
		return fmt.Errorf("%w: no work request", rnic.ErrBadWR)
	}
	count := 0
	for w := wr; w != nil; w = w.Next {
		if count++; count > q.sendDepth {
			return fmt.Errorf("%w: a chain exceeds depth %d", rnic.ErrQueue, q.sendDepth)
		}
		if err := q.checkSend(w); err != nil {
			return err
		}
	}
	q.mu.Lock()
	if q.state == dead || q.closing {
		err := q.cause
		q.mu.Unlock()
		return endedError(err)
	}
	if q.out+count > q.sendDepth {
		n := q.out
		q.mu.Unlock()
		return fmt.Errorf("%w: %d of %d work requests are outstanding, %d more do not fit", rnic.ErrQueue, n, q.sendDepth, count)
	}
	q.out += count
	var first, last *rdmap.Op
	for w := wr; w != nil; w = w.Next {
		first, last = q.build(w, first, last)
	}
	if q.stream == nil {
		if q.first == nil {
			q.first = first
		} else {
			q.last.Next = first
		}
		q.last = last
		q.mu.Unlock()
		return nil
	}
	s := q.stream
	q.mu.Unlock()
	if err := s.Post(first); err != nil {
		q.mu.Lock()
		q.out -= count
		for op := first; op != nil; {
			next := op.Next
			q.recycle(op.Context.(*sendOp))
			op = next
		}
		q.mu.Unlock()
		return postError(err)
	}
	return nil
}

// checkSend checks a work request against the device and against the regions that it names.
func (q *qp) checkSend(w *rnic.SendWR) error {
	d := q.dev
	var need rnic.Access
	limit := d.attr.MaxSendSGE
	switch w.Op {
	case rnic.OpSend, rnic.OpWrite:
	case rnic.OpSendInvalidate:
		if err := d.need(rnic.CapSendInvalidate, "Send with Invalidate"); err != nil {
			return err
		}
	case rnic.OpRead:
		need = rnic.LocalWrite
		limit = d.attr.MaxReadSGE
		if d.attr.Caps.Has(rnic.CapReadSinkNeedsRemoteWrite) {
			need |= rnic.RemoteWrite
		}
		if w.Flags&rnic.InvalidateSink != 0 {
			if err := d.need(rnic.CapLocalInvalidate, "RDMA Read with local invalidate"); err != nil {
				return err
			}
		}
	case rnic.OpImmediate:
		if err := d.need(rnic.CapImmediate, "Immediate Data"); err != nil {
			return err
		}
		limit = 0
	case rnic.OpFetchAdd, rnic.OpCmpSwap:
		if err := d.need(rnic.CapAtomics, "atomics"); err != nil {
			return err
		}
		need = rnic.LocalWrite
		limit = 1
	case rnic.OpLocalInvalidate:
		if err := d.need(rnic.CapLocalInvalidate, "local invalidate"); err != nil {
			return err
		}
		if q.pd.lookup(w.RemoteSTag) == nil {
			return fmt.Errorf("%w: no region or window has STag %#08x", rnic.ErrBadWR, uint32(w.RemoteSTag))
		}
		limit = 0
	default:
		return fmt.Errorf("%w: operation %d", rnic.ErrBadWR, w.Op)
	}
	if w.Inline != nil {
		if err := d.need(rnic.CapInline, "inline payload"); err != nil {
			return err
		}
		switch {
		case w.Op != rnic.OpSend && w.Op != rnic.OpSendInvalidate && w.Op != rnic.OpWrite:
			return fmt.Errorf("%w: inline payload is for Sends and Writes", rnic.ErrBadWR)
		case len(w.SGE) > 0:
			return fmt.Errorf("%w: inline payload and a gather list", rnic.ErrBadWR)
		case len(w.Inline) > d.attr.MaxInline:
			return fmt.Errorf("%w: %d octets inline, limit %d", rnic.ErrTooLarge, len(w.Inline), d.attr.MaxInline)
		}
		return nil
	}
	if len(w.SGE) > limit {
		if limit <= 1 && w.Op != rnic.OpRead {
			return fmt.Errorf("%w: %d elements, the operation takes %d", rnic.ErrBadWR, len(w.SGE), limit)
		}
		return fmt.Errorf("%w: %d scatter/gather elements, limit %d", rnic.ErrTooLarge, len(w.SGE), limit)
	}
	n, err := checkSGE(q.pd, w.SGE, need)
	if err != nil {
		return err
	}
	if (w.Op == rnic.OpFetchAdd || w.Op == rnic.OpCmpSwap) && n != 8 {
		return fmt.Errorf("%w: an atomic's result takes 8 octets, not %d", rnic.ErrBadWR, n)
	}
	return nil
}

// build appends the operation, or the operations, that w becomes to a chain. Called with mu held.
func (q *qp) build(w *rnic.SendWR, first, last *rdmap.Op) (*rdmap.Op, *rdmap.Op) {
	o := q.take()
	o.code = w.Op
	o.signaled = w.Flags&rnic.Signaled != 0
	o.User = w.ID
	o.RemoteSTag, o.RemoteTO = ddp.STag(w.RemoteSTag), w.RemoteAddr
	if w.Flags&rnic.Solicited != 0 {
		o.Flags |= rdmap.Solicited
	}
	if w.Flags&rnic.Fence != 0 {
		o.Flags |= rdmap.Fence
	}
	if o.signaled {
		o.Flags |= rdmap.Signaled
	}
	if w.Op == rnic.OpRead {
		return q.buildRead(o, w, first, last)
	}
	o.Segs = appendSegs(o.Segs[:0], w.SGE)
	switch w.Op {
	case rnic.OpSend:
		o.Code = rdmap.Send
	case rnic.OpSendInvalidate:
		o.Code = rdmap.Send
		o.Flags |= rdmap.Invalidate
	case rnic.OpWrite:
		o.Code = rdmap.Write
	case rnic.OpImmediate:
		o.Code = rdmap.Immediate
		o.Imm = w.Imm
	case rnic.OpFetchAdd:
		o.Code = rdmap.FetchAdd
		o.Add, o.AddMask = w.Add, w.AddMask
		o.octets = 8
	case rnic.OpCmpSwap:
		o.Code = rdmap.CmpSwap
		o.Compare, o.CompareMask, o.Swap, o.SwapMask = w.Compare, w.CompareMask, w.Swap, w.Mask
		o.octets = 8
	case rnic.OpLocalInvalidate:
		o.Code = rdmap.LocalInvalidate
		o.LocalInv = q.pd.lookup(w.RemoteSTag)
	}
	if w.Inline != nil {
		if o.inline == nil {
			o.inline = make([]byte, 0, maxInline)
		}
		o.inline = append(o.inline[:0], w.Inline...)
		o.Inline = o.inline
	}
	return link(o, first, last)
}

// buildRead makes one Read per element of the scatter list: an iWARP Read names one sink.
func (q *qp) buildRead(o *sendOp, w *rnic.SendWR, first, last *rdmap.Op) (*rdmap.Op, *rdmap.Op) {
	o.Code = rdmap.Read
	if w.Flags&rnic.InvalidateSink != 0 {
		o.Flags |= rdmap.InvalidateSink
	}
	n := 0
	for i := range w.SGE {
		g := &w.SGE[i]
		if g.Len == 0 {
			continue
		}
		if n++; n > 1 {
			prev := o
			o = q.take()
			o.code, o.signaled, o.Code, o.User = prev.code, prev.signaled, prev.Code, prev.User
			o.Flags = prev.Flags &^ rdmap.Fence // the first of them waited for all
			o.RemoteSTag, o.RemoteTO = prev.RemoteSTag, prev.RemoteTO+uint64(prev.octets)
			prev.part = true
			first, last = link(prev, first, last)
		}
		o.Segs = append(o.Segs[:0], rdmap.Seg{Region: regionOf(g), Off: g.Off, Len: g.Len})
		o.octets = g.Len
	}
	return link(o, first, last)
}

func link(o *sendOp, first, last *rdmap.Op) (*rdmap.Op, *rdmap.Op) {
	if first == nil {
		return &o.Op, &o.Op
	}
	last.Next = &o.Op
	return first, &o.Op
}

// take gets an operation from the free list. Called with mu held.
func (q *qp) take() *sendOp {
	o := q.free
	if o == nil {
		o = new(sendOp)
		o.Segs = o.Own()
	} else {
		q.free, o.next = o.next, nil
	}
	o.Context = o
	return o
}

// recycle puts an operation on the free list. Called with mu held.
func (q *qp) recycle(o *sendOp) {
	segs := o.Segs
	clear(segs)
	o.Reset()
	o.Segs = segs[:0]
	o.part, o.octets = false, 0
	o.next, q.free = q.free, o
}

// Info implements rnic.QP.
func (q *qp) Info() rnic.ConnInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.info
}

// Stats implements rnic.QP.
func (q *qp) Stats() rnic.Stats {
	q.mu.Lock()
	s, c := q.stream, q.conn
	q.mu.Unlock()
	if s == nil {
		return rnic.Stats{}
	}
	r, m := s.Stats(), c.Stats()
	return rnic.Stats{
		FPDUsSent: m.FPDUsOut, FPDUsReceived: m.FPDUsIn,
		OctetsSent: r.OctetsSent, OctetsReceived: r.OctetsReceived,
		CRCsGenerated: m.CRCsComputed, CRCsChecked: m.CRCsChecked, CRCErrors: m.CRCErrors,
		SendsSent: r.SendsSent, SendsReceived: r.SendsReceived,
		WritesSent: r.WritesSent, WritesReceived: r.WritesReceived,
		ReadsSent: r.ReadsSent, ReadsReceived: r.ReadsReceived,
		AtomicsSent: r.AtomicsSent, AtomicsReceived: r.AtomicsReceived,
		InvalidatesSent: r.InvalidatesSent, InvalidatesRecv: r.InvalidatesRecv,
	}
}

// Disconnect implements rnic.QP.
func (q *qp) Disconnect() error {
	q.mu.Lock()
	s := q.stream
	q.mu.Unlock()
	if s == nil {
		return fmt.Errorf("%w: the queue pair is not connected", rnic.ErrState)
	}
	s.Disconnect()
	return nil
}

// Close implements rnic.QP.
func (q *qp) Close() error {
	q.mu.Lock()
	q.closing = true
	if q.cause == nil {
		q.cause = rnic.ErrClosed
	}
	s, cancel := q.stream, q.cancel
	q.mu.Unlock()
	if s != nil {
		s.Abort(rnic.ErrClosed)
	} else {
		if cancel != nil {
			cancel()
		}
		q.fail(rnic.ErrClosed)
	}
	<-q.done
	q.once.Do(q.detach)
	return nil
}
