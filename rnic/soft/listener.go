package soft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"goiwarp/rnic"
)

// maxHandshakes bounds the connections of a listener that have not been accepted or refused by
// the consumer yet; more wait in the network's own backlog.
const maxHandshakes = 128

// listener takes connections and reads their Requests, each on its own goroutine, so that a slow
// peer holds up nobody.
type listener struct {
	dev    *Device
	ln     net.Listener
	opts   *rnic.LinkOptions
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	slots chan struct{} // one token per connection between the network and Accept
	ready chan *request
	wg    sync.WaitGroup
}

// Listen implements rnic.Device. A peer that does not begin with a valid MPA Request is dropped and
// logged at debug level.
func (d *Device) Listen(ctx context.Context, addr string, opts *rnic.LinkOptions) (rnic.Listener, error) {
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	ln, err := d.network.Listen(ctx, addr)
	if err != nil {
		return nil, networkError("listen on "+addr, err)
	}
	l := &listener{dev: d, ln: ln, opts: opts, slots: make(chan struct{}, maxHandshakes), ready: make(chan *request)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if err := d.track(l); err != nil {
		ln.Close()
		l.cancel()
		return nil, err
	}
	l.wg.Go(l.run)
	return l, nil
}

func (l *listener) run() {
	const longest = time.Second
	var pause time.Duration // after errors that may pass, such as too many open files
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.ln.Accept()
		if err != nil {
			<-l.slots
			if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			pause = min(max(2*pause, 5*time.Millisecond), longest)
			l.dev.log.Warn("accept failed", "addr", l.ln.Addr(), "error", err, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
				return
			}
			continue
		}
		pause = 0
		l.wg.Go(func() {
			defer func() { <-l.slots }()
			l.greet(c)
		})
	}
}

// greet reads a Request and waits for a consumer who wants it.
func (l *listener) greet(c net.Conn) {
	r, err := l.dev.newRequest(l.ctx, c, nil, l.opts)
	if err != nil {
		l.dev.log.Debug("no valid request", "peer", c.RemoteAddr(), "error", err)
		return
	}
	select {
	case l.ready <- r:
	case <-l.ctx.Done():
		r.abandon()
	}
}

// Accept implements rnic.Listener.
func (l *listener) Accept(ctx context.Context) (rnic.Request, error) {
	select {
	case r := <-l.ready:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, fmt.Errorf("%w: listener", rnic.ErrClosed)
	}
}

func (l *listener) Addr() net.Addr { return l.ln.Addr() }

// Close implements rnic.Listener. Requests that nobody has accepted are dropped.
func (l *listener) Close() error {
	l.cancel()
	err := l.ln.Close()
	l.wg.Wait()
	l.dev.untrack(l)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
