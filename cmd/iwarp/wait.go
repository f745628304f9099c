package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"goiwarp/rnic"
)

// errPeerDone says that the peer ended the connection in order.
var errPeerDone = errors.New("the peer ended the connection")

// stalledError says what a wait that lasted too long was for.
type stalledError struct {
	what string
	d    time.Duration
}

func (e *stalledError) Error() string {
	return fmt.Sprintf("gave up waiting for %s after %v", e.what, e.d)
}

// Timeout tells that time has run out, as net.Error has it.
func (e *stalledError) Timeout() bool { return true }

// waiter takes a connection's completions, one by one, and its events.
type waiter struct {
	cq      rnic.CQ
	events  chan rnic.Event
	timeout time.Duration // of each wait
}

// newWaiter makes a waiter; its event method is for QPConfig.OnEvent.
func newWaiter(cq rnic.CQ, timeout time.Duration) *waiter {
	return &waiter{cq: cq, events: make(chan rnic.Event, 3), timeout: timeout} // each kind comes once at most
}

func (w *waiter) event(ev rnic.Event) { w.events <- ev }

// next waits for a completion of work that succeeded. If the work failed it says why the
// connection ended, or errPeerDone.
func (w *waiter) next(ctx context.Context, what string) (rnic.Completion, error) {
	var wc [1]rnic.Completion
	for {
		n, err := w.cq.Poll(wc[:])
		if err != nil {
			return rnic.Completion{}, err
		}
		if n == 1 {
			break
		}
		if err := w.wait(ctx, what); err != nil {
			return rnic.Completion{}, err
		}
	}
	if wc[0].Status == rnic.StatusOK {
		return wc[0], nil
	}
	return rnic.Completion{}, w.cause(ctx, wc[0], what)
}

func (w *waiter) wait(ctx context.Context, what string) error {
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	err := w.cq.Wait(limited)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return &stalledError{what, w.timeout}
	}
	return err
}

// cause is why work failed: the connection's end knows more than the work that was flushed with it.
func (w *waiter) cause(ctx context.Context, wc rnic.Completion, what string) error {
	limit := time.NewTimer(w.timeout)
	defer limit.Stop()
	for {
		select {
		case ev := <-w.events:
			switch {
			case ev.Kind == rnic.Disconnected:
				return errPeerDone
			case ev.Kind == rnic.Failed && wc.Status == rnic.StatusFlushed && ev.Err != nil:
				return fmt.Errorf("waiting for %s: %w", what, ev.Err)
			case ev.Kind == rnic.Failed:
				return fmt.Errorf("waiting for %s: %w", what, wc.Err)
			}
		case <-limit.C:
			return fmt.Errorf("waiting for %s: %w", what, wc.Err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closed waits for the end of a connection that was told to disconnect, for politeness: a peer
// that does not answer loses nothing by being dropped.
func (w *waiter) closed(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case ev := <-w.events:
			if ev.Kind != rnic.Established {
				return
			}
		case <-t.C:
			return
		}
	}
}

// causeOf is the reason that ctx gives for its end, if that is why err came up; else err. What waits on
// a socket may notice the deadline a moment before ctx does.
func causeOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
