package portal

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/iscsi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSniff(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Protocol
		more bool
	}{
		{"", Unknown, true},
		{"\x43", ISCSI, false},
		{"\x03", ISCSI, false},
		{"\x83", Unknown, false}, // bit 0 is reserved
		{"\x01", Unknown, false},
		{"M", ISER, true},
		{"MPA ID Req Fram", ISER, true},
		{"MPA ID Req Frame", ISER, false},
		{"MPA ID Req Frame\x50\x02", ISER, false},
		{"MPA ID Rep Frame", Unknown, false},
		{"GET / HTTP/1.1", Unknown, false},
	} {
		p, more := Sniff([]byte(c.in))
		assert.Equal(t, c.more, more, "%q", c.in)
		if !more {
			assert.Equal(t, c.want, p, "%q", c.in)
		}
	}
}

// FuzzSniff: the verdict does not depend on how the octets arrive, and comes with the key at the latest.
func FuzzSniff(f *testing.F) {
	f.Add([]byte("MPA ID Req Frame"))
	f.Add([]byte{0x43})
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, more := Sniff(b)
		if more {
			require.Less(t, len(b), len(mpaRequestKey))
			return
		}
		for n := range b {
			if p, more := Sniff(b[:n]); !more {
				require.Equal(t, whole, p)
			}
		}
	})
}

// crowded is how many connections of these tests' portals may be silent.
const crowded = 4

// serve runs a portal that hands the first octets of each kind to got.
func serve(t *testing.T, timeout time.Duration) (addr string, got chan string, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	got = make(chan string, 4)
	take := func(kind string) func(context.Context, net.Conn, []byte) (iscsi.Datamover, error) {
		return func(_ context.Context, conn net.Conn, read []byte) (iscsi.Datamover, error) {
			rest, err := io.ReadAll(conn)
			if errors.Is(err, net.ErrClosed) {
				return nil, err // it had to make room
			}
			assert.NoError(t, err)
			got <- kind + " " + string(read) + string(rest)
			return nil, errors.Join(errors.New("enough"), conn.Close())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ln, Config{ISCSI: take("iscsi"), ISER: take("iser"), SniffTimeout: timeout, MaxSniffing: crowded})
	}()
	return ln.Addr().String(), got, func() error {
		cancel()
		return <-done
	}
}

// TestNothingIsLost: the octets that told the protocol reach it, together with all that follow, however they are cut.
func TestNothingIsLost(t *testing.T) {
	addr, got, stop := serve(t, 0)
	for _, c := range []struct{ kind, data string }{
		{"iscsi", "\x43\x87" + strings.Repeat("x", 100)},
		{"iser", "MPA ID Req Frame\x50\x02\x00\x00"},
	} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		for i := range len(c.data) {
			_, err = conn.Write([]byte{c.data[i]})
			require.NoError(t, err)
		}
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		assert.Equal(t, c.kind+" "+c.data, <-got)
		_ = conn.Close()
	}
	require.NoError(t, stop())
}

// TestStrangersAreClosed: what is neither protocol, says nothing, or ends early is closed and disturbs nobody.
func TestStrangersAreClosed(t *testing.T) {
	addr, got, stop := serve(t, time.Nanosecond)
	for _, says := range []string{"", "GET / HTTP/1.1\r\n\r\n", "MPA ID", "\x00"} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		_, _ = io.WriteString(conn, says)
		_, err = io.Copy(io.Discard, conn)
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout())
		_ = conn.Close()
	}
	require.NoError(t, stop())
	assert.Empty(t, got)
}

// TestStopWaitsForNobody: a connection that has not said a word does not hold the portal up.
func TestStopWaitsForNobody(t *testing.T) {
	addr, _, stop := serve(t, time.Hour)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, stop())
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
}

// exhausted is a listener that fails for want of descriptors where its script says so.
type exhausted struct {
	script []bool // true: fails
	conns  []net.Conn
	end    chan struct{}
}

func (l *exhausted) Accept() (net.Conn, error) {
	if len(l.script) == 0 {
		<-l.end
		return nil, net.ErrClosed
	}
	fails := l.script[0]
	l.script = l.script[1:]
	if fails {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	near, far := net.Pipe()
	l.conns = append(l.conns, near)
	return far, nil
}

func (l *exhausted) Close() error   { close(l.end); return nil }
func (l *exhausted) Addr() net.Addr { return &net.TCPAddr{} }

// TestWantOfDescriptors: while connections cannot be accepted the oldest silent one makes room each time, and the log gets one line for each
// such time as a whole.
func TestWantOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const no, yes = true, false
		ln := &exhausted{script: []bool{yes, yes, no, no, no, yes, no, no}, end: make(chan struct{})}
		var log strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Serve(ctx, ln, Config{SniffTimeout: time.Hour, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, c := range ln.conns {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, 2, strings.Count(log.String(), "cannot be accepted"), log.String())
	})
}

// TestTheSilentShutNobodyOut: when all places of the silent are taken, a newcomer gets the oldest one's.
func TestTheSilentShutNobodyOut(t *testing.T) {
	addr, got, stop := serve(t, time.Hour)
	var silent []net.Conn
	for i := range 3 * crowded {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		if i%2 == 1 { // a handshake that is never finished is no better than silence
			_, err = io.WriteString(conn, mpaRequestKey)
			require.NoError(t, err)
		}
		silent = append(silent, conn)
	}
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "\x43 login")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	for s := range got {
		if s == "iscsi \x43 login" {
			break
		}
	}
	_, err = io.Copy(io.Discard, silent[0])
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the oldest is closed")
	for _, c := range silent {
		_ = c.Close()
	}
	require.NoError(t, stop())
}
