package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// TestPerfLoopback runs every test with both ends in one process.
func TestPerfLoopback(t *testing.T) {
	for _, op := range []string{"write", "read", "send", "atomic"} {
		for _, c := range []struct {
			name string
			args []string
			head string
		}{
			{"bw", []string{"-n", "200"}, "BW average[MiB/sec]"},
			{"bw deeper than long", []string{"-n", "5", "--depth", "100"}, "BW average[MiB/sec]"},
			{"bw not a multiple", []string{"-n", "101", "--depth", "7"}, "BW average[MiB/sec]"},
			{"bw depth 1", []string{"-n", "50", "--depth", "1"}, "MsgRate[Mpps]"},
			{"bw both", []string{"-n", "103", "--depth", "10", "--bidirectional"}, "MsgRate[Mpps]"},
			{"lat", []string{"-n", "100", "--lat"}, "t_typical[usec]"},
		} {
			t.Run(op+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				out, err := iwarp(t, append([]string{"perf", op}, c.args...)...)
				require.NoError(t, err)
				lines := strings.Split(strings.TrimSpace(out), "\n")
				require.Len(t, lines, 3)
				require.Contains(t, lines[1], c.head)
				fields := strings.Fields(lines[2])
				require.Len(t, fields, len(strings.Fields(strings.NewReplacer("BW ", "BW", "% ", "%").Replace(lines[1]))))
				require.Equal(t, c.args[1], fields[1])
			})
		}
	}
}

func TestPerfServer(t *testing.T) {
	server := start(t, "perf", "serve", "--listen", "127.0.0.1:0")
	host, port := server.ready()
	out, err := iwarp(t, "perf", "write", host+":"+port, "-n", "20", "--all")
	require.NoError(t, err)
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 2+23)
	for range 23 {
		require.Regexp(t, `^client 127\.0\.0\.1:\d+: write_bw of \d+ octets, 20 times$`, server.line())
	}
	server.stop()
	_, err = server.rest()
	require.NoError(t, err)
}

func TestPerfJSON(t *testing.T) {
	for name, args := range map[string][]string{
		"bw":  {"perf", "send", "--json", "-n", "10", "--size", "4KiB"},
		"lat": {"perf", "send", "--json", "-n", "10", "--size", "4KiB", "--lat"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := iwarp(t, args...)
			require.NoError(t, err)
			var doc struct {
				Test, Device, Provider string
				Results                []map[string]float64
			}
			require.NoError(t, json.Unmarshal([]byte(out), &doc))
			require.Equal(t, "send_"+name, doc.Test)
			require.Equal(t, "soft", doc.Provider)
			require.Len(t, doc.Results, 1)
			require.EqualValues(t, 4096, doc.Results[0]["octets"])
			require.EqualValues(t, 10, doc.Results[0]["iterations"])
			for k, v := range doc.Results[0] {
				if !strings.HasPrefix(k, "t_stdev") {
					require.Positive(t, v, k)
				}
			}
		})
	}
}

// TestPerfRequest: what is written is read; what a peer should not ask for is refused, whatever it is.
func TestPerfRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := perfTest{
			op:      rapid.SampledFrom([]rnic.Opcode{rnic.OpWrite, rnic.OpRead, rnic.OpSend}).Draw(t, "op"),
			latency: rapid.Bool().Draw(t, "lat"), both: rapid.Bool().Draw(t, "both"),
			size:  rapid.IntRange(1, perfMaxSize).Draw(t, "size"),
			depth: rapid.IntRange(1, perfMaxDepth).Draw(t, "depth"),
			count: rapid.IntRange(1, perfMaxCount).Draw(t, "count"),
		}
		r := remote{rnic.STag(rapid.Uint32().Draw(t, "stag")), rapid.Uint64().Draw(t, "addr")}
		got, gotR, err := parseRequest(append(want.request(r), make([]byte, rapid.IntRange(0, 20).Draw(t, "padding"))...))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, r, gotR)
		gotR, err = parseAnswer(r.answer())
		require.NoError(t, err)
		require.Equal(t, r, gotR)
	})
	good := perfTest{op: rnic.OpSend, size: 1, depth: 1, count: 1}.request(remote{})
	for i := range good {
		_, _, err := parseRequest(good[:i])
		require.Error(t, err)
	}
	for i := range answerLen {
		_, err := parseAnswer(remote{}.answer()[:i])
		require.Error(t, err)
	}
}

func FuzzPerfRequest(f *testing.F) {
	f.Add(perfTest{op: rnic.OpSend, size: 1, depth: 1, count: 1}.request(remote{}))
	f.Add([]byte(perfMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, _, err := parseRequest(b); err == nil {
			require.NoError(t, p.check())
		}
		_, _ = parseAnswer(b)
		require.NotContains(t, refused(b), "\n")
	})
}

// dialPerf connects a hand-made client to a server.
func dialPerf(t *testing.T, addr string, private []byte) (*perfEnd, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	dev := soft.New(soft.Config{})
	t.Cleanup(func() { dev.Close() })
	e, err := newPerfEnd(dev, perfTest{op: rnic.OpWrite, size: 100, depth: 4, count: 10}, true)
	require.NoError(t, err)
	t.Cleanup(e.close)
	k, err := dev.Dial(ctx, addr, nil)
	require.NoError(t, err)
	require.NoError(t, e.prepare(k.CreateQP))
	_, err = k.Connect(ctx, rnic.ConnParams{PrivateData: private})
	return e, err
}

func TestPerfServerRefuses(t *testing.T) {
	server := start(t, "perf", "serve", "--listen", "127.0.0.1:0")
	host, port := server.ready()
	for name, c := range map[string]struct {
		test perfTest
		want string
	}{
		"operation": {perfTest{op: rnic.OpRecv, size: 1, depth: 1, count: 1}, "operation 9"},
		"size":      {perfTest{op: rnic.OpSend, size: 1 << 31, depth: 1, count: 1}, "size 2147483648"},
		"depth":     {perfTest{op: rnic.OpSend, size: 1, depth: 1 << 20, count: 1}, "depth 1048576"},
		"count":     {perfTest{op: rnic.OpSend, size: 1, depth: 1}, "iterations 0"},
		"atomic":    {perfTest{op: rnic.OpFetchAdd, size: 16, depth: 1, count: 1}, "8 octets"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := dialPerf(t, host+":"+port, c.test.request(remote{}))
			var r *rnic.RejectedError
			require.ErrorAs(t, err, &r)
			require.Contains(t, refused(r.PrivateData), c.want)
			require.Contains(t, server.line(), c.want)
		})
	}
	_, err := dialPerf(t, host+":"+port, []byte("hello"))
	require.Error(t, err)
	require.Contains(t, server.line(), "no request of iwarp perf")
}

// TestPerfPeerLeaves cuts a test in the middle at either end.
func TestPerfPeerLeaves(t *testing.T) {
	server := start(t, "perf", "serve", "--listen", "127.0.0.1:0")
	host, port := server.ready()
	client := start(t, "perf", "send", host+":"+port, "-n", "100000000", "--size", "1")
	// A test that goes on for long enough; its server's end is closed under it.
	other := start(t, "perf", "read", host+":"+port, "-n", "100000000", "--size", "1", "--lat")
	waitForTests(t, host+":"+port)
	other.stop()
	_, err := other.rest()
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, server.line(), "client 127.0.0.1:")
	server.stop()
	_, err = client.rest()
	require.Error(t, err)
	require.Regexp(t, `^perf: 127\.0\.0\.1:\d+: send_bw of 1 B: `, err.Error())
}

// waitForTests runs a short test behind those that were started, so that they have had their turn.
func waitForTests(t *testing.T, addr string) {
	t.Helper()
	_, err := iwarp(t, "perf", "write", addr, "-n", "100")
	require.NoError(t, err)
}

func TestPerfStalls(t *testing.T) {
	server := start(t, "perf", "serve", "--listen", "127.0.0.1:0", "--timeout", "50ms")
	host, port := server.ready()
	_, err := dialPerf(t, host+":"+port, perfTest{op: rnic.OpSend, size: 1, depth: 1, count: 1}.request(remote{}))
	require.NoError(t, err)
	require.Contains(t, server.line(), "gave up waiting for the test to go on after 50ms") // it never began
	_, err = iwarp(t, "perf", "write", net.JoinHostPort("127.0.0.1", listen(t)), "--timeout", "50ms")
	require.ErrorContains(t, err, "gave up waiting for the server's answer after 50ms")
}

func TestPerfUsage(t *testing.T) {
	wantUsage(t, "exclude each other", "perf", "write", "--all", "--size", "8")
	wantUsage(t, "never --bidirectional", "perf", "read", "--lat", "--bidirectional")
	wantUsage(t, "depth 0", "perf", "read", "--depth", "0")
	wantUsage(t, "iterations 0", "perf", "read", "-n", "0")
	wantUsage(t, "size 1073741824", "perf", "read", "--size", "1GiB")
	wantUsage(t, "more than 0", "perf", "read", "--timeout", "0")
	wantUsage(t, "more than 0", "perf", "serve", "--timeout", "-1s")
	wantUsage(t, "unknown command", "perf", "fly")
	wantUsage(t, "accepts at most 1 arg", "perf", "read", "a", "b")
	_, err := iwarp(t, "perf", "atomic", "--size", "8")
	require.ErrorContains(t, err, "unknown flag")
}

func TestLatencyRow(t *testing.T) {
	p := perfResult{test: perfTest{latency: true, size: 2, count: 1000}}
	for i := range 1000 {
		p.stamps = append(p.stamps, time.Duration((i*7)%1000+1)*time.Microsecond)
	}
	row := latency(p)
	require.Equal(t, 1.0, row.Min)
	require.Equal(t, 1000.0, row.Max)
	require.Equal(t, 501.0, row.Typical)
	require.InDelta(t, 500.5, row.Average, 1e-9)
	require.InDelta(t, 288.67, row.Stdev, 0.01)
	require.Equal(t, 991.0, row.P99)
	require.Equal(t, 1000.0, row.P999)
}

func TestBandwidthRow(t *testing.T) {
	p := perfResult{test: perfTest{size: 1 << 20, depth: 2, count: 100}, took: 100 * time.Second}
	for i := range 100 { // one a second, but ten of them in a tenth of that
		at := time.Duration(i) * time.Second
		if i >= 50 && i <= 60 {
			at = 50*time.Second + time.Duration(i-50)*time.Second/10
		}
		p.stamps = append(p.stamps, at)
	}
	row := bandwidth(p)
	require.InDelta(t, 1, row.Average, 1e-9)
	require.InDelta(t, 10, row.Peak, 1e-9)
	require.InDelta(t, 1e-6, row.Rate, 1e-12)
	p.test.both = true
	require.InDelta(t, 2, bandwidth(p).Average, 1e-9)
}
