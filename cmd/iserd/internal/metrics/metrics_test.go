package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
	"goiwarp/rnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source tells fixed figures.
func source() Source {
	var u target.Measure
	u.Ops[target.OpRead] = target.OpMeasure{Commands: 3, Octets: 4096, Latency: 3 * time.Second, Buckets: [target.NumBuckets]uint64{0: 1, 3: 1, target.NumBuckets - 1: 1}}
	u.Sense[scsi.KeyMediumError], u.Status, u.Depth = 2, map[scsi.Status]uint64{scsi.StatusBusy: 5}, 7
	return Source{
		Target: func() target.Metrics {
			return target.Metrics{
				Units:    []target.UnitMetrics{{Target: "iqn.x", LUN: 4, Measure: u}, {Target: "iqn.x", LUN: -1}},
				Sessions: []target.SessionMetrics{{TSIH: 9, Target: "iqn.x", Initiator: "iqn.y", Transport: "iser", Measure: u}},
				Refused:  map[string]uint64{"timeout": 6}, Connections: 3, LoggingIn: 1, Opened: 2,
			}
		},
		RDMA:     func() rnic.Stats { return rnic.Stats{ReadsSent: 11, CRCErrors: 1} },
		Memory:   func() map[string]int64 { return map[string]int64{"data": 4096} },
		Sessions: func() bool { return true },
		Healthy:  func() error { return nil },
		Ready:    func() error { return errors.New("starting") },
		Version:  "v1",
	}
}

func get(t *testing.T, src Source, path string) (int, string) {
	t.Helper()
	h, err := Handler(src)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestFigures(t *testing.T) {
	code, text := get(t, source(), "/metrics")
	require.Equal(t, http.StatusOK, code)
	for _, want := range []string{
		`iserd_info{version="v1"} 1`,
		`iserd_lun_command_duration_seconds_bucket{lun="4",operation="read",target="iqn.x",le="1.6384e-05"} 1`,
		`iserd_lun_command_duration_seconds_bucket{lun="4",operation="read",target="iqn.x",le="0.000131072"} 2`,
		`iserd_lun_command_duration_seconds_bucket{lun="4",operation="read",target="iqn.x",le="+Inf"} 3`,
		`iserd_lun_command_duration_seconds_sum{lun="4",operation="read",target="iqn.x"} 3`,
		`iserd_lun_bytes_total{lun="4",operation="read",target="iqn.x"} 4096`,
		`iserd_lun_sense_total{key="MEDIUM ERROR",lun="4",target="iqn.x"} 2`,
		`iserd_lun_status_total{lun="4",status="BUSY",target="iqn.x"} 5`,
		`iserd_lun_queue_depth{lun="4",target="iqn.x"} 7`,
		`iserd_lun_queue_depth{lun="none",target="iqn.x"} 0`,
		`iserd_session_bytes_total{initiator="iqn.y",operation="read",target="iqn.x",transport="iser",tsih="9"} 4096`,
		`iserd_logins_refused_total{reason="timeout"} 6`,
		`iserd_rdma_operations_total{direction="sent",operation="read"} 11`,
		`iserd_mpa_crc_errors_total 1`,
		`iserd_memory_bytes{use="data"} 4096`,
		"iserd_sessions 2", "iserd_connections 3", "iserd_logins_in_progress 1", "go_goroutines ",
	} {
		require.Contains(t, text, want)
	}
	src := source()
	src.Sessions = func() bool { return false }
	_, text = get(t, src, "/metrics")
	require.NotContains(t, text, "iserd_session_")
}

func TestHealth(t *testing.T) {
	code, _ := get(t, source(), "/healthz")
	require.Equal(t, http.StatusOK, code)
	code, text := get(t, source(), "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "starting\n", text)
	code, _ = get(t, source(), "/other")
	require.Equal(t, http.StatusNotFound, code)
}

// TestLoopback: an address without a host is this host alone.
func TestLoopback(t *testing.T) {
	ln, err := Listen(":0")
	require.NoError(t, err)
	require.Contains(t, ln.Addr().String(), "127.0.0.1:")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	h, err := Handler(source())
	require.NoError(t, err)
	go func() { done <- Serve(ctx, ln, h) }()
	rsp, err := http.Get("http://" + ln.Addr().String() + "/healthz")
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, rsp.Body)
	_ = rsp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-done)
	_, err = Listen("nowhere")
	require.ErrorContains(t, err, "want ADDRESS:PORT")
}
