//go:build verbs && cgo && linux

package verbs

// #cgo pkg-config: libibverbs librdmacm
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// BuiltIn says whether this build has the provider.
const BuiltIn = true

// Limits that are this provider's own.
const (
	maxSGE      = 16       // more costs memory in every queue
	maxInline   = 256      // the most that is asked for
	maxReads    = 255      // of an octet in the connection manager's parameters
	maxDepth    = 1 << 16  // work requests of a queue
	vendorSIW   = 0x626d74 // Linux's soft iWARP
	iwarpPriv   = 251      // octets of private data: siw keeps its length, with four of its own, in an octet
	ibPriv      = 56       // what InfiniBand's connection manager leaves of a request
	resolveTime = 5 * time.Second
)

// errRemoved is why work fails when a device goes away.
var errRemoved = errors.New("verbs: the device was removed")

// Device is an RDMA device of the kernel. It implements rnic.Device.
type Device struct {
	cfg   Config
	attr  rnic.Attributes
	log   *slog.Logger
	list  **C.struct_ibv_context // holds librdmacm's reference to the context
	ctx   *C.struct_ibv_context
	iwarp bool
	siw   bool

	cm     *C.struct_rdma_event_channel
	events *watcher // of cm
	async  *watcher

	mu      sync.Mutex // guards what follows
	made    map[any]struct{}
	closed  bool
	removed bool
	once    sync.Once
	done    chan struct{} // closed at the end of Close
}

var _ rnic.Device = (*Device)(nil)

// librdmacm opens each device once for the whole process. When the last one has been removed it never closes it,
// but the kernel waits for that; so this package does it, and must then never let librdmacm look at it again.
var library struct {
	sync.Mutex
	spoiled bool
	devices map[*C.struct_ibv_context]int // Devices per context
}

// Open opens a device.
func Open(cfg Config) (rnic.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func open(cfg Config) (*Device, error) {
	if cfg.Removal <= 0 {
		cfg.Removal = DefaultRemoval
	}
	d := &Device{cfg: cfg, log: cfg.Log, made: make(map[any]struct{}), done: make(chan struct{})}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if err := d.find(); err != nil {
		return nil, err
	}
	d.log = d.log.With("device", d.attr.Name)
	if err := d.query(); err != nil {
		d.release()
		return nil, err
	}
	if err := d.watch(); err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// find takes the context of the named device from librdmacm's list.
func (d *Device) find() error {
	library.Lock()
	defer library.Unlock()
	if library.spoiled {
		return errors.New("verbs: a device was removed from under this process; start it again to use another one")
	}
	var n C.int
	list, err := C.rdma_get_devices(&n)
	if list == nil {
		return fmt.Errorf("verbs: no RDMA devices (%w): load a driver and see 'iwarp links'; rdma_ucm must be loaded, too", err)
	}
	var names []string
	for _, ctx := range unsafe.Slice(list, int(n)) {
		name := C.GoString(C.ibv_get_device_name(ctx.device))
		names = append(names, name)
		if name == d.cfg.Name || d.cfg.Name == "" && n == 1 {
			d.ctx, d.attr.Name = ctx, name
		}
	}
	if d.ctx == nil {
		C.rdma_free_devices(list)
		if d.cfg.Name == "" {
			return fmt.Errorf("verbs: name one of the devices %s", strings.Join(names, ", "))
		}
		return fmt.Errorf("verbs: there is no device %s; there are %s", d.cfg.Name, strings.Join(names, ", "))
	}
	d.list = list
	if library.devices == nil {
		library.devices = make(map[*C.struct_ibv_context]int)
	}
	library.devices[d.ctx]++
	return nil
}

// query learns what the device can do.
func (d *Device) query() error {
	var a C.struct_ibv_device_attr
	if rc := C.ibv_query_device(d.ctx, &a); rc != 0 {
		return fmt.Errorf("verbs: asking %s for its limits: %w", d.attr.Name, unix.Errno(rc))
	}
	d.iwarp = d.ctx.device.transport_type == C.IBV_TRANSPORT_IWARP
	d.siw = a.vendor_id == vendorSIW
	inline := int(C.gw_probe_inline(d.ctx, maxInline))
	if inline < 0 {
		return d.resource("probing a queue pair", 0, unix.Errno(-inline))
	}
	limit := func(v C.int, most int) int { return max(min(int(v), most), 1) }
	d.attr.Provider = "verbs"
	d.attr.MaxSendSGE = limit(a.max_sge, maxSGE)
	d.attr.MaxRecvSGE = limit(a.max_sge, maxSGE)
	d.attr.MaxReadSGE = limit(a.max_sge, maxSGE)
	if d.iwarp {
		d.attr.MaxReadSGE = 1 // a Read Request names one sink (RFC 5040, section 4.4)
		if !d.siw && a.max_sge_rd > 0 {
			d.attr.MaxReadSGE = limit(a.max_sge_rd, maxSGE)
		}
	}
	d.attr.MaxInline = inline
	d.attr.MaxIRD = limit(a.max_qp_rd_atom, maxReads)
	d.attr.MaxORD = limit(a.max_qp_init_rd_atom, maxReads)
	d.attr.MaxQPWR = limit(a.max_qp_wr, maxDepth)
	d.attr.MaxMsg = 1<<31 - 1
	d.attr.MaxMRSize = int64(min(uint64(a.max_mr_size), 1<<62))
	d.attr.PageSizeHint = os.Getpagesize()
	d.attr.MaxPrivate = ibPriv
	d.attr.PrivatePadded = !d.iwarp
	if d.iwarp {
		d.attr.MaxPrivate = iwarpPriv
		d.attr.Caps |= rnic.CapReadSinkNeedsRemoteWrite
	}
	if inline > 0 {
		d.attr.Caps |= rnic.CapInline
	}
	if a.max_srq > 0 {
		d.attr.Caps |= rnic.CapSRQ
	}
	if d.siw || a.device_cap_flags&C.IBV_DEVICE_MEM_MGT_EXTENSIONS != 0 {
		d.attr.Caps |= rnic.CapSendInvalidate
	}
	return nil
}

// watch starts the goroutines that take events.
func (d *Device) watch() error {
	var err error
	if d.cm, err = C.rdma_create_event_channel(); d.cm == nil {
		return fmt.Errorf("verbs: opening the connection manager: %w; 'modprobe rdma_ucm'", err)
	}
	if d.events, err = watch(int(d.cm.fd), d.takeCM); err != nil {
		return err
	}
	d.async, err = watch(int(d.ctx.async_fd), d.takeAsync)
	return err
}

// release gives back what find and watch took. No callback runs afterwards.
func (d *Device) release() {
	d.events.close()
	d.async.close()
	if d.cm != nil {
		C.rdma_destroy_event_channel(d.cm)
	}
	library.Lock()
	defer library.Unlock()
	if library.devices[d.ctx]--; library.devices[d.ctx] == 0 {
		delete(library.devices, d.ctx)
	}
	C.rdma_free_devices(d.list)
	if !d.removed || library.devices[d.ctx] > 0 || library.spoiled {
		return
	}
	// Listing the devices makes librdmacm close the one that is gone, unless none is left.
	if list := C.rdma_get_devices(nil); list != nil {
		C.rdma_free_devices(list)
		return
	}
	library.spoiled = true
	C.ibv_close_device(d.ctx)
}

// Attributes implements rnic.Device.
func (d *Device) Attributes() rnic.Attributes { return d.attr }

// need refuses what the device does not claim.
func (d *Device) need(c rnic.Capability, op string) error {
	if d.attr.Caps.Has(c) {
		return nil
	}
	return &rnic.UnsupportedError{Device: d.attr.Name, Op: op}
}

// resource explains the failure of something that takes memory.
func (d *Device) resource(what string, size int, err error) error {
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur != unix.RLIM_INFINITY {
			return fmt.Errorf("verbs: %s: %w; this process may lock %d KiB of memory: raise the limit ('ulimit -l', or LimitMEMLOCK= of a systemd unit)", what, err, l.Cur>>10)
		}
	}
	if size > 0 {
		return fmt.Errorf("verbs: %s of %d octets on %s: %w", what, size, d.attr.Name, err)
	}
	return fmt.Errorf("verbs: %s on %s: %w", what, d.attr.Name, err)
}

// track notes an object that Close must end.
func (d *Device) track(o any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.removed:
		return fmt.Errorf("%w: device %s: %w", rnic.ErrClosed, d.attr.Name, errRemoved)
	case d.closed:
		return fmt.Errorf("%w: device %s", rnic.ErrClosed, d.attr.Name)
	}
	d.made[o] = struct{}{}
	return nil
}

func (d *Device) untrack(o any) {
	d.mu.Lock()
	delete(d.made, o)
	d.mu.Unlock()
}

// Close implements rnic.Device. What makes connections ends first, then connections, then what they used.
func (d *Device) Close() error {
	d.once.Do(d.shutdown)
	<-d.done
	return nil
}

func (d *Device) shutdown() {
	defer close(d.done)
	d.mu.Lock()
	d.closed = true
	made := slices.Collect(maps.Keys(d.made))
	d.mu.Unlock()
	for _, o := range made {
		switch o := o.(type) {
		case *listener:
			_ = o.Close()
		case *connector:
			_ = o.Close()
		case *request:
			o.abandon()
		}
	}
	var wg sync.WaitGroup // together: each may wait for the device
	for _, o := range made {
		if q, ok := o.(*qp); ok {
			wg.Go(func() { _ = q.Close() })
		}
	}
	wg.Wait()
	for _, o := range made {
		switch o := o.(type) {
		case *srq:
			_ = o.Close()
		case *cq:
			_ = o.Close()
		}
	}
	for _, o := range made {
		if p, ok := o.(*pd); ok {
			p.destroy()
		}
	}
	d.release()
}

// remove ends everything because the device goes away. The kernel's removal returns once all is closed, so
// that nobody need call Close for it.
func (d *Device) remove() {
	d.mu.Lock()
	first := !d.removed
	d.removed = true
	made := slices.Collect(maps.Keys(d.made))
	d.mu.Unlock()
	if !first {
		return
	}
	d.log.Warn("the device is being removed")
	for _, o := range made {
		if q, ok := o.(*qp); ok {
			q.end(errRemoved)
		}
	}
	go func() { _ = d.Close() }()
}

// Dial implements rnic.Device.
func (d *Device) Dial(ctx context.Context, addr string, _ *rnic.LinkOptions) (rnic.Connector, error) {
	k, err := d.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("verbs: dial %s: %w", addr, err)
	}
	return k, nil
}

// Listen implements rnic.Device.
func (d *Device) Listen(ctx context.Context, addr string, _ *rnic.LinkOptions) (rnic.Listener, error) {
	l, err := d.listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("verbs: listen on %s: %w", addr, err)
	}
	return l, nil
}
