package rdmap

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// got is a message that a recorder received.
type got struct {
	Delivery
	data []byte
}

// ended is an operation that a recorder was given back.
type ended struct {
	op  *Op
	err error
}

// recorder is a Handler that writes everything down. Its hooks run within the callbacks.
type recorder struct {
	t testing.TB

	mu        sync.Mutex
	receives  []*Receive
	messages  []got
	done      []ended
	closed    bool
	err       error
	establish int
	batches   int

	onReceived func(got)
	onDone     func(*Op, error)
	over       chan struct{} // closed by Closed
}

func (r *recorder) Receive() *Receive {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.receives) == 0 {
		return nil
	}
	x := r.receives[0]
	r.receives = r.receives[1:]
	return x
}

func (r *recorder) Received(x *Receive, d *Delivery) {
	require.NotNil(r.t, x)
	g := got{Delivery: *d}
	if d.Err == nil && !d.HasImm {
		for _, seg := range x.Segs {
			if mem, ok := seg.Region.Hold(); ok {
				g.data = append(g.data, mem[seg.Off:seg.Off+seg.Len]...)
				seg.Region.Release()
			}
		}
		g.data = g.data[:d.Len]
	}
	r.mu.Lock()
	r.messages = append(r.messages, g)
	f := r.onReceived
	r.mu.Unlock()
	if f != nil {
		f(g)
	}
}

func (r *recorder) Done(op *Op, err error) {
	r.mu.Lock()
	r.done = append(r.done, ended{op, err})
	f := r.onDone
	r.mu.Unlock()
	if f != nil {
		f(op, err)
	}
}

func (r *recorder) BatchEnd() { r.mu.Lock(); r.batches++; r.mu.Unlock() }

func (r *recorder) Established() { r.mu.Lock(); r.establish++; r.mu.Unlock() }

func (r *recorder) Closed(err error) {
	r.mu.Lock()
	if r.closed {
		r.t.Error("Closed was called twice")
	}
	r.closed, r.err = true, err
	r.mu.Unlock()
	close(r.over)
}

// snapshot returns copies of what was written down.
func (r *recorder) snapshot() (messages []got, done []ended) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]got(nil), r.messages...), append([]ended(nil), r.done...)
}

func (r *recorder) count() (messages, done int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.messages), len(r.done)
}

func (r *recorder) reason() error {
	<-r.over
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// side is a Stream under test with memory of its own.
type side struct {
	*Stream
	rec    *recorder
	table  *ddp.Table
	domain *ddp.Domain
	mem    []byte
	region *ddp.Region
	t      testing.TB
}

const sideMem = 1 << 20

const allRights = ddp.LocalWrite | ddp.RemoteWrite | ddp.RemoteRead | ddp.RemoteAtomic

// newSide makes a stream over c whose region of size octets grants access.
func newSide(t testing.TB, c *mpa.Conn, cfg Config, access ddp.Access, size int) *side {
	t.Helper()
	table := ddp.NewTable()
	s := &side{t: t, table: table, domain: table.NewDomain(), mem: words(size), rec: &recorder{t: t, over: make(chan struct{})}}
	var err error
	s.region, err = s.domain.Register(s.mem, uint64(uintptr(unsafe.Pointer(&s.mem[0]))), access, 0)
	require.NoError(t, err)
	cfg.Domain, cfg.Handler = s.domain, s.rec
	s.Stream = NewStream(c, cfg)
	return s
}

// words makes memory that is aligned for atomics.
func words(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), n)
}

// run starts the stream; the test waits for its end.
func (s *side) run() {
	over := make(chan struct{})
	go func() { s.Run(); close(over) }()
	s.t.Cleanup(func() { s.Abort(ErrClosed); <-over })
}

// seg is a piece of the side's region.
func (s *side) seg(off, n int) Seg { return Seg{Region: s.region, Off: off, Len: n} }

// to is the Tagged Offset of an octet of the side's region.
func (s *side) to(off int) uint64 {
	g := s.seg(off, 0)
	_, to, _, ok := g.Target()
	require.True(s.t, ok)
	return to
}

// expect posts receives of n octets each, in a row from off on.
func (s *side) expect(off, n, count int) {
	s.rec.mu.Lock()
	defer s.rec.mu.Unlock()
	for i := range count {
		s.rec.receives = append(s.rec.receives, &Receive{Segs: []Seg{s.seg(off+i*n, n)}})
	}
}

// post posts operations as one chain, and asks for the last one's completion.
func (s *side) post(ops ...*Op) {
	s.t.Helper()
	ops[len(ops)-1].Flags |= Signaled
	require.NoError(s.t, s.Post(chain(ops...)))
}

func chain(ops ...*Op) *Op {
	for i := 1; i < len(ops); i++ {
		ops[i-1].Next = ops[i]
	}
	return ops[0]
}

// link connects two sockets by MPA; a is the initiator.
func link(t testing.TB, a, b mpa.Socket, opts mpa.Options) (ca, cb *mpa.Conn) {
	t.Helper()
	type result struct {
		c   *mpa.Conn
		err error
	}
	answered := make(chan result, 1)
	go func() {
		r, err := mpa.ReadRequest(context.Background(), b, nil, opts)
		if err != nil {
			answered <- result{nil, err}
			return
		}
		c, _, err := r.Accept(context.Background(), nil, 16, 16)
		answered <- result{c, err}
	}()
	ca, _, err := mpa.Initiate(context.Background(), a, opts, nil, 16, 16)
	require.NoError(t, err)
	r := <-answered
	require.NoError(t, r.err)
	t.Cleanup(func() { ca.Close(); r.c.Close() })
	return ca, r.c
}

// memLink is link over a pipe in memory with the given buffer and EMSS.
func memLink(t testing.TB, buf, emss int, opts mpa.Options) (ca, cb *mpa.Conn) {
	t.Helper()
	a, b := mpa.MemPipe(buf)
	if emss > 0 {
		a.SetEMSS(emss)
		b.SetEMSS(emss)
	}
	return link(t, a, b, opts)
}

// tcpLink is link over loopback TCP.
func tcpLink(t testing.TB, opts mpa.Options) (ca, cb *mpa.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, ok := <-accepted
	require.True(t, ok)
	return link(t, mpa.NewSocket(a), mpa.NewSocket(b), opts)
}

// pair is two streams over a pipe in memory, running.
func pair(t testing.TB, cfg Config, opts mpa.Options) (a, b *side) {
	t.Helper()
	ca, cb := memLink(t, 64<<10, 1460, opts)
	return pairOver(t, ca, cb, cfg)
}

func pairOver(t testing.TB, ca, cb *mpa.Conn, cfg Config) (a, b *side) {
	t.Helper()
	if cfg.IRD == 0 {
		cfg.IRD, cfg.ORD = 16, 16
	}
	cfg.Role = Initiator
	a = newSide(t, ca, cfg, allRights, sideMem)
	cfg.Role = Responder
	b = newSide(t, cb, cfg, allRights, sideMem)
	a.run()
	b.run()
	return a, b
}

// pattern fills b with octets that depend on their place.
func pattern(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte((i*7+seed*13)>>2) ^ byte(i>>8)
	}
	return b
}

func repeat(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
