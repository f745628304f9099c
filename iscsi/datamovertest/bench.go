package datamovertest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// Load is a kind of command for Benchmark and CheckAllocs.
type Load struct {
	Name      string
	In, Out   int // octets of data-in, or of data-out
	Immediate int // leading octets of Out that travel in the command
	Depth     int // commands in flight
}

// Loads are what Benchmark runs.
var Loads = []Load{
	{Name: "Read4K", In: 4 << 10, Depth: 1},
	{Name: "Read4KDepth32", In: 4 << 10, Depth: 32},
	{Name: "Read256KDepth8", In: 256 << 10, Depth: 8},
	{Name: "Write4KImmediate", Out: 4 << 10, Immediate: 4 << 10, Depth: 1},
	{Name: "Write4K", Out: 4 << 10, Depth: 1},
	{Name: "Write4KDepth32", Out: 4 << 10, Depth: 32},
	{Name: "Write256KDepth8", Out: 256 << 10, Depth: 8},
}

// Benchmark times commands over pairs: from the initiator's SendControl to the SCSI Response's
// ControlNotify, against a target that has nothing to do but move the data. Alloc's share must be at least 16 MiB.
func Benchmark(b *testing.B, m Maker) {
	for _, l := range Loads {
		b.Run(l.Name, func(b *testing.B) {
			d := newDriver(b, m, l)
			d.run(2 * l.Depth)
			b.SetBytes(int64(l.In + l.Out))
			b.ReportAllocs()
			b.ResetTimer()
			d.run(b.N)
		})
	}
}

// CheckAllocs fails t unless commands of all kinds run without an allocation at either end, once
// pools and lists have grown to what is needed. It is not meant to run with the race detector.
func CheckAllocs(t *testing.T, m Maker) {
	for _, l := range Loads {
		t.Run(l.Name, func(t *testing.T) {
			d := newDriver(t, m, l)
			d.run(20 * l.Depth)
			n := testing.AllocsPerRun(50, func() { d.run(4 * l.Depth) })
			require.Zero(t, n, "allocations in %d commands", 4*l.Depth)
		})
	}
}

// driver is both iSCSI layers of a pair under load. Each command in flight has a slot at either end, that its ITT names.
type driver struct {
	c    *conn
	l    Load
	seg  int // octets of one PutData
	i    driverInitiator
	g    driverTarget
	todo atomic.Int64
	left atomic.Int64
	done chan struct{}
}

type driverInitiator struct {
	d     *driver
	pdus  pduPool
	slots []initiatorSlot
	mu    sync.Mutex // keeps CmdSN and the order of sending together
	cmdSN uint32
}

type initiatorSlot struct {
	t   iscsi.TaskBuffers
	buf iscsi.Buffer
}

type driverTarget struct {
	d      *driver
	pdus   pduPool
	slots  []targetSlot
	statSN uint32
}

type targetSlot struct {
	in  iscsi.DataIn
	out iscsi.DataOut
	pos int
	sn  uint32
}

// pduPool keeps the PDUs of one end.
type pduPool struct {
	mu   sync.Mutex
	free []*iscsi.PDU
}

func (p *pduPool) get() *iscsi.PDU {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		x := p.free[n-1]
		p.free = p.free[:n-1]
		x.BHS = [iscsi.BHSLen]byte{}
		return x
	}
	return &iscsi.PDU{Owner: p}
}

// ReleasePDU implements iscsi.PDUOwner.
func (p *pduPool) ReleasePDU(x *iscsi.PDU) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.Data = nil
	p.free = append(p.free, x)
}

// relay hands the upcalls of the login to the suite's recorder, and those after it to the driver.
type relay struct {
	iscsi.Notifier
	next atomic.Pointer[iscsi.Notifier]
}

func (r *relay) to() iscsi.Notifier {
	if n := r.next.Load(); n != nil {
		return *n
	}
	return r.Notifier
}

func (r *relay) ControlNotify(p *iscsi.PDU) { r.to().ControlNotify(p) }
func (r *relay) DataCompletionNotify(itt uint32, tag uint64, err error) {
	r.to().DataCompletionNotify(itt, tag, err)
}

func newDriver(t testing.TB, m Maker, l Load) *driver {
	t.Helper()
	p := m(t)
	c := &conn{t: t, pair: p, i: newEnd(t, p.Initiator, false, p.Params), g: newEnd(t, p.Target, true, p.Params)}
	ri, rg := &relay{Notifier: c.i}, &relay{Notifier: c.g}
	c.i.dm.Start(ri)
	c.g.dm.Start(rg)
	c.login()
	t.Cleanup(c.end)
	d := &driver{c: c, l: l, seg: min(c.g.dm.Info().MaxPutData, 256<<10), done: make(chan struct{}, 1)}
	d.i = driverInitiator{d: d, slots: make([]initiatorSlot, l.Depth)}
	d.g = driverTarget{d: d, slots: make([]targetSlot, l.Depth)}
	for k := range d.i.slots {
		s := &d.i.slots[k]
		s.buf = c.i.alloc(max(l.In, l.Out))
		t.Cleanup(s.buf.Release)
		if l.In > 0 {
			s.t = iscsi.TaskBuffers{In: s.buf, InLen: l.In}
		} else {
			s.t = iscsi.TaskBuffers{Out: s.buf, OutLen: l.Out, Unsolicited: l.Immediate}
		}
	}
	var ni, ng iscsi.Notifier = &d.i, &d.g
	ri.next.Store(&ni)
	rg.next.Store(&ng)
	return d
}

// run runs n commands and waits for them.
func (d *driver) run(n int) {
	d.left.Store(int64(n))
	d.todo.Store(int64(n))
	for k := range min(n, d.l.Depth) {
		d.i.start(uint32(k))
	}
	<-d.done
}

// check ends everything when something went wrong: a benchmark has no way to go on.
func (d *driver) check(err error) {
	if err != nil {
		panic(fmt.Sprintf("datamovertest: %s: %v", d.l.Name, err))
	}
}

// start issues the slot's next command, if one is left to do.
func (i *driverInitiator) start(slot uint32) {
	if i.d.todo.Add(-1) < 0 {
		return
	}
	s := &i.slots[slot]
	p := i.pdus.get()
	p.BHS[0] = byte(iscsi.OpSCSICommand)
	p.BHS[offFlags] = flagFinal | flagRead
	if i.d.l.Out > 0 {
		p.BHS[offFlags] = flagFinal | flagWrite
		p.Data = s.buf.Bytes()[:i.d.l.Immediate]
	}
	be.PutUint32(p.BHS[offITT:], slot)
	be.PutUint32(p.BHS[offTTT:], uint32(i.d.l.In+i.d.l.Out))
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cmdSN++
	be.PutUint32(p.BHS[offCmdSN:], i.cmdSN)
	i.d.check(i.d.c.i.dm.SendControl(p, &s.t))
}

func (i *driverInitiator) ControlNotify(p *iscsi.PDU) {
	if p.Opcode() != iscsi.OpSCSIResponse || p.BHS[offStatus] != statusGood {
		i.d.check(fmt.Errorf("answered with opcode %#02x status %#02x", byte(p.Opcode()), p.BHS[offStatus]))
	}
	slot := field(p, offITT)
	p.Release()
	if i.d.left.Add(-1) == 0 {
		i.d.done <- struct{}{}
		return
	}
	i.start(slot)
}

func (i *driverInitiator) DataCompletionNotify(uint32, uint64, error) {}
func (i *driverInitiator) DataACKNotify(uint32, uint32)               {}
func (i *driverInitiator) ConnectionTerminateNotify(error)            {}

func (g *driverTarget) ControlNotify(p *iscsi.PDU) {
	itt := field(p, offITT)
	s := &g.slots[itt]
	s.pos, s.sn = len(p.Data), 0
	p.Release()
	g.step(itt, s)
}

func (g *driverTarget) step(itt uint32, s *targetSlot) {
	l, dm := &g.d.l, g.d.c.g.dm
	for s.pos < l.In {
		n := min(g.d.seg, l.In-s.pos)
		b, err := dm.Alloc(n)
		g.d.check(err)
		last := s.pos+n == l.In
		s.in = iscsi.DataIn{ITT: itt, TTT: reservedTag, DataSN: s.sn, Offset: s.pos, Buf: b, Len: n, Final: last, More: true}
		g.d.check(dm.PutData(&s.in))
		s.pos += n
		s.sn++
	}
	if s.pos < l.Out {
		n := min(MaxBurstLength, l.Out-s.pos)
		b, err := dm.Alloc(n)
		g.d.check(err)
		s.out = iscsi.DataOut{ITT: itt, TTT: itt, R2TSN: s.sn, Offset: s.pos, Buf: b, Len: n}
		s.sn++
		g.d.check(dm.GetData(&s.out))
		return
	}
	p := g.pdus.get()
	p.BHS[0] = byte(iscsi.OpSCSIResponse)
	p.BHS[offFlags] = flagFinal
	g.statSN++
	be.PutUint32(p.BHS[offITT:], itt)
	be.PutUint32(p.BHS[offCmdSN:], g.statSN)
	be.PutUint32(p.BHS[offDataSN:], s.sn)
	g.d.check(dm.SendControl(p, nil))
}

func (g *driverTarget) DataCompletionNotify(itt uint32, _ uint64, err error) {
	g.d.check(err)
	s := &g.slots[itt]
	s.pos += s.out.Len
	s.out.Buf.Release()
	g.step(itt, s)
}

func (g *driverTarget) DataACKNotify(uint32, uint32)    {}
func (g *driverTarget) ConnectionTerminateNotify(error) {}

// Runner returns a function that runs n commands of one kind over one pair, for benchmarks that
// compare.
func Runner(t testing.TB, m Maker, l Load) func(n int) {
	t.Helper()
	d := newDriver(t, m, l)
	d.run(2 * l.Depth)
	return d.run
}
