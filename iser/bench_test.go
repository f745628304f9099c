package iser_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/datamovertest"
	"goiwarp/iser"
)

// BenchmarkDatamover times the shared suite's commands over the software device.
func BenchmarkDatamover(b *testing.B) {
	datamovertest.Benchmark(b, func(t testing.TB) datamovertest.Pair { return newWorld(t, setup{}).pair(t) })
}

// BenchmarkRead4K times a 4 KiB read at depth 1, PutData and response in one flush, against a raw TCP ping-pong of
// 48 octets for 4144 in the same run, in alternating rounds:
//
//	go test -run XXX -bench Read4K$ ./iser
func BenchmarkRead4K(b *testing.B) {
	const size, round = 4096, 200
	w := newWorld(b, setup{})
	i, g := w.connect(b)
	serve(g)
	c := &client{i: i, got: make(chan struct{}, 1)}
	i.Start(c)
	require.NoError(b, i.AllocateConnectionResources(iscsi.ConnectionResources{Window: 32, RecvDataSegment: 8192}))
	require.NoError(b, i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginReq, 0x87, 1))}, nil))
	<-c.got
	i.NoticeKeyValues(params())
	require.NoError(b, i.EnableDatamover(nil))
	buf, err := i.Alloc(size)
	require.NoError(b, err)
	c.task = &iscsi.TaskBuffers{In: buf, InLen: size}
	c.cmd = &iscsi.PDU{BHS: [48]byte(command(0xc1, 1, size))}

	tcp := pingPong(b, 48, 48+size)
	var raw, ours time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += round {
		k := min(round, b.N-n)
		start := time.Now()
		for range k {
			tcp()
		}
		mid := time.Now()
		c.left = k
		if err := i.SendControl(c.cmd, c.task); err != nil {
			b.Fatal(err)
		}
		<-c.got
		raw += mid.Sub(start)
		ours += time.Since(mid)
	}
	b.StopTimer()
	b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ns/read")
	b.ReportMetric(float64(raw.Nanoseconds())/float64(b.N), "ns/tcp")
	b.ReportMetric(float64(ours)/float64(raw), "ratio")
	i.ConnectionTerminate(false)
	<-i.Done()
	<-g.Done()
	buf.Release()
}

// client sends the next command in the upcall that ends the last one, and tells of the end of a round.
type client struct {
	i    *iser.Datamover
	cmd  *iscsi.PDU
	task *iscsi.TaskBuffers
	left int
	got  chan struct{}
}

func (c *client) ControlNotify(p *iscsi.PDU) {
	p.Release()
	if c.left--; c.left > 0 {
		_ = c.i.SendControl(c.cmd, c.task)
		return
	}
	c.got <- struct{}{}
}
func (c *client) DataCompletionNotify(uint32, uint64, error) {}
func (c *client) DataACKNotify(uint32, uint32)               {}
func (c *client) ConnectionTerminateNotify(error)            {}

// pingPong returns a function that sends ask octets over a fresh TCP connection and waits for answer octets.
func pingPong(b *testing.B, ask, answer int) func() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in, out := make([]byte, ask), make([]byte, answer)
		for {
			if _, err := io.ReadFull(c, in); err != nil {
				return
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() {
		c.Close()
		ln.Close()
		<-done
	})
	out, in := make([]byte, ask), make([]byte, answer)
	return func() {
		if _, err := c.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
}

var _ iscsi.Notifier = (*client)(nil)
