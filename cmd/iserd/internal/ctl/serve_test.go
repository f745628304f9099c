package ctl

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// dialled is a listener whose connections are in memory, each from a process of its own choice.
type dialled struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newDialled() *dialled { return &dialled{conns: make(chan net.Conn), done: make(chan struct{})} }

func (d *dialled) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

func (d *dialled) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

func (d *dialled) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// dial is a client that has sent text.
func (d *dialled) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	d.conns <- there
	go func() { _, _ = io.WriteString(here, text) }()
	t.Cleanup(func() { _ = here.Close() })
	return here
}

const (
	short = `{"version":1,"command":"look"}` + "\n"
	long  = `{"version":1,"command":"change"}` + "\n"
)

// reply is the answer that a client gets; ok is false if it gets none.
func reply(t *testing.T, c net.Conn) (r Response, ok bool) {
	t.Helper()
	line, err := readLine(c, MaxResponse)
	if err != nil {
		return r, false
	}
	require.NoError(t, json.Unmarshal(line, &r))
	return r, true
}

// inBubble serves with changes that take until release is closed.
func inBubble(t *testing.T, f func(t *testing.T, d *dialled, release chan struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, release := newDialled(), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Serve(ctx, d, Service{
				Handle: func(ctx context.Context, command string, _ json.RawMessage) (any, error) {
					if command == "change" {
						select {
						case <-release:
						case <-ctx.Done():
						}
					}
					return command, ctx.Err()
				},
				Long: func(command string) bool { return command == "change" },
				Log:  slog.New(slog.DiscardHandler),
			})
		}()
		f(t, d, release)
		cancel()
		<-done
	})
}

// TestStalledClients: however many clients stop in the middle of their request, others have their answer at once; and who stalls is
// given up when its time is over, all pieces together.
func TestStalledClients(t *testing.T) {
	inBubble(t, func(t *testing.T, d *dialled, _ chan struct{}) {
		began := time.Now()
		var stalled []net.Conn
		for range 3 * maxClients {
			stalled = append(stalled, d.dial(t, `{"version":1,`))
			synctest.Wait()
		}
		r, ok := reply(t, d.dial(t, short))
		require.True(t, ok)
		require.True(t, r.OK)
		require.Zero(t, time.Since(began), "nobody waited")
		_, ok = reply(t, stalled[0])
		require.False(t, ok, "the oldest made room")
		last := stalled[len(stalled)-1]
		time.Sleep(patience / 2)
		_, _ = io.WriteString(last, `"command":`)
		r, ok = reply(t, last)
		require.True(t, ok)
		require.Contains(t, r.Error, "timeout")
		require.Equal(t, patience, time.Since(began), "the second piece has bought it no time")
	})
}

// TestLongRequests: changes that take long leave room for who only looks; one too many of them is told so at once.
func TestLongRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, d *dialled, release chan struct{}) {
		var changes []net.Conn
		for range maxLong {
			changes = append(changes, d.dial(t, long))
		}
		synctest.Wait()
		r, _ := reply(t, d.dial(t, long))
		require.False(t, r.OK)
		require.Contains(t, r.Error, "16 changes are in progress")
		for range 2 * maxClients {
			r, _ = reply(t, d.dial(t, short))
			require.True(t, r.OK, r.Error)
		}
		close(release)
		for _, c := range changes {
			r, _ = reply(t, c)
			require.True(t, r.OK, r.Error)
		}
		r, _ = reply(t, d.dial(t, long))
		require.True(t, r.OK, r.Error)
	})
}

// TestUntakenAnswers: who does not take an answer makes room for others, and is given up when its time is over.
func TestUntakenAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, d *dialled, _ chan struct{}) {
		var deaf []net.Conn
		for range maxClients {
			deaf = append(deaf, d.dial(t, short))
		}
		synctest.Wait()
		r, _ := reply(t, d.dial(t, short))
		require.True(t, r.OK)
		time.Sleep(patience)
		synctest.Wait()
		for _, c := range deaf {
			_, ok := reply(t, c)
			require.False(t, ok)
		}
	})
}

// TestOneProcess: connections of one process are bounded, and it is told so.
func TestOneProcess(t *testing.T) {
	path := served(t, echo)
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	known := peerOf(c)
	_ = c.Close()
	if known == 0 {
		t.Skip("this system does not tell whose connections they are")
	}
	release := make(chan struct{})
	path = served(t, func(ctx context.Context, command string, _ json.RawMessage) (any, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return command, ctx.Err()
	})
	var waiting []net.Conn
	for range maxOfPeer {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		_, err = io.WriteString(c, `{"version":1,"command":"echo"}`+"\n")
		require.NoError(t, err)
		waiting = append(waiting, c)
	}
	err = Call(t.Context(), path, "echo", nil, nil)
	require.ErrorContains(t, err, "8 requests of process")
	require.NotContains(t, err.Error(), "\n")
	close(release)
	for _, c := range waiting {
		r, ok := reply(t, c)
		require.True(t, ok)
		require.True(t, r.OK, r.Error)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, c.Close())
	}
	require.NoError(t, Call(t.Context(), path, "echo", nil, nil), "who has its answer has left its place")
}

// TestSocketMoves: closing the listener ends nothing that is in progress.
func TestSocketMoves(t *testing.T) {
	inBubble(t, func(t *testing.T, d *dialled, release chan struct{}) {
		c := d.dial(t, long)
		synctest.Wait()
		require.NoError(t, d.Close())
		synctest.Wait()
		close(release)
		r, ok := reply(t, c)
		require.True(t, ok)
		require.True(t, r.OK, r.Error)
	})
}
