package initiator

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// StopDataOut implements iscsi.DataStopper.
func (f *fake) StopDataOut(itt uint32) {
	f.mu.Lock()
	f.mute = append(f.mute, itt)
	f.mu.Unlock()
}

func (f *fake) muted() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mute)
}

// fastSession logs in to a fake with FastAbort. Writes are counted, if count is set, and not answered.
type fastSession struct {
	f    *fake
	s    *Session
	mu   sync.Mutex
	got  []iscsi.PDU // other than commands, in order
	fail map[iscsi.TaskFunction]iscsi.TaskResponse
	miss bool // commands do not arrive
	mum  bool // functions have no answer
}

func fastAborts(t *testing.T) *fastSession {
	k := &fastSession{f: newFake(), fail: make(map[iscsi.TaskFunction]iscsi.TaskResponse)}
	reporting := []string{iscsi.ReportFastAbort, iscsi.ReportResponseFence, iscsi.ReportRFC3720}
	k.f.window, k.f.tgt.Window = 8, 8
	k.f.tgt.Settings.TaskReporting = reporting
	c := testConfig()
	c.Settings.TaskReporting = reporting
	k.f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case isCommand(p, scsi.OpWrite10):
			if !k.miss {
				f.count(p)
			}
			return true
		case p.Opcode() == iscsi.OpNOPOut || p.Opcode() == iscsi.OpTaskMgmtReq:
			k.got = append(k.got, iscsi.PDU{BHS: p.BHS})
		}
		if p.Opcode() == iscsi.OpTaskMgmtReq {
			if k.mum {
				return true
			}
			h := iscsi.TaskMgmtRequest(p.BHS[:])
			if code, ok := k.fail[h.Function()]; ok {
				f.answerTask(h.ITT(), code)
				return true
			}
		}
		return false
	}
	var err error
	k.s, err = Login(context.Background(), k.f, c)
	require.NoError(t, err)
	require.Equal(t, iscsi.ReportFastAbort, k.s.params.TaskReporting)
	return k
}

func (k *fastSession) take() []iscsi.PDU {
	k.mu.Lock()
	defer k.mu.Unlock()
	got := k.got
	k.got = nil
	return got
}

// write submits a write of a block; the channel gets its end.
func (k *fastSession) write(t *testing.T, lun uint16) (*Request, chan error) {
	ended := make(chan error, 1)
	b, err := k.s.Alloc(testBlock)
	require.NoError(t, err)
	t.Cleanup(b.Release)
	r := &Request{CDB: scsi.Write(0, 1, 0), Out: b, OutLen: testBlock, Done: func(r *Request) { ended <- r.Err }}
	require.NoError(t, k.s.LUN(lun).Submit(r))
	synctest.Wait()
	return r, ended
}

// TestFastAbortStopsData: once a function is sent that aborts many tasks, no data of theirs is (RFC 7143, section 4.2.3.4, initiator step a).
// If the target does not abort them after all, ABORT TASK does: they lack their data.
func TestFastAbortStopsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, code := range []iscsi.TaskResponse{iscsi.TaskComplete, iscsi.TaskFunctionRejected} {
			k := fastAborts(t)
			k.fail[iscsi.LogicalUnitReset] = code
			r, ended := k.write(t, 0)
			other, otherEnded := k.write(t, 1)
			itt, otherITT := r.itt, other.itt
			rsp, err := k.s.TaskManagement(t.Context(), iscsi.LogicalUnitReset, scsi.EncodeLUN(0))
			require.NoError(t, err)
			require.Equal(t, code, rsp)
			require.ErrorIs(t, <-ended, ErrAborted)
			require.Equal(t, []uint32{itt}, k.f.muted())
			if code == iscsi.TaskComplete {
				require.Len(t, k.take(), 1)
			} else {
				got := k.take()
				require.Len(t, got, 2)
				require.Equal(t, iscsi.AbortTask, iscsi.TaskMgmtRequest(got[1].BHS[:]).Function())
			}
			select {
			case err := <-otherEnded:
				require.Fail(t, "another logical unit's", "%v", err)
			default:
			}
			_, err = k.s.TaskManagement(t.Context(), iscsi.TargetWarmReset, 0)
			require.NoError(t, err)
			require.ErrorIs(t, <-otherEnded, ErrAborted)
			require.Equal(t, []uint32{itt, otherITT}, k.f.muted())
			k.s.Close()
		}
	})
}

// TestTasksTerminated: the news that tasks are gone stops their data, is acknowledged by a NOP-Out with the LUN, and ends the commands that the
// target had by then, and no others (RFC 7143, sections 4.2.3.4, initiator step c, and 11.9.1).
func TestTasksTerminated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fastAborts(t)
		k.fail[iscsi.AbortTask] = iscsi.TaskNoTask // it is gone already
		one, oneEnded := k.write(t, 1)
		two, twoEnded := k.write(t, 1)
		_, zeroEnded := k.write(t, 0)
		k.mu.Lock()
		k.miss = true
		k.mu.Unlock()
		_, lateEnded := k.write(t, 1)
		want := []uint32{one.itt, two.itt}
		k.f.do(func() {
			p := new(iscsi.PDU)
			a := iscsi.AsyncMessage(p.BHS[:])
			a.Init()
			a.SetEvent(iscsi.AsyncTaskTerminated)
			a.SetLUN(scsi.EncodeLUN(1))
			k.f.up(p, true)
		})
		require.ErrorIs(t, <-oneEnded, ErrAborted)
		require.ErrorIs(t, <-twoEnded, ErrAborted)
		synctest.Wait()
		require.ElementsMatch(t, want, k.f.muted())
		got := k.take()
		require.Len(t, got, 3)
		nop := iscsi.NOPOut(got[0].BHS[:])
		require.Equal(t, iscsi.OpNOPOut, iscsi.BHS(nop).Opcode())
		require.Equal(t, []any{uint32(iscsi.ReservedTag), uint32(iscsi.ReservedTag), scsi.EncodeLUN(1), true, k.f.stat - 2},
			[]any{nop.ITT(), nop.TTT(), nop.LUN(), nop.Immediate(), nop.ExpStatSN()})
		for _, q := range got[1:] {
			require.Equal(t, iscsi.AbortTask, iscsi.TaskMgmtRequest(q.BHS[:]).Function())
		}
		for _, ended := range []chan error{zeroEnded, lateEnded} {
			select {
			case err := <-ended:
				require.Fail(t, "not one of those", "%v", err)
			default:
			}
		}
		k.s.Close()
	})
}

// TestTasksTerminatedAgain: a target that tells the same over and over, and does not answer, keeps one goroutine busy and not one for each message.
func TestTasksTerminatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := fastAborts(t)
		_, ended := k.write(t, 1)
		_, other := k.write(t, 1) // waits for its turn to be aborted
		k.mu.Lock()
		k.mum = true
		k.mu.Unlock()
		tell := func() {
			k.f.do(func() {
				p := new(iscsi.PDU)
				a := iscsi.AsyncMessage(p.BHS[:])
				a.Init()
				a.SetEvent(iscsi.AsyncTaskTerminated)
				a.SetLUN(scsi.EncodeLUN(1))
				k.f.up(p, true)
			})
			synctest.Wait()
		}
		tell()
		before := runtime.NumGoroutine()
		for range 50 {
			tell()
		}
		require.Less(t, runtime.NumGoroutine(), before+10)
		k.s.Close()
		require.Error(t, <-ended)
		require.Error(t, <-other)
	})
}
