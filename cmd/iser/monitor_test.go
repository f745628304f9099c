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
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func TestMonitorCountsPings(t *testing.T) {
	s := newTestSite(t, 1<<20)
	out := mustRun(t, "monitor", s.isers("0"), "--interval", "1ms", "--count", "3")
	require.Regexp(t, `(?m)^\d\d:\d\d:\d\d\.\d{3} up iser://`, out)
	require.Equal(t, 3, strings.Count(out, " ping nop "))
	require.Regexp(t, `(?s)nop: 3, min .* avg .* 99% .* max .*test unit ready: 3, min`, out)
	refused(t, true, "--interval 0", "monitor", s.url("0"), "--interval", "0")
	refused(t, false, "connection refused", "monitor", "iscsi://127.0.0.1:1/"+siteTarget+"/0")
}

// TestMonitorTellsPaths: the loss of one of two paths and its return, while the other one answers.
func TestMonitorTellsPaths(t *testing.T) {
	s := newTestSite(t, 1<<20)
	p := faultproxy.New(t, s.tcp, faultproxy.Script{})
	w := startMonitor(t, "iscsi://"+p.Addr()+"/"+siteTarget+"/0", "--path", s.isers("0"))
	paths := map[string]bool{}
	for len(paths) < 2 {
		e := w.next("up")
		paths[e.Path] = true
	}
	require.Equal(t, map[string]bool{p.Addr(): true, s.iser: true}, paths)
	for w.next("ping").Path != p.Addr() {
	}
	p.CutAll()
	require.Equal(t, p.Addr(), w.next("down").Path)
	require.NotEmpty(t, w.next("ping").Path)
	require.Equal(t, p.Addr(), w.next("up").Path)
	for w.next("ping").Path != p.Addr() {
	}
	w.stop()
}

// TestMonitorNamesPaths: by what tells them apart.
func TestMonitorNamesPaths(t *testing.T) {
	require.Empty(t, (&monitor{urls: make([]initiator.URL, 1)}).pathOf(0), "the only one")
	var m monitor
	for _, s := range []string{"iser://192.0.2.1/" + siteTarget + "/0", "iscsi://192.0.2.1/" + siteTarget + "/0", "iser://192.0.2.2/" + siteTarget + "/0"} {
		u, err := initiator.ParseURL(s)
		require.NoError(t, err)
		m.urls = append(m.urls, u)
	}
	require.Equal(t, []string{"iser://192.0.2.1:3260/" + siteTarget + "/0", "iscsi://192.0.2.1:3260/" + siteTarget + "/0", "192.0.2.2:3260"},
		[]string{m.pathOf(0), m.pathOf(1), m.pathOf(2)})
}

// TestMonitorTellsWhatHappens: a unit attention, a lost session and its successor are lines of JSON, in the order of their happening.
func TestMonitorTellsWhatHappens(t *testing.T) {
	s := newTestSite(t, 1<<20)
	p := faultproxy.New(t, s.tcp, faultproxy.Script{})
	w := startMonitor(t, "iscsi://"+p.Addr()+"/"+siteTarget+"/0")
	next := w.next
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
	w.stop()
}

// monitoring is a running monitor.
type monitoring struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel func()
	done   chan error
}

func startMonitor(t *testing.T, args ...string) *monitoring {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	cmd := command()
	cmd.SetArgs(append([]string{"monitor", "--interval", "5ms", "--json"}, args...))
	r, w := io.Pipe()
	t.Cleanup(func() { _ = r.Close() }) // a monitor that a failed test leaves behind must not wait for its reader
	cmd.SetOut(w)
	m := &monitoring{t, bufio.NewScanner(r), cancel, make(chan error, 1)}
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.Close()
		m.done <- err
	}()
	return m
}

// next is the next event of a kind.
func (m *monitoring) next(event string) monitorEvent {
	m.t.Helper()
	for m.lines.Scan() {
		var e monitorEvent
		require.NoError(m.t, json.Unmarshal(m.lines.Bytes(), &e), m.lines.Text())
		require.False(m.t, e.Time.IsZero())
		if e.Event == event {
			return e
		}
	}
	m.t.Fatalf("the output ends without %q", event)
	return monitorEvent{}
}

// stop interrupts it.
func (m *monitoring) stop() {
	m.cancel()
	for m.lines.Scan() {
	}
	require.NoError(m.t, <-m.done)
}
