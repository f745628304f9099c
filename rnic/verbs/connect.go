//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// checkParams refuses what the device or the connection manager cannot do.
func (d *Device) checkParams(p rnic.ConnParams) error {
	switch {
	case len(p.PrivateData) > d.attr.MaxPrivate:
		return fmt.Errorf("%w: %d octets of private data, limit %d", rnic.ErrTooLarge, len(p.PrivateData), d.attr.MaxPrivate)
	case p.IRD < 0 || p.IRD > d.attr.MaxIRD:
		return fmt.Errorf("%w: IRD %d, limit %d", rnic.ErrTooLarge, p.IRD, d.attr.MaxIRD)
	case p.ORD < 0 || p.ORD > d.attr.MaxORD:
		return fmt.Errorf("%w: ORD %d, limit %d", rnic.ErrTooLarge, p.ORD, d.attr.MaxORD)
	}
	return nil
}

// privateData is b for C; nil if there is none.
func privateData(b []byte) (unsafe.Pointer, C.uint8_t) {
	if len(b) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&b[0]), C.uint8_t(len(b))
}

// link tells people what carries the connection.
func (d *Device) link(info *rnic.ConnInfo) []rnic.LinkFact {
	transport := "InfiniBand or RoCE"
	if d.iwarp {
		transport = "iWARP"
	}
	return []rnic.LinkFact{
		{Name: "device", Value: d.attr.Name},
		{Name: "transport", Value: transport},
		{Name: "ird", Value: strconv.Itoa(info.IRD)},
		{Name: "ord", Value: strconv.Itoa(info.ORD)},
	}
}

// connector is an outgoing connection.
type connector struct {
	*endpoint
	local, remote net.Addr

	state sync.Mutex // guards what follows
	q     *qp
	busy  bool // Connect was called
	over  bool
}

// dial resolves the address and the route.
func (d *Device) dial(ctx context.Context, addr string) (*connector, error) {
	to, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	e := d.newEndpoint()
	k := &connector{endpoint: e}
	if err := d.track(k); err != nil {
		dropHandle(e.handle)
		return nil, err
	}
	if rc := C.gw_create_id(d.cm, C.uintptr_t(e.handle), &e.id); rc != 0 {
		dropHandle(e.handle)
		d.untrack(k)
		return nil, unix.Errno(rc)
	}
	if err := k.resolve(ctx, to); err != nil {
		k.drop()
		d.untrack(k)
		return nil, err
	}
	k.local, k.remote = e.address(0), e.address(1)
	return k, nil
}

func (k *connector) resolve(ctx context.Context, to *unix.RawSockaddrAny) error {
	const ms = C.int(resolveTime / time.Millisecond)
	step := func(f func() (C.int, error), want int) error {
		if rc, err := f(); rc != 0 {
			return err
		}
		_, err := k.wait(ctx, want)
		return err
	}
	if err := step(func() (C.int, error) {
		rc, err := C.rdma_resolve_addr(k.id, nil, csockaddr(to), ms)
		return rc, err
	}, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) {
			return k.failure(cmEvent{kind: C.RDMA_CM_EVENT_ADDR_ERROR, status: int(unix.ENODEV)})
		}
		return err
	}
	if k.id.verbs != k.dev.ctx {
		return fmt.Errorf("it is reached through device %s, not %s", C.GoString(C.ibv_get_device_name(k.id.verbs.device)), k.dev.attr.Name)
	}
	return step(func() (C.int, error) {
		rc, err := C.rdma_resolve_route(k.id, ms)
		return rc, err
	}, C.RDMA_CM_EVENT_ROUTE_RESOLVED)
}

func (k *connector) LocalAddr() net.Addr  { return k.local }
func (k *connector) RemoteAddr() net.Addr { return k.remote }

// CreateQP implements rnic.Connector.
func (k *connector) CreateQP(cfg rnic.QPConfig) (rnic.QP, error) {
	k.state.Lock()
	defer k.state.Unlock()
	switch {
	case k.over:
		return nil, fmt.Errorf("%w: connector", rnic.ErrClosed)
	case k.q != nil:
		return nil, fmt.Errorf("%w: the connection has its queue pair", rnic.ErrState)
	}
	q, err := k.createQP(cfg)
	if err != nil {
		return nil, err
	}
	k.q = q
	return q, nil
}

// Connect implements rnic.Connector. A failure is told by the error alone: the QP has no event, and what was posted on
// it is flushed.
func (k *connector) Connect(ctx context.Context, p rnic.ConnParams) (rnic.ConnInfo, error) {
	if err := k.dev.checkParams(p); err != nil {
		return rnic.ConnInfo{}, err
	}
	k.state.Lock()
	switch {
	case k.over:
		k.state.Unlock()
		return rnic.ConnInfo{}, fmt.Errorf("%w: connector", rnic.ErrClosed)
	case k.q == nil || k.busy:
		k.state.Unlock()
		return rnic.ConnInfo{}, fmt.Errorf("%w: Connect comes once, after CreateQP", rnic.ErrState)
	}
	k.busy = true
	q := k.q
	k.state.Unlock()

	info, err := k.connect(ctx, q, p)
	k.state.Lock()
	closed := k.over
	k.over = true
	k.state.Unlock()
	k.dev.untrack(k)
	if err != nil {
		if closed {
			err = fmt.Errorf("%w while connecting: %w", rnic.ErrClosed, err)
		}
		q.end(err)
		return rnic.ConnInfo{}, err
	}
	return info, nil
}

func (k *connector) connect(ctx context.Context, q *qp, p rnic.ConnParams) (rnic.ConnInfo, error) {
	fail := func(err error) (rnic.ConnInfo, error) {
		var r *rnic.RejectedError
		if errors.As(err, &r) {
			return rnic.ConnInfo{}, err
		}
		return rnic.ConnInfo{}, fmt.Errorf("verbs: connect to %v: %w", k.remote, err)
	}
	private := append([]byte(nil), p.PrivateData...)
	err := k.run(ctx, func() C.int {
		data, n := privateData(private)
		return C.gw_connect(k.id, data, n, C.uint8_t(p.IRD), C.uint8_t(p.ORD))
	})
	if err != nil {
		return fail(err)
	}
	ev, err := k.wait(ctx, C.RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return fail(err)
	}
	if !k.dev.iwarp {
		ev.ird, ev.ord = ev.ord, ev.ird // InfiniBand's connection manager speaks from this side here
	}
	info := rnic.ConnInfo{
		LocalAddr: k.local, RemoteAddr: k.remote, PrivateData: ev.private,
		PeerIRD: ev.ird, PeerORD: ev.ord, IRD: p.IRD, ORD: min(p.ORD, ev.ird),
	}
	info.Link = k.dev.link(&info)
	q.mu.Lock()
	if q.state != idle {
		err := endedError(q.cause)
		q.mu.Unlock()
		return fail(err)
	}
	q.info, q.connected, q.started = info, true, true
	q.mu.Unlock()
	q.tell(rnic.Event{Kind: rnic.Established})
	q.open()
	return info, nil
}

// Close implements rnic.Connector. A Connect that is under way fails.
func (k *connector) Close() error {
	k.state.Lock()
	if k.over {
		k.state.Unlock()
		return nil
	}
	k.over = true
	q := k.q
	k.state.Unlock()
	k.dev.untrack(k)
	if q == nil {
		k.drop()
		return nil
	}
	select { // wakes a Connect
	case k.events <- cmEvent{kind: C.RDMA_CM_EVENT_CONNECT_ERROR, status: -int(unix.ECANCELED)}:
	default:
	}
	q.end(fmt.Errorf("%w: connector", rnic.ErrClosed))
	return nil
}
