//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// pd is a protection domain.
type pd struct {
	dev *Device
	c   *C.struct_ibv_pd

	mu      sync.Mutex // guards what follows
	regions map[*mr]struct{}
	users   int // queue pairs and shared receive queues
	empty   *mr // for receives without octets, which siw refuses to take without an element
	closed  bool
}

// AllocPD implements rnic.Device.
func (d *Device) AllocPD() (rnic.PD, error) {
	p := &pd{dev: d, regions: make(map[*mr]struct{})}
	if err := d.track(p); err != nil {
		return nil, err
	}
	c, err := C.ibv_alloc_pd(d.ctx)
	if c == nil {
		d.untrack(p)
		return nil, d.resource("a protection domain", 0, err)
	}
	p.c = c
	if d.siw {
		m, err := p.alloc(1, rnic.LocalWrite)
		if err != nil {
			_ = p.Close()
			return nil, err
		}
		p.disown(m)
		p.empty = m
	}
	return p, nil
}

// Device implements rnic.PD.
func (p *pd) Device() rnic.Device { return p.dev }

// Close implements rnic.PD.
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := len(p.regions); n+p.users > 0 {
		return fmt.Errorf("%w: protection domain has %d regions, %d queue pairs and shared receive queues", rnic.ErrBusy, n, p.users)
	}
	p.closed = true
	if p.empty != nil {
		_ = p.empty.free()
	}
	p.dev.untrack(p)
	if rc := C.ibv_dealloc_pd(p.c); rc != 0 {
		return fmt.Errorf("verbs: closing a protection domain: %w", unix.Errno(rc))
	}
	return nil
}

// destroy releases what is left in the domain, for Device.Close.
func (p *pd) destroy() {
	p.mu.Lock()
	regions := slices.Collect(maps.Keys(p.regions))
	p.mu.Unlock()
	for _, m := range regions {
		_ = m.Deregister()
	}
	_ = p.Close()
}

// use counts a user in (by +1) or out (by -1).
func (p *pd) use(by int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed && by > 0 {
		return fmt.Errorf("%w: protection domain", rnic.ErrClosed)
	}
	p.users += by
	return nil
}

// mr is a registered region.
type mr struct {
	pd     *pd
	c      *C.struct_ibv_mr
	mem    []byte
	lkey   C.uint32_t
	stag   rnic.STag
	access rnic.Access
	mapped bool // the memory is ours to free

	gone atomic.Bool
	once sync.Once
	err  error // of freeing
}

// RegisterMR implements rnic.PD. Memory of the Go heap will do: the collector does not move it, and the region keeps it alive.
func (p *pd) RegisterMR(mem []byte, access rnic.Access) (rnic.MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: region of no octets", rnic.ErrBounds)
	}
	m, err := p.register(mem, access, false)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// AllocMR implements rnic.PD.
func (p *pd) AllocMR(size int, access rnic.Access) (rnic.MR, error) {
	m, err := p.alloc(size, access)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (p *pd) alloc(size int, access rnic.Access) (*mr, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: region of %d octets", rnic.ErrBounds, size)
	}
	if err := p.dev.checkAccess(access); err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("verbs: map %d octets: %w", size, err)
	}
	m, err := p.register(mem[:size], access, true)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return m, nil
}

// checkAccess refuses rights that the device does not offer.
func (d *Device) checkAccess(a rnic.Access) error {
	if a&rnic.ZeroBased != 0 {
		if err := d.need(rnic.CapZeroBased, "zero-based regions"); err != nil {
			return err
		}
	}
	if a&rnic.RemoteAtomic != 0 {
		return d.need(rnic.CapAtomics, "atomics")
	}
	return nil
}

func (p *pd) register(mem []byte, access rnic.Access, mapped bool) (*mr, error) {
	if err := p.dev.checkAccess(access); err != nil {
		return nil, err
	}
	var flags C.int
	if access&(rnic.LocalWrite|rnic.RemoteWrite) != 0 {
		flags |= C.IBV_ACCESS_LOCAL_WRITE // what the peer may write, this side may: the verbs want it so
	}
	if access&rnic.RemoteWrite != 0 {
		flags |= C.IBV_ACCESS_REMOTE_WRITE
	}
	if access&rnic.RemoteRead != 0 {
		flags |= C.IBV_ACCESS_REMOTE_READ
	}
	m := &mr{pd: p, mem: mem, access: access, mapped: mapped}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("%w: protection domain", rnic.ErrClosed)
	}
	c, err := registerMemory(p.c, mem, flags)
	if c == nil {
		return nil, p.dev.resource("registering a region", len(mem), err)
	}
	m.c, m.lkey, m.stag = c, C.uint32_t(c.lkey), rnic.STag(c.rkey)
	p.regions[m] = struct{}{}
	return m, nil
}

// registerOwn registers memory of the provider's own, which does not keep the domain in use.
func (p *pd) registerOwn(mem []byte, access rnic.Access) (*mr, error) {
	m, err := p.register(mem, access, false)
	if err == nil {
		p.disown(m)
	}
	return m, err
}

// disown takes a region off the list of the consumer's.
func (p *pd) disown(m *mr) {
	p.mu.Lock()
	delete(p.regions, m)
	p.mu.Unlock()
}

func (m *mr) STag() rnic.STag     { return m.stag }
func (m *mr) Addr() uint64        { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.mem)))) }
func (m *mr) Bytes() []byte       { return m.mem }
func (m *mr) Access() rnic.Access { return m.access }

// Deregister implements rnic.MR.
func (m *mr) Deregister() error {
	m.once.Do(func() {
		m.gone.Store(true)
		m.err = m.free()
		m.pd.mu.Lock()
		delete(m.pd.regions, m)
		m.pd.mu.Unlock()
	})
	return m.err
}

// free gives the region and its memory back.
func (m *mr) free() error {
	if rc := C.ibv_dereg_mr(m.c); rc != 0 {
		return fmt.Errorf("verbs: deregistering: %w", unix.Errno(rc)) // the device may still reach the memory: it stays
	}
	if m.mapped {
		return unix.Munmap(m.mem[:cap(m.mem)])
	}
	return nil
}

// AllocWindow implements rnic.PD. Windows of the verbs are bound by work requests of a queue pair, in
// order with others; that is another thing than rnic.Window, which is not offered.
func (p *pd) AllocWindow() (rnic.Window, error) {
	return nil, p.dev.need(rnic.CapWindows, "memory windows")
}

// checkSGE checks the elements of a work request against the regions that they name, and adds up their octets.
func (p *pd) checkSGE(sge []rnic.SGE, need rnic.Access) (int, error) {
	total := 0
	for i := range sge {
		g := &sge[i]
		if g.Window != nil {
			return 0, p.dev.need(rnic.CapWindowSGE, "windows in scatter/gather lists")
		}
		m, ok := g.MR.(*mr)
		switch {
		case !ok:
			return 0, fmt.Errorf("%w: element %d names no region of this device", rnic.ErrBadWR, i)
		case m.gone.Load():
			return 0, fmt.Errorf("%w: memory region", rnic.ErrClosed)
		case m.pd != p:
			return 0, fmt.Errorf("%w: region of another protection domain", rnic.ErrAccess)
		case g.Off < 0 || g.Len < 0 || g.Off > len(m.mem) || g.Len > len(m.mem)-g.Off:
			return 0, fmt.Errorf("%w: %d octets at %d in a region of %d", rnic.ErrBounds, g.Len, g.Off, len(m.mem))
		case m.access&need != need:
			return 0, fmt.Errorf("%w: access %#x is needed, the region has %#x", rnic.ErrAccess, need, m.access)
		}
		total += g.Len
	}
	if int64(total) > p.dev.attr.MaxMsg {
		return 0, fmt.Errorf("%w: message of %d octets, limit %d", rnic.ErrTooLarge, total, p.dev.attr.MaxMsg)
	}
	return total, nil
}

// appendSGE adds the elements in the verbs' form, but not those without octets: Linux 6.1's siw takes one at the end of a
// gather list for a pointer and crashes the kernel.
func appendSGE(to []C.struct_ibv_sge, sge []rnic.SGE) []C.struct_ibv_sge {
	for i := range sge {
		g := &sge[i]
		if g.Len == 0 {
			continue
		}
		m := g.MR.(*mr)
		to = append(to, C.struct_ibv_sge{addr: C.uint64_t(m.Addr() + uint64(g.Off)), length: C.uint32_t(g.Len), lkey: m.lkey})
	}
	return to
}
