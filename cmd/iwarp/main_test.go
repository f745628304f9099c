package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/cmd/internal/cli"
)

// TestMain is the program itself where a test needs a process that it can kill.
func TestMain(m *testing.M) {
	if os.Getenv("IWARP_TEST_PROGRAM") != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// bound is how long a command may take before a test gives it up: a guard against hanging.
const bound = time.Minute

// running is a command under way.
type running struct {
	t     *testing.T
	lines *bufio.Scanner
	stop  context.CancelFunc
	done  chan struct{}
	err   error
}

// start runs the program with args; its standard output is read line by line.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	out := &output{more: make(chan struct{}, 1)}
	r := &running{t: t, lines: bufio.NewScanner(out), stop: cancel, done: make(chan struct{})}
	cmd := command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	go func() {
		defer close(r.done)
		r.err = cmd.ExecuteContext(ctx)
		out.close()
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// output is what a command has printed, for a reader that waits for more. It never blocks the command.
type output struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	closed bool
	more   chan struct{}
}

func (o *output) change(f func()) {
	o.mu.Lock()
	f()
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *output) close() { o.change(func() { o.closed = true }) }

func (o *output) Write(b []byte) (int, error) {
	o.change(func() { o.buf.Write(b) })
	return len(b), nil
}

func (o *output) Read(b []byte) (int, error) {
	for {
		o.mu.Lock()
		n, _ := o.buf.Read(b)
		closed := o.closed
		o.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case closed:
			return 0, io.EOF
		}
		<-o.more
	}
}

// line is the next line of output.
func (r *running) line() string {
	r.t.Helper()
	require.True(r.t, r.lines.Scan(), "the output has ended")
	return r.lines.Text()
}

// rest waits for the end and returns what is left of the output, and how it ended.
func (r *running) rest() (string, error) {
	r.t.Helper()
	var left strings.Builder
	for r.lines.Scan() {
		left.WriteString(r.lines.Text() + "\n")
	}
	<-r.done
	return left.String(), r.err
}

// ready waits for the line that tells the address.
func (r *running) ready() (host, port string) {
	r.t.Helper()
	addr, ok := strings.CutPrefix(r.line(), "ready: ")
	require.True(r.t, ok)
	i := strings.LastIndexByte(addr, ':')
	return strings.Trim(addr[:i], "[]"), addr[i+1:]
}

// iwarp runs the program to its end.
func iwarp(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return start(t, args...).rest()
}

// listen opens a TCP port that never says anything.
func listen(t *testing.T) (port string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	_, port, err = net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	return port
}

// wantUsage asserts that a command refuses args as a mistake in usage, in one line that has want in it.
func wantUsage(t *testing.T, want string, args ...string) {
	t.Helper()
	_, err := iwarp(t, args...)
	var usage *cli.UsageError
	require.True(t, errors.As(err, &usage), "%v: %v", args, err)
	require.Contains(t, err.Error(), want)
	require.NotContains(t, err.Error(), "\n")
}
