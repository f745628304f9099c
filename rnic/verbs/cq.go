//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"sync"

	"goiwarp/rnic"
)

// Default depths where a configuration says 0.
const (
	defaultCQDepth  = 1024
	defaultSRQDepth = 256
	defaultQPDepth  = 128
)

// cq is a completion queue for consumers. Behind it every queue pair has completion queues of the device of
// its own, as deep as the work that it may have outstanding: so a device's queue never overruns, whatever depth
// the consumer chose, and a queue pair's end can be waited for apart from others. They share a completion
// channel, whose goroutine polls the queue that has something and hands its completions on:
//
//	device's queues --- completion channel --> goroutine --> Handler
//	                                                     +-> ring --> Poll, Wait
type cq struct {
	dev     *Device
	depth   int
	handler func([]rnic.Completion)
	channel *C.struct_ibv_comp_channel
	events  *watcher
	event   C.uintptr_t // whose it is; its goroutine's own
	turn    sync.Mutex  // held while the handler runs: a queue pair's end delivers, too

	mu      sync.Mutex // guards what follows
	ring    []rnic.Completion
	head, n int
	qps     int
	closed  bool

	ready chan struct{} // holds a token while completions may be there
	done  chan struct{} // closed with the queue
}

// CreateCQ implements rnic.Device.
func (d *Device) CreateCQ(cfg rnic.CQConfig) (rnic.CQ, error) {
	if cfg.Depth < 0 {
		return nil, fmt.Errorf("%w: CQ depth %d", rnic.ErrBadWR, cfg.Depth)
	}
	c := &cq{dev: d, depth: cfg.Depth, handler: cfg.Handler, ready: make(chan struct{}, 1), done: make(chan struct{})}
	if c.depth == 0 {
		c.depth = defaultCQDepth
	}
	if err := d.track(c); err != nil {
		return nil, err
	}
	var err error
	if c.channel, err = C.ibv_create_comp_channel(d.ctx); c.channel == nil {
		d.untrack(c)
		return nil, d.resource("a completion channel", 0, err)
	}
	if c.events, err = watch(int(c.channel.fd), c.take); err != nil {
		C.ibv_destroy_comp_channel(c.channel)
		d.untrack(c)
		return nil, err
	}
	return c, nil
}

// take takes an event off the channel: one of the device's queues has completions.
func (c *cq) take() bool {
	if C.gw_cq_event(c.channel, &c.event) != 0 {
		return false
	}
	if q, ok := lookup(uintptr(c.event)).(*qp); ok {
		q.process(true)
	}
	return true
}

// deliver hands completions to the consumer, in order. It keeps every one of them: where they
// exceed the depth it says so, and the caller fails its connection.
func (c *cq) deliver(batch []rnic.Completion) error {
	if len(batch) == 0 {
		return nil
	}
	if c.handler != nil {
		c.turn.Lock()
		c.handler(batch)
		c.turn.Unlock()
		return nil
	}
	c.mu.Lock()
	for i := range batch {
		if c.n == len(c.ring) {
			c.grow()
		}
		c.ring[(c.head+c.n)%len(c.ring)] = batch[i]
		c.n++
	}
	over := c.n > c.depth
	c.mu.Unlock()
	c.signal()
	if over {
		return fmt.Errorf("%w: completion queue of depth %d overran", rnic.ErrQueue, c.depth)
	}
	return nil
}

// grow doubles the ring. Called with mu held.
func (c *cq) grow() {
	ring := make([]rnic.Completion, max(2*len(c.ring), 16))
	k := copy(ring, c.ring[c.head:])
	copy(ring[k:], c.ring[:c.head])
	c.ring, c.head = ring, 0
}

func (c *cq) signal() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// polled refuses Poll and Wait where there is a handler.
func (c *cq) polled() error {
	if c.handler != nil {
		return fmt.Errorf("%w: this completion queue has a handler", rnic.ErrState)
	}
	return nil
}

// Poll implements rnic.CQ.
func (c *cq) Poll(wc []rnic.Completion) (int, error) {
	if err := c.polled(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && c.n == 0 {
		return 0, rnic.ErrClosed
	}
	n := min(len(wc), c.n)
	for i := range n {
		wc[i] = c.ring[c.head]
		c.ring[c.head] = rnic.Completion{} // holds nothing for the collector
		c.head = (c.head + 1) % len(c.ring)
	}
	c.n -= n
	return n, nil
}

// Wait implements rnic.CQ.
func (c *cq) Wait(ctx context.Context) error {
	if err := c.polled(); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		n, closed := c.n, c.closed
		c.mu.Unlock()
		switch {
		case n > 0:
			c.signal() // for another waiter
			return nil
		case closed:
			return rnic.ErrClosed
		}
		select {
		case <-c.ready:
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close implements rnic.CQ. It fails with ErrBusy while a QP uses the queue.
func (c *cq) Close() error {
	c.mu.Lock()
	if c.qps > 0 {
		c.mu.Unlock()
		return fmt.Errorf("%w: %d queue pairs use this completion queue", rnic.ErrBusy, c.qps)
	}
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	close(c.done)
	c.events.close()
	C.ibv_destroy_comp_channel(c.channel)
	c.dev.untrack(c)
	return nil
}

// attach counts a QP in; detach counts it out.
func (c *cq) attach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return rnic.ErrClosed
	}
	c.qps++
	return nil
}

func (c *cq) detach() {
	c.mu.Lock()
	c.qps--
	c.mu.Unlock()
}
