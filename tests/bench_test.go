package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// nullDisk serves a null store over a transport on loopback and returns a session with it.
func nullDisk(b *testing.B, transport string) *initiator.Session {
	b.Helper()
	st, err := store.NewNull(1 << 40)
	require.NoError(b, err)
	lu, err := scsi.NewLU(st, scsi.LUConfig{})
	require.NoError(b, err)
	device := scsi.NewDevice(scsi.Port{Name: targetName, DeviceName: targetName})
	require.NoError(b, device.Add(0, lu))
	server, err := target.New(target.Config{Targets: []target.Target{{Name: targetName, Device: device}}})
	require.NoError(b, err)

	// Each end has a device of its own, as two programs have.
	domains := make([]*iser.Domain, 2)
	for i := range domains {
		dev := soft.New(soft.Config{})
		domains[i], err = iser.NewDomain(dev, iser.DomainConfig{})
		require.NoError(b, err)
		b.Cleanup(func() {
			require.NoError(b, domains[i].Close())
			require.NoError(b, dev.Close())
		})
	}
	var addr string
	var dialer iscsi.Dialer
	accepted := make(chan iscsi.Datamover, 1)
	if transport == "iser" {
		ln, err := domains[1].Device().Listen(b.Context(), "127.0.0.1:0", nil)
		require.NoError(b, err)
		defer ln.Close()
		addr, dialer = ln.Addr().String(), &iser.Dialer{Domain: domains[0]}
		go func() {
			if req, err := ln.Accept(context.Background()); err == nil {
				if dm, err := iser.Accept(context.Background(), req, iser.Config{Domain: domains[1]}); err == nil {
					accepted <- dm
				}
			}
		}()
	} else {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		defer ln.Close()
		addr, dialer = ln.Addr().String(), &tcp.Dialer{}
		go func() {
			if conn, err := ln.Accept(); err == nil {
				accepted <- tcp.NewTarget(conn, tcp.Config{}, nil)
			}
		}()
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(<-accepted, target.PortalInfo{}) }()
	s, err := initiator.Login(b.Context(), dialer, initiator.Config{Addr: addr, TargetName: targetName})
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, s.Logout(context.Background()))
		s.Close()
		<-served
		require.NoError(b, server.Shutdown(context.Background()))
	})
	return s
}

// rawPingPong returns a function that sends out octets over plain TCP on loopback and waits for back octets.
func rawPingPong(b *testing.B, out, back int) func() {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	x, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(b, err)
	y, err := ln.Accept()
	require.NoError(b, err)
	done := make(chan struct{})
	b.Cleanup(func() { x.Close(); <-done })
	go func() {
		defer close(done)
		defer y.Close()
		in, answer := make([]byte, out), make([]byte, back)
		for {
			if _, err := io.ReadFull(y, in); err != nil {
				return
			}
			if _, err := y.Write(answer); err != nil {
				return
			}
		}
	}()
	question, in := make([]byte, out), make([]byte, back)
	return func() {
		_, err := x.Write(question)
		if err == nil {
			_, err = io.ReadFull(x, in)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDiskRead4K times 4 KiB reads at depth 1 through the whole stack, initiator to target with a null
// store, against a raw TCP ping-pong of 48 octets for 4144, in alternating rounds of the same run. The
// next read is submitted where the last one ends, or ("waiting") by a goroutine that waits for it:
//
//	go test -run XXX -bench DiskRead4K ./tests
func BenchmarkDiskRead4K(b *testing.B) {
	const size, round = 4096, 500
	for _, transport := range []string{"iser", "iscsi"} {
		for _, waiting := range []bool{false, true} {
			name := transport
			if waiting {
				name += "/waiting"
			}
			b.Run(name, func(b *testing.B) {
				s := nullDisk(b, transport)
				l := s.LUN(0)
				buf, err := s.Alloc(size)
				require.NoError(b, err)
				defer buf.Release()
				require.NoError(b, l.ReadBuf(b.Context(), 0, size/512, buf))
				read := func(n int) {
					for range n {
						if err := l.ReadBuf(b.Context(), 0, size/512, buf); err != nil {
							b.Fatal(err)
						}
					}
				}
				if !waiting {
					read = submitted(b, l, buf, size)
				}
				raw := rawPingPong(b, 48, 48+size)
				var ratios []float64
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if i%round != 0 {
						continue
					}
					b.StopTimer()
					start := time.Now()
					for range round {
						raw()
					}
					tcp := time.Since(start)
					b.StartTimer()
					start = time.Now()
					read(round)
					ratios = append(ratios, time.Since(start).Seconds()/tcp.Seconds())
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
			})
		}
	}
}

// submitted returns a function that reads n times, each read submitted by the end of the last.
func submitted(b *testing.B, l *initiator.LUN, buf iscsi.Buffer, size int) func(n int) {
	ended := make(chan error, 1)
	left := 0
	r := &initiator.Request{}
	r.Done = func(r *initiator.Request) {
		left--
		err := r.Err
		if err == nil && left > 0 {
			if err = l.Submit(r); err == nil {
				return
			}
		}
		ended <- err
	}
	return func(n int) {
		left = n
		l.PrepareRead(r, 0, uint32(size/512), 512, buf)
		err := l.Submit(r)
		if err == nil {
			err = <-ended
		}
		if err != nil {
			b.Fatal(fmt.Errorf("read: %w", err))
		}
	}
}
