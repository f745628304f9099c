package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/rnic"
)

// Work request IDs.
const (
	idWork uint64 = iota + 1
	idControl
	idRecv
)

// spareReceives are those for control messages.
const spareReceives = 8

// perfEnd is one end of a test. It lives in the handler of its completion queue: what arrives or completes
// posts what comes next, as a consumer that cares for speed would do it.
//
//	        client                                  server
//	wait    -- mark: begin -->                      wait
//	run     <-- mark: begin --                      run; works too if both ends do
//	        ... the operations ...
//	        -- mark: all is posted and done -->
//	done    <-- note: what you sent was seen --     done when the client disconnects
//
// A mark is a Send without octets; a note, in tests other than of Sends, one of a single octet. Sends need
// receives, and iWARP has nothing that slows their sender down: their receiver sends a mark for each depth that it has
// taken, and the sender is never more than two depths ahead.
type perfEnd struct {
	test   perfTest
	client bool
	worker bool // this end posts operations
	dev    rnic.Device
	pd     rnic.PD
	cq     rnic.CQ
	qp     rnic.QP
	mr     rnic.MR // [0, size) is read and sent from, [size, 2 size) is written and received to
	peer   remote  // set before the first message
	sge    [2][]rnic.SGE

	moved atomic.Int64 // completions: progress
	once  sync.Once
	over  atomic.Bool
	ended chan struct{} // closed when the test is over, with err set
	err   error
	gone  chan struct{} // closed when the connection has ended

	// The handler owns what follows, and leaves it alone once the test is over.
	running bool
	began   time.Time
	took    time.Duration
	stamps  []time.Duration // client: when each operation completed; latency: how long each took
	chain   []rnic.SendWR
	markWR  rnic.SendWR
	recvs   []rnic.RecvWR
	posted  int  // operations
	done    int  // of them
	taken   int  // Sends of the peer
	told    int  // marks about them
	marks   int  // arrived since begin
	echoed  int  // marks or Sends answered, for latency
	ending  bool // this end has said that it is done
	seen    bool // the peer has answered that
	noted   int  // the peer's marks that were answered so
	sentAt  time.Duration
}

// newPerfEnd takes memory for a test and makes its completion queue.
func newPerfEnd(dev rnic.Device, t perfTest, client bool) (e *perfEnd, err error) {
	e = &perfEnd{test: t, client: client, dev: dev, ended: make(chan struct{}), gone: make(chan struct{}), worker: client || t.both}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if limit := dev.Attributes().MaxQPWR; limit > 0 && e.sendDepth()+e.recvDepth() > limit {
		return e, fmt.Errorf("depth %d is too much for device %s", t.depth, dev.Attributes().Name)
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return e, err
	}
	if e.cq, err = dev.CreateCQ(rnic.CQConfig{Depth: e.sendDepth() + e.recvDepth(), Handler: e.handle}); err != nil {
		return e, err
	}
	access := rnic.LocalWrite | rnic.RemoteWrite | rnic.RemoteRead
	if t.op == rnic.OpFetchAdd {
		access |= rnic.RemoteAtomic
	}
	if e.mr, err = e.pd.AllocMR(2*t.size, access); err != nil {
		return e, err
	}
	for i := range e.sge {
		e.sge[i] = []rnic.SGE{{MR: e.mr, Off: i * t.size, Len: t.size}}
	}
	e.markWR = rnic.SendWR{ID: idControl, Op: rnic.OpSend, Flags: rnic.Signaled}
	e.chain = make([]rnic.SendWR, t.depth)
	e.recvs = make([]rnic.RecvWR, e.recvDepth())
	if client {
		e.stamps = make([]time.Duration, 0, t.count)
	}
	return e, nil
}

func (e *perfEnd) sendDepth() int { return 2*e.test.depth + spareReceives }

func (e *perfEnd) recvDepth() int {
	if e.test.op == rnic.OpSend {
		return 2*e.test.depth + spareReceives
	}
	return spareReceives
}

func (e *perfEnd) prepare(create func(rnic.QPConfig) (rnic.QP, error)) error {
	qp, err := create(rnic.QPConfig{
		PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SendDepth: e.sendDepth(), RecvDepth: e.recvDepth(),
		OnEvent: e.event,
	})
	if err != nil {
		return err
	}
	e.qp = qp
	return e.receive(qp, e.recvDepth())
}

// receive posts n receives, all to the sink: nobody looks at what arrives there.
func (e *perfEnd) receive(qp rnic.QP, n int) error {
	for i := range n {
		e.recvs[i] = rnic.RecvWR{ID: idRecv, SGE: e.sge[1]}
		if i > 0 {
			e.recvs[i-1].Next = &e.recvs[i]
		}
	}
	return qp.PostRecv(&e.recvs[0])
}

// params are the Reads to ask for, as many as work at once, within what the device and the peer offer.
func (e *perfEnd) params(peer *rnic.ConnInfo, private []byte) rnic.ConnParams {
	a := e.dev.Attributes()
	p := rnic.ConnParams{PrivateData: private, IRD: min(e.test.depth, a.MaxIRD), ORD: min(e.test.depth, a.MaxORD)}
	if peer != nil {
		p.IRD, p.ORD = min(p.IRD, peer.PeerORD), min(p.ORD, peer.PeerIRD)
	}
	return p
}

func (e *perfEnd) close() {
	if e.qp != nil {
		_ = e.qp.Close()
	}
	if e.mr != nil {
		_ = e.mr.Deregister()
	}
	if e.cq != nil {
		_ = e.cq.Close()
	}
	if e.pd != nil {
		_ = e.pd.Close()
	}
}

// mark posts a Send without octets. The client's first one starts the test.
func (e *perfEnd) mark(qp rnic.QP) error {
	return qp.PostSend(&e.markWR)
}

// note posts a Send of one octet.
func (e *perfEnd) note(qp rnic.QP) error {
	return qp.PostSend(&rnic.SendWR{ID: idControl, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: e.mr, Len: 1}}})
}

// wait waits until the test is over.
func (e *perfEnd) wait(ctx context.Context, patience time.Duration) error {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	seen := e.moved.Load()
	for {
		select {
		case <-e.ended:
			return e.err
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			now := e.moved.Load()
			if now == seen {
				return &stalledError{"the test to go on", patience}
			}
			seen = now
		}
	}
}

// finish ends the test.
func (e *perfEnd) finish(err error) {
	e.once.Do(func() {
		e.over.Store(true)
		e.err = err
		close(e.ended)
	})
}

// event is QPConfig.OnEvent.
func (e *perfEnd) event(ev rnic.Event) {
	switch {
	case ev.Kind == rnic.Established:
		return
	case ev.Kind == rnic.Failed:
		e.finish(ev.Err)
	case e.client:
		e.finish(errPeerDone)
	default:
		e.finish(nil) // the client decides when it has seen enough
	}
	close(e.gone)
}

// handle is CQConfig.Handler.
func (e *perfEnd) handle(wc []rnic.Completion) {
	e.moved.Add(int64(len(wc)))
	if e.over.Load() {
		return
	}
	qp := wc[0].QP // e.qp may not be set yet
	arrived := 0
	for i := range wc {
		c := &wc[i]
		switch {
		case c.Status == rnic.StatusFlushed:
			return // the event says why
		case c.Err != nil:
			e.finish(c.Err)
			return
		case c.ID == idWork:
			e.done++
		case c.ID == idControl:
		case c.Len == 0:
			arrived++
			e.marks++
		default:
			arrived++
			if e.test.op == rnic.OpSend {
				e.taken++
			} else {
				e.seen = true
			}
		}
	}
	var err error
	if arrived > 0 {
		err = e.receive(qp, arrived)
	}
	if err == nil {
		err = e.step(qp)
	}
	if err != nil && !errors.Is(err, rnic.ErrClosed) { // the event of a connection that has ended says why
		e.finish(err)
	}
}

// step does what the counters ask for.
func (e *perfEnd) step(qp rnic.QP) error {
	if !e.running {
		if e.marks == 0 {
			return nil
		}
		e.marks--
		e.running, e.began = true, time.Now()
		if !e.client {
			if err := e.mark(qp); err != nil {
				return err
			}
		}
	}
	switch {
	case e.test.latency && e.client:
		return e.stepLatency(qp)
	case e.test.latency:
		return e.stepEcho(qp)
	case e.test.op == rnic.OpSend:
		return e.stepSends(qp)
	}
	return e.stepBandwidth(qp)
}

// stepLatency posts the client's next operation when the one before has been answered.
func (e *perfEnd) stepLatency(qp rnic.QP) error {
	answered, ways := e.marks+e.taken, time.Duration(2)
	if e.test.op == rnic.OpRead || e.test.op == rnic.OpFetchAdd {
		answered, ways = e.done, 1
	}
	if answered < e.posted {
		return nil
	}
	now := time.Since(e.began)
	if e.posted > 0 {
		e.stamps = append(e.stamps, (now-e.sentAt)/ways)
	}
	if e.posted == e.test.count {
		e.took = now
		e.finish(nil)
		return nil
	}
	e.posted++
	e.sentAt = now
	return e.single(qp)
}

// stepEcho answers what arrived in the same way.
func (e *perfEnd) stepEcho(qp rnic.QP) error {
	for ; e.echoed < e.marks+e.taken; e.echoed++ {
		if err := e.single(qp); err != nil {
			return err
		}
	}
	return nil
}

// single posts one operation of a latency test. A Write is followed by a mark, which is what completes.
func (e *perfEnd) single(qp rnic.QP) error {
	wr := &e.chain[0]
	*wr = e.operation()
	if e.test.op == rnic.OpWrite {
		wr.Flags = 0
		wr.Next = &e.markWR
	}
	return qp.PostSend(wr)
}

// operation is the work request of one operation.
func (e *perfEnd) operation() rnic.SendWR {
	wr := rnic.SendWR{ID: idWork, Op: e.test.op, Flags: rnic.Signaled, SGE: e.sge[0]}
	switch e.test.op {
	case rnic.OpWrite:
		wr.RemoteSTag, wr.RemoteAddr = e.peer.stag, e.peer.addr+uint64(e.test.size)
	case rnic.OpRead:
		wr.SGE = e.sge[1]
		wr.RemoteSTag, wr.RemoteAddr = e.peer.stag, e.peer.addr
	case rnic.OpFetchAdd:
		wr.SGE = e.sge[1]
		wr.RemoteSTag, wr.RemoteAddr, wr.Add = e.peer.stag, e.peer.addr, 1
	}
	return wr
}

// work posts as many operations as the depth allows, but not more than limit in all.
func (e *perfEnd) work(qp rnic.QP, limit int) error {
	if e.client {
		for now := time.Since(e.began); len(e.stamps) < e.done; {
			e.stamps = append(e.stamps, now)
		}
	}
	n := min(limit, e.test.count, e.done+e.test.depth) - e.posted
	if !e.worker || n <= 0 {
		return nil
	}
	for i := range n {
		e.chain[i] = e.operation()
		if i > 0 {
			e.chain[i-1].Next = &e.chain[i]
		}
	}
	e.posted += n
	return qp.PostSend(&e.chain[0])
}

// stepSends is the bandwidth of Sends, whose receivers say how far they are.
func (e *perfEnd) stepSends(qp rnic.QP) error {
	owed := e.taken / e.test.depth
	if e.taken == e.test.count && e.taken%e.test.depth > 0 {
		owed++
	}
	for ; e.told < owed; e.told++ {
		if err := e.mark(qp); err != nil {
			return err
		}
	}
	acked := min(e.marks*e.test.depth, e.test.count)
	if err := e.work(qp, acked+2*e.test.depth); err != nil {
		return err
	}
	if e.client && acked == e.test.count && e.done == e.test.count && (!e.test.both || e.taken == e.test.count) {
		e.took = time.Since(e.began)
		e.finish(nil)
	}
	return nil
}

// stepBandwidth is the bandwidth of everything else.
func (e *perfEnd) stepBandwidth(qp rnic.QP) error {
	for ; e.noted < e.marks; e.noted++ {
		if err := e.note(qp); err != nil {
			return err
		}
	}
	if err := e.work(qp, e.test.count); err != nil {
		return err
	}
	if e.worker && e.done == e.test.count && !e.ending {
		e.ending = true
		if err := e.mark(qp); err != nil {
			return err
		}
	}
	if e.client && e.seen && (!e.test.both || e.marks > 0) {
		e.took = time.Since(e.began)
		e.finish(nil)
	}
	return nil
}
