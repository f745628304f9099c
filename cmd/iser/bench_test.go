package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/internal/faultproxy"
)

// TestBenchMeasures: each workload moves what it says, over both transports, and its JSON has fio's names.
func TestBenchMeasures(t *testing.T) {
	s := newTestSite(t, 8<<20)
	for rw, w := range workloads {
		for name, url := range map[string]string{"tcp": s.url("0"), "iser": s.isers("0")} {
			t.Run(rw+" "+name, func(t *testing.T) {
				r := parseJSON[benchResult](t, mustRun(t, "bench", url, "--rw", rw, "--bs", "4k", "--iodepth", "8", "--numjobs", "2", "--size", "1M", "--json", "--allow-overwrite"))
				assert.EqualValues(t, 256, r.ios(), "each job moves its half once")
				assert.Equal(t, w.mixed || w.reads > 0, r.Read != nil)
				assert.Equal(t, w.mixed || w.reads == 0, r.Write != nil)
				for _, side := range []*benchSide{r.Read, r.Write} {
					if side == nil || side.IOs == 0 {
						continue
					}
					assert.Equal(t, side.IOs*4096, side.Bytes)
					assert.Equal(t, side.IOs, side.Lat.N)
					assert.Positive(t, side.IOPS)
					assert.LessOrEqual(t, side.Lat.Min, side.Lat.Percentile["50.000000"])
					assert.LessOrEqual(t, side.Lat.Percentile["50.000000"], side.Lat.Percentile["99.000000"])
					assert.LessOrEqual(t, side.Lat.Percentile["99.990000"], side.Lat.Max)
				}
			})
		}
	}
	text := mustRun(t, "bench", s.url("0"), "--rw=randread", "--bs=512", "--runtime=50ms", "--ramp_time=10ms")
	assert.Regexp(t, `(?s)^randread: bs=512 B, iodepth=32, numjobs=1, \d+\.\d\d s, iscsi://.*read   IOPS .* MB/s\).*percentiles: 50% .*99\.99% `, text)
}

func TestBenchVerifies(t *testing.T) {
	s := newTestSite(t, 4<<20)
	disk := s.disks[0]
	bench := func(args ...string) outcome {
		return iserTool(t.Context(), append([]string{"bench", s.url("0"), "--bs", "8k", "--verify", "--allow-overwrite", "--json"}, args...)...)
	}
	for _, rw := range []string{"write", "randwrite", "rw", "randrw"} {
		r := bench("--rw", rw, "--size", "2M", "--numjobs", "2")
		require.NoError(t, r.err)
		v := parseJSON[benchResult](t, r.out)
		require.NotNil(t, v.Verified)
		require.Positive(t, *v.Verified)
		if rw == "write" {
			require.EqualValues(t, 2<<20, *v.Verified)
		}
	}
	require.NoError(t, bench("--rw", "write", "--size", "2M", "--randseed", "7").err)
	require.NoError(t, bench("--rw", "randread", "--size", "2M", "--randseed", "7").err)
	require.ErrorContains(t, bench("--rw", "read", "--size", "2M", "--randseed", "8").err, "verify: octet 0 is")

	// One bit that changes after it was written is found, and told where it is.
	disk.onWrite = func(p []byte, off int64) error {
		if off <= 1<<20+77 && 1<<20+77 < off+int64(len(p)) {
			p[1<<20+77-off] ^= 0x10
		}
		return nil
	}
	require.ErrorContains(t, bench("--rw", "write", "--size", "2M").err, "verify: octet 1048653 is")
}

func TestBenchRefuses(t *testing.T) {
	s := newTestSite(t, 1<<20)
	u := s.url("0")
	for want, args := range map[string][]string{
		"destroys what the disk holds":         {u, "--rw", "randwrite"},
		"--rw trim: want randread":             {u, "--rw", "trim"},
		"--iodepth 0":                          {u, "--iodepth", "0"},
		"--numjobs 65":                         {u, "--numjobs", "65"},
		"--rwmixread is for --rw rw":           {u, "--rwmixread", "10"},
		`"soon" is no time`:                    {u, "--runtime", "soon"},
		"--runtime 0":                          {u, "--runtime", "0"},
		"give its --randseed":                  {u, "--verify"},
		"--rounds is for --compare":            {u, "--rounds", "3"},
		"--replacement-timeout 0":              {u, "--replacement-timeout", "0"},
		"--compare and --path exclude":         {u, "--compare", u, "--path", u},
		"--compare and --verify exclude":       {u, "--compare", u, "--verify", "--randseed", "1"},
		`bad size "lots"`:                      {u, "--bs", "lots"},
		"names no LUN":                         {"iscsi://" + s.tcp + "/" + siteTarget},
		`"disk.img" is not a URL`:              {"disk.img"},
		"names no target":                      {"iser://192.0.2.10"},
		"accepts 1 arg(s), received 0; see 'i": {},
	} {
		refused(t, true, want, append([]string{"bench"}, args...)...)
	}
	for want, args := range map[string][]string{
		"has blocks of 512 octets":        {u, "--bs", "1000"},
		"beyond the end of LUN 0":         {u, "--size", "2M"},
		"begin with one":                  {u, "--offset", "1000"},
		"each of 8 jobs has only 128 KiB": {u, "--bs", "256k", "--numjobs", "8"},
		"has no LUN 5":                    {s.url("5")},
		"in 1 job is more memory than":    {s.isers("0"), "--bs", "1M", "--iodepth", "4096"},
	} {
		refused(t, false, want, append([]string{"bench"}, args...)...)
	}
	require.Zero(t, s.disks[0].written.Load())
}

// TestBenchDepths: what the commands of a job need is lent, over either transport, also where that is more than connections lend by themselves.
func TestBenchDepths(t *testing.T) {
	s := newTestSite(t, 2*mib)
	for _, url := range []string{s.isers("0"), s.url("0")} {
		for _, shape := range [][]string{{"--bs", "1M"}, {"--bs", "256k", "--iodepth", "160"}} {
			args := append([]string{"bench", "--rw", "read", "--size", "2M", "--json", url}, shape...)
			r := parseJSON[benchResult](t, mustRun(t, args...))
			require.Equal(t, int64(2*mib), r.Read.Bytes, "%v", args)
		}
	}
}

func TestBenchCompares(t *testing.T) {
	s := newTestSite(t, 1<<20)
	args := []string{"bench", "--rw", "read", "--bs", "4k", "--size", "64k", "--rounds", "3", "--compare", s.isers("0"), s.url("0")}
	c := parseJSON[comparison](t, mustRun(t, append(args, "--json")...))
	require.Len(t, c.A, 3)
	require.Len(t, c.B, 3)
	require.Equal(t, s.isers("0"), c.A[0].URL)
	r := c.Ratios["iops"]
	require.LessOrEqual(t, r.Min, r.Median)
	require.LessOrEqual(t, r.Median, r.Max)
	require.Regexp(t, `(?s)3 rounds.*A: iser://.*B: iscsi://.*B/A +smallest +largest\nIOPS .*latency 99%`, mustRun(t, args...))
}

// TestRatiosAreOfRounds: the ratio is the median of the rounds' ratios, and not the ratio of sums, so that a slow host in one round counts once.
func TestRatiosAreOfRounds(t *testing.T) {
	run := func(ios int64) *benchResult {
		return &benchResult{Runtime: 1000, Read: &benchSide{IOs: ios, Lat: latency{Percentile: map[string]int64{"50.000000": 1e6 / ios}}}}
	}
	c := &comparison{A: []*benchResult{run(100), run(10), run(200), run(100)}, B: []*benchResult{run(200), run(20), run(300), run(50)}}
	c.relate()
	require.Equal(t, ratio{Median: 1.75, Min: 0.5, Max: 2}, c.Ratios["iops"])
}

// TestBenchEndsEarly: an interrupted run tells what it had, and a failed one why.
func TestBenchEndsEarly(t *testing.T) {
	s := newTestSite(t, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	s.disks[0].onWrite = func([]byte, int64) error {
		if n++; n == 20 {
			cancel()
		}
		return nil
	}
	r := iserTool(ctx, "bench", s.url("0"), "--rw", "write", "--iodepth", "1", "--runtime", "10m", "--allow-overwrite", "--json")
	require.ErrorContains(t, r.err, "interrupted after")
	require.Positive(t, parseJSON[benchResult](t, r.out).Write.IOs)

	s.disks[0].onWrite = func([]byte, int64) error { return errors.New("bad sector") }
	r = iserTool(t.Context(), "bench", s.url("0"), "--rw", "write", "--runtime", "10m", "--allow-overwrite")
	require.ErrorContains(t, r.err, "LUN 0 of "+siteTarget+" at octet ")
	require.Empty(t, r.out)
}

// TestBenchRecovers: a connection that is cut on its way is replaced; the run goes on, checks what it wrote, and tells of it.
func TestBenchRecovers(t *testing.T) {
	s := newTestSite(t, 8<<20)
	p := faultproxy.New(t, s.tcp, faultproxy.Script{Steps: []faultproxy.Step{{Dir: faultproxy.ToTarget, Offset: 3 << 20, Do: faultproxy.Cut}}})
	args := []string{"bench", "iscsi://" + p.Addr() + "/" + siteTarget + "/0", "--rw", "write", "--bs", "32k", "--size", "4M", "--iodepth", "8", "--verify", "--allow-overwrite"}
	r := parseJSON[benchResult](t, mustRun(t, append(args, "--json")...))
	require.EqualValues(t, 128, r.Write.IOs, "each is counted once")
	require.EqualValues(t, 1, r.Recovered)
	require.Positive(t, r.Requeued)
	require.EqualValues(t, 4<<20, *r.Verified)
	require.Contains(t, mustRun(t, args...), "  1 session was lost, and another one came in its place\n")
	refused(t, false, "no path to ", append(args, "--replacement-timeout", "1ms")...)
}

// TestBenchCostsNoAllocations: a command that is measured allocates nothing.
func TestBenchCostsNoAllocations(t *testing.T) {
	s := newTestSite(t, 1<<20)
	for name, url := range map[string]string{"tcp": s.url("0"), "iser": s.isers("0")} {
		t.Run(name, func(t *testing.T) {
			o := &connectOptions{timeout: time.Minute, logLevel: "error", mcs: 1, revision: 2}
			o.rnic.RNIC, o.rnic.CRC = "soft", true
			f, err := o.open()
			require.NoError(t, err)
			defer f.Close()
			spec := &benchSpec{rw: "randrw", random: true, readPercent: 50, bs: 4096, depth: 16, jobs: 1, verify: true}
			b, err := f.openBench(t.Context(), spec, &lastingOptions{replacement: time.Minute}, url)
			require.NoError(t, err)
			defer b.close()
			j := b.jobs[0]
			run := func() { <-j.start(2000, false, func(error) {}) }
			run()
			each := testing.AllocsPerRun(5, run) / 2000
			require.NoError(t, b.failed())
			t.Logf("%.4f allocations per command, the target's in this process among them", each)
			if !raceEnabled {
				require.Less(t, each, 0.05)
			}
		})
	}
}

func TestPatternTellsPlaceAndSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		off := rapid.Int64Range(0, 1<<40).Draw(t, "off") * 8
		n := 8 * rapid.IntRange(1, 600).Draw(t, "n")
		seed := rapid.Uint64().Draw(t, "seed")
		p := make([]byte, n)
		fillPattern(p, off, seed)
		require.NoError(t, checkPattern(p, off, seed))
		require.Error(t, checkPattern(p, off+8, seed), "shifted")
		require.Error(t, checkPattern(p, off, seed+1), "of another run")
		at := rapid.IntRange(0, n-1).Draw(t, "at")
		p[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		var e *patternError
		require.ErrorAs(t, checkPattern(p, off, seed), &e)
		require.Equal(t, off+int64(at), e.off)
	})
}

func TestBitmapNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 300).Draw(t, "n")
		set := rapid.SliceOf(rapid.Int64Range(0, n-1)).Draw(t, "set")
		b, has := newBitmap(n), make(map[int64]bool)
		for _, i := range set {
			b.set(i)
			has[i] = true
		}
		for i := range n {
			want := i
			for want < n && !has[want] {
				want++
			}
			require.Equal(t, want, b.next(i, n))
		}
	})
}

func TestSpan(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 950: "950 ns", 1234: "1.23 µs", 45678: "45.7 µs", 123456: "123 µs", 9.876e6: "9.88 ms", 2.5e9: "2.50 s"} {
		require.Equal(t, want, span(ns))
	}
	require.Equal(t, "12.3k", thousands(12345))
	require.Equal(t, "1.20M", thousands(1.2e6))
}
