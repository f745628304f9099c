package soft

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

// cq is a completion queue in one of two modes.
//
// Polled: completions go to a ring that Poll empties. The ring starts small and grows up to what
// is really used, since most queues never see their depth.
//
// With a handler: the goroutine that made the completions calls it. Two connections that share
// the queue take turns on turn, so that each one's batch runs on its own goroutine and what the
// batch posts leaves in that connection's flush. Posting never takes turn.
type cq struct {
	dev     *Device
	depth   int
	handler func([]rnic.Completion)
	turn    sync.Mutex // held while the handler runs

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
	return c, nil
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
		at := c.head + c.n
		if at >= len(c.ring) {
			at -= len(c.ring)
		}
		c.ring[at] = batch[i]
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
	size := max(2*len(c.ring), 16)
	ring := make([]rnic.Completion, size)
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

// Poll implements rnic.CQ.
func (c *cq) Poll(wc []rnic.Completion) (int, error) {
	if c.handler != nil {
		return 0, fmt.Errorf("%w: this completion queue has a handler", rnic.ErrState)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := 0
	for k < len(wc) && c.n > 0 {
		wc[k] = c.ring[c.head]
		c.ring[c.head] = rnic.Completion{} // drops the reference to the QP
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
		c.n--
		k++
	}
	if k == 0 && c.closed {
		return 0, rnic.ErrClosed
	}
	return k, nil
}

// Wait implements rnic.CQ.
func (c *cq) Wait(ctx context.Context) error {
	if c.handler != nil {
		return fmt.Errorf("%w: this completion queue has a handler", rnic.ErrState)
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
	if !c.closed {
		c.closed = true
		close(c.done)
	}
	c.mu.Unlock()
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
