package soft

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"unsafe"

	"goiwarp/ddp"
	"goiwarp/rnic"
)

// pd is a protection domain.
type pd struct {
	dev    *Device
	domain *ddp.Domain

	mu      sync.RWMutex           // guards what follows
	members map[member]struct{}    // regions and windows
	byIndex map[uint32]*ddp.Region // those that have had an STag, by its index
	qps     int
	srqs    int
	closed  bool
}

// member is a region or a window.
type member interface{ release() error }

// AllocPD implements rnic.Device.
func (d *Device) AllocPD() (rnic.PD, error) {
	p := &pd{dev: d, domain: d.table.NewDomain(), members: make(map[member]struct{}), byIndex: make(map[uint32]*ddp.Region)}
	if err := d.track(p); err != nil {
		return nil, err
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
	if n := len(p.members); n+p.qps+p.srqs > 0 {
		return fmt.Errorf("%w: protection domain has %d regions and windows, %d queue pairs, %d shared receive queues",
			rnic.ErrBusy, n, p.qps, p.srqs)
	}
	p.closed = true
	p.domain.Close()
	p.dev.untrack(p)
	return nil
}

// destroy releases what is left in the domain, for Device.Close.
func (p *pd) destroy() {
	p.mu.Lock()
	members := slices.Collect(maps.Keys(p.members))
	p.mu.Unlock()
	for _, m := range members {
		m.release()
	}
	p.Close()
}

// use counts a user in (by +1) or out (by -1).
func (p *pd) use(counter *int, by int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed && by > 0 {
		return fmt.Errorf("%w: protection domain", rnic.ErrClosed)
	}
	*counter += by
	return nil
}

func (p *pd) add(m member) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("%w: protection domain", rnic.ErrClosed)
	}
	p.members[m] = struct{}{}
	return nil
}

// index makes lookup find a region by the index of its STag.
func (p *pd) index(s ddp.STag, r *ddp.Region) {
	p.mu.Lock()
	p.byIndex[s.Index()] = r
	p.mu.Unlock()
}

func (p *pd) remove(m member, index uint32) {
	p.mu.Lock()
	delete(p.members, m)
	delete(p.byIndex, index)
	p.mu.Unlock()
}

// lookup finds the region whose STag is s now; nil if there is none.
func (p *pd) lookup(s rnic.STag) *ddp.Region {
	p.mu.RLock()
	r := p.byIndex[ddp.STag(s).Index()]
	p.mu.RUnlock()
	if r == nil || r.STag() != ddp.STag(s) {
		return nil
	}
	return r
}

// mr is a registered region.
type mr struct {
	pd     *pd
	region *ddp.Region
	stag   rnic.STag
	mem    []byte
	addr   uint64
	access rnic.Access
	mapped bool // the memory is ours to free

	once sync.Once
	err  error // of freeing

	mu      sync.Mutex // guards what follows
	gone    bool
	windows *window // bound to this region, linked by next and prev
}

// RegisterMR implements rnic.PD. Any Go memory will do: the collector does not move it, and the region keeps it alive.
func (p *pd) RegisterMR(mem []byte, access rnic.Access) (rnic.MR, error) {
	return p.register(mem, access, false)
}

// AllocMR implements rnic.PD.
func (p *pd) AllocMR(size int, access rnic.Access) (rnic.MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: region of %d octets", rnic.ErrBounds, size)
	}
	if err := p.dev.checkAccess(access); err != nil {
		return nil, err
	}
	mem, err := allocMemory(size)
	if err != nil {
		return nil, err
	}
	m, err := p.register(mem, access, true)
	if err != nil {
		freeMemory(mem)
		return nil, err
	}
	return m, nil
}

func (p *pd) register(mem []byte, access rnic.Access, mapped bool) (rnic.MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: region of no octets", rnic.ErrBounds)
	}
	if err := p.dev.checkAccess(access); err != nil {
		return nil, err
	}
	m := &mr{pd: p, mem: mem, addr: tagOffset(mem, access), access: access, mapped: mapped}
	var err error
	if m.region, err = p.domain.Register(mem, m.addr, ddpAccess(access), 0); err != nil {
		return nil, wrapDDP(err)
	}
	stag := m.region.STag()
	m.stag = rnic.STag(stag)
	if err := p.add(m); err != nil {
		m.region.Free()
		return nil, err
	}
	p.index(stag, m.region)
	return m, nil
}

func (m *mr) STag() rnic.STag     { return m.stag }
func (m *mr) Addr() uint64        { return m.addr }
func (m *mr) Bytes() []byte       { return m.mem }
func (m *mr) Access() rnic.Access { return m.access }
func (m *mr) release() error      { return m.Deregister() }

// Deregister implements rnic.MR.
func (m *mr) Deregister() error {
	m.once.Do(func() {
		m.mu.Lock()
		m.gone = true // no window is bound from here on
		for w := m.windows; w != nil; w = w.next {
			w.region.Invalidate()
		}
		m.mu.Unlock()
		m.region.Free()
		m.pd.remove(m, ddp.STag(m.stag).Index())
		if m.mapped {
			m.err = freeMemory(m.mem)
		}
	})
	return m.err
}

// window is a memory window: one STag index that is bound under a new key each time.
type window struct {
	pd     *pd
	region *ddp.Region

	mu    sync.Mutex // guards what follows and orders Bind, Invalidate and Free; taken before mr.mu
	index uint32     // of the STags; 0 before the first
	addr  uint64
	size  int         // octets, of the last binding
	grant rnic.Access // of the last binding
	of    *mr         // whose list the window is in, or nil

	next, prev *window // guarded by of.mu
}

// AllocWindow implements rnic.PD.
func (p *pd) AllocWindow() (rnic.Window, error) {
	if err := p.dev.need(rnic.CapWindows, "memory windows"); err != nil {
		return nil, err
	}
	w := &window{pd: p}
	var err error
	if w.region, err = p.domain.Reserve(); err != nil {
		return nil, wrapDDP(err)
	}
	if err := p.add(w); err != nil {
		w.region.Free()
		return nil, err
	}
	return w, nil
}

// Bind implements rnic.Window.
func (w *window) Bind(region rnic.MR, off, n int, access rnic.Access) (rnic.STag, error) {
	m, ok := region.(*mr)
	switch {
	case !ok || m.pd != w.pd:
		return 0, fmt.Errorf("%w: region of another protection domain", rnic.ErrAccess)
	case off < 0 || n <= 0 || off > len(m.mem) || n > len(m.mem)-off:
		return 0, fmt.Errorf("%w: window of %d octets at %d in a region of %d", rnic.ErrBounds, n, off, len(m.mem))
	case access&(rnic.RemoteWrite|rnic.RemoteAtomic) != 0 && m.access&rnic.LocalWrite == 0:
		return 0, fmt.Errorf("%w: the window would be written, its region may not be", rnic.ErrAccess)
	}
	if err := w.pd.dev.checkAccess(access); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.region.STag() != 0 {
		return 0, rnic.ErrBound
	}
	w.unlink() // the peer may have invalidated it
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return 0, fmt.Errorf("%w: memory region", rnic.ErrClosed)
	}
	s, err := w.bind(m.mem[off:off+n:off+n], access)
	if err != nil {
		return 0, err
	}
	w.of, w.next = m, m.windows
	if w.next != nil {
		w.next.prev = w
	}
	m.windows = w
	return s, nil
}

// BindBytes implements rnic.Window.
func (w *window) BindBytes(mem []byte, access rnic.Access) (rnic.STag, error) {
	if err := w.pd.dev.need(rnic.CapAnyMemory, "windows on unregistered memory"); err != nil {
		return 0, err
	}
	if len(mem) == 0 {
		return 0, fmt.Errorf("%w: window of no octets", rnic.ErrBounds)
	}
	if err := w.pd.dev.checkAccess(access); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.region.STag() != 0 {
		return 0, rnic.ErrBound
	}
	w.unlink()
	return w.bind(mem, access)
}

// bind grants access to mem. Called with w.mu held. The first connection whose peer uses the window
// owns the grant: that makes it safe to let that peer invalidate it (RFC 5040, section 8.1.1).
func (w *window) bind(mem []byte, access rnic.Access) (rnic.STag, error) {
	addr := tagOffset(mem, access)
	s, err := w.region.Bind(mem, addr, ddpAccess(access)|ddp.ClaimOnUse, 0)
	if err != nil {
		return 0, wrapDDP(err)
	}
	w.addr, w.size, w.grant = addr, len(mem), access
	if w.index == 0 {
		w.index = s.Index()
		w.pd.index(s, w.region)
	}
	return rnic.STag(s), nil
}

// checkSGE checks an element that names the window's memory.
func (w *window) checkSGE(p *pd, g *rnic.SGE, need rnic.Access) error {
	if err := p.dev.need(rnic.CapWindowSGE, "windows in scatter/gather lists"); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.pd != p:
		return fmt.Errorf("%w: window of another protection domain", rnic.ErrAccess)
	case w.region.STag() == 0:
		return fmt.Errorf("%w: window is not bound", rnic.ErrClosed)
	case g.Off < 0 || g.Len < 0 || g.Off > w.size || g.Len > w.size-g.Off:
		return fmt.Errorf("%w: %d octets at %d in a window of %d", rnic.ErrBounds, g.Len, g.Off, w.size)
	case w.grant&need != need:
		return fmt.Errorf("%w: access %#x is needed, the window has %#x", rnic.ErrAccess, need, w.grant)
	}
	return nil
}

// unlink takes the window off its region's list. Called with w.mu held.
func (w *window) unlink() {
	m := w.of
	if m == nil {
		return
	}
	m.mu.Lock()
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		m.windows = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	m.mu.Unlock()
	w.of, w.next, w.prev = nil, nil, nil
}

// Placed implements rnic.PlacementCounter.
func (w *window) Placed() uint64 { return w.region.Placed() }

func (w *window) STag() rnic.STag { return rnic.STag(w.region.STag()) }
func (w *window) release() error  { return w.Free() }

func (w *window) Addr() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.addr
}

// Invalidate implements rnic.Window.
func (w *window) Invalidate() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.region.Invalidate()
	w.unlink()
	return nil
}

// Free implements rnic.Window.
func (w *window) Free() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.region.Free()
	w.unlink()
	w.pd.remove(w, w.index)
	return nil
}

// tagOffset is the Tagged Offset of mem's first octet.
func tagOffset(mem []byte, access rnic.Access) uint64 {
	if access&rnic.ZeroBased != 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// accessBits pairs the rights' two names.
var accessBits = [...]struct {
	rnic rnic.Access
	ddp  ddp.Access
}{
	{rnic.LocalWrite, ddp.LocalWrite},
	{rnic.RemoteWrite, ddp.RemoteWrite},
	{rnic.RemoteRead, ddp.RemoteRead},
	{rnic.RemoteAtomic, ddp.RemoteAtomic},
	{rnic.EarlyPlacement, ddp.EarlyPlacement},
}

func ddpAccess(a rnic.Access) ddp.Access {
	var d ddp.Access
	for _, b := range accessBits {
		if a&b.rnic != 0 {
			d |= b.ddp
		}
	}
	return d
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

// wrapDDP gives DDP's local errors the names of the verbs.
func wrapDDP(err error) error {
	for _, e := range [...]struct{ from, to error }{
		{ddp.ErrBound, rnic.ErrBound},
		{ddp.ErrFreed, rnic.ErrClosed},
		{ddp.ErrInvalid, rnic.ErrClosed},
		{ddp.ErrFull, rnic.ErrTooLarge},
		{ddp.ErrBusy, rnic.ErrBusy},
		{ddp.ErrAccess, rnic.ErrAccess},
		{ddp.ErrBounds, rnic.ErrBounds},
		{ddp.ErrWrap, rnic.ErrBounds},
		{ddp.ErrMessageTooLong, rnic.ErrTooLarge},
	} {
		if errors.Is(err, e.from) {
			return fmt.Errorf("%w: %w", e.to, err)
		}
	}
	return err
}

var pageSize = os.Getpagesize()
