//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// backlog bounds the requests that no consumer has taken; more are refused.
const backlog = 128

// listener takes requests.
type listener struct {
	dev    *Device
	id     *C.struct_rdma_cm_id
	handle uintptr
	addr   net.Addr
	ready  chan *request
	done   chan struct{}
	once   sync.Once
}

func (d *Device) listen(ctx context.Context, addr string) (*listener, error) {
	at, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	l := &listener{dev: d, ready: make(chan *request, backlog), done: make(chan struct{})}
	l.handle = newHandle(l)
	if err := d.track(l); err != nil {
		dropHandle(l.handle)
		return nil, err
	}
	err = func() error {
		if rc := C.gw_create_id(d.cm, C.uintptr_t(l.handle), &l.id); rc != 0 {
			return unix.Errno(rc)
		}
		if rc, err := C.rdma_bind_addr(l.id, csockaddr(at)); rc != 0 {
			return bindError(err)
		}
		if l.id.verbs != nil && l.id.verbs != d.ctx {
			return fmt.Errorf("the address belongs to device %s, not %s", C.GoString(C.ibv_get_device_name(l.id.verbs.device)), d.attr.Name)
		}
		if rc, err := C.rdma_listen(l.id, backlog); rc != 0 {
			return bindError(err)
		}
		return nil
	}()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	var raw unix.RawSockaddrAny
	C.gw_address(l.id, 0, unsafe.Pointer(&raw))
	l.addr = tcpAddr(&raw)
	return l, nil
}

// bindError says what to do about the usual mistakes.
func bindError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: siw listens on the kernel's TCP port, which a program's listener must not have: give each its own", err)
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: no RDMA device has that address; see 'iwarp links'", err)
	}
	return err
}

// request is called by the goroutine of the device's channel.
func (l *listener) request(id *C.struct_rdma_cm_id, ev cmEvent) {
	e := l.dev.newEndpoint()
	e.id = id
	C.gw_set_handle(id, C.uintptr_t(e.handle))
	r := &request{endpoint: e}
	if id.verbs != l.dev.ctx || l.dev.track(r) != nil {
		C.rdma_reject(id, nil, 0)
		e.drop()
		return
	}
	r.info = rnic.ConnInfo{
		LocalAddr: e.address(0), RemoteAddr: e.address(1), PrivateData: ev.private, PeerIRD: ev.ird, PeerORD: ev.ord,
	}
	r.info.Link = l.dev.link(&r.info)[:2]
	select {
	case <-l.done:
		r.abandon()
		return
	default:
	}
	select {
	case l.ready <- r:
	default:
		l.dev.log.Warn("too many requests wait; one is refused", "peer", r.info.RemoteAddr)
		r.abandon()
	}
}

// Accept implements rnic.Listener.
func (l *listener) Accept(ctx context.Context) (rnic.Request, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return nil, l.closed()
	default:
	}
	select {
	case r := <-l.ready:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, l.closed()
	}
}

// closed is why nothing is accepted any more.
func (l *listener) closed() error {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if l.dev.removed {
		return fmt.Errorf("%w: %w", rnic.ErrClosed, errRemoved)
	}
	return fmt.Errorf("%w: listener", rnic.ErrClosed)
}

func (l *listener) Addr() net.Addr { return l.addr }

// Close implements rnic.Listener. Requests that nobody has accepted are dropped.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		dropHandle(l.handle)
		if l.id != nil {
			C.rdma_destroy_id(l.id)
		}
		l.dev.untrack(l)
		for {
			select {
			case r := <-l.ready:
				r.abandon()
				continue
			default:
			}
			return
		}
	})
	return nil
}

// request is an incoming connection.
type request struct {
	*endpoint
	info rnic.ConnInfo

	state    sync.Mutex // guards what follows
	q        *qp
	answered bool
}

// Info implements rnic.Request.
func (r *request) Info() rnic.ConnInfo { return r.info }

// CreateQP implements rnic.Request.
func (r *request) CreateQP(cfg rnic.QPConfig) (rnic.QP, error) {
	r.state.Lock()
	defer r.state.Unlock()
	switch {
	case r.answered:
		return nil, fmt.Errorf("%w: request", rnic.ErrClosed)
	case r.q != nil:
		return nil, fmt.Errorf("%w: the request has its queue pair", rnic.ErrState)
	}
	q, err := r.createQP(cfg)
	if err != nil {
		return nil, err
	}
	r.q = q
	return q, nil
}

// answer takes the right to answer, which exists once.
func (r *request) answer(needQP bool) error {
	r.state.Lock()
	defer r.state.Unlock()
	switch {
	case r.answered:
		return fmt.Errorf("%w: the request was answered", rnic.ErrState)
	case needQP && r.q == nil:
		return fmt.Errorf("%w: Accept comes after CreateQP", rnic.ErrState)
	}
	r.answered = true
	r.dev.untrack(r)
	return nil
}

// Accept implements rnic.Request. A failure is told by the error alone, as with Connect.
func (r *request) Accept(ctx context.Context, p rnic.ConnParams) error {
	if err := r.dev.checkParams(p); err != nil {
		return err
	}
	if err := r.answer(true); err != nil {
		return err
	}
	if err := r.accept(ctx, p); err != nil {
		r.q.end(err)
		return fmt.Errorf("verbs: accept %v: %w", r.info.RemoteAddr, err)
	}
	return nil
}

func (r *request) accept(ctx context.Context, p rnic.ConnParams) error {
	q, info := r.q, r.info
	info.ORD = min(p.ORD, info.PeerIRD) // no more than the peer serves
	info.IRD = p.IRD
	if r.dev.siw { // it serves what the peer asks for
		info.IRD = max(p.IRD, min(info.PeerORD, r.dev.attr.MaxIRD))
	}
	info.Link = r.dev.link(&info)
	q.mu.Lock()
	if q.state != idle {
		defer q.mu.Unlock()
		return endedError(q.cause)
	}
	// From here on the peer's first message may arrive at any time.
	q.info, q.connected, q.gated = info, true, true
	q.mu.Unlock()
	private := append([]byte(nil), p.PrivateData...)
	err := r.run(ctx, func() C.int {
		data, n := privateData(private)
		return C.gw_accept(r.id, data, n, C.uint8_t(info.IRD), C.uint8_t(info.ORD))
	})
	if err == nil {
		_, err = r.wait(ctx, C.RDMA_CM_EVENT_ESTABLISHED)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.started = true
	q.mu.Unlock()
	if !r.dev.iwarp { // the peer's connection manager has said that it is ready
		q.heard()
	}
	return nil
}

// Reject implements rnic.Request.
func (r *request) Reject(private []byte) error {
	if limit := r.dev.attr.MaxPrivate; len(private) > limit {
		return fmt.Errorf("%w: %d octets of private data, limit %d", rnic.ErrTooLarge, len(private), limit)
	}
	if err := r.answer(false); err != nil {
		return err
	}
	err := r.reject(private)
	r.leave(fmt.Errorf("%w: the request was rejected", rnic.ErrClosed))
	return err
}

func (r *request) reject(private []byte) error {
	data, n := privateData(private)
	if rc, err := C.rdma_reject(r.id, data, n); rc != 0 {
		return fmt.Errorf("verbs: reject %v: %w", r.info.RemoteAddr, err)
	}
	return nil
}

// leave ends what belongs to a request that was not accepted.
func (r *request) leave(why error) {
	if r.q != nil {
		r.q.end(why)
		return
	}
	r.drop()
}

// abandon closes a request that nobody answers.
func (r *request) abandon() {
	if r.answer(false) != nil {
		return
	}
	_ = r.reject(nil)
	r.leave(fmt.Errorf("%w: the request was not answered", rnic.ErrClosed))
}
