package rdmap

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// loop is a Handler for measuring: it counts, reposts and allocates nothing.
type loop struct {
	free chan *Receive // posted receives
	got  chan int      // lengths of messages
	done chan *Op
	err  error
	// echo makes it answer each message with an operation that is done.
	echo bool
	// rounds is how many more messages are answered with an operation that is done.
	rounds int
	s      *Stream
}

func newLoop(depth int) *loop {
	return &loop{free: make(chan *Receive, depth), got: make(chan int, depth), done: make(chan *Op, depth)}
}

func (l *loop) Receive() *Receive {
	select {
	case r := <-l.free:
		return r
	default:
		return nil
	}
}

func (l *loop) Received(r *Receive, d *Delivery) {
	l.free <- r
	if d.Err != nil {
		return
	}
	if l.rounds > 0 {
		if l.rounds--; l.rounds > 0 {
			if err := l.s.Post(<-l.done); err != nil {
				l.err = err
			}
			return
		}
	}
	if l.echo {
		if err := l.s.Post(<-l.done); err != nil {
			l.err = err
		}
		return
	}
	l.got <- d.Len
}

func (l *loop) Done(op *Op, err error) {
	if err != nil {
		l.err = err
	}
	l.done <- op
}
func (l *loop) BatchEnd()    {}
func (l *loop) Established() {}
func (l *loop) Closed(error) {}

// bench is two streams with loops over a link.
type bench struct {
	a, b     *Stream
	la, lb   *loop
	ma, mb   []byte
	ra, rb   *ddp.Region
	stag     ddp.STag
	spare    []*Op
	finished sync.WaitGroup
}

func newBench(t testing.TB, ca, cb *mpa.Conn, size int, access ddp.Access) *bench {
	x := &bench{la: newLoop(256), lb: newLoop(256), ma: words(size), mb: words(size)}
	make := func(c *mpa.Conn, l *loop, role Role, m []byte, access ddp.Access) (*Stream, *ddp.Region) {
		d := ddp.NewTable().NewDomain()
		r, err := d.Register(m, 0, access, 0)
		require.NoError(t, err)
		s := NewStream(c, Config{Domain: d, Handler: l, Role: role, IRD: 16, ORD: 16, NudgeDelay: -1})
		l.s = s
		return s, r
	}
	x.a, x.ra = make(ca, x.la, Initiator, x.ma, ddp.LocalWrite)
	x.b, x.rb = make(cb, x.lb, Responder, x.mb, access)
	x.stag = x.rb.STag()
	return x
}

// start runs the streams until the end of the test.
func (x *bench) start(t testing.TB) {
	for _, s := range []*Stream{x.a, x.b} {
		x.finished.Add(1)
		go func() { defer x.finished.Done(); s.Run() }()
	}
	t.Cleanup(func() { x.a.Abort(nil); x.b.Abort(nil); x.finished.Wait() })
}

// receives posts n receives of size octets.
func (l *loop) receives(r *ddp.Region, n, size int) {
	for i := range n {
		l.free <- &Receive{Segs: []Seg{{Region: r, Off: i * size, Len: size}}}
	}
}

var benchLinks = []struct {
	name string
	opts mpa.Options
}{
	{"large-plain", mpa.Options{MaxFPDU: 65535, CRC: mpa.Off}},
	{"large-crc", mpa.Options{MaxFPDU: 65535}},
	{"mss1460-crc", mpa.Options{}},
}

// BenchmarkWrite moves 1 MiB per RDMA Write, eight outstanding.
func BenchmarkWrite(b *testing.B) {
	const size = 1 << 20
	for _, l := range benchLinks {
		b.Run(l.name, func(b *testing.B) {
			ca, cb := tcpLink(b, l.opts)
			if l.name == "mss1460-crc" {
				ca, cb = tcpLinkEMSS(b, l.opts, 1460)
			}
			x := newBench(b, ca, cb, size, ddp.RemoteWrite|ddp.EarlyPlacement)
			x.lb.receives(x.rb, 4, 64)
			x.start(b)
			ops := make([]Op, 8)
			for i := range ops {
				ops[i] = Op{Code: Write, Flags: Signaled, Segs: []Seg{{Region: x.ra, Len: size}}, RemoteSTag: x.stag}
			}
			b.SetBytes(size)
			b.ReportAllocs()
			b.ResetTimer()
			sent := 0
			for ; sent < min(len(ops), b.N); sent++ {
				require.NoError(b, x.a.Post(&ops[sent]))
			}
			for range b.N {
				op := <-x.la.done
				if sent < b.N {
					if err := x.a.Post(op); err != nil {
						b.Fatal(err)
					}
					sent++
				}
			}
			last := Op{Code: Send, Flags: Signaled}
			require.NoError(b, x.a.Post(&last))
			<-x.lb.got
			b.StopTimer()
			require.NoError(b, x.la.err)
		})
	}
}

// BenchmarkWriteRawTCP is the same shape without iWARP.
func BenchmarkWriteRawTCP(b *testing.B) {
	const size = 1 << 20
	a, c := tcpConns(b)
	buf, sink := make([]byte, size), make([]byte, size)
	b.SetBytes(size)
	b.ResetTimer()
	go func() {
		for range b.N {
			if _, err := a.Write(buf); err != nil {
				return
			}
		}
	}()
	for range b.N {
		if _, err := io.ReadFull(c, sink); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads 1 MiB per RDMA Read, eight outstanding.
func BenchmarkRead(b *testing.B) {
	const size = 1 << 20
	for _, l := range benchLinks[:2] {
		b.Run(l.name, func(b *testing.B) {
			ca, cb := tcpLink(b, l.opts)
			x := newBench(b, ca, cb, size, ddp.RemoteRead)
			x.start(b)
			ops := make([]Op, 8)
			for i := range ops {
				ops[i] = Op{Code: Read, Flags: Signaled, Segs: []Seg{{Region: x.ra, Len: size}}, RemoteSTag: x.stag}
			}
			b.SetBytes(size)
			b.ReportAllocs()
			b.ResetTimer()
			sent := 0
			for ; sent < min(len(ops), b.N); sent++ {
				require.NoError(b, x.a.Post(&ops[sent]))
			}
			for range b.N {
				op := <-x.la.done
				if sent < b.N {
					if err := x.a.Post(op); err != nil {
						b.Fatal(err)
					}
					sent++
				}
			}
			b.StopTimer()
			require.NoError(b, x.la.err)
		})
	}
}

// BenchmarkSendPingPong is one 64-octet Send each way.
func BenchmarkSendPingPong(b *testing.B) {
	ca, cb := tcpLink(b, mpa.Options{})
	x := pingPong(b, ca, cb)
	b.ReportAllocs()
	b.ResetTimer()
	x.la.rounds = b.N // seen by the reader with the first answer
	x.ping()
	b.StopTimer()
	require.NoError(b, x.la.err)
}

// BenchmarkPingPongRawTCP is the same without iWARP.
func BenchmarkPingPongRawTCP(b *testing.B) {
	a, c := tcpConns(b)
	go func() {
		var m [64]byte
		for {
			if _, err := io.ReadFull(c, m[:]); err != nil {
				return
			}
			if _, err := c.Write(m[:]); err != nil {
				return
			}
		}
	}()
	var m [64]byte
	b.ResetTimer()
	for range b.N {
		if _, err := a.Write(m[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(a, m[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// pingPong prepares an echo of 64 octets.
func pingPong(t testing.TB, ca, cb *mpa.Conn) *bench {
	x := newBench(t, ca, cb, 4096, ddp.LocalWrite|ddp.RemoteWrite|ddp.RemoteRead|ddp.RemoteAtomic)
	x.la.receives(x.ra, 8, 64)
	x.lb.receives(x.rb, 8, 64)
	x.lb.echo = true
	for range 8 {
		x.la.done <- &Op{Code: Send, Segs: []Seg{{Region: x.ra, Len: 64}}}
		x.lb.done <- &Op{Code: Send, Segs: []Seg{{Region: x.rb, Len: 64}}}
	}
	x.start(t)
	return x
}

// ping sends an operation and waits for the echo. Unsignaled operations come back a little later, so
// that several take turns.
func (x *bench) ping() {
	op := <-x.la.done
	if err := x.a.Post(op); err != nil {
		x.la.err = err
		return
	}
	<-x.la.got
}

func tcpConns(t testing.TB) (net.Conn, net.Conn) {
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
	c, ok := <-accepted
	require.True(t, ok)
	t.Cleanup(func() { a.Close(); c.Close() })
	return a, c
}

// emssSocket pretends an EMSS.
type emssSocket struct {
	mpa.Socket
	emss int
}

func (s emssSocket) EMSS() int { return s.emss }

func tcpLinkEMSS(t testing.TB, opts mpa.Options, emss int) (ca, cb *mpa.Conn) {
	a, b := tcpConns(t)
	return link(t, emssSocket{mpa.NewSocket(a), emss}, emssSocket{mpa.NewSocket(b), emss}, opts)
}

// TestSteadyStateAllocatesNothing runs each kind of operation until pools and rings have their size, and counts then.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	cases := []struct {
		name string
		op   Op
	}{
		{"Send", Op{Code: Send}},
		{"Write", Op{Code: Write}},
		{"Read", Op{Code: Read}},
		{"FetchAdd", Op{Code: FetchAdd}},
		{"Immediate", Op{Code: Immediate}},
	}
	for _, l := range benchLinks {
		for _, c := range cases {
			t.Run(l.name+" "+c.name, func(t *testing.T) {
				ca, cb := tcpLink(t, l.opts)
				x := pingPong(t, ca, cb)
				op := c.op
				op.RemoteSTag, op.Flags = x.stag, Signaled
				switch op.Code {
				case Write, Read:
					op.Segs = []Seg{{Region: x.ra, Off: 1024, Len: 3000}}
				case FetchAdd:
					op.Segs = []Seg{{Region: x.ra, Off: 1024, Len: 8}}
				}
				round := func() {
					if err := x.a.Post(&op); err != nil {
						x.la.err = err
						return
					}
					for back := <-x.la.done; back != &op; back = <-x.la.done {
						x.spare = append(x.spare, back)
					}
					if op.Code == Send || op.Code == Immediate {
						<-x.la.got
					}
					for _, back := range x.spare {
						x.la.done <- back
					}
					x.spare = x.spare[:0]
				}
				for range 200 {
					round()
				}
				allocs := testing.AllocsPerRun(500, round)
				require.NoError(t, x.la.err)
				if raceEnabled {
					t.Skip("the race detector allocates")
				}
				require.Zero(t, int(allocs), "%v allocations per round", allocs)
			})
		}
	}
}
