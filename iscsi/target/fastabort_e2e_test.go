package target

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// TestFastAbortUnderLoad: resets by one initiator in the midst of its own writes and another's, with FastAbort at both ends: sessions stay, every
// write ends, and data that is written afterwards is there. The other one's session has two connections.
func TestFastAbortUnderLoad(t *testing.T) {
	transports(t, func(t *testing.T, _ *Server, p portal, _ *store.Memory) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		open := func(isid byte, connections int) *initiator.Session {
			ss := dial(t, p, func(c *initiator.Config) {
				c.ISID = [6]byte{0x80, 0, 0, 0, 0, isid}
				c.Settings.MaxConnections = connections
				c.Settings.TaskReporting = []string{iscsi.ReportFastAbort, iscsi.ReportResponseFence, iscsi.ReportRFC3720}
			})
			require.Equal(t, iscsi.ReportFastAbort, ss.Params().TaskReporting)
			return ss
		}
		a, b := open(1, 1), open(2, 2)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		errs := make(chan error, 8)
		for i, ss := range []*initiator.Session{a, b} {
			for g := range 3 {
				wg.Go(func() {
					data := random(256<<10, uint64(g))
					w := scsi.Write(uint64(i*3+g)<<10, 512, 0)
					for {
						select {
						case <-stop:
							return
						default:
						}
						_, err := ss.LUN(0).Do(ctx, w.Bytes(), nil, data)
						var e *scsi.Error
						if err == nil || errors.Is(err, initiator.ErrAborted) || errors.As(err, &e) && e.UnitAttention() {
							continue
						}
						errs <- err
						return
					}
				})
			}
		}
		functions := []iscsi.TaskFunction{iscsi.LogicalUnitReset, iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.TargetWarmReset}
		for i := range 24 {
			rsp, err := a.TaskManagement(ctx, functions[i%len(functions)], 0)
			require.NoError(t, err)
			require.Equal(t, iscsi.TaskComplete, rsp)
			require.NoError(t, a.Ping(ctx)) // over RDMA few PDUs for immediate delivery may follow each other
		}
		close(stop)
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		for _, ss := range []*initiator.Session{a, b} {
			data, got := random(1<<20, 9), make([]byte, 1<<20)
			_, err := ss.LUN(0).WriteAt(data, 8<<20)
			require.NoError(t, err)
			_, err = ss.LUN(0).ReadAt(got, 8<<20)
			require.NoError(t, err)
			require.NoError(t, same(data, got))
			require.NoError(t, ss.Logout(ctx))
		}
	})
}
