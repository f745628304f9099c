//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// errPeer is the end of a connection that this side did not ask for.
var errPeer = errors.New("verbs: the peer ended the connection")

// cmEvent is an event of the connection manager.
type cmEvent struct {
	kind     int
	status   int
	ird, ord int
	private  []byte
}

// takeCM takes an event off the device's channel.
func (d *Device) takeCM() bool {
	var c C.struct_gw_cm_event
	if C.gw_cm_event(d.cm, &c) != 0 {
		return false
	}
	ev := cmEvent{
		kind: int(c.kind), status: int(c.status), ird: int(c.ird), ord: int(c.ord),
		private: C.GoBytes(unsafe.Pointer(&c.private_data[0]), C.int(c.private_len)),
	}
	d.log.Debug("connection manager", "event", C.GoString(C.rdma_event_str(uint32(c.kind))), "status", ev.status)
	switch o := lookup(uintptr(c.handle)).(type) {
	case *endpoint:
		o.event(ev)
	case *listener:
		if c.id != nil && ev.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
			o.request(c.id, ev)
		} else if ev.kind == C.RDMA_CM_EVENT_DEVICE_REMOVAL {
			d.remove()
		}
	default:
		if ev.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
			C.rdma_destroy_id(c.id) // its listener is gone
		}
	}
	return true
}

// endpoint is an identifier of the connection manager that is no listener.
type endpoint struct {
	dev    *Device
	id     *C.struct_rdma_cm_id
	handle uintptr
	events chan cmEvent
	call   chan struct{} // holds a token while nobody calls the kernel for id

	mu   sync.Mutex // guards what follows
	qp   *qp
	dead bool
}

func (d *Device) newEndpoint() *endpoint {
	e := &endpoint{dev: d, events: make(chan cmEvent, 16), call: make(chan struct{}, 1)}
	e.call <- struct{}{}
	e.handle = newHandle(e)
	return e
}

// event is called by the goroutine of the device's channel.
func (e *endpoint) event(ev cmEvent) {
	select {
	case e.events <- ev:
	default: // nobody has listened since the connection was set up
	}
	e.mu.Lock()
	q := e.qp
	e.mu.Unlock()
	switch ev.kind {
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		e.dev.remove()
	case C.RDMA_CM_EVENT_DISCONNECTED:
		if q != nil {
			for e.dev.takeAsync() { // it may say why
			}
			q.end(errPeer)
		}
	}
}

// wait waits for an event that answers a call: one of want, or any that is a failure.
func (e *endpoint) wait(ctx context.Context, want int) (cmEvent, error) {
	for {
		select {
		case ev := <-e.events:
			if ev.kind == want && ev.status == 0 {
				return ev, nil
			}
			if err := e.failure(ev); err != nil {
				return ev, err
			}
		case <-ctx.Done():
			return cmEvent{}, ctx.Err()
		}
	}
}

// failure is the error that an event means, if any.
func (e *endpoint) failure(ev cmEvent) error {
	errno := unix.Errno(max(ev.status, -ev.status))
	const noListener, consumer = 8, 28 // reasons of InfiniBand's REJ (IBTA, section 12.6.7.2)
	switch ev.kind {
	case C.RDMA_CM_EVENT_ADDR_ERROR, C.RDMA_CM_EVENT_ROUTE_ERROR:
		return fmt.Errorf("no RDMA device reaches it (%w): does the interface towards it have a link? see 'iwarp links'", errno)
	case C.RDMA_CM_EVENT_UNREACHABLE:
		return fmt.Errorf("no answer: %w", errno)
	case C.RDMA_CM_EVENT_CONNECT_ERROR:
		return fmt.Errorf("connection setup failed: %w", errno)
	case C.RDMA_CM_EVENT_REJECTED:
		switch {
		case e.dev.iwarp && errno != unix.ECONNRESET, !e.dev.iwarp && ev.status == noListener:
			return unix.ECONNREFUSED
		case !e.dev.iwarp && ev.status != consumer:
			return fmt.Errorf("refused by the peer's connection manager, reason %d", ev.status)
		}
		return &rnic.RejectedError{PrivateData: ev.private}
	case C.RDMA_CM_EVENT_DISCONNECTED:
		return errPeer
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		return errRemoved
	}
	return nil
}

// run runs a call into the kernel that may take long. The call goes on when ctx ends; whoever destroys the endpoint
// waits for it.
func (e *endpoint) run(ctx context.Context, f func() C.int) error {
	select {
	case <-e.call:
	case <-ctx.Done():
		return ctx.Err()
	}
	rc := make(chan C.int, 1)
	go func() {
		rc <- f()
		e.call <- struct{}{}
	}()
	select {
	case n := <-rc:
		if n != 0 {
			return unix.Errno(n)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// own waits until no call is under way, and keeps others out for ever.
func (e *endpoint) own(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-e.call:
		return true
	case <-t.C:
		return false
	}
}

// destroy gives the identifier back. The caller owns it.
func (e *endpoint) destroy() {
	e.mu.Lock()
	dead := e.dead
	e.dead = true
	e.mu.Unlock()
	dropHandle(e.handle)
	if !dead && e.id != nil {
		C.rdma_destroy_id(e.id)
	}
}

// drop destroys an endpoint that has no queue pair.
func (e *endpoint) drop() {
	if e.own(e.dev.cfg.Removal) {
		e.destroy()
	}
}

// createQP makes the endpoint's queue pair.
func (e *endpoint) createQP(cfg rnic.QPConfig) (*qp, error) {
	q, err := e.dev.newQP(e, cfg)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.qp = q
	e.mu.Unlock()
	return q, nil
}
