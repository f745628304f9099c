package target

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// stalled runs f against a server whose LUN 0 can be made to stall; LUN 1 never does.
func stalled(t *testing.T, f func(t *testing.T, s *Server, slow *storetest.DelayStore, m *store.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := memory(t, 16<<20)
		slow := storetest.Delay(m)
		s := newServer(t, nil, slow, blocking(memory(t, 1<<20)))
		f(t, s, slow, m)
		slow.Release()
		synctest.Wait()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// others checks that LUN 1, new logins and discovery go on.
func others(t *testing.T, s *Server, isid byte) {
	t.Helper()
	start := time.Now()
	p := connect(t, s)
	p.isid[5] = isid
	p.login(normalKeys()...)
	p.settle(1)
	p.command(cmd{lun: 1, cdb: read10(0, 1), read: 512})
	require.Zero(t, p.response().Status())
	p.leave()
	q := connect(t, s)
	q.discovery()
	require.NotEmpty(t, q.sendTargets("All"))
	q.leave()
	require.Zero(t, time.Since(start), "nobody waits for a store that is not theirs")
}

// TestAbortStalledRead: ABORT TASK of a read that hangs is answered at once, wrong and old tags are told apart, and
// the late result goes nowhere (RFC 7143, section 11.6.1).
func TestAbortStalledRead(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk()
		done := p.command(cmd{cdb: read10(0, 1), read: 512})
		p.response()
		slow.Hold(storetest.Read)
		sn := p.cmdSN
		itt := p.command(cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		start := time.Now()
		p.tmf(iscsi.AbortTask, 0, 4711, p.cmdSN-2)
		require.Equal(t, iscsi.TaskNoTask, p.managed(), "wrong tag")
		p.tmf(iscsi.AbortTask, 0, done, sn-1)
		require.Equal(t, iscsi.TaskNoTask, p.managed(), "already done")
		p.tmf(iscsi.AbortTask, 1, itt, sn)
		require.Equal(t, iscsi.TaskNoTask, p.managed(), "another LUN")
		p.tmf(iscsi.AbortTask, 0, itt, sn)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		require.Zero(t, time.Since(start))
		others(t, s, 9)

		slow.Release()
		synctest.Wait()
		_, none := p.peek()
		require.False(t, none, "the late result is thrown away")
		p.command(cmd{itt: itt, cdb: read10(0, 1), read: 512}) // the tag is free again
		require.Zero(t, p.response().Status())
		p.leave()
	})
}

// peek is next without waiting.
func (p *peer) peek() (s sentByTarget, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read == len(p.sent) {
		return s, false
	}
	return p.sent[p.read], true
}

// TestAbortStalledWrite: the answer comes within AbortWait; what the store still holds lands
// before anything that is written after it.
func TestAbortStalledWrite(t *testing.T) {
	for _, fn := range []iscsi.TaskFunction{
		iscsi.AbortTask, iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset,
	} {
		t.Run(fn.String(), func(t *testing.T) {
			stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, m *store.Memory) {
				p := connect(t, s).disk()
				slow.Hold(storetest.Write)
				sn := p.cmdSN
				itt := p.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
				<-slow.Arrived()
				start := time.Now()
				p.tmf(fn, 0, itt, sn)
				require.Equal(t, iscsi.TaskComplete, p.managed())
				require.Equal(t, time.Second, time.Since(start))
				others(t, s, 9)

				p.settle(0)
				marker := pattern(4096, 77)
				p.command(cmd{cdb: write10(0, 8), write: marker, immediate: 4096})
				p.command(cmd{cdb: make([]byte, 6)}) // TEST UNIT READY needs no medium
				require.Equal(t, p.itt, p.response().ITT())
				synctest.Wait()
				_, some := p.peek()
				require.False(t, some, "the marker waits behind the old write")
				slow.Release()
				require.Zero(t, p.response().Status())
				synctest.Wait()
				got := make([]byte, 4096)
				_, _ = m.ReadAt(got, 0)
				require.Equal(t, marker, got)
				p.leave()
			})
		})
	}
}

// TestResetInFlight: a LOGICAL UNIT RESET in the midst of 64 writes. No response of theirs follows the
// function's, no old write lands after a newer one, and the other initiators have a unit attention.
func TestResetInFlight(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, m *store.Memory) {
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		q.settle(0, 1)
		p := connect(t, s).disk()
		slow.Hold(storetest.Write)
		for range 64 {
			p.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		}
		synctest.Wait()
		for range 5 {
			slow.Step()
		}
		p.tmf(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
		synctest.Wait()
		slow.Release()
		responses := 0
		for {
			x, ok := p.next()
			require.True(t, ok)
			if x.pdu.Opcode() == iscsi.OpTaskMgmtRsp {
				p.statSN = iscsi.BHS(x.pdu.BHS[:]).StatSN() + 1
				break
			}
			require.Equal(t, iscsi.OpSCSIResponse, x.pdu.Opcode())
			responses++
		}
		require.LessOrEqual(t, responses, 5)
		p.settle(0)
		marker := pattern(4096, 77)
		p.command(cmd{cdb: write10(0, 8), write: marker, immediate: 4096})
		require.Zero(t, p.response().Status())
		synctest.Wait()
		_, some := p.peek()
		require.False(t, some, "a stray response")
		got := make([]byte, 4096)
		_, _ = m.ReadAt(got, 0)
		require.Equal(t, marker, got)

		q.command(cmd{cdb: make([]byte, 6)})
		rsp := q.pdu(iscsi.OpSCSIResponse)
		sense, _ := scsi.ParseSense(iscsi.SenseData(rsp.Data))
		require.Equal(t, scsi.CodeBusDeviceReset, sense.Code)
		q.leave()
		p.leave()
	})
}

// TestFunctionWaitsForR2T: a multi-task abort acts once its R2Ts have been answered (RFC 7143, section 4.2.3.3), or
// AbortWait is over.
func TestFunctionWaitsForR2T(t *testing.T) {
	for _, answered := range []bool{true, false} {
		stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, m *store.Memory) {
			p := connect(t, s).disk()
			p.holdGets = true
			p.command(cmd{cdb: write10(0, 16), write: pattern(8192, 1)})
			x, _ := p.next()
			require.NotNil(t, x.out)
			start := time.Now()
			p.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
			synctest.Wait()
			_, some := p.peek()
			require.False(t, some)
			if answered {
				p.answerGets()
			}
			require.Equal(t, iscsi.TaskComplete, p.managed())
			require.Equal(t, answered, time.Since(start) == 0)
			got := make([]byte, 8192)
			_, _ = m.ReadAt(got, 0)
			require.Equal(t, make([]byte, 8192), got, "nothing of it was written")
			p.holdGets = false
			p.leave()
		})
	}
}

// TestFunctions: the answers of what needs no waiting.
func TestFunctions(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk("iSCSIProtocolLevel", "2")
		slow.Hold(storetest.Read)
		sn := p.cmdSN
		itt := p.command(cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		for _, c := range []struct {
			fn   iscsi.TaskFunction
			lun  int
			rtt  uint32
			want iscsi.TaskResponse
		}{
			{iscsi.LogicalUnitReset, 5, iscsi.ReservedTag, iscsi.TaskNoLUN},
			{iscsi.AbortTaskSet, 5, iscsi.ReservedTag, iscsi.TaskNoLUN},
			{iscsi.ClearACA, 0, iscsi.ReservedTag, iscsi.TaskNotSupported},
			{iscsi.TaskReassign, 0, itt, iscsi.TaskNoReassign},
			{iscsi.TaskFunction(99), 0, itt, iscsi.TaskNotSupported},
			{iscsi.QueryTask, 0, itt, iscsi.TaskSucceeded},
			{iscsi.QueryTask, 0, 4711, iscsi.TaskComplete},
			{iscsi.QueryTask, 1, itt, iscsi.TaskComplete},
			{iscsi.QueryTaskSet, 0, iscsi.ReservedTag, iscsi.TaskSucceeded},
			{iscsi.QueryTaskSet, 1, iscsi.ReservedTag, iscsi.TaskComplete},
			{iscsi.AbortTaskSet, 1, iscsi.ReservedTag, iscsi.TaskComplete},
			{iscsi.QueryTask, 0, itt, iscsi.TaskSucceeded}, // still there
		} {
			p.tmf(c.fn, c.lun, c.rtt, sn)
			require.Equal(t, c.want, p.managed(), "%v", c)
		}
		slow.Release()
		require.Zero(t, p.response().Status())

		p.tmf(iscsi.ITNexusReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		require.NoError(t, p.ended())
		synctest.Wait()
		require.Empty(t, s.Status().Sessions)

		p = connect(t, s).disk() // without RFC 7144
		p.tmf(iscsi.QueryTaskSet, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskNotSupported, p.managed())
		p.leave()
	})
}

// TestQueryAsyncEvent looks at unit attentions without taking them (RFC 7144, section 6.4.2).
func TestQueryAsyncEvent(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk("iSCSIProtocolLevel", "2")
		query := func() (iscsi.TaskResponse, []byte) {
			p.tmf(iscsi.QueryAsyncEvent, 0, iscsi.ReservedTag, 0)
			h := iscsi.TaskMgmtResponse(p.pdu(iscsi.OpTaskMgmtRsp).BHS[:])
			return h.Response(), h.AdditionalInfo()
		}
		code, info := query()
		require.Equal(t, iscsi.TaskComplete, code)
		require.Equal(t, []byte{0, 0, 0}, info)

		lu := s.all()[0].Device.LU(0)
		lu.Attention(scsi.CodeCapacityChanged, nil)
		for range 2 {
			code, info = query()
			require.Equal(t, iscsi.TaskSucceeded, code)
			require.Equal(t, []byte{0x16, 0x2a, 0x09}, info, "one unit attention")
		}
		lu.Attention(scsi.CodeReportedLUNsChanged, nil)
		_, info = query()
		require.Equal(t, []byte{0x26, 0x2a, 0x09}, info, "more than one, the oldest first")
		p.settle(0)
		code, _ = query()
		require.Equal(t, iscsi.TaskComplete, code)

		p.tmf(iscsi.QueryAsyncEvent, 5, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskNoLUN, p.managed())
		p.leave()
	})
}

// TestColdReset ends every session of the target.
func TestColdReset(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		p := connect(t, s).disk()
		p.tmf(iscsi.TargetColdReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		for _, x := range []*peer{p, q} {
			a := iscsi.AsyncMessage(x.pdu(iscsi.OpAsync).BHS[:])
			require.Equal(t, iscsi.AsyncDropSession, a.Event())
			require.NoError(t, x.ended())
		}
	})
}

// TestAbortBeforeItsTurn: an immediate ABORT TASK overtakes a command that a gap holds back, and
// one that never came at all: their numbers count as received.
func TestAbortBeforeItsTurn(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk()
		gap := p.cmdSN
		p.cmdSN++
		held := p.command(cmd{cdb: read10(0, 1), read: 512})
		p.tmf(iscsi.AbortTask, 0, held, gap+1)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		p.tmf(iscsi.AbortTask, 0, 4711, gap)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.Equal(t, p.itt, p.response().ITT(), "what follows is delivered")
		p.leave()
	})
}

// TestClearTaskSet tells those whose commands it took.
func TestClearTaskSet(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, _ *store.Memory) {
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		q.settle(0)
		p := connect(t, s).disk()
		slow.Hold(storetest.Read)
		q.command(cmd{cdb: read10(0, 1), read: 512})
		<-slow.Arrived()
		p.tmf(iscsi.ClearTaskSet, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		slow.Release()
		q.command(cmd{cdb: make([]byte, 6)})
		rsp := q.pdu(iscsi.OpSCSIResponse)
		sense, _ := scsi.ParseSense(iscsi.SenseData(rsp.Data))
		require.Equal(t, scsi.CodeCommandsCleared, sense.Code)
		q.leave()
		p.leave()
	})
}

// TestOrdered: an ORDERED command runs alone, a HEAD OF QUEUE one passes what waits (SAM-5, section 8.6).
func TestOrdered(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk()
		slow.Hold(storetest.Read)
		a := p.command(cmd{cdb: read10(0, 1), read: 512})
		<-slow.Arrived()
		b := p.command(cmd{cdb: read10(8, 1), read: 512, attr: iscsi.AttrOrdered})
		c := p.command(cmd{cdb: read10(16, 1), read: 512, attr: iscsi.AttrSimple})
		d := p.command(cmd{cdb: read10(24, 1), read: 512, attr: iscsi.AttrHeadOfQueue})
		require.EqualValues(t, 24*512, (<-slow.Arrived()).Off)
		synctest.Wait()
		require.Empty(t, slow.Arrived(), "the others wait")
		slow.Step()
		slow.Step()
		got := []uint32{p.response().ITT(), p.response().ITT()}
		require.ElementsMatch(t, []uint32{a, d}, got)
		require.EqualValues(t, 8*512, (<-slow.Arrived()).Off)
		synctest.Wait()
		require.Empty(t, slow.Arrived())
		slow.Step()
		require.Equal(t, b, p.response().ITT())
		<-slow.Arrived()
		slow.Step()
		require.Equal(t, c, p.response().ITT())
		p.leave()
	})
}

// TestAbortTransfersUnderWay: the buffers of an aborted task's transfers come back once, whether the Datamover releases
// them or had them ended already and tells of it later.
func TestAbortTransfersUnderWay(t *testing.T) {
	for _, late := range []bool{false, true} {
		stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
			p := connect(t, s).disk()
			p.mu.Lock()
			p.holdGets, p.holdPuts, p.late = true, true, late
			p.mu.Unlock()
			sn := p.cmdSN
			write := p.command(cmd{cdb: write10(0, 64), write: pattern(32768, 1)})
			read := p.command(cmd{cdb: read10(0, 8000), read: 8000 * 512, lun: 0})
			synctest.Wait()
			p.tmf(iscsi.AbortTask, 0, write, sn)
			require.Equal(t, iscsi.TaskComplete, p.managed())
			p.tmf(iscsi.AbortTask, 0, read, sn+1)
			require.Equal(t, iscsi.TaskComplete, p.managed())
			p.command(cmd{itt: write, cdb: read10(0, 1), read: 512}) // the same tag, another task
			require.Zero(t, p.response().Status())
			p.answerGets()
			synctest.Wait()
			p.mu.Lock()
			p.holdGets, p.holdPuts, p.late = false, false, false
			p.mu.Unlock()
			p.command(cmd{cdb: write10(0, 64), write: pattern(32768, 2)})
			require.Zero(t, p.response().Status())
			p.leave() // checks the buffers
		})
	}
}

// TestCutTransfersUnderWay: the same when the connection ends.
func TestCutTransfersUnderWay(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
		p := connect(t, s).disk()
		p.mu.Lock()
		p.holdGets, p.holdPuts = true, true
		p.mu.Unlock()
		p.command(cmd{cdb: write10(0, 64), write: pattern(32768, 1)})
		p.command(cmd{cdb: read10(0, 8000), read: 8000 * 512})
		synctest.Wait()
		p.cut(iscsi.ErrConnection)
		require.ErrorIs(t, p.ended(), iscsi.ErrConnection)
		synctest.Wait()
		p.noLeak()
		require.Empty(t, s.Status().Sessions)
	})
}

// TestAbortWaiting: tasks that wait for memory, for a barrier, or for their turn are gone at once.
func TestAbortWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, func(c *Config) { c.Limits.Workers = 1 }, slow, memory(t, 1<<20))
		p := connect(t, s, func(p *peer) { p.limit = 24 << 10 }).disk()
		slow.Hold(storetest.Read)
		var itts []uint32
		first := p.cmdSN
		for i := range 6 {
			attr := iscsi.AttrSimple
			if i == 4 {
				attr = iscsi.AttrOrdered
			}
			itts = append(itts, p.command(cmd{cdb: read10(0, 16), read: 8192, attr: attr}))
		}
		<-slow.Arrived()
		gap := p.cmdSN
		p.cmdSN++
		p.command(cmd{cdb: read10(0, 1), read: 512}) // held: its number is not due
		synctest.Wait()
		for i := 5; i > 0; i-- {
			p.tmf(iscsi.AbortTask, 0, itts[i], first+iscsi.SN(i))
			require.Equal(t, iscsi.TaskComplete, p.managed())
		}
		p.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		slow.Release()
		filler := p.request(cmd{cdb: read10(0, 1), read: 512, cmdSN: &gap})
		p.inject(filler)
		require.Equal(t, iscsi.BHS(filler.BHS[:]).ITT(), p.response().ITT())
		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.Equal(t, p.itt, p.response().ITT(), "the held one was given up, its number counts")
		require.EqualValues(t, 6, s.Status().Sessions[0].Counters.Aborted)
		p.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}
