package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// benchResult is what a run has measured. Its JSON has fio's names where fio has such a thing.
type benchResult struct {
	URL     string     `json:"url"`
	RW      string     `json:"rw"`
	BS      int        `json:"bs"`
	IODepth int        `json:"iodepth"`
	NumJobs int        `json:"numjobs"`
	Seed    uint64     `json:"randseed"`
	Runtime float64    `json:"runtime"` // milliseconds that were measured
	Read    *benchSide `json:"read,omitempty"`
	Write   *benchSide `json:"write,omitempty"`
	// UserCPU and SystemCPU are percent of one CPU; CPUPerIO is microseconds of both for each command.
	UserCPU   *float64 `json:"usr_cpu,omitempty"`
	SystemCPU *float64 `json:"sys_cpu,omitempty"`
	CPUPerIO  *float64 `json:"cpu_us_per_io,omitempty"`
	// Requeued are commands that were sent again: the disk had put them off (BUSY, TASK SET FULL, unit attentions), or their connection was
	// lost. Recovered are lost sessions in whose place another one came.
	Requeued  int64 `json:"requeued"`
	Recovered int64 `json:"sessions_recovered"`
	// Verified are the octets that were compared, if that was asked for.
	Verified *int64 `json:"verified_bytes,omitempty"`
}

// benchSide is one direction: all reads, or all writes.
type benchSide struct {
	IOs   int64   `json:"total_ios"`
	Bytes int64   `json:"io_bytes"`
	IOPS  float64 `json:"iops"`
	BW    float64 `json:"bw_bytes"` // octets per second
	Lat   latency `json:"lat_ns"`   // from submission to the end
}

// latency is a distribution, in nanoseconds.
type latency struct {
	Min        int64            `json:"min"`
	Max        int64            `json:"max"`
	Mean       float64          `json:"mean"`
	StdDev     float64          `json:"stddev"`
	N          int64            `json:"N"`
	Percentile map[string]int64 `json:"percentile"`
}

// percentiles are those that are told.
var percentiles = []float64{1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99}

func percentileName(p float64) string { return fmt.Sprintf("%.6f", p) }

// newBenchResult adds up what the jobs have counted within took.
func newBenchResult(b *bench, took time.Duration) *benchResult {
	r := &benchResult{
		URL: b.url.String(), RW: b.spec.rw, BS: b.spec.bs, IODepth: b.spec.depth, NumJobs: len(b.jobs), Seed: b.spec.seed,
		Runtime: took.Seconds() * 1000,
	}
	read, write := newTally(), newTally()
	for _, j := range b.jobs {
		j.mu.Lock()
		for _, t := range []struct{ sum, of *tally }{{&read, &j.read}, {&write, &j.write}} {
			t.sum.ios += t.of.ios
			t.sum.hist.Merge(t.of.hist)
		}
		j.mu.Unlock()
	}
	if b.spec.reads() {
		r.Read = newBenchSide(read, b.spec.bs, took)
	}
	if b.spec.writes() {
		r.Write = newBenchSide(write, b.spec.bs, took)
	}
	return r
}

func newBenchSide(t tally, bs int, took time.Duration) *benchSide {
	span := max(took.Seconds(), 1e-9)
	s := &benchSide{IOs: t.ios, Bytes: t.ios * int64(bs), IOPS: float64(t.ios) / span, BW: float64(t.ios) * float64(bs) / span}
	s.Lat = newLatency(t.hist)
	return s
}

func newLatency(h *hdrhistogram.Histogram) latency {
	l := latency{N: h.TotalCount(), Percentile: make(map[string]int64, len(percentiles))}
	if l.N > 0 {
		l.Min, l.Max, l.Mean, l.StdDev = h.Min(), h.Max(), h.Mean(), h.StdDev()
	}
	for _, p := range percentiles {
		l.Percentile[percentileName(p)] = h.ValueAtPercentile(p)
	}
	return l
}

// count takes over what jobs count besides commands.
func (r *benchResult) count(b *bench) {
	s := b.stats()
	r.Requeued, r.Recovered = int64(s.Resent-b.base.Resent), int64(s.Lost-b.base.Lost)
	var checked int64
	for _, j := range b.jobs {
		j.mu.Lock()
		checked += j.checked
		j.mu.Unlock()
	}
	if b.spec.verify {
		checked *= int64(b.spec.bs)
		r.Verified = &checked
	}
}

// ios are the commands of both directions.
func (r *benchResult) ios() (n int64) {
	for _, s := range []*benchSide{r.Read, r.Write} {
		if s != nil {
			n += s.IOs
		}
	}
	return n
}

// spend notes how much of the CPU was used.
func (r *benchResult) spend(user, system time.Duration) {
	percent := func(d time.Duration) *float64 {
		p := 100 * d.Seconds() / max(r.Runtime/1000, 1e-9)
		return &p
	}
	r.UserCPU, r.SystemCPU = percent(user), percent(system)
	if n := r.ios(); n > 0 {
		each := float64((user + system).Microseconds()) / float64(n)
		r.CPUPerIO = &each
	}
}

// text is the result for people.
func (r *benchResult) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: bs=%s, iodepth=%d, numjobs=%d, %.2f s, %s\n", r.RW, octets(int64(r.BS)), r.IODepth, r.NumJobs, r.Runtime/1000, r.URL)
	for _, side := range []struct {
		name string
		s    *benchSide
	}{{"read", r.Read}, {"write", r.Write}} {
		if side.s != nil {
			side.s.text(&b, side.name)
		}
	}
	if r.UserCPU != nil {
		fmt.Fprintf(&b, "  cpu    usr %.1f%%, sys %.1f%% of one", *r.UserCPU, *r.SystemCPU)
		if r.CPUPerIO != nil {
			fmt.Fprintf(&b, "; %.1f µs per command", *r.CPUPerIO)
		}
		b.WriteByte('\n')
	}
	if r.Recovered > 0 {
		fmt.Fprintf(&b, "  %s\n", plural(uint64(r.Recovered), "session was lost, and another one", "sessions were lost, and others")+" came in its place")
	}
	if r.Requeued > 0 {
		fmt.Fprintf(&b, "  %s sent again: put off by the disk, or under way on a lost connection\n", plural(uint64(r.Requeued), "command was", "commands were"))
	}
	if r.Verified != nil {
		fmt.Fprintf(&b, "  verified %s, --randseed %d\n", octets(*r.Verified), r.Seed)
	}
	return b.String()
}

func (s *benchSide) text(b *strings.Builder, name string) {
	fmt.Fprintf(b, "  %-6s IOPS %s, %s (%.1f MB/s), %d commands, %s\n", name, thousands(s.IOPS), perSecond(s.BW), s.BW/1e6, s.IOs, octets(s.Bytes))
	if s.IOs == 0 {
		return
	}
	l := s.Lat
	fmt.Fprintf(b, "         latency: min %s, avg %s, max %s, stdev %s\n", span(float64(l.Min)), span(l.Mean), span(float64(l.Max)), span(l.StdDev))
	b.WriteString("         percentiles:")
	for i, p := range []float64{50, 90, 95, 99, 99.9, 99.99} {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, " %g%% %s", p, span(float64(l.Percentile[percentileName(p)])))
	}
	b.WriteByte('\n')
}

// span is a time of ns nanoseconds to three digits.
func span(ns float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if ns >= u.of {
			v := ns / u.of
			return fmt.Sprintf("%.*f %s", max(0, 2-len(fmt.Sprint(int(v)))+1), v, u.name)
		}
	}
	return fmt.Sprintf("%.0f ns", ns)
}
