package sock

import (
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	r, w, err := os.Pipe() // now the runtime has those of its poller, too
	require.NoError(t, err)
	_, _ = r.Close(), w.Close()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// TestAllEnd: leaders and guests come and go in every way that there is, in the middle of visits as well. Whoever is left goes on, and nothing stays behind.
func TestAllEnd(t *testing.T) {
	const leaders, guests, rounds = 2, 3, 20
	wide := func(r *rand.Rand) { time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond) }
	one := func(t *testing.T, limit time.Duration) {
		p := hot(limit)
		stop := make(chan struct{})
		var noise, work sync.WaitGroup
		noise.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					p.idleWait.note(true)
					p.workWait.note(true)
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
		for i := range leaders {
			noise.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 7))
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					near, far := endless(t)
					s := NewSocket(p.Lead(near))
					done := result(func() error {
						for {
							b := make([]byte, 1)
							if _, err := s.Read(&SliceScatter{B: b}); err != nil || b[0] == 'x' { // as after a wrong checksum: nobody reads any more
								return err
							}
						}
					})
					for range r.IntN(10) {
						_, _ = far.Write([]byte("abc")[:1+r.IntN(3)])
						wide(r)
					}
					switch n % 5 {
					case 0:
						_ = far.Close()
					case 1:
						_ = far.(*net.TCPConn).SetLinger(0)
						_ = far.Close()
					case 2:
						_, _ = far.Write([]byte("x"))
					case 3:
						_ = s.Close()
					case 4:
						_ = s.SetReadDeadline(time.Unix(1, 0))
					}
					<-done
					_, _ = s.Close(), far.Close()
				}
			})
		}
		for i := range guests {
			work.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 8))
				for n := range rounds {
					near, far := endless(t)
					e := &echo{t: t}
					if e.Guest = p.Join(far, e); e.Guest == nil {
						t.Error("nobody joined")
						return
					}
					done := result(e.run)
					for range r.IntN(20) {
						b := byte('a' + r.IntN(26))
						if r.IntN(8) == 0 {
							b -= 'a' - 'A'
						}
						if err := exchange(near, b); err != nil {
							t.Errorf("guest %d: %v", i, err)
						}
						if r.IntN(3) == 0 {
							wide(r)
						}
					}
					switch n % 5 {
					case 0:
						_ = near.Close()
					case 1:
						_ = near.(*net.TCPConn).CloseWrite()
					case 2:
						_ = near.(*net.TCPConn).SetLinger(0)
						_ = near.Close()
					case 3:
						_ = e.Close()
					case 4:
						_ = e.SetReadDeadline(time.Unix(1, 0))
					}
					if err := <-done; err == nil {
						t.Error("the guest ended without an error")
					}
					_, _ = e.Close(), near.Close()
				}
			})
		}
		work.Wait()
		close(stop)
		noise.Wait()
		require.Zero(t, p.under.Load())
		require.False(t, p.leading.Load())
		require.Empty(t, *p.guests.Load())
	}
	before := descriptors(t)
	for _, limit := range []time.Duration{time.Nanosecond, 20 * time.Microsecond, forEver} {
		t.Run(limit.String(), func(t *testing.T) {
			if NewPoller(limit) == nil {
				t.Skip("nothing is polled with one processor only")
			}
			one(t, limit)
		})
	}
	require.LessOrEqual(t, descriptors(t), before, "descriptors")
}

// endless is both ends of a connection that its user closes.
func endless(t *testing.T) (near, far net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		defer ln.Close()
		near, err = net.Dial("tcp", ln.Addr().String())
	}
	if err == nil {
		far, err = ln.Accept()
	}
	if err != nil {
		t.Error(err)
		panic(err)
	}
	return near, far
}
