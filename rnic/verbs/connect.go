//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
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

func (e *endpoint) address(peer C.int) net.Addr {
	var raw unix.RawSockaddrAny
	C.gw_address(e.id, peer, unsafe.Pointer(&raw))
	return tcpAddr(&raw)
}

// tcpAddr reads a socket address. On iWARP it is one of TCP; elsewhere it only looks like one.
func tcpAddr(raw *unix.RawSockaddrAny) net.Addr {
	if raw.Addr.Family == unix.AF_INET6 {
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
		ip := netip.AddrFrom16(a.Addr)
		if a.Scope_id != 0 {
			if i, err := net.InterfaceByIndex(int(a.Scope_id)); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port(a.Port)))
	}
	a := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), port(a.Port)))
}

// port turns a port between the network's order and the host's.
func port(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// resolve finds the socket address of "host:port".
func resolve(ctx context.Context, addr string) (*unix.RawSockaddrAny, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ip := netip.IPv4Unspecified()
	if host != "" {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, err
		}
		ip = ips[0].Unmap()
	}
	raw := new(unix.RawSockaddrAny)
	if ip.Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(raw)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port(uint16(n)), Addr: ip.As4()}
		return raw, nil
	}
	a := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port(uint16(n)), Addr: ip.As16()}
	if z := ip.Zone(); z != "" {
		i, err := net.InterfaceByName(z)
		if err != nil {
			return nil, err
		}
		a.Scope_id = uint32(i.Index)
	}
	*(*unix.RawSockaddrInet6)(unsafe.Pointer(raw)) = a
	return raw, nil
}

// csockaddr is raw for C.
func csockaddr(raw *unix.RawSockaddrAny) *C.struct_sockaddr {
	return (*C.struct_sockaddr)(unsafe.Pointer(raw))
}

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
