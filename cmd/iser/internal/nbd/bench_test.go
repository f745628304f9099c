package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
)

// roleVar names the part that a process plays which BenchmarkAddedLatency has started of itself: "ROLE ARGUMENT".
const roleVar = "NBD_BENCHMARK_ROLE"

// play plays a part until standard input ends. It prints a line when it is ready.
func play(role string) error {
	role, arg, _ := strings.Cut(role, " ")
	switch role {
	case "target":
		addr, end, err := serveDisk("target")
		if err != nil {
			return err
		}
		fmt.Println(addr)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return end()
	case "echo":
		return playSocket(arg, func(_ context.Context, ln net.Listener) error {
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			q, a := make([]byte, requestLen), make([]byte, simpleReplyLen+4096)
			for {
				if _, err := io.ReadFull(c, q); err != nil {
					return nil
				}
				if _, err := c.Write(a); err != nil {
					return nil
				}
			}
		})
	}
	addr, path, _ := strings.Cut(arg, " ")
	var poller *sock.Poller
	if role == "server" {
		poller = sock.NewPoller(DefaultPoll)
	}
	d, closeDisk, err := openDisk(addr, poller)
	if err != nil {
		return err
	}
	x, err := Describe(context.Background(), d.LUN)
	if err != nil {
		return err
	}
	s, err := New(d, x, Config{Poller: poller})
	if err != nil {
		return err
	}
	err = playSocket(path, s.Listen)
	s.Close()
	return errors.Join(err, closeDisk())
}

func playSocket(path string, serve func(context.Context, net.Listener) error) error {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	fmt.Println(path)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		_ = ln.Close()
	}()
	if err := serve(ctx, ln); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// start starts another process of this program in a role, and returns the line that it prints when it is ready.
func start(b *testing.B, role string) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, in.Close())
		require.NoError(b, cmd.Wait())
	})
	var line []byte
	for one := make([]byte, 1); ; {
		_, err := out.Read(one)
		require.NoError(b, err)
		if one[0] == '\n' {
			return string(line)
		}
		line = append(line, one[0])
	}
}

// BenchmarkAddedLatency measures reads of 4 KiB, one at a time, by NBD and by the library's call, in turns of one run: ratio is the median of the
// first over that of the second; sleeping-ratio is that of a server that does not poll. Target, server and client are processes of their own, as they are in use, and the client's thread waits in the
// kernel for input, as qemu's and libnbd's do (a read that waits is woken by the server's reading, too). Beside them
// it measures the bare socket: as many octets there and back, with nothing done.
func BenchmarkAddedLatency(b *testing.B) {
	dir := b.TempDir()
	addr := start(b, "target")
	d, closeDisk, err := openDisk(addr, nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, closeDisk()) }()
	nbdEnd := connect(b, start(b, "server "+addr+" "+dir+"/nbd"))
	sleepingEnd := connect(b, start(b, "sleeping-server "+addr+" "+dir+"/sleeping"))
	echoEnd := connect(b, start(b, "echo "+dir+"/echo"))
	greetAs(b, nbdEnd)
	greetAs(b, sleepingEnd)
	buf, err := d.Alloc(4096)
	require.NoError(b, err)
	defer buf.Release()
	ask, answer := appendRequest(nil, CmdRead, 0, 1, 8192, 4096, nil), make([]byte, simpleReplyLen+4096)
	through := func(f *os.File) func() error {
		return func() error { return exchange(f, ask, answer) }
	}
	byCall, byNBD, bySocket := func() error { return d.ReadBuf(b.Context(), 16, 8, buf) }, through(nbdEnd), through(echoEnd)
	bySleeping := through(sleepingEnd)
	const turn = 64
	var nbd, sleeping, call, socket []time.Duration
	measure := func(f func() error, list *[]time.Duration) {
		for range turn {
			begun := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			*list = append(*list, time.Since(begun))
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var unmeasured []time.Duration
	for range 10 { // until the server has tried whether polling pays
		measure(byNBD, &unmeasured)
	}
	for b.Loop() {
		measure(byNBD, &nbd)
		measure(bySleeping, &sleeping)
		measure(bySocket, &socket)
		runtime.UnlockOSThread() // the library's caller is any goroutine
		measure(byCall, &call)
		runtime.LockOSThread()
	}
	median := func(l []time.Duration) float64 {
		slices.Sort(l)
		return float64(l[len(l)/2]) / 1e3
	}
	c1 := median(call)
	b.ReportMetric(c1, "call-µs")
	b.ReportMetric(median(socket), "socket-µs")
	b.ReportMetric(median(nbd)/c1, "ratio")
	b.ReportMetric(median(sleeping)/c1, "sleeping-ratio")
}

// greetAs is the shortest handshake of a client.
func greetAs(b *testing.B, f *os.File) {
	_, err := f.Write(unhex(b, "00000003", haveOpt, "00000001 00000000"))
	require.NoError(b, err)
	_, err = io.ReadFull(f, make([]byte, 18+10))
	require.NoError(b, err)
}
