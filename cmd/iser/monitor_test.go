package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/iscsi/scsi"
)

func TestMonitorCountsPings(t *testing.T) {
	s := newTestSite(t, 1<<20)
	out := mustRun(t, "monitor", s.isers("0"), "--interval", "1ms", "--count", "3")
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} up iser://`, out)
	require.Equal(t, 3, strings.Count(out, " ping nop "))
	require.Regexp(t, `(?s)nop: 3, min .* avg .* 99% .* max .*test unit ready: 3, min`, out)
	refused(t, true, "--interval 0", "monitor", s.url("0"), "--interval", "0")
	refused(t, false, "connection refused", "monitor", "iscsi://127.0.0.1:1/"+siteTarget+"/0")
}

// TestMonitorTellsWhatHappens: a unit attention, a lost session and its successor are lines of JSON, in the order of their happening.
func TestMonitorTellsWhatHappens(t *testing.T) {
	s := newTestSite(t, 1<<20)
	p := faultproxy.New(t, s.tcp, faultproxy.Script{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := command()
	cmd.SetArgs([]string{"monitor", "iscsi://" + p.Addr() + "/" + siteTarget + "/0", "--interval", "5ms", "--json"})
	r, w := io.Pipe()
	cmd.SetOut(w)
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.Close()
		done <- err
	}()
	lines := bufio.NewScanner(r)
	next := func(event string) monitorEvent {
		t.Helper()
		for lines.Scan() {
			var e monitorEvent
			require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
			require.False(t, e.Time.IsZero())
			if e.Event == event {
				return e
			}
		}
		t.Fatalf("the output ends without %q", event)
		return monitorEvent{}
	}
	next("up")
	require.NotNil(t, next("ping").NOP)
	require.NoError(t, s.device.LU(0).Resize(2<<20, false))
	e := next("attention")
	require.Equal(t, "UNIT ATTENTION", e.Key)
	require.Equal(t, "2A/09", e.Code)
	require.Equal(t, scsi.CodeCapacityChanged.String(), e.Detail)
	next("ping")
	p.CutAll()
	require.NotEmpty(t, next("down").Detail)
	next("up")
	next("ping")
	cancel()
	go func() {
		for lines.Scan() {
		}
	}()
	require.NoError(t, <-done)
}
