package target

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// second logs in from another port of the same initiator.
func second(t *testing.T, s *Server) *peer {
	t.Helper()
	q := connect(t, s)
	q.isid[5] = 9
	q.disk()
	return q
}

// reserveOut runs PERSISTENT RESERVE OUT with its parameter list as immediate data.
func (p *peer) reserveOut(action byte, kind scsi.ReservationType, key, sark uint64) {
	p.t.Helper()
	list := scsi.AppendReserve(nil, key, sark, 0)
	cdb := scsi.PersistentReserveOut(action, kind, uint32(len(list)))
	p.command(cmd{cdb: cdb.Bytes(), write: list, immediate: len(list)})
}

func (p *peer) sense() scsi.Sense {
	p.t.Helper()
	p.command(cmd{cdb: make([]byte, 6)})
	s, _ := scsi.ParseSense(iscsi.SenseData(p.pdu(iscsi.OpSCSIResponse).Data))
	return s
}

// TestPreemptAndAbort: the commands in flight of the nexus that is preempted end without a response, what its store still
// holds does not land after what the new holder writes, and it is told (SPC-4, section 5.12.11.2.6).
func TestPreemptAndAbort(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, m *store.Memory) {
		q := second(t, s)
		p := connect(t, s).disk()
		for peer, key := range map[*peer]uint64{p: 1, q: 2} {
			peer.reserveOut(scsi.SARegister, 0, 0, key)
			require.Zero(t, peer.response().Status())
		}
		q.reserveOut(scsi.SAReserve, scsi.WriteExclusive, 2, 0)
		require.Zero(t, q.response().Status())

		slow.Hold(storetest.Write)
		q.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		<-slow.Arrived()
		start := time.Now()
		p.reserveOut(scsi.SAPreemptAndAbort, scsi.WriteExclusive, 1, 2)
		require.Zero(t, p.response().Status())
		require.Equal(t, time.Second, time.Since(start), "it waits for the store, and not for ever")
		marker := pattern(4096, 77)
		p.command(cmd{cdb: write10(0, 8), write: marker, immediate: 4096})
		synctest.Wait()
		_, some := p.peek()
		require.False(t, some, "the new holder's write is behind the old one")
		slow.Release()
		require.Zero(t, p.response().Status())
		_, some = q.peek()
		require.False(t, some, "no response")
		got := make([]byte, 4096)
		_, _ = m.ReadAt(got, 0)
		require.Equal(t, marker, got)

		require.Equal(t, scsi.CodeRegistrationsPreempted, q.sense().Code)
		require.Equal(t, scsi.CodeCommandsCleared, q.sense().Code)
		require.Zero(t, q.sense().Code)
		q.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		require.EqualValues(t, scsi.StatusReservationConflict, q.response().Status())
		q.leave()
		p.leave()
	})
}

// TestPreemptSparesOthers: commands of nexuses with other keys, and at other logical units, go on.
func TestPreemptSparesOthers(t *testing.T) {
	stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, _ *store.Memory) {
		q := second(t, s)
		p := connect(t, s).disk()
		r := connect(t, s)
		r.isid[5] = 10
		r.disk()
		for peer, key := range map[*peer]uint64{p: 1, q: 2} {
			peer.reserveOut(scsi.SARegister, 0, 0, key)
			require.Zero(t, peer.response().Status())
		}
		slow.Hold(storetest.Read)
		itt := r.command(cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		gone := q.command(cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		p.reserveOut(scsi.SAPreemptAndAbort, scsi.WriteExclusive, 1, 2)
		require.Zero(t, p.response().Status())
		slow.Release()
		h := r.response()
		require.Equal(t, itt, h.ITT())
		require.Zero(t, h.Status())
		synctest.Wait()
		_, some := q.peek()
		require.False(t, some, "task %d has no response", gone)
		p.leave()
		q.leave()
		r.leave()
	})
}

// TestTaskAbortedStatus: with the TAS bit set, the commands that another session aborts are answered (SPC-4, section 7.5.8).
func TestTaskAbortedStatus(t *testing.T) {
	for _, fn := range []iscsi.TaskFunction{iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset} {
		for _, tas := range []bool{false, true} {
			stalled(t, func(t *testing.T, s *Server, slow *storetest.DelayStore, m *store.Memory) {
				q := second(t, s)
				p := connect(t, s).disk()
				if tas {
					list := append([]byte{0, 0, 0, 0, scsi.ModePageControl, 10, 0, 0x10, 0, 0x40}, make([]byte, 6)...)
					cdb := scsi.ModeSelect6(uint8(len(list)))
					p.command(cmd{cdb: cdb.Bytes(), write: list, immediate: len(list)})
					require.Zero(t, p.response().Status())
					require.Equal(t, scsi.CodeModeParametersChanged, q.sense().Code)
				}
				slow.Hold(storetest.Write)
				q.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
				<-slow.Arrived()
				own := p.command(cmd{cdb: write10(0, 8), write: pattern(4096, 2), immediate: 4096})
				<-slow.Arrived()
				p.tmf(fn, 0, iscsi.ReservedTag, 0)
				require.Equal(t, iscsi.TaskComplete, p.managed(), "and no status of task %d, its own", own)
				if tas {
					require.EqualValues(t, scsi.StatusTaskAborted, q.response().Status())
				}
				_, some := q.peek()
				require.False(t, some)
				slow.Release()
				synctest.Wait()
				want := scsi.CodeNone
				switch {
				case fn == iscsi.LogicalUnitReset:
					want = scsi.CodeBusDeviceReset
				case fn == iscsi.TargetWarmReset:
					want = scsi.CodeBusReset
				case !tas:
					want = scsi.CodeCommandsCleared
				}
				require.Equal(t, want, q.sense().Code, "%v, %v", fn, tas)
				q.command(cmd{cdb: read10(0, 8), read: 4096})
				require.Zero(t, q.response().Status(), "the command window is whole")
				p.leave()
				q.leave()
			})
		}
	}
}

// TestAbortedAfterItsData: the status of a task that has asked for data waits for the data, or is not sent.
func TestAbortedAfterItsData(t *testing.T) {
	for _, answered := range []bool{true, false} {
		stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
			q := second(t, s)
			p := connect(t, s).disk()
			list := append([]byte{0, 0, 0, 0, scsi.ModePageControl, 10, 0, 0x10, 0, 0x40}, make([]byte, 6)...)
			cdb := scsi.ModeSelect6(uint8(len(list)))
			p.command(cmd{cdb: cdb.Bytes(), write: list, immediate: len(list)})
			require.Zero(t, p.response().Status())
			q.sense()
			q.holdGets = true
			q.command(cmd{cdb: write10(0, 16), write: pattern(8192, 1)})
			x, _ := q.next()
			require.NotNil(t, x.out)
			p.tmf(iscsi.ClearTaskSet, 0, iscsi.ReservedTag, 0)
			synctest.Wait()
			_, some := q.peek()
			require.False(t, some)
			if answered {
				q.answerGets()
				require.EqualValues(t, scsi.StatusTaskAborted, q.response().Status())
			}
			require.Equal(t, iscsi.TaskComplete, p.managed())
			q.holdGets = false
			if !answered {
				require.Equal(t, scsi.CodeCommandsCleared, q.sense().Code)
			}
			p.leave()
			q.leave()
		})
	}
}

// TestPortalGroups: each portal group is a target port of its own, and one initiator port has a session with each.
func TestPortalGroups(t *testing.T) { // RFC 7143, section 4.4.1
	stalled(t, func(t *testing.T, s *Server, _ *storetest.DelayStore, _ *store.Memory) {
		dev := s.all()[0].Device
		require.NoError(t, s.SetPortalGroups([]PortalGroup{{Tag: 7, Portals: []string{"192.0.2.1:3260"}}, {Tag: 2, Portals: []string{"192.0.2.2:3260"}}}))
		ports := dev.Ports()
		require.Len(t, ports, 2)
		require.Equal(t, scsi.Port{Name: targetName + ",t,0x0002", DeviceName: targetName, Relative: 2, Group: 2, Protocol: 5}, ports[1])
		p := connect(t, s).disk()
		q := connect(t, s, func(p *peer) { p.portal.Tag = 2 })
		rsp := q.login(normalKeys()...)
		text, err := iscsi.ParseText(rsp.Data)
		require.NoError(t, err)
		tag, _ := text.Get(iscsi.KeyTargetPortalGroupTag)
		require.Equal(t, "2", tag)
		q.settle(0)
		require.Len(t, s.Status().Sessions, 2, "nothing was reinstated")
		p.reserveOut(scsi.SARegister, 0, 0, 1)
		require.Zero(t, p.response().Status())
		q.reserveOut(scsi.SAReserve, scsi.WriteExclusive, 1, 0)
		require.EqualValues(t, scsi.StatusReservationConflict, q.response().Status(), "not registered through this port")
		regs := s.all()[0].Device.LU(0).Reservations().Registrations
		require.Len(t, regs, 1)
		require.EqualValues(t, 7, regs[0].Port)
		p.leave()
		q.leave()
	})
}
