package initiator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestSessionLife(t *testing.T) {
	f := newFake()
	s := start(t, f)
	require.True(t, f.enabled)
	require.Equal(t, iscsi.ConnectionResources{Window: DefaultQueueDepth, RecvDataSegment: 262144}, f.allocated)
	require.EqualValues(t, 9, s.Params().TSIH)
	l := s.LUN(0)
	c, err := l.Capacity(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 256, c.Blocks)
	require.NoError(t, l.TestUnitReady(t.Context()))
	require.NoError(t, l.Flush(t.Context()))
	require.NoError(t, s.Ping(t.Context()))
	luns, err := s.ReportLUNs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uint64{0}, luns)
	_, err = l.Inquiry(t.Context())
	require.ErrorIs(t, err, scsi.CodeInvalidOpcode.Err())
	require.NoError(t, s.Logout(t.Context()))
	require.True(t, f.graceful)
	require.ErrorIs(t, s.Err(), ErrClosed)
	require.ErrorIs(t, s.Err(), iscsi.ErrConnection)
	require.ErrorIs(t, l.TestUnitReady(t.Context()), iscsi.ErrConnection)
	require.Error(t, s.Logout(t.Context()))
	require.Error(t, s.Ping(t.Context()))
}

func TestLostConnectionEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.window, f.tgt.Window = 4, 4
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		var ended []error
		for range 8 {
			r := &Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) {
				select {
				case <-f.done:
				default:
					panic("ended before the Datamover was done with the buffers")
				}
				ended = append(ended, r.Err)
			}}
			require.NoError(t, s.LUN(0).Submit(r))
		}
		synctest.Wait()
		require.NotEmpty(t, h.take())
		f.do(func() { f.hangUp(errors.New("reset by peer")) })
		<-s.Done()
		require.Len(t, ended, 8)
		for _, err := range ended {
			require.ErrorIs(t, err, iscsi.ErrConnection)
			require.ErrorContains(t, err, "reset by peer")
		}
		s.Close()
	})
}

func TestTargetClosesFirstAfterLogout(t *testing.T) { // RFC 7145, section 5.2: over iSER it does
	for range 20 {
		f := newFake()
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if p.Opcode() != iscsi.OpLogoutReq {
				return false
			}
			f.serve(p, nil)
			f.hangUp(nil)
			return true
		}
		s := start(t, f)
		require.NoError(t, s.Logout(t.Context()))
		require.ErrorIs(t, s.Err(), ErrClosed)
	}
}

func TestCallbacksMaySubmit(t *testing.T) {
	f := newFake()
	s := start(t, f)
	l := s.LUN(0)
	left := 1000
	done := make(chan error, 1)
	r := &Request{CDB: scsi.TestUnitReady()}
	r.Done = func(r *Request) {
		if left--; left == 0 || r.Err != nil {
			done <- r.Err
			return
		}
		if err := l.Submit(r); err != nil {
			done <- err
		}
	}
	require.NoError(t, l.Submit(r))
	require.NoError(t, <-done)
	require.Zero(t, left)
	require.Same(t, l, s.LUN(0))
}
