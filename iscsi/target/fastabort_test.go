package target

import (
	"bytes"
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

const fastAbort = "FastAbort,ResponseFence,RFC3720"

// TestFastAbort: a function that aborts many tasks is answered at once, whatever data they have asked for; what still comes of it goes
// nowhere (RFC 7143, section 4.2.3.4).
func TestFastAbort(t *testing.T) {
	for _, fn := range []iscsi.TaskFunction{iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset} {
		stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, m *store.Memory) {
			p := connect(t, s).disk("TaskReporting", fastAbort)
			require.Equal(t, iscsi.ReportFastAbort, p.params.TaskReporting)
			p.late = true // transfers under way end as they would have
			p.setHoldGets(true)
			p.command(cmd{cdb: write10(0, 16), write: pattern(8192, 1)})
			x, _ := p.next()
			require.NotNil(t, x.out)
			start := time.Now()
			p.tmf(fn, 0, iscsi.ReservedTag, 0)
			require.Equal(t, iscsi.TaskComplete, p.managed())
			require.Zero(t, time.Since(start))
			p.answerGets()
			synctest.Wait()
			p.setHoldGets(false)
			p.command(cmd{cdb: make([]byte, 6)})
			p.response() // perhaps with the unit attention
			p.command(cmd{cdb: read10(0, 16), read: 8192})
			got, _, r := p.collect(8192)
			require.Zero(t, r.Status())
			require.True(t, bytes.Equal(make([]byte, 8192), got), "nothing of it was written")
			p.leave()
		})
	}
}

// termination reads a Task Termination and gives its LUN.
func (p *peer) termination() int {
	p.t.Helper()
	h := iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:])
	require.Equal(p.t, iscsi.AsyncTaskTerminated, h.Event())
	n, ok := scsi.DecodeLUN(h.LUN())
	require.True(p.t, ok)
	return n
}

// TestTaskTermination: other initiators learn that their tasks are gone, one message for each logical unit, on the connections that had the
// tasks, and only where FastAbort was agreed; whatever the session that asked for the abort agreed to (RFC 7143, sections 4.2.3.4 and 4.2.3.5).
func TestTaskTermination(t *testing.T) {
	for _, issuing := range []string{"RFC3720", fastAbort} {
		synctest.Test(t, func(t *testing.T) {
			slow := []*storetest.DelayStore{storetest.Delay(memory(t, 1<<20)), storetest.Delay(memory(t, 1<<20))}
			s := newServer(t, nil, slow[0], slow[1])
			open := func(isid byte, reporting string) *peer {
				p := connect(t, s, as(isid))
				p.login(normalKeys("TaskReporting", reporting)...)
				p.settle(0, 1)
				return p
			}
			p, fast, idle, old := open(1, issuing), open(2, fastAbort), open(3, fastAbort), open(4, "ResponseFence,RFC3720")
			for lun, d := range slow {
				d.Hold(storetest.Read)
				for _, o := range []*peer{fast, fast, old} {
					o.command(cmd{lun: lun, cdb: read10(0, 1), read: 512})
					<-d.Arrived()
				}
			}
			p.tmf(iscsi.TargetWarmReset, 0, iscsi.ReservedTag, 0)
			synctest.Wait()
			require.ElementsMatch(t, []int{0, 1}, []int{fast.termination(), fast.termination()})
			for _, o := range []*peer{fast, idle, old} {
				_, more := o.peek()
				require.False(t, more)
			}
			fast.ack()
			for _, d := range slow {
				d.Release()
			}
			require.Equal(t, iscsi.TaskComplete, p.managed())
			fast.command(cmd{cdb: make([]byte, 6)})
			require.Equal(t, uint8(scsi.StatusCheckCondition), fast.response().Status(), "a unit attention")
			for _, o := range []*peer{p, fast, idle, old} {
				o.leave()
			}
			require.NoError(t, s.Shutdown(context.Background()))
		})
	}
}

// TestTerminationWithinASession: the other connections of the session that asked for the abort are told before it is answered.
func TestTerminationWithinASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow)
		h := newHost(t, s)
		a := h.open(0, fenced("TaskReporting", fastAbort)...)
		a.settle(0)
		h.sync(a)
		b := h.open(1)
		a.ack()
		b.ack()
		slow.Hold(storetest.Read)
		h.command(a, cmd{cdb: read10(0, 1), read: 512})
		<-slow.Arrived()
		h.command(b, cmd{cdb: read10(0, 1), read: 512})
		<-slow.Arrived()
		a.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
		h.sync(a)
		require.Zero(t, b.termination())
		require.Empty(t, a.waiting(), "it knows, and is not answered yet")
		slow.Release()
		b.pong(b.waiting())
		require.Equal(t, iscsi.TaskComplete, a.managed(), "once the message was acknowledged")
		b.cmdSN = h.cmdSN
		a.pong(a.waiting())
		b.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}
