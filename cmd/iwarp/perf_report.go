package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"goiwarp/rnic"
)

// report prints results: a table with perftest's columns, or JSON at the end.
type report struct {
	w    io.Writer
	json bool
	doc  reportDoc
}

// reportDoc is the JSON document.
type reportDoc struct {
	Test          string `json:"test"`
	Device        string `json:"device"`
	Provider      string `json:"provider"`
	Peer          string `json:"peer"`
	Bidirectional bool   `json:"bidirectional"`
	Results       []any  `json:"results"`
}

// bandwidthRow is a line of a bandwidth test. MiB are 2^20 octets, Mpps a million messages a second.
type bandwidthRow struct {
	Octets     int     `json:"octets"`
	Iterations int     `json:"iterations"`
	Depth      int     `json:"depth"`
	Peak       float64 `json:"bw_peak_mib_per_s"`
	Average    float64 `json:"bw_average_mib_per_s"`
	Rate       float64 `json:"msg_rate_mpps"`
}

// latencyRow is a line of a latency test; times in microseconds. Typical is the median.
type latencyRow struct {
	Octets     int     `json:"octets"`
	Iterations int     `json:"iterations"`
	Min        float64 `json:"t_min_us"`
	Max        float64 `json:"t_max_us"`
	Typical    float64 `json:"t_typical_us"`
	Average    float64 `json:"t_avg_us"`
	Stdev      float64 `json:"t_stdev_us"`
	P99        float64 `json:"t_99_us"`
	P999       float64 `json:"t_99_9_us"`
}

func newReport(w io.Writer, asJSON bool, a rnic.Attributes, peer string, t perfTest) *report {
	r := &report{w: w, json: asJSON, doc: reportDoc{Test: t.name(), Device: a.Name, Provider: a.Provider, Peer: peer, Bidirectional: t.both}}
	if asJSON {
		return r
	}
	ways := ""
	if t.both {
		ways = ", both ways"
	}
	fmt.Fprintf(w, "%s%s, device %s (%s), peer %s\n", t.name(), ways, a.Name, a.Provider, peer)
	if t.latency {
		fmt.Fprintln(w, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]")
	} else {
		fmt.Fprintln(w, " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]")
	}
	return r
}

// add takes a result.
func (r *report) add(p perfResult) error {
	if p.test.latency {
		row := latency(p)
		r.doc.Results = append(r.doc.Results, row)
		if r.json {
			return nil
		}
		_, err := fmt.Fprintf(r.w, " %-7d %-11d    %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f\n",
			row.Octets, row.Iterations, row.Min, row.Max, row.Typical, row.Average, row.Stdev, row.P99, row.P999)
		return err
	}
	row := bandwidth(p)
	r.doc.Results = append(r.doc.Results, row)
	if r.json {
		return nil
	}
	_, err := fmt.Fprintf(r.w, " %-7d    %-10d       %-7.2f            %-7.2f \t\t     %-7.6f\n", row.Octets, row.Iterations, row.Peak, row.Average, row.Rate)
	return err
}

// end prints what add has not.
func (r *report) end() error {
	if !r.json {
		return nil
	}
	e := json.NewEncoder(r.w)
	e.SetIndent("", "  ")
	return e.Encode(r.doc)
}

func bandwidth(p perfResult) bandwidthRow {
	ways := 1
	if p.test.both {
		ways = 2
	}
	rate := float64(p.test.count*ways) / p.took.Seconds()
	mib := func(perSecond float64) float64 { return perSecond * float64(p.test.size) / (1 << 20) }
	return bandwidthRow{
		Octets: p.test.size, Iterations: p.test.count, Depth: p.test.depth,
		Peak: max(mib(peakRate(p)*float64(ways)), mib(rate)), Average: mib(rate), Rate: rate / 1e6,
	}
}

// peakRate is the rate, in operations a second, of the best tenth of the run, or of one depth if
// that is longer: what completes together within a depth says nothing about speed.
func peakRate(p perfResult) float64 {
	window := max(p.test.count/10, p.test.depth)
	best := 0.0
	for i := window; i < len(p.stamps); i++ {
		if d := p.stamps[i] - p.stamps[i-window]; d > 0 {
			best = max(best, float64(window)/d.Seconds())
		}
	}
	return best
}

func latency(p perfResult) latencyRow {
	sorted := slices.Sorted(slices.Values(p.stamps))
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	at := func(part float64) float64 { return us(sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]) }
	sum := 0.0
	for _, d := range sorted {
		sum += us(d)
	}
	avg := sum / float64(len(sorted))
	squares := 0.0
	for _, d := range sorted {
		squares += (us(d) - avg) * (us(d) - avg)
	}
	return latencyRow{
		Octets: p.test.size, Iterations: p.test.count,
		Min: us(sorted[0]), Max: us(sorted[len(sorted)-1]), Typical: at(0.5), Average: avg,
		Stdev: math.Sqrt(squares / float64(len(sorted))), P99: at(0.99), P999: at(0.999),
	}
}
