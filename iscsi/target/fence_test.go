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

// fenced are keys of a session whose responses are fenced.
func fenced(kv ...string) []string {
	return level2(withKeys([]string{"TaskReporting", "ResponseFence,RFC3720"}, kv)...)
}

// ack acknowledges everything that the peer has read.
func (p *peer) ack() {
	pdu := &iscsi.PDU{}
	h := iscsi.NOPOut(pdu.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetITT(iscsi.ReservedTag)
	h.SetTTT(iscsi.ReservedTag)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	p.inject(pdu)
	synctest.Wait()
}

// waiting reads what has come, which may be pings and Asynchronous Messages alone, and gives their Target Transfer Tags.
func (p *peer) waiting() (pings []uint32) {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.read < len(p.sent); p.read++ {
		x := p.sent[p.read].pdu
		require.NotNil(p.t, x)
		if x.Opcode() == iscsi.OpAsync {
			p.statSN = iscsi.BHS(x.BHS[:]).StatSN() + 1
			continue
		}
		require.Equal(p.t, iscsi.OpNOPIn, x.Opcode(), "%v", iscsi.BHS(x.BHS[:]))
		pings = append(pings, iscsi.NOPIn(x.BHS[:]).TTT())
	}
	return pings
}

// waitingFor is waiting behind a response.
func (p *peer) waitingFor(op iscsi.Opcode) []uint32 {
	p.t.Helper()
	p.pdu(op)
	return p.waiting()
}

// pong answers pings, and acknowledges with it.
func (p *peer) pong(ttts []uint32) {
	for _, ttt := range ttts {
		pdu := &iscsi.PDU{}
		h := iscsi.NOPOut(pdu.BHS[:])
		h.Init()
		h.SetImmediate(true)
		h.SetITT(iscsi.ReservedTag)
		h.SetTTT(ttt)
		p.number(iscsi.BHS(pdu.BHS[:]), nil)
		p.inject(pdu)
	}
	synctest.Wait()
}

// TestResponseFence: the answer to a function that aborts many tasks leaves after all that was sent before it has been acknowledged on
// every connection, and nothing leaves behind it before it has been (RFC 7143, sections 4.2.2.3.2 to 4.2.2.3.4). Without acknowledgements
// the target asks for them.
func TestResponseFence(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20), memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a := h.open(0, fenced()...)
		require.Equal(t, "ResponseFence", a.fake.params.TaskReporting)
		b := h.open(1)
		a.ack()
		b.ack()
		h.command(a, cmd{cdb: read10(0, 8), read: 4096})
		_, _, r := a.collect(4096) // which a does not acknowledge yet
		require.Zero(t, r.Status())

		itt := b.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
		h.sync(b)
		synctest.Wait()
		h.command(b, cmd{cdb: read10(0, 8), read: 4096}) // handed over behind it
		synctest.Wait()
		x, ok := b.next()
		require.True(t, ok)
		require.Len(t, x.data, 4096, "data is not held up")
		require.Empty(t, b.waiting(), "the answer waits for what was sent on the other connection")
		pings := a.waiting()
		require.Len(t, pings, 1)
		a.pong(pings)
		rsp := b.pdu(iscsi.OpTaskMgmtRsp)
		require.Equal(t, itt, iscsi.BHS(rsp.BHS[:]).ITT())
		h.command(a, cmd{cdb: make([]byte, 6)})
		require.Empty(t, a.waiting(), "another one behind it, on the other connection")
		pings = b.waiting()
		require.Len(t, pings, 1, "the answer itself is to be acknowledged")
		b.pong(pings)
		require.Zero(t, b.response().Status())
		require.Zero(t, a.response().Status())
		h.command(a, cmd{cdb: make([]byte, 6)})
		require.Zero(t, a.response().Status(), "it is over")
		b.cmdSN = h.cmdSN
		b.leave()
	})
}

// TestNoResponseFence in a session of one connection, nor where RFC3720 was agreed.
func TestNoResponseFence(t *testing.T) {
	for _, keys := range [][]string{fenced(), fenced("TaskReporting", "RFC3720"), fenced("TaskReporting", "FastAbort,RFC3720"), level2()} {
		inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
			h := newHost(t, s)
			a := h.open(0, keys...)
			if a.fake.params.TaskReporting == "RFC3720" {
				h.open(1)
			}
			h.command(a, cmd{cdb: make([]byte, 6)})
			require.Zero(t, a.response().Status())
			a.tmf(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
			require.Equal(t, iscsi.TaskComplete, a.managed())
		})
	}
}

// TestFenceBetweenSessions: a session whose tasks another one has aborted learns of it behind its older responses: the unit attention has a
// fence, and so has the first response after the function.
func TestFenceBetweenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow, memory(t, 1<<20))
		h := newHost(t, s)
		a := h.open(0, fenced()...)
		a.settle(1)
		h.sync(a)
		b := h.open(1)
		a.ack()
		b.ack()
		other := connect(t, s, as(9))
		other.login(normalKeys()...)
		other.settle(0)
		slow.Hold(storetest.Read)
		h.command(b, cmd{cdb: read10(0, 8), read: 4096})
		<-slow.Arrived()
		h.command(a, cmd{lun: 1, cdb: read10(0, 8), read: 4096})
		_, _, r := a.collect(4096)
		require.Zero(t, r.Status())
		other.tmf(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, other.managed())
		h.command(b, cmd{cdb: make([]byte, 6)})
		require.Empty(t, b.waiting())
		a.pong(a.waiting())
		require.Equal(t, uint8(scsi.StatusCheckCondition), b.response().Status())
		b.pong(b.waiting())
		h.command(b, cmd{cdb: make([]byte, 6)})
		require.Zero(t, b.response().Status())
		slow.Release()
		b.leave()
		other.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestFenceWithoutAcknowledgement: a connection that acknowledges nothing is dropped, so that it does not hold the session up; one that
// goes by itself is not waited for; and what waited on a connection that goes is kept for the next one.
func TestFenceWithoutAcknowledgement(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b, c := h.open(0, fenced()...), h.open(1), h.open(2)
		a.ack()
		b.ack()
		c.ack()
		b.nop(0x7001, nil)
		b.pdu(iscsi.OpNOPIn)
		c.nop(0x7002, nil)
		c.pdu(iscsi.OpNOPIn)
		start := time.Now()
		a.tmf(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)
		h.sync(a)
		synctest.Wait()
		itt := h.command(c, cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		require.Empty(t, a.waiting())
		require.Len(t, b.waiting(), 1)
		c.waiting()
		cutOff(c)
		require.Equal(t, iscsi.OpAsync, a.pdu(iscsi.OpAsync).Opcode())
		again := h.open(2)
		require.Equal(t, iscsi.TaskComplete, h.reassign(again, itt, 0))
		require.Zero(t, again.response().Status())
		require.Empty(t, a.waiting())
		require.ErrorIs(t, b.ended(), ErrDeadPeer)
		require.Equal(t, 15*time.Second, time.Since(start), "Config.PingTimeout")
		a.pong(a.waitingFor(iscsi.OpTaskMgmtRsp))
		again.cmdSN = h.cmdSN
		h.command(again, cmd{cdb: make([]byte, 6)})
		require.Zero(t, again.response().Status())
		again.leave()
	})
}

// TestOlderCommandsComeLate: a command that was sent before a function, on a slower connection, does not execute behind it
// (RFC 7143, section 4.2.3.3, step b).
func TestOlderCommandsComeLate(t *testing.T) {
	log := storetest.Log(memory(t, 1<<20), nil)
	inBubble(t, nil, []store.Store{log, memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		h := newHost(t, s)
		a, b := h.open(0), h.open(1)
		a.settle(1)
		h.sync(a)
		late, elsewhere := h.cmdSN, h.cmdSN+1
		a.cmdSN += 2
		h.sync(a)
		a.tmf(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, a.managed())
		h.sync(a)
		h.command(b, cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096, cmdSN: &late})
		h.command(b, cmd{lun: 1, cdb: read10(0, 8), read: 4096, cmdSN: &elsewhere})
		_, _, r := b.collect(4096)
		require.Zero(t, r.Status(), "of another logical unit")
		require.Equal(t, elsewhere+1, r.ExpCmdSN())
		for _, op := range log.Ops() {
			require.NotEqual(t, storetest.Write, op.Kind)
		}
		b.settle(0)
		h.sync(b)
		h.command(b, cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		require.Zero(t, b.response().Status(), "a younger one does")
		b.leave()
	})
}
