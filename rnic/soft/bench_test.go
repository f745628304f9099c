package soft_test

import (
	"context"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// The benchmarks print how a connection does against raw TCP of the same shape: rounds of both
// alternate within one run on loopback, so that what else the machine does hits both. "ratio" is
// RDMA's throughput over TCP's, for ping-pongs RDMA's latency over TCP's; ns/op is RDMA's.

const message = 1 << 20

// BenchmarkWrite moves 1 MiB RDMA Writes, a few outstanding at a time, one connection.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name   string
		opts   rnic.LinkOptions
		mss    int
		access rnic.Access // of the sink
		crc    bool        // raw TCP computes CRC32c at both ends, too
	}{
		{"crc=off", rnic.LinkOptions{CRC: rnic.Off}, 0, 0, false},
		{"crc=on", rnic.LinkOptions{}, 0, rnic.EarlyPlacement, true},
		{"crc=on,checked before placement", rnic.LinkOptions{}, 0, 0, true},
		{"crc=on,fpdu=1456", rnic.LinkOptions{}, 1456, 0, false}, // raw TCP with segments of that size, too
	} {
		b.Run(c.name, func(b *testing.B) {
			pr := benchPair(b, &c.opts, c.mss)
			src, err := pr.client.pd.AllocMR(message, 0)
			require.NoError(b, err)
			defer src.Deregister()
			sink, err := pr.server.pd.AllocMR(message, rnic.LocalWrite|rnic.RemoteWrite|c.access)
			require.NoError(b, err)
			defer sink.Deregister()
			raw := newRawTCP(b, c.mss)
			msg := make([]byte, message)
			b.SetBytes(message)
			alternate(b, 32, func(n int) time.Duration { return pr.writes(b, src, sink, n) },
				func(n int) time.Duration { return raw.stream(b, msg, n, c.crc) },
				func(rdma, tcp time.Duration) float64 { return tcp.Seconds() / rdma.Seconds() })
		})
	}
}

// BenchmarkPingPong bounces a Send of 64 octets.
func BenchmarkPingPong(b *testing.B) {
	const size = 64
	pr := benchPair(b, &rnic.LinkOptions{}, 0)
	raw := newRawTCP(b, 0)
	alternate(b, 500, func(n int) time.Duration { return pr.pingPong(b, size, n) },
		func(n int) time.Duration { return raw.pingPong(b, size, n) },
		func(rdma, tcp time.Duration) float64 { return rdma.Seconds() / tcp.Seconds() })
}

// alternate runs rounds of round iterations of RDMA, which are timed, and of TCP, which are not, in
// turn, and reports the median of the rounds' ratios.
func alternate(b *testing.B, round int, rdma, tcp func(n int) time.Duration, ratio func(rdma, tcp time.Duration) float64) {
	var ratios []float64
	for i := 0; b.Loop(); i++ {
		if i%round != 0 {
			continue
		}
		b.StopTimer()
		t := tcp(round)
		b.StartTimer()
		ratios = append(ratios, ratio(rdma(round), t))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

// rawTCP is a plain connection over loopback.
type rawTCP struct{ x, y net.Conn }

func newRawTCP(b testing.TB, mss int) *rawTCP {
	ctx := context.Background()
	ln, err := mssNetwork{mss}.Listen(ctx, "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	x, err := mssNetwork{mss}.Dial(ctx, ln.Addr().String())
	require.NoError(b, err)
	y, err := ln.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { x.Close(); y.Close() })
	return &rawTCP{x, y}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stream sends n messages one way and returns how long it took until the last had arrived.
func (r *rawTCP) stream(b *testing.B, msg []byte, n int, withCRC bool) time.Duration {
	begin := time.Now()
	errs := make(chan error, 1)
	go func() {
		for range n {
			if withCRC {
				crc32.Update(0, castagnoli, msg)
			}
			if _, err := r.x.Write(msg); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	buf := make([]byte, len(msg))
	for range n {
		if !withCRC {
			_, err := io.ReadFull(r.y, buf)
			require.NoError(b, err)
			continue
		}
		sum := uint32(0)
		for got := 0; got < len(buf); {
			k, err := r.y.Read(buf[got:])
			require.NoError(b, err)
			sum = crc32.Update(sum, castagnoli, buf[got:got+k]) // while the octets are in the cache
			got += k
		}
	}
	require.NoError(b, <-errs)
	return time.Since(begin)
}

func (r *rawTCP) pingPong(b *testing.B, size, n int) time.Duration {
	begin := time.Now()
	errs := make(chan error, 1)
	go func() {
		buf := make([]byte, size)
		for range n {
			if _, err := io.ReadFull(r.y, buf); err != nil {
				errs <- err
				return
			}
			if _, err := r.y.Write(buf); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	buf := make([]byte, size)
	for range n {
		_, err := r.x.Write(buf)
		require.NoError(b, err)
		_, err = io.ReadFull(r.x, buf)
		require.NoError(b, err)
	}
	require.NoError(b, <-errs)
	return time.Since(begin)
}

// side is one end of a connection whose handler changes from round to round.
type side struct {
	pd      rnic.PD
	cq      rnic.CQ
	mr      rnic.MR
	qp      rnic.QP
	handler atomic.Pointer[func([]rnic.Completion)]
}

func (s *side) handle(f func([]rnic.Completion)) { s.handler.Store(&f) }

type benchConn struct{ client, server *side }

// benchPair connects two devices over loopback. mss, if not 0, limits TCP segments, and so FPDUs, to that size.
func benchPair(b testing.TB, opts *rnic.LinkOptions, mss int) *benchConn {
	dev := newDevice(b, soft.Config{Network: mssNetwork{mss}})
	domain := func() rnic.PD {
		pd, err := dev.AllocPD()
		require.NoError(b, err)
		return pd
	}
	return joinSides(b, dev, opts, domain(), domain())
}

// benchPairOn connects once more, within the protection domains of a connection.
func benchPairOn(b testing.TB, opts *rnic.LinkOptions, of *benchConn) *benchConn {
	return joinSides(b, of.client.pd.Device(), opts, of.client.pd, of.server.pd)
}

func joinSides(b testing.TB, dev rnic.Device, opts *rnic.LinkOptions, client, server rnic.PD) *benchConn {
	ctx := context.Background()
	newSide := func(pd rnic.PD) *side {
		s := &side{pd: pd}
		s.handle(func([]rnic.Completion) {})
		var err error
		s.cq, err = dev.CreateCQ(rnic.CQConfig{Handler: func(wc []rnic.Completion) { (*s.handler.Load())(wc) }})
		require.NoError(b, err)
		s.mr, err = s.pd.AllocMR(64<<10, rnic.LocalWrite)
		require.NoError(b, err)
		return s
	}
	pr := &benchConn{newSide(client), newSide(server)}
	depths := rnic.ConnParams{IRD: 16, ORD: 16}
	ln, err := dev.Listen(ctx, "127.0.0.1:0", opts)
	require.NoError(b, err)
	defer ln.Close()
	k, err := dev.Dial(ctx, ln.Addr().String(), opts)
	require.NoError(b, err)
	c, s := pr.client, pr.server
	c.qp, err = k.CreateQP(rnic.QPConfig{PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq})
	require.NoError(b, err)
	errs := make(chan error, 1)
	go func() {
		errs <- func() error {
			r, err := ln.Accept(ctx)
			if err != nil {
				return err
			}
			if s.qp, err = r.CreateQP(rnic.QPConfig{PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq}); err != nil {
				return err
			}
			return r.Accept(ctx, depths)
		}()
	}()
	_, err = k.Connect(ctx, depths)
	require.NoError(b, err)
	require.NoError(b, <-errs)
	return pr
}

// writes moves n messages into sink and waits until a Send behind them has arrived.
func (pr *benchConn) writes(b testing.TB, src, sink rnic.MR, n int) time.Duration {
	const window = 4
	c, s := pr.client, pr.server
	arrived, failed := make(chan struct{}, 1), make(chan error, 16)
	s.handle(func(wc []rnic.Completion) {
		if wc[0].Err != nil {
			failed <- wc[0].Err
		}
		arrived <- struct{}{}
	})
	wr := &rnic.SendWR{Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: src, Len: message}}, RemoteSTag: sink.STag(), RemoteAddr: sink.Addr()}
	last := &rnic.SendWR{Op: rnic.OpSend}
	posted := min(window, n)
	c.handle(func(wc []rnic.Completion) {
		for i := range wc {
			if wc[i].Err != nil {
				failed <- wc[i].Err
				return
			}
			var err error
			switch posted++; {
			case posted <= n:
				err = c.qp.PostSend(wr)
			case posted == n+window:
				err = c.qp.PostSend(last)
			}
			if err != nil {
				failed <- err
			}
		}
	})
	require.NoError(b, s.qp.PostRecv(&rnic.RecvWR{}))
	begin := time.Now()
	for range posted {
		require.NoError(b, c.qp.PostSend(wr))
	}
	select {
	case <-arrived:
	case err := <-failed:
		b.Fatal(err)
	}
	return time.Since(begin)
}

// pingPong bounces n messages, both ends answering from their handlers.
func (pr *benchConn) pingPong(b testing.TB, size, n int) time.Duration {
	c, s := pr.client, pr.server
	done := make(chan error, 1)
	end := func(err error) {
		select {
		case done <- err:
		default: // the round has ended already
		}
	}
	// Each end takes n messages and so posts n receives; the server answers the last one, too.
	bounce := func(e *side, answers int) func([]rnic.Completion) {
		rr := &rnic.RecvWR{SGE: []rnic.SGE{{MR: e.mr, Len: size}}}
		wr := &rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: e.mr, Len: size}}}
		left := n
		return func(wc []rnic.Completion) {
			for i := range wc {
				err := wc[i].Err
				left--
				if err == nil && left > 0 {
					err = e.qp.PostRecv(rr)
				}
				if err == nil && answers > 0 {
					answers--
					err = e.qp.PostSend(wr)
				}
				if err != nil || e == c && left == 0 {
					end(err)
				}
			}
		}
	}
	s.handle(bounce(s, n))
	c.handle(bounce(c, n-1))
	require.NoError(b, c.qp.PostRecv(&rnic.RecvWR{SGE: []rnic.SGE{{MR: c.mr, Len: size}}}))
	require.NoError(b, s.qp.PostRecv(&rnic.RecvWR{SGE: []rnic.SGE{{MR: s.mr, Len: size}}}))
	begin := time.Now()
	require.NoError(b, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: c.mr, Len: size}}}))
	require.NoError(b, <-done)
	took := time.Since(begin)
	idle := func([]rnic.Completion) {}
	s.handle(idle)
	c.handle(idle)
	return took
}

// mssNetwork is loopback whose TCP segments carry at most mss octets, as on Ethernet; 0 leaves them alone.
type mssNetwork struct{ mss int }

func (n mssNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: n.control}
	return d.DialContext(ctx, "tcp", addr)
}

func (n mssNetwork) Listen(ctx context.Context, addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: n.control}
	return lc.Listen(ctx, "tcp", addr)
}

func (n mssNetwork) control(_, _ string, c syscall.RawConn) error {
	if n.mss == 0 {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) { err = setMSS(fd, n.mss) }); e != nil {
		return e
	}
	return err
}
