package sock

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forEver is longer than any test: who polls does so until there is something.
const forEver = time.Hour

// conns is both ends of a connection.
func conns(t testing.TB, network string) (near, far net.Conn) {
	addr := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "sock") // t.TempDir's paths may be too long
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		addr = filepath.Join(dir, "s")
	}
	ln, err := net.Listen(network, addr)
	require.NoError(t, err)
	defer ln.Close()
	near, err = net.Dial(network, ln.Addr().String())
	require.NoError(t, err)
	far, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// hot is a Poller that will poll.
func hot(limit time.Duration) *Poller {
	p := newPoller(limit)
	p.idleWait.note(true)
	p.workWait.note(true)
	return p
}

// echo is a guest whose messages are one octet: it is sent back, by whoever read it. There are more of the kinds that a Visit meets:
//
//	small letter   answered at once
//	capital        only by the guest's own goroutine
type echo struct {
	*Guest
	t       testing.TB
	b       [1]byte
	full    bool
	visits  atomic.Int32 // octets that were answered in a visit
	onVisit func()
}

func (e *echo) Acquire() ([][]byte, error) { return [][]byte{e.b[:]}, nil }
func (e *echo) Release(n int)              { e.full = n > 0 }

func (e *echo) answer() {
	e.Begun()
	e.full = false
	e.Ended()
	if _, err := e.TryWrite([][]byte{e.b[:]}); err != nil && !errors.Is(err, net.ErrClosed) {
		e.t.Log(err)
	}
}

func (e *echo) Visit() (did, more bool) {
	if e.onVisit != nil {
		e.onVisit()
	}
	n, err := e.TryRead(e)
	switch {
	case err != nil || n > 0 && e.b[0] < 'a':
		return false, false
	case n == 0:
		return false, true
	}
	e.visits.Add(1)
	e.answer()
	return true, true
}

// run is the guest's goroutine. It ends with the connection.
func (e *echo) run() error {
	defer e.Leave()
	for {
		_, err := e.Await(e)
		if e.full {
			e.answer()
			continue
		}
		if err != nil {
			return err
		}
	}
}

func newEcho(t testing.TB, p *Poller, network string) (*echo, net.Conn, <-chan error) {
	near, far := conns(t, network)
	e := &echo{t: t}
	e.Guest = p.Join(far, e)
	require.NotNil(t, e.Guest)
	t.Cleanup(func() { _ = e.Guest.Close() })
	return e, near, result(e.run)
}

func result(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

// exchange sends one octet and wants it back.
func exchange(c net.Conn, b byte) error {
	if _, err := c.Write([]byte{b}); err != nil {
		return err
	}
	var got [1]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return err
	}
	if got[0] != b {
		return fmt.Errorf("sent %q, got %q", b, got[0])
	}
	return nil
}

// leader is a goroutine that reads until the connection ends.
func newLeader(t testing.TB, p *Poller) (Socket, net.Conn, <-chan error) {
	near, far := conns(t, "tcp")
	s := NewSocket(p.Lead(near))
	done := result(func() error {
		for {
			if _, err := s.Read(&SliceScatter{B: make([]byte, 1)}); err != nil {
				return err
			}
		}
	})
	t.Cleanup(func() { _ = s.Close(); <-done })
	return s, far, done
}

// TestVisits: what a leader that polls can do is done by it, and the rest by the guest's own goroutine.
func TestVisits(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			p := hot(forEver)
			e, c, done := newEcho(t, p, network)
			polls := make(chan struct{})
			var once sync.Once
			e.onVisit = func() { once.Do(func() { close(polls) }) }
			newLeader(t, p)
			<-polls
			for range 3 {
				require.NoError(t, exchange(c, 'a'))
			}
			require.EqualValues(t, 3, e.visits.Load())
			require.NoError(t, exchange(c, 'A'))
			require.EqualValues(t, 3, e.visits.Load())
			require.NoError(t, exchange(c, 'b'))
			require.NoError(t, c.Close())
			require.Error(t, <-done)
		})
	}
}

// TestVisitorEnds: a guest that was visited goes on by itself when the leader has something else to do, and when it has gone.
func TestVisitorEnds(t *testing.T) {
	p := hot(forEver)
	e, c, _ := newEcho(t, p, "unix")
	polls := make(chan struct{}, 1)
	e.onVisit = func() {
		select {
		case polls <- struct{}{}:
		default:
		}
	}
	near, far := conns(t, "tcp")
	s := NewSocket(p.Lead(near))
	defer s.Close()
	for range 3 {
		read := result(func() error {
			_, err := s.Read(&SliceScatter{B: make([]byte, 1)})
			return err
		})
		<-polls
		require.NoError(t, exchange(c, 'a'))
		_, err := far.Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, <-read)
		n := e.visits.Load()
		require.Positive(t, n)
		require.NoError(t, exchange(c, 'b'))
		require.Equal(t, n, e.visits.Load())
		select {
		case <-polls: // of before the end
		default:
		}
	}
	read := result(func() error {
		_, err := s.Read(&SliceScatter{B: make([]byte, 1)})
		return err
	})
	<-polls
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-read, net.ErrClosed)
	require.NoError(t, exchange(c, 'c'))
}

// TestVisitedGuestEnds: what ends a wait ends that of a guest that is visited, too.
func TestVisitedGuestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(e *echo, c net.Conn) error
		want error
	}{
		"peer":     {func(_ *echo, c net.Conn) error { return c.Close() }, io.EOF},
		"close":    {func(e *echo, _ net.Conn) error { return e.Close() }, net.ErrClosed},
		"deadline": {func(e *echo, _ net.Conn) error { return e.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			p := hot(forEver)
			e, peer, done := newEcho(t, p, "unix")
			polls := make(chan struct{})
			var once sync.Once
			e.onVisit = func() { once.Do(func() { close(polls) }) }
			newLeader(t, p)
			<-polls
			require.NoError(t, c.end(e, peer))
			require.ErrorIs(t, <-done, c.want)
		})
	}
}

// TestWhenToPoll: only while waits are short and requests few.
func TestWhenToPoll(t *testing.T) {
	p := newPoller(forEver)
	require.False(t, p.worth(), "at first")
	p.begun()
	p.ended()
	require.True(t, p.worth())
	for range maxPolled {
		p.begun()
	}
	require.True(t, p.worth(), "few under way")
	p.begun()
	require.False(t, p.worth(), "too many")
	for range maxPolled + 1 {
		p.ended()
	}
	for range calmDown - 1 {
		require.False(t, p.worth(), "too many a while ago")
		p.begun()
		p.ended()
	}
	require.True(t, p.worth())

	p = newPoller(time.Nanosecond) // every wait is long
	p.idleWait.note(true)
	p.workWait.note(true)
	for range 2 {
		require.True(t, p.worth())
		p.begun()
		require.True(t, p.worth())
		time.Sleep(time.Microsecond)
		p.ended()
		time.Sleep(time.Microsecond)
	}
	require.False(t, p.worth(), "two long waits")
	require.Nil(t, NewPoller(0))
	require.Nil(t, NewPoller(-1))
}

// TestNothingIsLost: leaders come and go and poll for as long as they like; every message is answered, and every goroutine ends.
func TestNothingIsLost(t *testing.T) {
	const guests, leaders, messages = 3, 2, 400
	for _, limit := range []time.Duration{time.Nanosecond, 20 * time.Microsecond, time.Millisecond} {
		t.Run(limit.String(), func(t *testing.T) {
			p := hot(limit)
			stop := make(chan struct{})
			var work, noise sync.WaitGroup
			noise.Go(func() { // what decides to poll is arbitrary
				r := rand.New(rand.NewPCG(1, 2))
				for {
					select {
					case <-stop:
						return
					default:
						p.idleWait.note(r.IntN(2) == 0)
						p.workWait.note(r.IntN(2) == 0)
						time.Sleep(time.Duration(r.IntN(50)) * time.Microsecond)
					}
				}
			})
			for i := range leaders {
				_, far, _ := newLeader(t, p)
				noise.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 3))
					for {
						select {
						case <-stop:
							return
						default:
							if _, err := far.Write(make([]byte, 1+r.IntN(4))); err != nil {
								t.Error(err)
								return
							}
							time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
						}
					}
				})
			}
			for i := range guests {
				network := []string{"unix", "tcp"}[i%2]
				_, c, done := newEcho(t, p, network)
				work.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 4))
					for range messages {
						b := byte('a' + r.IntN(26))
						if r.IntN(8) == 0 {
							b -= 'a' - 'A'
						}
						if err := exchange(c, b); err != nil {
							t.Errorf("guest %d: %v", i, err)
							break
						}
					}
					_ = c.Close()
					if err := <-done; err == nil {
						t.Error("the guest ended without an error")
					}
				})
			}
			work.Wait()
			close(stop)
			noise.Wait()
			require.Zero(t, p.under.Load())
		})
	}
}

// TestDeadlinesComeAndGo: a deadline that has passed ends reads and Await until it is another one.
func TestDeadlinesComeAndGo(t *testing.T) {
	p := newPoller(forEver)
	e, c, done := newEcho(t, p, "unix")
	require.NoError(t, e.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, <-done, os.ErrDeadlineExceeded)
	_, err := e.Read(e)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = e.TryRead(e)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, e.SetReadDeadline(time.Time{}))
	done = result(e.run)
	require.NoError(t, exchange(c, 'A'))
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-done, io.EOF)
}

// TestWriteWaits: for room, and no longer than its deadline.
func TestWriteWaits(t *testing.T) {
	p := newPoller(forEver)
	near, far := conns(t, "unix")
	g := p.Join(near, nil)
	defer g.Close()
	block := make([]byte, 64<<10)
	for n := 1; n > 0; {
		var err error
		n, err = g.TryWrite([][]byte{block})
		require.NoError(t, err)
	}
	require.NoError(t, g.SetWriteDeadline(time.Unix(1, 0)))
	_, err := g.Write([][]byte{block})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = g.TryWrite([][]byte{block})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, g.SetWriteDeadline(time.Time{}))
	wrote := result(func() error {
		_, err := g.Write([][]byte{block})
		return err
	})
	go func() { _, _ = io.Copy(io.Discard, far) }()
	require.NoError(t, <-wrote)
	require.NoError(t, g.Close())
	_, err = g.Write([][]byte{block})
	require.ErrorIs(t, err, net.ErrClosed)
}

// TestNoPoller: without one, connections stay as they are.
func TestNoPoller(t *testing.T) {
	var p *Poller
	near, far := conns(t, "tcp")
	require.Same(t, near, p.Lead(near))
	require.Nil(t, p.Join(far, nil))
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	q := newPoller(forEver)
	require.Equal(t, a, q.Lead(a))
	require.Nil(t, q.Join(b, nil))
}
