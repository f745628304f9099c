// Package metrics tells Prometheus what an iSCSI target does.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
	"goiwarp/rnic"
)

// Source is where the figures come from; every function may be called at any time, by several goroutines.
type Source struct {
	Target func() target.Metrics
	// RDMA sums up the operations of all iSER connections, those that have ended included.
	RDMA func() rnic.Stats
	// Memory is what is held outside of the Go heap, in octets, by what it is for.
	Memory func() map[string]int64
	// Sessions tells whether there are figures for each session.
	Sessions func() bool
	// Healthy is quick; Ready tells whether logins are taken.
	Healthy, Ready func() error
	Version        string
}

// collector makes figures when it is asked for them, so that nothing is done per command but counting.
type collector struct{ src Source }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("iserd_"+name, help, labels, nil)
}

var (
	lunLabels     = []string{"target", "lun"}
	sessionLabels = []string{"target", "initiator", "tsih", "transport"}

	info        = desc("info", "Constant 1; the label has the version.", "version")
	connections = desc("connections", "Connections that are open.")
	loggingIn   = desc("logins_in_progress", "Connections that have not finished their login.")
	sessions    = desc("sessions", "Sessions that are open.")
	refused     = desc("logins_refused_total", "Logins that came to nothing, by reason.", "reason")
	rdmaOps     = desc("rdma_operations_total", "RDMA operations of all iSER connections.", "operation", "direction")
	rdmaOctets  = desc("rdma_bytes_total", "Payload of RDMA operations.", "direction")
	fpdus       = desc("mpa_fpdus_total", "FPDUs of all iWARP connections.", "direction")
	crcChecked  = desc("mpa_crc_checked_total", "CRCs that were checked.")
	crcErrors   = desc("mpa_crc_errors_total", "FPDUs whose CRC was wrong.")
	memory      = desc("memory_bytes", "Memory held outside of the Go heap, by use.", "use")

	lun     = newSet("lun", "logical unit", lunLabels)
	session = newSet("session", "session", sessionLabels)
)

// set are the descriptions of what is measured of one kind of thing.
type set struct{ latency, octets, sense, status, depth *prometheus.Desc }

func newSet(prefix, of string, labels []string) set {
	with := func(more string) []string { return append(labels[:len(labels):len(labels)], more) }
	return set{
		latency: desc(prefix+"_command_duration_seconds", "Time from a command to its answer, by "+of+" and operation.", with("operation")...),
		octets:  desc(prefix+"_bytes_total", "Data moved, by "+of+" and operation.", with("operation")...),
		sense:   desc(prefix+"_sense_total", "Commands that ended with CHECK CONDITION, by "+of+" and sense key.", with("key")...),
		status:  desc(prefix+"_status_total", "Commands that ended with another status than GOOD and CHECK CONDITION, by "+of+" and status.", with("status")...),
		depth:   desc(prefix+"_queue_depth", "Commands in progress, by "+of+".", labels...),
	}
}

// Describe implements prometheus.Collector: the series are not known beforehand.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{info, connections, loggingIn, sessions, refused, rdmaOps, rdmaOctets, fpdus, crcChecked, crcErrors, memory} {
		ch <- d
	}
	for _, s := range []set{lun, session} {
		for _, d := range []*prometheus.Desc{s.latency, s.octets, s.sense, s.status, s.depth} {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(info, 1, c.src.Version)
	m := c.src.Target()
	gauge(connections, float64(m.Connections))
	gauge(loggingIn, float64(m.LoggingIn))
	gauge(sessions, float64(m.Opened))
	for reason, n := range m.Refused {
		counter(refused, n, reason)
	}
	for _, u := range m.Units {
		number := "none"
		if u.LUN >= 0 {
			number = strconv.Itoa(u.LUN)
		}
		lun.collect(ch, &u.Measure, u.Target, number)
	}
	if c.src.Sessions() {
		for _, s := range m.Sessions {
			session.collect(ch, &s.Measure, s.Target, s.Initiator, strconv.Itoa(int(s.TSIH)), s.Transport)
		}
	}
	r := c.src.RDMA()
	for _, o := range []struct {
		name           string
		sent, received uint64
	}{
		{"send", r.SendsSent, r.SendsReceived},
		{"write", r.WritesSent, r.WritesReceived},
		{"read", r.ReadsSent, r.ReadsReceived},
		{"atomic", r.AtomicsSent, r.AtomicsReceived},
		{"invalidate", r.InvalidatesSent, r.InvalidatesRecv},
	} {
		counter(rdmaOps, o.sent, o.name, "sent")
		counter(rdmaOps, o.received, o.name, "received")
	}
	counter(rdmaOctets, r.OctetsSent, "sent")
	counter(rdmaOctets, r.OctetsReceived, "received")
	counter(fpdus, r.FPDUsSent, "sent")
	counter(fpdus, r.FPDUsReceived, "received")
	counter(crcChecked, r.CRCsChecked)
	counter(crcErrors, r.CRCErrors)
	for use, n := range c.src.Memory() {
		gauge(memory, float64(n), use)
	}
}

// collect makes the figures of one thing.
func (s set) collect(ch chan<- prometheus.Metric, m *target.Measure, labels ...string) {
	with := func(more string) []string { return append(labels[:len(labels):len(labels)], more) }
	for op := range target.NumOps {
		o := &m.Ops[op]
		buckets := make(map[float64]uint64, target.NumBuckets)
		n := uint64(0)
		for i := range target.NumBuckets - 1 {
			n += o.Buckets[i]
			buckets[target.BucketBound(i).Seconds()] = n
		}
		ch <- prometheus.MustNewConstHistogram(s.latency, o.Commands, o.Latency.Seconds(), buckets, with(op.String())...)
		ch <- prometheus.MustNewConstMetric(s.octets, prometheus.CounterValue, float64(o.Octets), with(op.String())...)
	}
	for key, n := range m.Sense {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(s.sense, prometheus.CounterValue, float64(n), with(scsi.Key(key).String())...)
		}
	}
	for status, n := range m.Status {
		ch <- prometheus.MustNewConstMetric(s.status, prometheus.CounterValue, float64(n), with(status.String())...)
	}
	ch <- prometheus.MustNewConstMetric(s.depth, prometheus.GaugeValue, float64(m.Depth), labels...)
}

// Handler serves /metrics, /healthz and /readyz.
func Handler(src Source) (http.Handler, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		&collector{src}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	check := func(f func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := f(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
	mux.Handle("GET /healthz", check(src.Healthy))
	mux.Handle("GET /readyz", check(src.Ready))
	return mux, nil
}

// Listen opens the listener of addr: of this host alone unless addr names another one.
func Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics %q: want ADDRESS:PORT", addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return ln, nil
}

// Serve serves h until ctx ends.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = s.Close()
	})
	err := s.Serve(ln)
	if !stop() {
		<-done
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
