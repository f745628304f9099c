package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/datamovertest"
)

// withLargeSegments is overTCP with the data segments that Linux peers agree on.
func withLargeSegments(digests bool) datamovertest.Maker {
	return func(t testing.TB) datamovertest.Pair {
		a, b := connect(t)
		cfg := Config{Memory: 64 << 20}
		p := pairOf(t, NewInitiator(a, cfg), NewTarget(b, cfg, nil), digests, digests)
		p.Params = func(p *iscsi.Params, _ bool) {
			p.HeaderDigest, p.DataDigest = digests, digests
			p.MaxRecvDataSegment, p.MaxSendDataSegment = 256<<10, 256<<10
		}
		return p
	}
}

// TestSteadyStateAllocatesNothing runs commands of all kinds without garbage.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	t.Run("LargeSegments", func(t *testing.T) { datamovertest.CheckAllocs(t, withLargeSegments(false)) })
	t.Run("Digests", func(t *testing.T) { datamovertest.CheckAllocs(t, withLargeSegments(true)) })
	t.Run("SmallSegments", func(t *testing.T) {
		datamovertest.CheckAllocs(t, func(t testing.TB) datamovertest.Pair {
			a, b := connect(t)
			cfg := Config{Memory: 64 << 20}
			return pairOf(t, NewInitiator(a, cfg), NewTarget(b, cfg, nil), false, false)
		})
	})
}

func BenchmarkDatamover(b *testing.B) {
	b.Run("None", func(b *testing.B) { datamovertest.Benchmark(b, withLargeSegments(false)) })
	b.Run("CRC32C", func(b *testing.B) { datamovertest.Benchmark(b, withLargeSegments(true)) })
}

// BenchmarkRead4KRatio reports how much longer a 4 KiB read takes than a bare ping-pong of the same
// octets: 48 for 4144.
func BenchmarkRead4KRatio(b *testing.B) {
	x, y := connect(b)
	defer x.Close()
	go pong(y)
	ping := func() {
		var buf [4144]byte
		_, err := x.Write(buf[:48])
		require.NoError(b, err)
		_, err = io.ReadFull(x, buf[:])
		require.NoError(b, err)
	}
	read := datamovertest.Runner(b, withLargeSegments(false), datamovertest.Load{Name: "Read4K", In: 4096, Depth: 1})
	var raw, ours time.Duration
	const round = 200 // alternate, so that both see the same machine
	for n := 0; n < b.N; n += round {
		start := time.Now()
		for range round {
			ping()
		}
		raw += time.Since(start)
		start = time.Now()
		read(round)
		ours += time.Since(start)
	}
	b.ReportMetric(float64(ours)/float64(raw), "ratio")
	b.ReportMetric(0, "ns/op")
}

func pong(c net.Conn) {
	defer c.Close()
	var buf [4144]byte
	for {
		if _, err := io.ReadFull(c, buf[:48]); err != nil {
			return
		}
		if _, err := c.Write(buf[:]); err != nil {
			return
		}
	}
}
