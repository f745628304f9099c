package soft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// TestNoAllocationPerWorkRequest: in steady state no operation allocates, on either side.
func TestNoAllocationPerWorkRequest(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, opts := range []*rnic.LinkOptions{{}, {CRC: rnic.Off}} {
		pr := benchPair(t, opts, 0)
		c, s := pr.client, pr.server
		mr, err := s.pd.AllocMR(256<<10, rnic.LocalWrite|rnic.RemoteWrite|rnic.RemoteRead|rnic.RemoteAtomic)
		require.NoError(t, err)
		local, err := c.pd.AllocMR(256<<10, rnic.LocalWrite|rnic.RemoteWrite)
		require.NoError(t, err)
		w, err := s.pd.AllocWindow()
		require.NoError(t, err)
		done := make(chan rnic.Status, 16)
		handler := func(wc []rnic.Completion) {
			for i := range wc {
				done <- wc[i].Status
			}
		}
		c.handle(handler)
		s.handle(handler)
		inline := make([]byte, 64)
		for _, op := range []struct {
			name string
			wr   rnic.SendWR
			size int
			recv bool
			bind bool
		}{
			{name: "send", wr: rnic.SendWR{Op: rnic.OpSend}, size: 64, recv: true},
			{name: "large send", wr: rnic.SendWR{Op: rnic.OpSend}, size: 200 << 10, recv: true},
			{name: "inline send", wr: rnic.SendWR{Op: rnic.OpSend, Inline: inline}, recv: true},
			{name: "immediate", wr: rnic.SendWR{Op: rnic.OpImmediate}, recv: true},
			{name: "bind, send with invalidate", wr: rnic.SendWR{Op: rnic.OpSendInvalidate}, size: 64, recv: true, bind: true},
			{name: "write", wr: rnic.SendWR{Op: rnic.OpWrite}, size: 4096},
			{name: "large write", wr: rnic.SendWR{Op: rnic.OpWrite}, size: 200 << 10},
			{name: "read", wr: rnic.SendWR{Op: rnic.OpRead}, size: 4096},
			{name: "large read", wr: rnic.SendWR{Op: rnic.OpRead}, size: 200 << 10},
			{name: "atomic", wr: rnic.SendWR{Op: rnic.OpFetchAdd, Add: 1}, size: 8},
		} {
			wr := op.wr
			wr.Flags = rnic.Signaled
			if op.size > 0 {
				wr.SGE = []rnic.SGE{{MR: local, Len: op.size}}
			}
			wr.RemoteSTag, wr.RemoteAddr = mr.STag(), mr.Addr()
			rr := rnic.RecvWR{SGE: []rnic.SGE{{MR: mr, Len: 256 << 10}}}
			once := func() {
				due := 1
				if op.bind {
					stag, err := w.Bind(mr, 0, 64, rnic.RemoteRead)
					if err != nil {
						t.Fatal(err)
					}
					wr.RemoteSTag = stag
				}
				if op.recv {
					due++
					if err := s.qp.PostRecv(&rr); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				for range due {
					if st := <-done; st != rnic.StatusOK {
						t.Fatal(op.name, st)
					}
				}
			}
			for range 100 {
				once()
			}
			// The runtime allocates now and then on its own; per operation it must be nothing.
			if n := testing.AllocsPerRun(500, once); n >= 1 {
				t.Errorf("%s (crc %v): %v allocations", op.name, opts.CRC, n)
			}
		}
	}
}
