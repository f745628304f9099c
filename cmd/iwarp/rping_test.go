package main

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

func TestRping(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		size string
	}{
		{"default", nil, "64"},
		{"smallest", []string{"-S", "24"}, "24"},
		{"a page", []string{"-S", "4096"}, "4096"},
		{"largest", []string{"-S", "65536"}, "65536"},
		{"without CRC", []string{"-S", "5000", "--crc=false", "--max-fpdu", "65535"}, "5000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := start(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0", "--crc=false")
			host, port := server.ready()
			out, err := iwarp(t, append([]string{"rping", "-c", "-a", host, "-p", port, "-C", "100", "-V"}, c.args...)...)
			require.NoError(t, err)
			require.Contains(t, out, "100 pings of "+c.size+" octets verified")
			out, err = server.rest()
			require.NoError(t, err)
			require.Contains(t, out, "100 pings served")
		})
	}
}

func TestRpingVerbose(t *testing.T) {
	server := start(t, "rping", "-s", "-a", "::1", "-p", "0", "-v")
	host, port := server.ready()
	out, err := iwarp(t, "rping", "-c", "-a", host, "-p", port, "-C", "2", "-v", "-d", "-S", "30")
	require.NoError(t, err)
	require.Contains(t, out, "ping data: rdma-ping-0: ABCDEFGHIJKLMNOP\nping data: rdma-ping-1: BCDEFGHIJKLMNOPQ\n")
	out, err = server.rest()
	require.NoError(t, err)
	require.Contains(t, out, "server ping data: rdma-ping-0: ABCDEFGHIJKLMNOP\n")
}

// TestRpingPersistent serves several clients at once, a killed one among them, and ends when it is told to.
func TestRpingPersistent(t *testing.T) {
	server := start(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0", "-P")
	host, port := server.ready()
	endless := start(t, "rping", "-c", "-a", host, "-p", port, "-v")
	endless.line() // it pings
	out, err := iwarp(t, "rping", "-c", "-a", host, "-p", port, "-C", "20", "-V")
	require.NoError(t, err)
	require.Contains(t, out, "20 pings of 64 octets verified")
	require.Contains(t, server.line(), "20 pings served")
	endless.stop()
	_, err = endless.rest()
	require.NoError(t, err, "an endless client is ended, that is no mistake")
	require.Contains(t, server.line(), "client 127.0.0.1:")
	server.stop()
	_, err = server.rest()
	require.NoError(t, err)
}

// child runs the test binary as the program, so that it can be killed.
func child(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "IWARP_TEST_PROGRAM=1")
	return cmd
}

func TestRpingServerKilled(t *testing.T) {
	cmd := child(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 100)
	n, err := out.Read(buf)
	require.NoError(t, err)
	addr := strings.TrimSpace(strings.TrimPrefix(string(buf[:n]), "ready: "))
	port := addr[strings.LastIndexByte(addr, ':')+1:]
	client := start(t, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-v")
	client.line()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	_, err = client.rest()
	require.Error(t, err)
	require.Regexp(t, `^rping: 127\.0\.0\.1:\d+: ping \d+: `, err.Error())
	require.NotContains(t, err.Error(), "\n")
}

func TestRpingClientKilled(t *testing.T) {
	server := start(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0", "-P")
	host, port := server.ready()
	cmd := child(t, "rping", "-c", "-a", host, "-p", port, "-v")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Regexp(t, `^client 127\.0\.0\.1:\d+: (ping )?\d+`, server.line())
	// It still serves.
	_, err = iwarp(t, "rping", "-c", "-a", host, "-p", port, "-C", "5", "-V")
	require.NoError(t, err)
	require.Contains(t, server.line(), "5 pings served")
}

// TestRpingServerRefuses lets a client say what a server must not believe.
func TestRpingServerRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		octets int
		length uint32
		stag   rnic.STag
		want   string
	}{
		{"a short message", 15, 64, 0, "15 octets, where rping sends 16"},
		{"no text", 16, 0, 0, "has 0 octets"},
		{"too much text", 16, 1<<32 - 1, 0, "has 4294967295 octets, limit 65536"},
		{"a wrong STag", 16, 64, 0x1234_5678, "waiting for the Read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := start(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0")
			host, port := server.ready()
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			dev := soft.New(soft.Config{})
			defer dev.Close()
			o := rpingOptions{common: newCommon(), addr: host, timeout: bound}
			_, err := dev.AllocPD()
			require.NoError(t, err)
			log, err := o.logger(t.Output())
			require.NoError(t, err)
			p, err := newPinger(dev, log, bound, 2, 64)
			require.NoError(t, err)
			defer p.close()
			k, err := dev.Dial(ctx, host+":"+port, nil)
			require.NoError(t, err)
			require.NoError(t, p.prepare(k.CreateQP))
			_, err = k.Connect(ctx, rnic.ConnParams{IRD: 1, ORD: 1})
			require.NoError(t, err)
			m := p.ctrl.Bytes()
			binary.BigEndian.PutUint64(m, p.text[0].Addr())
			binary.BigEndian.PutUint32(m[8:], uint32(c.stag))
			binary.BigEndian.PutUint32(m[12:], c.length)
			require.NoError(t, p.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: p.ctrl, Len: c.octets}}}))
			_, err = server.rest()
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestRpingNobodyThere(t *testing.T) {
	server := start(t, "rping", "-s", "-a", "127.0.0.1", "-p", "0")
	_, port := server.ready()
	server.stop()
	_, err := server.rest()
	require.NoError(t, err)
	_, err = iwarp(t, "rping", "-c", "-a", "127.0.0.1", "-p", port)
	require.ErrorContains(t, err, "refused")
}

// TestRpingSilentServer gives up on a server that accepts the TCP connection and says nothing.
func TestRpingSilentServer(t *testing.T) {
	ln := listen(t)
	_, err := iwarp(t, "rping", "-c", "-a", "127.0.0.1", "-p", ln, "--timeout", "50ms")
	require.ErrorContains(t, err, "gave up waiting for the server's answer after 50ms")
}

func TestRpingUsage(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"be a server (-s) or a client (-c)", nil},
		{"be a server (-s) or a client (-c)", []string{"-s", "-c"}},
		{"-a ADDRESS", []string{"-c"}},
		{"-P is for a server", []string{"-c", "-a", "::1", "-P"}},
		{"is no port", []string{"-c", "-a", "::1", "-p", "0"}},
		{"is no port", []string{"-s", "-p", "65536"}},
		{"24 to 65536", []string{"-s", "-S", "23"}},
		{"24 to 65536", []string{"-s", "-S", "65537"}},
		{"0 or more pings", []string{"-c", "-a", "::1", "-C", "-1"}},
		{"more than 0", []string{"-s", "--timeout", "0"}},
		{"want soft, verbs", []string{"-s", "--rnic", "soft:1"}},
		{"want soft, verbs", []string{"-s", "--rnic", "verbs:"}},
		{"0 to 65535 octets", []string{"-s", "--max-fpdu", "65536"}},
		{"log level", []string{"-s", "--log-level", "loud"}},
		{"unknown command", []string{"what"}},
	} {
		args := append([]string{"rping"}, c.args...)
		_, err := iwarp(t, args...)
		require.ErrorContains(t, err, c.want, "%v", args)
		require.NotContains(t, err.Error(), "\n")
	}
}
