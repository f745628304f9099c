package target

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"goiwarp/iscsi"
)

const (
	targetName    = "iqn.2026-11.com.example:disk"
	initiatorName = "iqn.2026-11.com.example:host"
)

// sentByTarget is one thing that the target gave its Datamover, in order.
type sentByTarget struct {
	pdu  *iscsi.PDU     // a copy
	in   *iscsi.DataIn  // a copy; data holds what was sent
	out  *iscsi.DataOut // a copy
	data []byte
}

// fake is a Datamover in memory. Its initiator side is the test: it injects PDUs, and reads what the target
// sends. Upcalls come from the goroutine that runs run.
type fake struct {
	t    testing.TB
	info iscsi.DatamoverInfo

	mu       sync.Mutex
	wake     sync.Cond
	n        iscsi.Notifier
	upcalls  []func(iscsi.Notifier)
	sent     []sentByTarget
	read     int // of sent
	limit    int // octets that Alloc lends at most
	used     int
	lent     int
	idle     map[int][]*fakeBuffer
	out      map[uint32][]byte // the initiator's data-out, by ITT
	holdGets bool              // GetData waits for answerGets
	late     bool              // held transfers have ended when their task is forgotten, and are told of after it
	gets     []iscsi.DataOut
	badGets  bool // GetData fails
	holdPuts bool // Notify waits
	puts     []put
	manual   bool // the test makes the upcalls, by pump
	quiet    bool // nothing is recorded
	due      []completion
	nSent    int
	enabled  bool
	params   iscsi.Params
	res      iscsi.ConnectionResources
	noAlloc  error
	term     bool
	graceful bool
	over     bool
	layouts  map[uint32]iscsi.DataLayout
	begun    chan struct{} // closed by Start
	done     chan struct{}
}

type fakeBuffer struct {
	f    *fake
	b    []byte
	free bool
}

func (b *fakeBuffer) Bytes() []byte { return b.b }

func (b *fakeBuffer) Release() {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	b.f.release(b)
}

func (f *fake) release(b *fakeBuffer) {
	if b.free {
		panic("buffer released twice")
	}
	b.free = true
	f.used -= len(b.b)
	f.lent--
	f.idle[len(b.b)] = append(f.idle[len(b.b)], b)
}

func newFake(t testing.TB) *fake {
	f := &fake{
		t: t, limit: 64 << 20, idle: map[int][]*fakeBuffer{}, out: map[uint32][]byte{},
		begun: make(chan struct{}), done: make(chan struct{}),
		info: iscsi.DatamoverInfo{
			Transport: "fake", MaxPutData: 8192,
			LocalAddr:  &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3260},
			RemoteAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 40000},
		},
	}
	f.wake.L = &f.mu
	return f
}

// run is the reading goroutine.
func (f *fake) run() {
	for {
		f.mu.Lock()
		for len(f.upcalls) == 0 && !f.term {
			f.wake.Wait()
		}
		if f.term {
			f.over = true
			close(f.done)
			f.wake.Broadcast()
			f.mu.Unlock()
			return
		}
		u := f.upcalls[0]
		f.upcalls = f.upcalls[1:]
		n := f.n
		f.mu.Unlock()
		u(n)
	}
}

// completion is a DataCompletionNotify that is due.
type completion struct {
	itt uint32
	tag uint64
}

// pump makes the upcalls that are due on the caller's goroutine.
func (f *fake) pump() {
	for {
		f.mu.Lock()
		var u func(iscsi.Notifier)
		var c completion
		switch {
		case len(f.upcalls) > 0:
			u = f.upcalls[0]
			f.upcalls = f.upcalls[:copy(f.upcalls, f.upcalls[1:])]
		case len(f.due) > 0:
			c = f.due[0]
			f.due = f.due[:copy(f.due, f.due[1:])]
		default:
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		if u != nil {
			u(f.n)
		} else {
			f.n.DataCompletionNotify(c.itt, c.tag, nil)
		}
	}
}

func (f *fake) later(u func(iscsi.Notifier)) {
	f.upcalls = append(f.upcalls, u)
	f.wake.Broadcast()
}

func (f *fake) Info() iscsi.DatamoverInfo { return f.info }

func (f *fake) Start(n iscsi.Notifier) {
	f.mu.Lock()
	f.n = n
	f.mu.Unlock()
	close(f.begun)
	if !f.manual {
		go f.run()
	}
}

func (f *fake) Alloc(n int) (iscsi.Buffer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used+n > f.limit {
		return nil, iscsi.ErrNoMemory
	}
	f.used += n
	f.lent++
	if l := f.idle[n]; len(l) > 0 {
		b := l[len(l)-1]
		f.idle[n] = l[:len(l)-1]
		b.free = false
		return b, nil
	}
	return &fakeBuffer{f: f, b: make([]byte, n)}, nil
}

func (f *fake) AllocateConnectionResources(r iscsi.ConnectionResources) error {
	f.res = r
	return f.noAlloc
}
func (f *fake) DeallocateConnectionResources() {}
func (f *fake) NoticeKeyValues(p *iscsi.Params) {
	f.params = *p
	if !f.info.RDMA {
		f.info.MaxPutData = p.MaxSendDataSegment
	}
}

func (f *fake) EnableDatamover(p *iscsi.PDU) error {
	f.enabled = true
	return f.SendControl(p, nil)
}

func (f *fake) down() error { return fmt.Errorf("fake: %w", iscsi.ErrConnection) }

func (f *fake) SendControl(p *iscsi.PDU, _ *iscsi.TaskBuffers) error {
	defer p.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.term {
		return f.down()
	}
	f.nSent++
	if f.quiet {
		return nil
	}
	c := &iscsi.PDU{BHS: p.BHS, Data: append([]byte(nil), p.Data...)}
	iscsi.BHS(c.BHS[:]).SetDataLen(len(p.Data))
	f.sent = append(f.sent, sentByTarget{pdu: c})
	f.wake.Broadcast()
	return nil
}

func (f *fake) PutData(d *iscsi.DataIn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := d.Buf.(*fakeBuffer)
	if !ok { // any other memory works
		b = &fakeBuffer{f: f, b: append([]byte(nil), d.Buf.Bytes()...)}
		f.used += len(b.b)
		f.lent++
	}
	if f.term {
		if !d.Notify {
			f.release(b)
		}
		return f.down()
	}
	if !f.quiet {
		c := *d
		f.sent = append(f.sent, sentByTarget{in: &c, data: append([]byte(nil), b.b[d.From:d.From+d.Len]...)})
		f.wake.Broadcast()
	}
	if !d.Notify {
		f.release(b)
		return nil
	}
	if f.quiet {
		f.due = append(f.due, completion{d.ITT, d.Tag})
		return nil
	}
	f.puts = append(f.puts, put{completion{d.ITT, d.Tag}, b})
	if !f.holdPuts {
		f.tellPuts()
	}
	return nil
}

// put is a PutData that gives its buffer back.
type put struct {
	completion
	buf *fakeBuffer
}

// tellPuts tells of the PutData that wait. f.mu is held.
func (f *fake) tellPuts() {
	for _, p := range f.puts {
		f.later(func(n iscsi.Notifier) { n.DataCompletionNotify(p.itt, p.tag, nil) })
	}
	f.puts = nil
}

func (f *fake) GetData(d *iscsi.DataOut) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.term {
		return f.down()
	}
	if !f.quiet {
		c := *d
		f.sent = append(f.sent, sentByTarget{out: &c})
		f.wake.Broadcast()
	}
	if f.holdGets {
		f.gets = append(f.gets, *d)
		return nil
	}
	f.arrive(*d)
	return nil
}

func (f *fake) arrive(d iscsi.DataOut) {
	copy(d.Buf.Bytes()[d.To:d.To+d.Len], f.out[d.ITT][min(d.Offset, len(f.out[d.ITT])):])
	var err error
	if f.badGets {
		err = fmt.Errorf("fake: DataSN out of order")
	}
	if f.quiet {
		f.due = append(f.due, completion{d.ITT, d.Tag})
		return
	}
	f.later(func(n iscsi.Notifier) { n.DataCompletionNotify(d.ITT, d.Tag, err) })
}

// setHoldGets changes holdGets while workers may look at it.
func (f *fake) setHoldGets(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holdGets = on
}

// answerGets lets the GetData that wait arrive, and tells of the PutData that do.
func (f *fake) answerGets() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.gets {
		f.arrive(d)
	}
	f.gets = nil
	f.tellPuts()
}

// flushGets tells that the GetData that wait have been lost with the connection, whose end comes behind: as RDMA Reads are flushed.
func (f *fake) flushGets() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.gets {
		f.later(func(n iscsi.Notifier) { n.DataCompletionNotify(d.ITT, d.Tag, f.down()) })
	}
	f.gets = nil
}

func (f *fake) DeallocateTaskResources(itt uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late {
		return
	}
	puts := f.puts[:0]
	for _, p := range f.puts {
		if p.itt == itt {
			f.release(p.buf)
		} else {
			puts = append(puts, p)
		}
	}
	f.puts = puts
	keep := f.gets[:0]
	for _, d := range f.gets {
		if d.ITT == itt {
			f.release(d.Buf.(*fakeBuffer))
		} else {
			keep = append(keep, d)
		}
	}
	f.gets = keep
}

func (f *fake) ConnectionTerminate(graceful bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.term, f.graceful = true, graceful
	f.wake.Broadcast()
}

func (f *fake) Renumbered(itt uint32) (iscsi.DataLayout, bool) {
	l, ok := f.layouts[itt]
	return l, ok
}

func (f *fake) Done() <-chan struct{} { return f.done }

// cut is the peer's or the network's end of the connection.
func (f *fake) cut(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.later(func(n iscsi.Notifier) {
		n.ConnectionTerminateNotify(err)
		f.ConnectionTerminate(false)
	})
}
