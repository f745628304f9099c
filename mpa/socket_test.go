package mpa

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
)

// socketKinds are all implementations of Socket. Each has to behave in the same way.
var socketKinds = []struct {
	name string
	pair func(t testing.TB) (Socket, Socket)
	eof  bool // CloseWrite leaves the other direction alone
	try  bool // TryWrite takes what there is room for
}{
	{"mem", func(testing.TB) (Socket, Socket) { a, b := MemPipe(64 << 10); return a, b }, true, true},
	{"tcp", tcpPair, true, true},
	{"polled", func(t testing.TB) (Socket, Socket) { // on Linux; the same as tcp elsewhere
		a, b := tcpConns(t)
		p := sock.NewPoller(time.Millisecond)
		return NewSocket(p.Lead(a)), NewSocket(p.Lead(b))
	}, true, true},
	{"conn", func(t testing.TB) (Socket, Socket) {
		a, b := tcpConns(t)
		return NewConnSocket(a), NewConnSocket(b)
	}, true, false},
	{"net.Pipe", func(testing.TB) (Socket, Socket) {
		a, b := net.Pipe()
		return NewSocket(a), NewSocket(b)
	}, false, false},
}

func eachSocket(t *testing.T, f func(t *testing.T, a, b Socket)) {
	for _, k := range socketKinds {
		t.Run(k.name, func(t *testing.T) {
			a, b := k.pair(t)
			defer a.Close()
			defer b.Close()
			f(t, a, b)
		})
	}
}

func readAll(s Socket, n int) ([]byte, error) {
	b := make([]byte, n)
	into := &SliceScatter{B: b}
	for len(into.B) > 0 {
		if _, err := s.Read(into); err != nil {
			return b[:n-len(into.B)], err
		}
	}
	return b, nil
}

func writeAll(s Socket, bufs ...[]byte) error {
	for _, b := range bufs {
		for len(b) > 0 {
			n, err := s.Write([][]byte{b})
			if err != nil {
				return err
			}
			b = b[n:]
		}
	}
	return nil
}

func TestSocketCarriesOctetsInOrder(t *testing.T) {
	eachSocket(t, func(t *testing.T, a, b Socket) {
		const size = 1 << 20
		want := pattern(size, 7)
		done := make(chan error, 1)
		go func() {
			for off := 0; off < size; {
				end := min(off+100_000, size)
				mid := (off + end) / 2
				n, err := a.Write([][]byte{want[off:mid], nil, want[mid:end]})
				if err != nil {
					done <- err
					return
				}
				off += n
			}
			done <- nil
		}()
		got, err := readAll(b, size)
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.True(t, string(want) == string(got))
	})
}

func TestSocketFIN(t *testing.T) {
	for _, k := range socketKinds {
		if !k.eof {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			a, b := k.pair(t)
			defer a.Close()
			defer b.Close()
			require.NoError(t, writeAll(a, []byte("last words")))
			require.NoError(t, a.CloseWrite())
			got, err := readAll(b, 100)
			require.Equal(t, io.EOF, err)
			require.Equal(t, "last words", string(got))
			require.NoError(t, writeAll(b, []byte("heard")), "the other direction goes on")
			got, err = readAll(a, 5)
			require.NoError(t, err)
			require.Equal(t, "heard", string(got))
		})
	}
}

func TestSocketCloseWakesWaiters(t *testing.T) {
	eachSocket(t, func(t *testing.T, a, b Socket) {
		read, wrote := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := readAll(a, 1)
			read <- err
		}()
		go func() {
			var err error
			for err == nil { // until there is no room left, and then until Close
				_, err = a.Write([][]byte{make([]byte, 1<<20)})
			}
			wrote <- err
		}()
		require.NoError(t, a.Close())
		require.Error(t, <-read)
		require.Error(t, <-wrote)
		_, err := a.Write([][]byte{{1}})
		require.Error(t, err)
	})
}

func TestSocketPeerClose(t *testing.T) {
	eachSocket(t, func(t *testing.T, a, b Socket) {
		require.NoError(t, a.Close())
		_, err := readAll(b, 1)
		require.Equal(t, io.EOF, err)
		for err = nil; err == nil; { // TCP learns of it with the answer to a write
			_, err = b.Write([][]byte{make([]byte, 1000)})
		}
		require.Error(t, err)
	})
}

func TestSocketDeadlines(t *testing.T) {
	eachSocket(t, func(t *testing.T, a, b Socket) {
		require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
		_, err := readAll(a, 1)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Millisecond)))
		_, err = readAll(a, 1)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Millisecond)))
		for err = nil; err == nil; {
			_, err = a.Write([][]byte{make([]byte, 1<<20)})
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		require.NoError(t, a.SetReadDeadline(time.Time{}))
		done := make(chan error, 1)
		go func() { done <- writeAll(b, []byte("x")) }()
		got, err := readAll(a, 1)
		require.NoError(t, err)
		require.Equal(t, "x", string(got))
		require.NoError(t, <-done)
	})
}

func TestTryWriteNeverWaits(t *testing.T) {
	for _, k := range socketKinds {
		t.Run(k.name, func(t *testing.T) {
			a, b := k.pair(t)
			defer a.Close()
			defer b.Close()
			total := 0
			for {
				n, err := a.TryWrite([][]byte{make([]byte, 10_000)})
				require.NoError(t, err)
				if n == 0 {
					break
				}
				total += n
			}
			require.Equal(t, k.try, total > 0)
			done := make(chan error, 1)
			go func() { done <- writeAll(a, []byte("end")) }()
			got, err := readAll(b, total+3)
			require.NoError(t, err)
			require.Equal(t, "end", string(got[total:]))
			require.NoError(t, <-done)
		})
	}
}

// lender is a Scatter that records how its memory is on loan.
type lender struct {
	SliceScatter
	err      error
	lent     bool
	attempts int
	while    func() // called with every Acquire
}

func (l *lender) Acquire() ([][]byte, error) {
	if l.err != nil {
		return nil, l.err
	}
	if l.lent {
		panic("acquired twice")
	}
	l.lent = true
	l.attempts++
	if l.while != nil {
		l.while()
	}
	return l.SliceScatter.Acquire()
}

func (l *lender) Release(n int) {
	if !l.lent {
		panic("released what was not on loan")
	}
	l.lent = false
	l.SliceScatter.Release(n)
}

func TestScatterIsLentForAttemptsOnly(t *testing.T) {
	eachSocket(t, func(t *testing.T, a, b Socket) {
		boom := errors.New("region is gone")
		l := &lender{SliceScatter: SliceScatter{B: make([]byte, 10)}}
		done := make(chan error, 1)
		go func() { done <- writeAll(b, []byte("12345")) }()
		for len(l.B) > 5 {
			n, err := a.Read(l)
			require.NoError(t, err)
			require.Positive(t, n)
			require.False(t, l.lent)
		}
		require.NoError(t, <-done)
		go func() { done <- writeAll(b, []byte("67890")) }()
		l.err = boom
		_, err := a.Read(l)
		require.Equal(t, boom, err, "the destination's error comes back as it is")
		l.err = nil
		for len(l.B) > 0 {
			_, err := a.Read(l)
			require.NoError(t, err, "and the stream is where it was")
		}
		require.NoError(t, <-done)
	})
}

// In virtual time it can be seen that a read that waits holds no memory.
func TestScatterIsFreeWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(100)
		l := &lender{SliceScatter: SliceScatter{B: make([]byte, 1)}}
		done := make(chan error, 1)
		go func() {
			_, err := a.Read(l)
			done <- err
		}()
		synctest.Wait() // the read waits
		require.False(t, l.lent)
		require.NoError(t, writeAll(b, []byte{1}))
		require.NoError(t, <-done)
		a.Close()
		b.Close()
	})
}

func TestSocketAllocatesNothing(t *testing.T) {
	for _, k := range socketKinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			a, b := k.pair(t)
			defer a.Close()
			defer b.Close()
			out, in := [][]byte{make([]byte, 100), make([]byte, 100)}, &SliceScatter{}
			buf := make([]byte, 200)
			n := testing.AllocsPerRun(1000, func() {
				if n, err := a.TryWrite(out); n != 200 || err != nil {
					t.Fatal(n, err)
				}
				for in.B = buf; len(in.B) > 0; {
					if _, err := b.Read(in); err != nil {
						t.Fatal(err)
					}
				}
				a.EMSS()
			})
			require.Zero(t, n)
		})
	}
}

func TestTCPSocketEMSS(t *testing.T) {
	a, _ := tcpPair(t)
	require.GreaterOrEqual(t, a.EMSS(), 536)
	require.NotNil(t, a.LocalAddr())
	require.NotNil(t, a.RemoteAddr())
}

func TestMemPipeEMSS(t *testing.T) {
	a, b := MemPipe(10)
	require.Equal(t, 1460, a.EMSS())
	a.SetEMSS(9000)
	require.Equal(t, 9000, a.EMSS())
	require.Equal(t, 1460, b.EMSS())
	require.Equal(t, a.LocalAddr(), b.RemoteAddr())
	require.Equal(t, "mem", a.LocalAddr().Network())
}
