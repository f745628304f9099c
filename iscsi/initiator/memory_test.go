package initiator_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/store"
	"goiwarp/iser"
)

// gatedStore lets no read end before its gate is open.
type gatedStore struct {
	*store.Memory
	gate chan struct{}
}

func (g *gatedStore) Info() store.Info {
	i := g.Memory.Info()
	i.Blocks = true
	return i
}

func (g *gatedStore) ReadAt(p []byte, off int64) (int, error) {
	<-g.gate
	return g.Memory.ReadAt(p, off)
}

// TestSessionMemory: 128 commands of 256 KiB under way at once, with all that they need, in 48 MiB: 32 MiB are the data.
func TestSessionMemory(t *testing.T) {
	const depth, size, limit = 128, 256 << 10, 48 << 20
	for _, transport := range []string{"tcp", "iser"} {
		t.Run(transport, func(t *testing.T) {
			s := prepareSim(t, transport, depth*size)
			gate := &gatedStore{s.store, make(chan struct{})}
			s.disk = gate
			s.begin(onePortal)
			defer s.end()
			if d, ok := s.dialer.(*iser.Dialer); ok {
				d.Config.BufferMemory = depth * size
			}
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sess, err := initiator.Login(t.Context(), s.dialer, initiator.Config{Addr: "a:1", TargetName: nodeName})
			require.NoError(t, err)
			defer sess.Close()
			l := sess.LUN(0)
			require.NoError(t, l.TestUnitReady(t.Context()))
			done := make(chan *initiator.Request, depth)
			reqs := make([]*initiator.Request, depth)
			for i := range reqs {
				buf, err := l.Alloc(size)
				require.NoError(t, err, "buffer %d", i)
				defer buf.Release()
				reqs[i] = &initiator.Request{Done: initiator.Notify(done)}
				l.PrepareRead(reqs[i], uint64(i*size/512), size/512, 512, buf)
			}
			require.NoError(t, l.Submit(reqs...))
			runtime.GC()
			runtime.ReadMemStats(&after)
			close(gate.gate)
			for range reqs {
				require.NoError(t, (<-done).Err)
			}
			// Buffers lie outside of the heap; the target's share of the heap counts against the bound, too.
			heap := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
			data := int64(depth * size)
			if d, ok := s.dialer.(*iser.Dialer); ok {
				data = int64(d.Domain.Stats().BufferOctets)
			}
			t.Logf("%d KiB of heap, %d KiB of buffers", heap>>10, data>>10)
			require.LessOrEqual(t, heap+data, int64(limit))
		})
	}
}
