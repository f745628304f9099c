package nbd

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

const benchTarget = "iqn.2026-11.com.example:nbd"

// overISER opens a disk in memory of a target in this process, over iSER on the software RNIC.
func overISER(t testing.TB) *initiator.Disk {
	m, err := store.NewMemory(16 << 20)
	require.NoError(t, err)
	lu, err := scsi.NewLU(m, scsi.LUConfig{BlockSize: blockSize})
	require.NoError(t, err)
	dev := scsi.NewDevice(scsi.Port{})
	require.NoError(t, dev.Add(0, lu))
	server, err := target.New(target.Config{Targets: []target.Target{{Name: benchTarget, Device: dev}}})
	require.NoError(t, err)
	near, far := soft.New(soft.Config{Name: "initiator"}), soft.New(soft.Config{Name: "target"})
	nearDomain, err := iser.NewDomain(near, iser.DomainConfig{})
	require.NoError(t, err)
	farDomain, err := iser.NewDomain(far, iser.DomainConfig{})
	require.NoError(t, err)
	ln, err := far.Listen(context.Background(), "127.0.0.1:0", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		if dm, err := iser.Accept(ctx, req, iser.Config{Domain: farDomain}); err == nil {
			_ = server.Serve(dm, target.PortalInfo{})
		}
	}()
	d, err := initiator.OpenDisk(t.Context(), initiator.DiskConfig{}, initiator.PathConfig{
		Dialer: &iser.Dialer{Domain: nearDomain, Config: iser.Config{BufferMemory: 64 << 20}}, Addr: ln.Addr().String(), TargetName: benchTarget, LUN: scsi.EncodeLUN(0),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		if err := server.Shutdown(context.Background()); !errors.Is(err, target.ErrClosed) {
			require.NoError(t, err)
		}
		cancel()
		require.NoError(t, ln.Close())
		<-done
		require.NoError(t, nearDomain.Close())
		require.NoError(t, farDomain.Close())
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
	return d
}

// TestOverISER: the whole way, from an NBD client to a disk behind a target.
func TestOverISER(t *testing.T) {
	d := overISER(t)
	x, err := Describe(t.Context(), d.LUN)
	require.NoError(t, err)
	require.Equal(t, Export{
		Size: 16 << 20, BlockSize: blockSize, FUA: x.FUA, Cache: x.Cache, Unmap: x.Unmap, UnmapSame: x.UnmapSame,
		MaxTransfer: x.MaxTransfer, Preferred: x.Preferred, Rotational: x.Rotational,
	}, x)
	s, err := New(d, x, Config{Prepare: 1, Memory: 4 << 20})
	require.NoError(t, err)
	defer s.Close()
	c, end := transmit(t, s)
	defer end()
	for _, n := range []int{512, 4096, 100 << 10, 4 << 20} {
		b := random(n, uint64(n))
		_, e := c.do(CmdWrite, cmdFlagFUA, 8192, uint32(n), b)
		require.Zero(t, e)
		got, e := c.do(CmdRead, 0, 8192, uint32(n), nil)
		require.Zero(t, e)
		require.True(t, slices.Equal(b, got), "%d octets", n)
	}
	_, e := c.do(CmdWriteZeroes, 0, 8192, 1<<20, nil)
	require.Zero(t, e)
	got, e := c.do(CmdRead, 0, 8192, 1<<20, nil)
	require.Zero(t, e)
	require.Equal(t, make([]byte, 1<<20), got)
	_, e = c.do(CmdFlush, 0, 0, 0, nil)
	require.Zero(t, e)
	if x.Unmap {
		_, e = c.do(CmdTrim, 0, 0, 16<<20, nil)
		require.Zero(t, e)
	}
}

// transmit begins a connection.
func transmit(t testing.TB, s *Server) (*client, func()) {
	near, far := pair(t, "unix")
	done := make(chan error, 1)
	go func() { done <- s.Transmit(context.Background(), far) }()
	return &client{t, near}, func() {
		require.NoError(t, near.Close())
		require.ErrorIs(t, <-done, io.EOF)
	}
}

// BenchmarkAddedLatency measures reads of 4 KiB, one at a time, by NBD and by the library's call, in turns of one run: ratio is the median of the
// first over that of the second. Beside them it measures the bare socket: as many octets there and back, with nothing done. No server between can
// add less than that, and own-µs is what ours adds to it.
func BenchmarkAddedLatency(b *testing.B) {
	d := overISER(b)
	x, err := Describe(b.Context(), d.LUN)
	require.NoError(b, err)
	s, err := New(d, x, Config{})
	require.NoError(b, err)
	defer s.Close()
	c, end := transmit(b, s)
	defer end()
	buf, err := d.Alloc(4096)
	require.NoError(b, err)
	defer buf.Release()
	ask, answer := appendRequest(nil, CmdRead, 0, 1, 8192, 4096, nil), make([]byte, simpleReplyLen+4096)
	byNBD := func() error {
		if _, err := c.c.Write(ask); err != nil {
			return err
		}
		_, err := io.ReadFull(c.c, answer)
		return err
	}
	byCall := func() error { return d.ReadBuf(b.Context(), 16, 8, buf) }
	bare, echo := pair(b, "unix")
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		defer echo.Close()
		q, a := make([]byte, requestLen), make([]byte, simpleReplyLen+4096)
		for {
			if _, err := io.ReadFull(echo, q); err != nil {
				return
			}
			if _, err := echo.Write(a); err != nil {
				return
			}
		}
	}()
	defer func() { _ = bare.Close(); <-echoed }()
	bySocket := func() error {
		if _, err := bare.Write(ask); err != nil {
			return err
		}
		_, err := io.ReadFull(bare, answer)
		return err
	}
	const turn = 64
	var nbd, call, socket []time.Duration
	measure := func(f func() error, list *[]time.Duration) {
		for range turn {
			begun := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			*list = append(*list, time.Since(begun))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		measure(byCall, &call)
		measure(byNBD, &nbd)
		measure(bySocket, &socket)
	}
	median := func(l []time.Duration) float64 {
		slices.Sort(l)
		return float64(l[len(l)/2]) / 1e3
	}
	n, c1, s1 := median(nbd), median(call), median(socket)
	b.ReportMetric(n, "nbd-µs")
	b.ReportMetric(c1, "call-µs")
	b.ReportMetric(s1, "socket-µs")
	b.ReportMetric(n-c1-s1, "own-µs")
	b.ReportMetric(n/c1, "ratio")
}
