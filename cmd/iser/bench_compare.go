package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// ratio is B in relation to A, over all rounds.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// measure is one figure of a run that is compared.
type measure struct {
	name string // in JSON
	text string
	show func(v float64) string
	of   func(r *benchResult) (v float64, ok bool)
}

var measures = []measure{
	{"iops", "IOPS", thousands, func(r *benchResult) (float64, bool) {
		return float64(r.ios()) / max(r.Runtime/1000, 1e-9), r.ios() > 0
	}},
	{"lat_p50", "latency 50%", span, percentileOf(50)},
	{"lat_p99", "latency 99%", span, percentileOf(99)},
	{"cpu_us_per_io", "CPU per command", func(v float64) string { return fmt.Sprintf("%.1f µs", v) }, func(r *benchResult) (float64, bool) {
		if r.CPUPerIO == nil {
			return 0, false
		}
		return *r.CPUPerIO, *r.CPUPerIO > 0
	}},
}

// percentileOf is a percentile of the reads' latencies; where there are writes only, of theirs.
func percentileOf(p float64) func(*benchResult) (float64, bool) {
	return func(r *benchResult) (float64, bool) {
		s := r.Read
		if s == nil || s.IOs == 0 {
			s = r.Write
		}
		if s == nil || s.IOs == 0 {
			return 0, false
		}
		return float64(s.Lat.Percentile[percentileName(p)]), true
	}
}

// comparison is the result of rounds that alternate between two disks.
type comparison struct {
	A      []*benchResult   `json:"a"`
	B      []*benchResult   `json:"b"`
	Ratios map[string]ratio `json:"b_to_a"`
}

// compare measures two disks in turns and prints B in relation to A. Both have their sessions open all the time.
func (o *connectOptions) compare(ctx context.Context, spec *benchSpec, l *lastingOptions, urls [2]string, rounds int, asJSON bool, out io.Writer, scr *screen) (err error) {
	f, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var sides [2]*bench
	for i, url := range urls {
		if sides[i], err = f.openBench(ctx, spec, l, url); err != nil {
			return err
		}
		defer sides[i].close()
	}
	c := &comparison{}
	for round := range rounds {
		var pair [2]*benchResult
		for turn := range 2 {
			i := (turn + round) % 2 // A B, B A, A B, ...
			if pair[i], err = sides[i].run(ctx, scr); err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
		c.A, c.B = append(c.A, pair[0]), append(c.B, pair[1])
	}
	c.relate()
	if asJSON {
		return writeJSON(out, c)
	}
	return c.print(out)
}

// relate makes the ratios.
func (c *comparison) relate() {
	c.Ratios = make(map[string]ratio)
	for _, m := range measures {
		var all []float64
		for i := range c.A {
			a, okA := m.of(c.A[i])
			b, okB := m.of(c.B[i])
			if okA && okB {
				all = append(all, b/a)
			}
		}
		if len(all) > 0 {
			slices.Sort(all)
			c.Ratios[m.name] = ratio{Median: median(all), Min: all[0], Max: all[len(all)-1]}
		}
	}
}

// median is the middle of sorted values.
func median(v []float64) float64 {
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func (c *comparison) print(out io.Writer) error {
	a := c.A[0]
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: bs=%s, iodepth=%d, numjobs=%d, %d rounds of %.2f s\n", a.RW, octets(int64(a.BS)), a.IODepth, a.NumJobs, len(c.A), a.Runtime/1000)
	fmt.Fprintf(w, "A: %s\nB: %s\n", a.URL, c.B[0].URL)
	fmt.Fprintln(w, "\tA\tB\tB/A\tsmallest\tlargest")
	for _, m := range measures {
		r, ok := c.Ratios[m.name]
		if !ok {
			continue
		}
		var mid [2]float64
		for i, side := range [][]*benchResult{c.A, c.B} {
			var all []float64
			for _, one := range side {
				if v, ok := m.of(one); ok {
					all = append(all, v)
				}
			}
			slices.Sort(all)
			mid[i] = median(all)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%.3f\t%.3f\n", m.text, m.show(mid[0]), m.show(mid[1]), r.Median, r.Min, r.Max)
	}
	return w.Flush()
}
