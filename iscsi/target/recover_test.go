package target

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// host is a scripted initiator with several connections in one session.
type host struct {
	t     *testing.T
	s     *Server
	tsih  uint16
	cmdSN iscsi.SN
	itt   uint32
	out   map[uint32][]byte // data of writes, on whichever connection they are asked for
	conns []*peer
}

func newHost(t *testing.T, s *Server) *host {
	return &host{t: t, s: s, cmdSN: 100, itt: 1000, out: map[uint32][]byte{}}
}

// level2 are keys of a session with everything, small bursts, and MC/S.
func level2(kv ...string) []string {
	return normalKeys(withKeys([]string{
		"MaxRecvDataSegmentLength", "8192", "MaxBurstLength", "16384", "FirstBurstLength", "8192", "InitialR2T", "No", "ImmediateData", "Yes",
		"ErrorRecoveryLevel", "2", "MaxConnections", "4", "DefaultTime2Wait", "2", "DefaultTime2Retain", "10",
	}, kv)...)
}

// ask sends a login for a connection and returns the answer.
func (h *host) ask(cid uint16, kv ...string) (*peer, iscsi.LoginResponse) {
	h.t.Helper()
	p := connect(h.t, h.s)
	p.fake.out = h.out
	p.cmdSN, p.itt = h.cmdSN, h.itt
	pdu := p.loginRequest(kv...)
	r := iscsi.LoginRequest(pdu.BHS[:])
	r.SetTSIH(h.tsih)
	r.SetCID(cid)
	p.inject(pdu)
	rsp := iscsi.LoginResponse(p.pdu(iscsi.OpLoginRsp).BHS[:])
	return p, rsp
}

// open logs a connection in: the first one begins the session.
func (h *host) open(cid uint16, kv ...string) *peer {
	h.t.Helper()
	if kv == nil && h.tsih == 0 {
		kv = level2()
	} else if kv == nil {
		kv = normalKeys("MaxRecvDataSegmentLength", "8192")
	}
	p, rsp := h.ask(cid, kv...)
	require.Equal(h.t, iscsi.LoginOK, rsp.Status())
	require.True(h.t, rsp.Transit())
	if h.tsih == 0 {
		h.tsih = rsp.TSIH()
		h.conns = append(h.conns, p)
		p.settle(0)
		h.sync(p)
		return p
	}
	require.Equal(h.t, h.tsih, rsp.TSIH())
	require.True(h.t, iscsi.BHS(rsp).ExpCmdSN().LessEqual(h.cmdSN), "the session's numbering goes on")
	h.conns = append(h.conns, p)
	return p
}

// sync lets all connections go on from p's numbers.
func (h *host) sync(p *peer) {
	h.cmdSN, h.itt = p.cmdSN, p.itt
	for _, o := range h.conns {
		o.cmdSN, o.itt = p.cmdSN, p.itt
	}
}

func (h *host) command(p *peer, c cmd) uint32 {
	itt := p.command(c)
	h.sync(p)
	return itt
}

// reassign asks for a task on p and returns the answer.
func (h *host) reassign(p *peer, itt, expDataSN uint32) iscsi.TaskResponse {
	h.t.Helper()
	p.itt++
	pdu := &iscsi.PDU{}
	r := iscsi.TaskMgmtRequest(pdu.BHS[:])
	r.Init()
	r.SetImmediate(true)
	r.SetFunction(iscsi.TaskReassign)
	r.SetITT(p.itt)
	r.SetRTT(itt)
	r.SetExpDataSN(expDataSN)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	p.inject(pdu)
	h.sync(p)
	return p.managed()
}

// cutOff ends a connection as a network does, and waits until the target has seen it.
func cutOff(p *peer) {
	p.cut(iscsi.ErrConnection)
	<-p.serve
	synctest.Wait()
}

// bare waits and reads the data-in and the response of a read.
func (p *peer) collect(n int) ([]byte, []iscsi.DataIn, iscsi.SCSIResponse) {
	p.t.Helper()
	got := make([]byte, n)
	var ins []iscsi.DataIn
	for {
		x, ok := p.next()
		require.True(p.t, ok, "the connection ended")
		switch {
		case x.in != nil:
			copy(got[x.in.Offset:], x.data)
			ins = append(ins, *x.in)
		case x.pdu != nil:
			require.Equal(p.t, iscsi.OpSCSIResponse, x.pdu.Opcode())
			r := iscsi.SCSIResponse(x.pdu.BHS[:])
			p.statSN = r.StatSN() + 1
			return got, ins, r
		}
	}
}

// TestConnectionsShareTheNumbering: commands are delivered in the order of CmdSN, whichever connection brings them, and each answer comes on
// its own, with that connection's StatSN (RFC 7143, sections 4.2.2.1 and 4.2.5.1).
func TestConnectionsShareTheNumbering(t *testing.T) {
	m := memory(t, 1<<20)
	inBubble(t, nil, []store.Store{m}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a := h.open(0)
		b := h.open(1)
		require.Equal(t, 2, s.Status().Sessions[0].Connections)
		want := pattern(4096, 1)
		first, second := h.cmdSN, h.cmdSN+1
		h.command(b, cmd{cdb: read10(0, 8), read: 4096, attr: iscsi.AttrOrdered, cmdSN: &second}) // of SIMPLE ones either may be executed first
		b.nop(0x7777, nil)
		require.Equal(t, iscsi.OpNOPIn, b.pdu(iscsi.OpNOPIn).Opcode()) // the read waits for its turn
		h.command(a, cmd{cdb: write10(0, 8), write: want, immediate: 4096, cmdSN: &first})
		require.Zero(t, a.response().Status())
		got, _, r := b.collect(4096)
		require.Zero(t, r.Status())
		require.Equal(t, want, got)
		require.Equal(t, second+1, r.ExpCmdSN())
		h.cmdSN += 2
		for range 3 { // StatSN counts for each connection
			a.cmdSN = h.cmdSN
			h.command(a, cmd{cdb: make([]byte, 6)})
			require.Zero(t, a.response().Status())
		}
		h.command(b, cmd{cdb: make([]byte, 6)})
		require.Zero(t, b.response().Status())
	})
}

// TestMaxConnections: one more than agreed is refused; a connection that has gone makes room (RFC 7143, section 13.2).
func TestMaxConnections(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		h.open(0, level2("MaxConnections", "2", "ErrorRecoveryLevel", "0")...)
		b := h.open(1)
		_, rsp := h.ask(2, normalKeys()...)
		require.Equal(t, iscsi.LoginTooManyConnections, rsp.Status())
		b.logoutRequest(iscsi.LogoutConnection, 1)
		require.Equal(t, iscsi.LogoutOK, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
		require.NoError(t, b.ended())
		h.sync(b)
		h.conns[0].cmdSN = h.cmdSN
		c := h.open(3)
		h.command(c, cmd{cdb: make([]byte, 6)})
		require.Zero(t, c.response().Status())
	})
}

// TestJoinRefused: RFC 7143, section 6.3.1: a connection joins only the session of the same initiator port, target and portal group.
func TestJoinRefused(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		h.open(0)
		for _, keys := range [][]string{
			withKeys(normalKeys(), []string{"InitiatorName", "iqn.2026-11.com.example:other"}),
			withKeys(normalKeys(), []string{"SessionType", "Discovery"}),
		} {
			_, rsp := h.ask(1, keys...)
			require.Contains(t, []iscsi.LoginStatus{iscsi.LoginNoSession, iscsi.LoginTooManyConnections}, rsp.Status())
		}
		h.tsih += 5
		_, rsp := h.ask(1, normalKeys()...)
		require.Equal(t, iscsi.LoginNoSession, rsp.Status())
	})
}

// TestLostConnectionLeavesTheSession: without recovery its tasks end, the initiator is told on the other connection and by a unit attention,
// and the numbers of commands that never had their turn are holes (RFC 7143, sections 7.1.4.3, 11.9.1 and 11.14.5).
func TestLostConnectionLeavesTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow)
		h := newHost(t, s)
		a := h.open(7, level2("ErrorRecoveryLevel", "0")...)
		b := h.open(8)
		slow.Hold(storetest.Read)
		h.command(a, cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		hole := h.cmdSN
		ahead := hole + 1
		h.command(a, cmd{cdb: read10(0, 8), read: 4096, cmdSN: &ahead})
		synctest.Wait()
		cutOff(a)
		msg := iscsi.AsyncMessage(b.pdu(iscsi.OpAsync).BHS[:])
		require.Equal(t, iscsi.AsyncDropConnection, msg.Event())
		require.EqualValues(t, 7, msg.Parameter1())
		require.EqualValues(t, 2, msg.Parameter2())
		require.Zero(t, msg.Parameter3(), "nothing is kept")
		slow.Release()
		h.cmdSN = hole
		b.cmdSN = hole
		h.command(b, cmd{cdb: make([]byte, 6)}) // the numbers are used again
		require.Equal(t, uint8(scsi.StatusCheckCondition), b.response().Status())
		h.command(b, cmd{cdb: make([]byte, 6)})
		require.Zero(t, b.response().Status())
		b.leave()
		require.NoError(t, s.Shutdown(context.Background()))
		a.noLeak()
	})
}

// TestConnectionReinstatement: a login with the same CID takes the place of the connection, at every level (RFC 7143, section 6.3.4), and
// the session goes on.
func TestConnectionReinstatement(t *testing.T) {
	for _, level := range []string{"0", "2"} {
		inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
			h := newHost(t, s)
			a := h.open(5, level2("ErrorRecoveryLevel", level, "MaxConnections", "1")...)
			b := h.open(5)
			require.ErrorIs(t, a.ended(), ErrConnectionReinstated)
			h.command(b, cmd{cdb: make([]byte, 6)})
			require.Zero(t, b.response().Status(), "no new nexus, so no unit attention")
			require.Len(t, s.Status().Sessions, 1)
			b.leave()
		})
	}
}

// TestSessionReinstatementEndsAllConnections: a login with TSIH 0 and the same ISID (RFC 7143, section 6.3.5).
func TestSessionReinstatementEndsAllConnections(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		cutOff(b)
		n := newHost(t, s)
		n.open(0)
		require.ErrorIs(t, a.ended(), ErrReinstated)
		require.NotEqual(t, h.tsih, n.tsih)
		require.Len(t, s.Status().Sessions, 1)
	})
}

// TestLogoutOfTheSession ends all its connections.
func TestLogoutOfTheSession(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		a.leave()
		require.NoError(t, b.ended())
		synctest.Wait()
		require.Empty(t, s.Status().Sessions)
	})
}

// TestLogoutOfAnotherConnection: and of one that is not there.
func TestLogoutOfAnotherConnection(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		b.logoutRequest(iscsi.LogoutConnection, 0)
		require.Equal(t, iscsi.LogoutOK, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
		require.NoError(t, a.ended())
		b.logoutRequest(iscsi.LogoutConnection, 9)
		require.Equal(t, iscsi.LogoutNoCID, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
		b.logoutRequest(iscsi.LogoutConnection, 1)
		require.Equal(t, iscsi.LogoutOK, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
		require.NoError(t, b.ended())
		synctest.Wait()
		require.Empty(t, s.Status().Sessions, "its last connection was closed")
	})
}

// TestAbortAcrossConnections: task management concerns the session's tasks, not the connection's.
func TestAbortAcrossConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow)
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		slow.Hold(storetest.Read)
		h.command(a, cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		b.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, b.managed())
		slow.Release()
		h.sync(b)
		h.command(a, cmd{cdb: make([]byte, 6)})
		require.Zero(t, a.response().Status(), "no response of the aborted one")
		a.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestReassignedReadGoesOn: behind the data that was acknowledged, or that ExpDataSN names; with nothing acknowledged, from the start
// (RFC 7143, sections 7.2.2 and 11.5.6). The connection in between may have another segment length.
func TestReassignedReadGoesOn(t *testing.T) {
	for _, c := range []struct {
		name             string
		acked, expDataSN uint32
		from             int
	}{
		{"all", 0, 0, 0},
		{"acknowledged", 2, 0, 16384},
		{"named", 0, 3, 24576},
		{"named beyond what was sent", 2, 99, 16384},
		{"named below what was acknowledged", 2, 1, 16384},
		{"all sent", 0, 4, 32768},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := memory(t, 1<<20)
			want := pattern(32768, 5)
			_, err := m.WriteAt(want, 0)
			require.NoError(t, err)
			inBubble(t, nil, []store.Store{m}, func(t *testing.T, s *Server) {
				h := newHost(t, s)
				a := h.open(0)
				itt := h.command(a, cmd{cdb: read10(0, 64), read: 32768})
				_, ins, r := a.collect(32768)
				require.Zero(t, r.Status())
				require.Len(t, ins, 4)
				require.True(t, ins[1].Ack && ins[1].TTT != iscsi.ReservedTag, "the end of a sequence asks for an acknowledgement")
				require.False(t, ins[3].Ack, "the status acknowledges the last")
				if c.acked > 0 {
					a.mu.Lock()
					a.later(func(n iscsi.Notifier) { n.DataACKNotify(itt, c.acked) })
					a.mu.Unlock()
					synctest.Wait()
				}
				cutOff(a)
				b := h.open(1, normalKeys("MaxRecvDataSegmentLength", "4096")...)
				require.Equal(t, iscsi.TaskStillAllegiant, h.reassign(b, itt, 0))
				b.logoutRequest(iscsi.LogoutRecovery, 0)
				require.Equal(t, iscsi.LogoutOK, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
				h.sync(b)
				require.Equal(t, iscsi.TaskComplete, h.reassign(b, itt, c.expDataSN))
				got, ins, r := b.collect(32768)
				require.Zero(t, r.Status())
				require.Equal(t, want[c.from:], got[c.from:])
				sn := max(c.acked, c.expDataSN)
				if c.expDataSN == 99 || c.expDataSN < c.acked {
					sn = c.acked
				}
				for i, x := range ins {
					require.Equal(t, sn+uint32(i), x.DataSN)
					require.GreaterOrEqual(t, x.Offset, c.from)
				}
				require.Equal(t, sn+uint32(len(ins)), r.ExpDataSN())
				require.Equal(t, iscsi.TaskNoTask, h.reassign(b, 0x4444, 0))
			})
		})
	}
}

// TestReassignedAfterRDataSNACK: ExpDataSN counts in the numbers that the initiator saw last, which an R-Data SNACK has changed
// (RFC 7143, sections 11.5.6 and 11.16.3), for a command that has ended and for one that has not.
func TestReassignedAfterRDataSNACK(t *testing.T) {
	anew := iscsi.DataLayout{First: 2, Skip: 16384, Offsets: []uint32{16384, 20480, 24576, 28672}, End: 32768}
	for _, c := range []struct {
		name      string
		layout    iscsi.DataLayout
		expDataSN uint32
		from      int
		sn        uint32
	}{
		{"named", anew, 4, 24576, 4},
		{"where it was acknowledged", anew, 0, 16384, 2},
		{"all sent", anew, 6, 32768, 6},
		{"by the old numbers", anew, 99, 16384, 2},
		{"dropped by the initiator", iscsi.DataLayout{First: 2, Skip: 16384}, 3, 16384, 2},
		{"all acknowledged", iscsi.DataLayout{First: 6, Skip: 32768, End: 32768}, 6, 32768, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := memory(t, 1<<20)
			want := pattern(32768, 5)
			_, err := m.WriteAt(want, 0)
			require.NoError(t, err)
			inBubble(t, nil, []store.Store{m}, func(t *testing.T, s *Server) {
				h := newHost(t, s)
				a := h.open(0)
				itt := h.command(a, cmd{cdb: read10(0, 64), read: 32768})
				_, ins, _ := a.collect(32768)
				require.Len(t, ins, 4)
				a.layouts = map[uint32]iscsi.DataLayout{itt: c.layout}
				cutOff(a)
				b := h.open(0, normalKeys("MaxRecvDataSegmentLength", "4096")...)
				require.Equal(t, iscsi.TaskComplete, h.reassign(b, itt, c.expDataSN))
				got, ins, r := b.collect(32768)
				require.Zero(t, r.Status())
				require.Equal(t, want[c.from:], got[c.from:])
				for i, x := range ins {
					require.Equal(t, c.sn+uint32(i), x.DataSN)
					require.GreaterOrEqual(t, x.Offset, c.from)
				}
				require.Equal(t, c.sn+uint32((32768-c.from)/4096), r.ExpDataSN())
			})
		})
	}
}

// TestStatusIsKept until it is acknowledged, and a command is not executed twice for it: a write, and one whose execution takes a unit
// attention with it.
func TestStatusIsKept(t *testing.T) {
	log := storetest.Log(memory(t, 1<<20), nil)
	inBubble(t, nil, []store.Store{log}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a := h.open(0)
		other := newHost(t, s)
		other.tsih = 0
		acked := h.command(a, cmd{cdb: make([]byte, 6)})
		require.Zero(t, a.response().Status())
		itt := h.command(a, cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096}) // acknowledges the one before
		require.Zero(t, a.response().Status())
		capacity := make([]byte, 10)
		capacity[0] = 0x25
		a.statSN--
		small := h.command(a, cmd{cdb: capacity, read: 8})
		first, _, r := func() ([]byte, []iscsi.DataIn, iscsi.SCSIResponse) { a.statSN++; return a.collect(8) }()
		require.Zero(t, r.Status())
		cutOff(a)
		b := h.open(0) // the same CID: an implicit logout for recovery
		require.Equal(t, iscsi.TaskNoTask, h.reassign(b, acked, 0))
		require.Equal(t, iscsi.TaskComplete, h.reassign(b, itt, 0))
		require.Zero(t, b.response().Status())
		require.Equal(t, iscsi.TaskComplete, h.reassign(b, small, 0))
		again, _, r := b.collect(8)
		require.Zero(t, r.Status())
		require.Equal(t, first, again)
		writes := 0
		for _, op := range log.Ops() {
			if op.Kind == storetest.Write {
				writes++
			}
		}
		require.Equal(t, 1, writes)
		cutOff(b) // and once more, since nothing has been acknowledged
		c := h.open(0)
		require.Equal(t, iscsi.TaskNoTask, h.reassign(c, itt, 0), "the request behind it has acknowledged it")
		require.Equal(t, iscsi.TaskComplete, h.reassign(c, small, 0))
		again, _, _ = c.collect(8)
		require.Equal(t, first, again)
	})
}

// fetchesEnd runs f with data that is being fetched when the connection ends: forgotten with it, or told of as lost before.
func fetchesEnd(t *testing.T, f func(t *testing.T, flush func(*peer))) {
	for name, flush := range map[string]func(*peer){"forgotten": func(*peer) {}, "flushed": func(p *peer) { p.flushGets() }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, flush) })
		})
	}
}

// TestWriteGoesOnWithoutItsConnection: one that is in its store ends there; one that lacks data gets it on the next connection.
func TestWriteGoesOnWithoutItsConnection(t *testing.T) {
	fetchesEnd(t, func(t *testing.T, flush func(*peer)) {
		m := memory(t, 4<<20)
		slow := storetest.Delay(m)
		log := storetest.Log(slow, nil)
		s := newServer(t, func(c *Config) { c.Limits.Chunk = 32768 }, log)
		h := newHost(t, s)
		a := h.open(0)
		a.holdGets = true
		slow.Hold(storetest.Write)
		data := [][]byte{pattern(4096, 1), pattern(16384, 2), pattern(200<<10, 3)}
		whole := h.command(a, cmd{cdb: write10(0, 8), write: data[0], immediate: 4096})
		<-slow.Arrived()
		part := h.command(a, cmd{cdb: write10(100, 32), write: data[1], immediate: 1024})
		long := h.command(a, cmd{cdb: write10(1000, 400), write: data[2], immediate: 512})
		synctest.Wait()
		flush(a)
		cutOff(a)
		slow.Release()
		synctest.Wait()
		b := h.open(0)
		for i, itt := range []uint32{long, whole, part} {
			require.Equal(t, iscsi.TaskComplete, h.reassign(b, itt, 0), i)
			require.Zero(t, b.response().Status())
		}
		for i, lba := range []int64{0, 100, 1000} {
			got := make([]byte, len(data[i]))
			_, err := m.ReadAt(got, lba*512)
			require.NoError(t, err)
			require.NoError(t, same(data[i], got))
		}
		b.leave()
		require.NoError(t, s.Shutdown(context.Background()))
		a.noLeak()
	})
}

// TestStreamingWriteChangesItsConnection in the midst of its execution.
func TestStreamingWriteChangesItsConnection(t *testing.T) {
	fetchesEnd(t, func(t *testing.T, flush func(*peer)) {
		m := memory(t, 4<<20)
		s := newServer(t, func(c *Config) { c.Limits.Chunk = 32768 }, blocking(m))
		h := newHost(t, s)
		a := h.open(0)
		data := pattern(200<<10, 3)
		a.holdGets = true
		itt := h.command(a, cmd{cdb: write10(0, 400), write: data})
		for range 4 {
			synctest.Wait()
			a.answerGets()
		}
		synctest.Wait()
		flush(a)
		cutOff(a)
		b := h.open(3)
		b.logoutRequest(iscsi.LogoutRecovery, 0)
		b.pdu(iscsi.OpLogoutRsp)
		h.sync(b)
		require.Equal(t, iscsi.TaskComplete, h.reassign(b, itt, 0))
		require.Zero(t, b.response().Status())
		got := make([]byte, len(data))
		_, err := m.ReadAt(got, 0)
		require.NoError(t, err)
		require.NoError(t, same(data, got))
		b.leave()
		require.NoError(t, s.Shutdown(context.Background()))
		a.noLeak()
	})
}

// TestRetentionExpires: after Time2Wait and Time2Retain the tasks end, and the session with them if it has no connection
// (RFC 7143, sections 7.5 and 6.3.5). Until then it stays.
func TestRetentionExpires(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a := h.open(0)
		a.holdGets = true
		itt := h.command(a, cmd{cdb: write10(0, 8), write: pattern(4096, 1)})
		synctest.Wait()
		cutOff(a)
		time.Sleep(11 * time.Second)
		require.Len(t, s.Status().Sessions, 1)
		b := h.open(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.logoutRequest(iscsi.LogoutRecovery, 0)
		require.Equal(t, iscsi.LogoutNoCID, iscsi.LogoutResponse(b.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
		h.sync(b)
		require.Equal(t, iscsi.TaskNoTask, h.reassign(b, itt, 0))
		h.command(b, cmd{cdb: make([]byte, 6)})
		r := b.pdu(iscsi.OpSCSIResponse)
		sense := iscsi.SenseData(r.Data)
		require.Equal(t, []byte{0x06, 0x47, 0x7f}, []byte{sense[2], sense[12], sense[13]}, "commands cleared by iSCSI protocol event")
		cutOff(b)
		time.Sleep(13 * time.Second)
		synctest.Wait()
		require.Empty(t, s.Status().Sessions)
		_, rsp := h.ask(0, normalKeys()...)
		require.Equal(t, iscsi.LoginNoSession, rsp.Status())
	})
}

// TestImmediateCommandsAreNotKept: RFC 7143, section 7.14.
func TestImmediateCommandsAreNotKept(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a := h.open(0)
		a.holdGets = true
		itt := h.command(a, cmd{cdb: write10(0, 8), write: pattern(4096, 1), now: true})
		synctest.Wait()
		cutOff(a)
		b := h.open(0)
		require.Equal(t, iscsi.TaskNoTask, h.reassign(b, itt, 0))
	})
}

// TestReassignRefused: of a task that is still allegiant, of what cannot be reassigned, and at a lower level (RFC 7143, sections 7.2.2 and 11.5.1).
func TestReassignRefused(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		a.holdGets = true
		itt := h.command(a, cmd{cdb: write10(0, 8), write: pattern(4096, 1)})
		synctest.Wait()
		require.Equal(t, iscsi.TaskStillAllegiant, h.reassign(b, itt, 0))
		require.Equal(t, iscsi.TaskStillAllegiant, h.reassign(a, itt, 0))
		b.leave()
		low := newHost(t, s)
		p := low.open(0, level2("ErrorRecoveryLevel", "1")...)
		require.Equal(t, iscsi.TaskNoReassign, low.reassign(p, 1, 0))
		p.logoutRequest(iscsi.LogoutRecovery, 0)
		require.Equal(t, iscsi.LogoutNoRecovery, iscsi.LogoutResponse(p.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
	})
}

// TestLostUnsolicitedData is asked for by R2T; what lies before the loss is not (RFC 7143, sections 7.8 and 7.9).
func TestLostUnsolicitedData(t *testing.T) {
	for _, how := range []string{"passed over", "spoilt", "spoilt last", "silent"} {
		t.Run(how, func(t *testing.T) {
			m := memory(t, 1<<20)
			inBubble(t, nil, []store.Store{m}, func(t *testing.T, s *Server) {
				h := newHost(t, s)
				p := h.open(0, level2("ErrorRecoveryLevel", "1")...)
				data := pattern(8192, 9)
				itt := h.command(p, cmd{cdb: write10(0, 16), write: data, more: true})
				p.dataOut(itt, 0, 0, data[:2048], false)
				reject := func(sn uint32, final bool) {
					r := &iscsi.Rejection{Reason: iscsi.RejectDataDigest}
					d := iscsi.DataOutPDU(r.BHS[:])
					d.Init()
					d.SetITT(itt)
					d.SetTTT(iscsi.ReservedTag)
					d.SetDataSN(sn)
					d.SetFinal(final)
					p.mu.Lock()
					p.later(func(n iscsi.Notifier) { n.(iscsi.RecoveryNotifier).RejectNotify(r) })
					p.mu.Unlock()
				}
				switch how {
				case "passed over":
					p.dataOut(itt, 2, 4096, data[4096:], true)
				case "spoilt":
					reject(1, false)
					p.dataOut(itt, 2, 4096, data[4096:], true)
				case "spoilt last":
					reject(1, true)
				case "silent":
					time.Sleep(20 * time.Second)
				}
				for {
					x, ok := p.next()
					require.True(t, ok)
					if x.pdu != nil {
						require.Equal(t, iscsi.OpReject, x.pdu.Opcode())
						p.statSN++
						continue
					}
					require.Equal(t, 2048, x.out.Offset)
					require.Zero(t, x.out.R2TSN)
					break
				}
				r := p.pdu(iscsi.OpSCSIResponse)
				require.Zero(t, iscsi.SCSIResponse(r.BHS[:]).Status())
				got := make([]byte, 8192)
				_, err := m.ReadAt(got, 0)
				require.NoError(t, err)
				require.NoError(t, same(data, got))
			})
		})
	}
}

// once counts how often each block was written, by the first octet of its data.
type once struct {
	store.Store
	mu    sync.Mutex
	times map[int64]int
}

func (o *once) WriteAt(p []byte, off int64) (int, error) {
	n, err := o.Store.WriteAt(p, off)
	o.mu.Lock()
	defer o.mu.Unlock()
	for at := int64(0); at < int64(n); at += 512 {
		o.times[off+at]++
	}
	return n, err
}

// TestExactlyOnce: whatever connections are lost and when, whichever connection a command is continued or sent again on, a write
// happens once, is answered, and holds what was sent.
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		choices := rapid.SliceOfN(rapid.IntRange(0, 1<<16), 40, 200).Draw(rt, "choices")
		pick := func(n int) int { // the next choice out of n
			if len(choices) == 0 {
				return 0
			}
			v := choices[0] % n
			choices = choices[1:]
			return v
		}
		synctest.Test(t, func(t *testing.T) {
			const slots = 12
			m := memory(t, 4<<20)
			slow := storetest.Delay(m)
			count := &once{Store: slow, times: map[int64]int{}}
			s := newServer(t, func(c *Config) { c.Limits.Chunk = 16384 }, count)
			h := newHost(t, s)
			live := []*peer{h.open(0)}
			nextCID := uint16(1)
			type write struct {
				itt  uint32
				c    cmd
				on   *peer
				done bool
			}
			var writes []*write
			drain := func() {
				synctest.Wait()
				for _, p := range live {
					for p.read < len(p.sent) {
						x := p.sent[p.read]
						p.read++
						if x.pdu == nil {
							continue
						}
						b := iscsi.BHS(x.pdu.BHS[:])
						if x.pdu.Opcode() == iscsi.OpNOPIn && b.ITT() == iscsi.ReservedTag {
							continue
						}
						p.statSN = b.StatSN() + 1
						if x.pdu.Opcode() != iscsi.OpSCSIResponse {
							continue
						}
						for _, w := range writes {
							if w.itt == b.ITT() {
								require.False(t, w.done, "answered twice")
								require.Zero(t, iscsi.SCSIResponse(b).Status())
								w.done = true
							}
						}
					}
				}
			}
			recover := func(p *peer) {
				cutOff(p)
				i := 0
				for live[i] != p {
					i++
				}
				live = append(live[:i], live[i+1:]...)
				h.conns = append([]*peer(nil), live...)
				cid := uint16(0)
				fmt.Sscan(p.portal.Advertise, &cid)
				to := p
				if len(live) == 0 || pick(2) == 0 {
					to = h.open(cid)
					to.portal.Advertise = p.portal.Advertise
					live = append(live, to)
				} else {
					to = live[pick(len(live))]
					to.logoutRequest(iscsi.LogoutRecovery, cid)
					h.sync(to)
				}
				drain()
				for _, w := range writes {
					if w.done || w.on != p {
						continue
					}
					w.on = to
					pdu := &iscsi.PDU{}
					to.itt++
					r := iscsi.TaskMgmtRequest(pdu.BHS[:])
					r.Init()
					r.SetImmediate(true)
					r.SetFunction(iscsi.TaskReassign)
					r.SetITT(to.itt)
					r.SetRTT(w.itt)
					to.number(iscsi.BHS(pdu.BHS[:]), nil)
					to.inject(pdu)
					h.sync(to)
					synctest.Wait()
					code := iscsi.TaskFunctionRejected
					for _, x := range to.sent {
						if x.pdu != nil && x.pdu.Opcode() == iscsi.OpTaskMgmtRsp && iscsi.BHS(x.pdu.BHS[:]).ITT() == to.itt {
							code = iscsi.TaskMgmtResponse(x.pdu.BHS[:]).Response()
						}
					}
					if code == iscsi.TaskNoTask { // it never had its turn
						sn := *w.c.cmdSN
						again := w.c
						again.itt, again.cmdSN = w.itt, &sn
						to.command(again)
					} else {
						require.Equal(t, iscsi.TaskComplete, code)
					}
				}
				drain()
			}
			live[0].portal.Advertise = "0"
			for len(choices) > 4 {
				p := live[pick(len(live))]
				switch pick(8) {
				case 0, 1, 2:
					if len(writes) == slots {
						break
					}
					n := []int{8, 40, 100}[pick(3)]
					sn := h.cmdSN
					data := pattern(n*512, byte(len(writes)*17+1))
					c := cmd{cdb: write10(uint32(len(writes)*128), uint16(n)), write: data, immediate: []int{0, 512, 4096}[pick(3)], cmdSN: &sn}
					h.cmdSN++
					w := &write{c: c, on: p}
					p.setHoldGets(pick(2) == 0)
					w.itt = p.command(c)
					p.cmdSN = h.cmdSN
					h.sync(p)
					writes = append(writes, w)
				case 3:
					if len(live) < 3 {
						q := h.open(nextCID)
						q.portal.Advertise = fmt.Sprint(nextCID)
						nextCID++
						live = append(live, q)
					}
				case 4:
					slow.Release()
					slow.Hold(storetest.Write)
				case 5:
					slow.Release()
				case 6:
					p.answerGets()
				case 7:
					recover(p)
				}
				drain()
			}
			slow.Release()
			for range 60 {
				for _, p := range live {
					p.setHoldGets(false)
					p.answerGets()
				}
				drain()
			}
			for i, w := range writes {
				require.True(t, w.done, "write %d was not answered", i)
				got := make([]byte, len(w.c.write))
				_, err := m.ReadAt(got, int64(i*128*512))
				require.NoError(t, err)
				require.True(t, bytes.Equal(w.c.write, got), "write %d", i)
				for at := range len(got) / 512 {
					require.Equal(t, 1, count.times[int64((i*128+at)*512)], "block %d of write %d", at, i)
				}
			}
			require.NoError(t, s.Shutdown(context.Background()))
		})
	})
}

// TestSegmentLengthShrinksUnderWay: an initiator may declare a smaller MaxRecvDataSegmentLength while a read is in its store
// (RFC 7143, section 13.12); the data comes in segments that it takes.
func TestSegmentLengthShrinksUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t, 1<<20)
		want := pattern(16384, 3)
		_, err := m.WriteAt(want, 0)
		require.NoError(t, err)
		slow := storetest.Delay(m)
		s := newServer(t, nil, slow)
		p := connect(t, s).disk2()
		slow.Hold(storetest.Read)
		p.command(cmd{cdb: read10(0, 32), read: 16384})
		<-slow.Arrived()
		pdu := &iscsi.PDU{Data: loginText("MaxRecvDataSegmentLength", "1024")}
		h := iscsi.TextRequest(pdu.BHS[:])
		h.Init()
		h.SetFinal(true)
		h.SetImmediate(true)
		h.SetITT(0x5000)
		h.SetTTT(iscsi.ReservedTag)
		p.number(iscsi.BHS(pdu.BHS[:]), nil)
		p.inject(pdu)
		p.pdu(iscsi.OpTextRsp)
		slow.Release()
		got, ins, r := p.collect(16384)
		require.Zero(t, r.Status())
		require.Equal(t, want, got)
		for i, x := range ins {
			require.LessOrEqual(t, x.Len, 1024)
			require.EqualValues(t, i, x.DataSN)
			require.Equal(t, i == len(ins)-1, x.Final)
		}
		p.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// disk2 logs in with segments of 8192 octets and one unit.
func (p *peer) disk2() *peer {
	p.t.Helper()
	p.login(normalKeys("MaxRecvDataSegmentLength", "8192", "MaxBurstLength", "65536")...)
	p.settle(0)
	return p
}

// TestUnsolicitedDataOfACommandAheadOfItsTurn is kept with it: Data-Out PDUs have no CmdSN, and do not wait for the other connection.
func TestUnsolicitedDataOfACommandAheadOfItsTurn(t *testing.T) {
	for _, level := range []string{"0", "2"} {
		m := memory(t, 1<<20)
		inBubble(t, nil, []store.Store{m}, func(t *testing.T, s *Server) {
			h := newHost(t, s)
			a := h.open(0, level2("ErrorRecoveryLevel", level)...)
			b := h.open(1)
			want := pattern(8192, 3)
			first, second := h.cmdSN, h.cmdSN+1
			begun := time.Now()
			itt := h.command(b, cmd{cdb: write10(0, 16), write: want, immediate: 4096, more: true, cmdSN: &second})
			b.dataOut(itt, 0, 4096, want[4096:], true)
			b.nop(0x7777, nil)
			require.Equal(t, iscsi.OpNOPIn, b.pdu(iscsi.OpNOPIn).Opcode())
			h.command(a, cmd{cdb: make([]byte, 6), cmdSN: &first})
			require.Zero(t, a.response().Status())
			require.Zero(t, b.response().Status())
			require.Zero(t, time.Since(begun), "nothing was asked for again")
			got := make([]byte, len(want))
			_, err := m.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, want, got)
			h.cmdSN += 2
			a.cmdSN = h.cmdSN
			a.leave()
		})
	}
}
