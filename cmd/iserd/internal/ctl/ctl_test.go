package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served serves h on a socket until the test ends.
func served(t *testing.T, h Handler) (path string) {
	t.Helper()
	return offered(t, Service{Handle: h})
}

// offered serves s on a socket until the test ends.
func offered(t *testing.T, s Service) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl")
	require.NoError(t, err)
	path = filepath.Join(dir, "s")
	ln, err := Listen(path)
	require.NoError(t, err)
	s.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, ln, s)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = os.RemoveAll(dir)
	})
	return path
}

func echo(_ context.Context, command string, args json.RawMessage) (any, error) {
	if command != "echo" {
		return nil, ErrUnknownCommand
	}
	var a struct{ Text string }
	if err := Args(args, &a); err != nil {
		return nil, err
	}
	return a, nil
}

func TestCall(t *testing.T) {
	path := served(t, echo)
	var got struct{ Text string }
	require.NoError(t, Call(t.Context(), path, "echo", map[string]string{"Text": "hello"}, &got))
	require.Equal(t, "hello", got.Text)
	require.NoError(t, Call(t.Context(), path, "echo", nil, nil))
	require.ErrorContains(t, Call(t.Context(), path, "sing", nil, nil), "unknown command")
	require.ErrorContains(t, Call(t.Context(), path, "echo", map[string]int{"Number": 1}, nil), "unknown field")
	require.ErrorContains(t, Call(t.Context(), path+"x", "echo", nil, nil), "no iserd answers")
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
}

// TestListenTwice: a socket that is served is not taken over, what a dead daemon left is, and a file is not.
func TestListenTwice(t *testing.T) {
	path := served(t, echo)
	_, err := Listen(path)
	require.ErrorContains(t, err, "another iserd serves it")
	stale := path + ".stale"
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	again, err := Listen(stale)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, os.WriteFile(stale, []byte("data"), 0o600))
	_, err = Listen(stale)
	require.ErrorContains(t, err, "something else is there")
	require.FileExists(t, stale)
}

// TestClientGoesAway: what a client asked for is cancelled with it.
func TestClientGoesAway(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	path := served(t, func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() { got <- Call(ctx, path, "wait", nil, nil) }()
	<-began
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	<-ended
}

// TestTooLong: a request without an end is not kept.
func TestTooLong(t *testing.T) {
	_, err := readLine(io.LimitReader(zeros{}, 10*MaxRequest), MaxRequest)
	require.ErrorContains(t, err, "more than")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"command":"echo","args":{"Text":"x"}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		b, err := answer(t.Context(), line, echo)
		if err == nil && !json.Valid(b) {
			t.Fatalf("%q", b)
		}
		if err != nil && (errors.Is(err, io.EOF) || strings.Contains(err.Error(), "panic")) {
			t.Fatal(err)
		}
		if l, err := readLine(bytes.NewReader(append(line, '\n')), len(line)); err == nil && bytes.IndexByte(l, '\n') >= 0 {
			t.Fatal("more than a line")
		}
	})
}
