package nbd

import (
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
)

// polling is the Poller of the sessions that tests make, or nil.
var polling *sock.Poller

// poll has all sessions of a test visited by a leader that does nothing else.
func poll(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nothing is polled on this system")
	}
	if polling = sock.NewPoller(time.Hour); polling == nil {
		t.Skip("nothing is polled with one processor only")
	}
	near, far := pair(t, "tcp")
	s := sock.NewSocket(polling.Lead(near))
	idle, other := pair(t, "unix")
	g := polling.Join(idle, nil) // two short waits, so that the leader polls
	g.Begun()
	g.Ended()
	g.Leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Read(&sock.SliceScatter{B: make([]byte, 1)})
	}()
	t.Cleanup(func() {
		polling = nil
		require.NoError(t, s.Close())
		<-done
		for _, c := range []interface{ Close() error }{far, g, other} {
			require.NoError(t, c.Close())
		}
	})
}

// TestPolled: all that holds for a connection holds for one that is visited.
func TestPolled(t *testing.T) {
	for name, f := range map[string]func(*testing.T){
		"reads":       TestReadsWhatWasWritten,
		"order":       TestRepliesComeInTheOrderOfTheDisk,
		"refusals":    TestRefusals,
		"errors":      TestErrorsOfTheDisk,
		"FUA":         TestForceUnitAccess,
		"trim":        TestTrimAndZeroes,
		"drain":       TestDrain,
		"abandon":     TestAbandon,
		"slow client": TestSlowClient,
		"ends":        TestWhatEndsAConnection,
		"resize":      TestResize,
		"short":       TestShortCommands,
	} {
		t.Run(name, func(t *testing.T) {
			poll(t)
			f(t)
		})
	}
}

// TestPolledAllocatesNothing counts for itself: testing.AllocsPerRun leaves one processor, which the leader keeps.
func TestPolledAllocatesNothing(t *testing.T) {
	poll(t)
	round := steady(t)
	for range 100 {
		round()
	}
	const rounds = 500
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > rounds/10 && !raceEnabled { // the runtime's own now and then
		t.Errorf("%d allocations in %d rounds", n, rounds)
	}
}

// TestPolledPieces: requests that come octet by octet, and more of them than a visit reads at once.
func TestPolledPieces(t *testing.T) {
	poll(t)
	d := newRAM(1 << 20)
	v := newSession(t, d, export(d), Config{})
	var ask []byte
	want := random(4096, 9)
	ask = appendRequest(ask, CmdWrite, cmdFlagFUA, 1, 4096, 4096, want)
	ask = appendRequest(ask, CmdRead, 0, 2, 4096, 4096, nil)
	go func() {
		for _, n := range []int{1, 26, 1, 1, 4000, len(ask)} { // header and payload in pieces
			n = min(n, len(ask))
			if _, err := v.c.Write(ask[:n]); err != nil {
				return
			}
			ask = ask[n:]
			runtime.Gosched()
		}
	}()
	for i := range uint64(2) {
		cookie, e := v.reply()
		require.Zero(t, e)
		require.Equal(t, i+1, cookie)
	}
	got := make([]byte, 4096)
	_, err := io.ReadFull(v.c, got)
	require.NoError(t, err)
	require.True(t, slices.Equal(want, got))
	var many []byte
	const n = 1000
	for i := range uint64(n) {
		many = appendRequest(many, CmdFlush, 0, i, 0, 0, nil)
	}
	go func() { _, _ = v.c.Write(many) }()
	for i := range uint64(n) {
		cookie, e := v.reply()
		require.Zero(t, e)
		require.Equal(t, i, cookie)
	}
}

// TestPolledOverISER: clients that write and read their own blocks at once, with the leader that really is there: the reader of the connection to the
// target.
func TestPolledOverISER(t *testing.T) {
	addr, end, err := serveDisk("target")
	require.NoError(t, err)
	poller := sock.NewPoller(DefaultPoll)
	d, closeDisk, err := openDisk(addr, poller)
	require.NoError(t, err)
	x, err := Describe(t.Context(), d.LUN)
	require.NoError(t, err)
	s, err := New(d, x, Config{Poller: poller})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 3 {
		c, done := transmit(t, s)
		wg.Go(func() {
			defer done()
			for round := range 60 {
				n := []int{512, 4096, 16 << 10, 100 << 10}[round%4]
				b, off := random(n, uint64(i*1000+round)), uint64(i)*(4<<20)+uint64(round)*512
				if _, e := c.do(CmdWrite, uint16(round%2)*cmdFlagFUA, off, uint32(n), b); e != 0 {
					t.Errorf("client %d, round %d: write: %v", i, round, e)
					return
				}
				got, e := c.do(CmdRead, 0, off, uint32(n), nil)
				if e != 0 || !slices.Equal(b, got) {
					t.Errorf("client %d, round %d: read: %v", i, round, e)
					return
				}
			}
		})
	}
	wg.Wait()
	s.Close()
	require.NoError(t, closeDisk())
	require.NoError(t, end())
}
