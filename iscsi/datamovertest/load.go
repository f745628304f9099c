package datamovertest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// load runs commands of mixed kinds and sizes from several goroutines until each has done count of
// them, or the connection is lost. started is told after each command.
func load(t testing.TB, c *client, workers, count int, started func()) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 20260101))
			for range count {
				err := one(c, r)
				if isConnection(err) {
					return
				}
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
					return
				}
				if started != nil {
					started()
				}
			}
		})
	}
	wg.Wait()
}

// one runs one command.
func one(c *client, r *rand.Rand) error {
	n := 1 + r.IntN(20_000)
	switch r.IntN(8) {
	case 0:
		n = 1 + r.IntN(200_000)
	case 1:
		n = 512 * (1 + r.IntN(16))
	}
	var b iscsi.Buffer
	b, err := c.e.dm.Alloc(n)
	switch {
	case errors.Is(err, iscsi.ErrNoMemory):
		b = &heap{t: c.e.t, b: make([]byte, n)}
	case err != nil:
		if isConnection(err) {
			return c.lost()
		}
		return err
	default:
		defer b.Release()
	}
	if r.IntN(2) == 0 {
		return c.do(false, n, 0, 0, b)
	}
	immediate, unsolicited := 0, 0
	if r.IntN(2) == 0 {
		immediate = min(n, r.IntN(c.e.segment()+1))
	}
	if rest := min(n, FirstBurstLength) - immediate; rest > 0 && r.IntN(3) == 0 {
		unsolicited = rest
	}
	return c.do(true, n, immediate, unsolicited, b)
}

// testConcurrency has many goroutines with commands in flight, answered in the target's upcalls.
func testConcurrency(t *testing.T, m Maker) {
	c := full(t, m)
	cl, d := newClient(c.i), newDisk(c.g)
	workers, count := 16, 40
	if testing.Short() {
		count = 10
	}
	var done atomic.Int64
	load(t, cl, workers, count, func() { done.Add(1) })
	require.EqualValues(t, workers*count, done.Load(), "commands lost")
	c.i.dm.ConnectionTerminate(true)
	c.g.done()
	d.close()
}
