package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// TestPing: an idle peer is pinged with a fresh valid tag; one that answers stays, one that does not is dropped
// after PingTimeout (RFC 7143, section 11.19).
func TestPing(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		p.login(normalKeys()...)
		start := time.Now()
		seen := map[uint32]bool{}
		for range 10 {
			h := iscsi.NOPIn(p.pdu(iscsi.OpNOPIn).BHS[:])
			require.Equal(t, iscsi.ReservedTag, h.ITT())
			require.NotEqual(t, iscsi.ReservedTag, h.TTT())
			require.False(t, seen[h.TTT()])
			seen[h.TTT()] = true
			require.Equal(t, p.statSN, h.StatSN(), "no StatSN is used up")
			answer := &iscsi.PDU{}
			o := iscsi.NOPOut(answer.BHS[:])
			o.Init()
			o.SetImmediate(true)
			o.SetITT(iscsi.ReservedTag)
			o.SetTTT(h.TTT())
			p.number(iscsi.BHS(answer.BHS[:]), nil)
			p.inject(answer)
		}
		require.GreaterOrEqual(t, time.Since(start), 300*time.Second)
		p.pdu(iscsi.OpNOPIn)
		at := time.Now()
		require.ErrorIs(t, p.ended(), ErrDeadPeer)
		require.Equal(t, 15*time.Second, time.Since(at))
	})
}

// TestNOP: a ping comes back, cut to what the peer takes; one that only acknowledges has no answer; one
// that answers nothing is rejected.
func TestNOP(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, small)
		p.login(normalKeys()...)
		p.nop(5, pattern(300, 1))
		rsp := p.pdu(iscsi.OpNOPIn)
		require.Equal(t, pattern(128, 1), rsp.Data)
		require.EqualValues(t, 5, iscsi.NOPIn(rsp.BHS[:]).ITT())
		require.Equal(t, iscsi.ReservedTag, iscsi.NOPIn(rsp.BHS[:]).TTT())
		p.nop(iscsi.ReservedTag, nil)
		stray := &iscsi.PDU{}
		o := iscsi.NOPOut(stray.BHS[:])
		o.Init()
		o.SetImmediate(true)
		o.SetITT(iscsi.ReservedTag)
		o.SetTTT(1234)
		p.inject(stray)
		require.Equal(t, iscsi.RejectInvalidField, iscsi.Reject(p.pdu(iscsi.OpReject).BHS[:]).Reason())
		p.leave()
	})
}

// TestWindow: MaxCmdSN never goes back and leaves room for Window commands; what is outside of the window, or came
// before, is passed over in silence; what came too early waits for its turn (RFC 7143, section 4.2.2.1).
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, func(c *Config) { c.Limits.Window = 4 }, slow)
		p := connect(t, s)
		rsp := p.login(normalKeys()...)
		require.Equal(t, p.cmdSN, iscsi.BHS(rsp.BHS[:]).ExpCmdSN())
		require.Equal(t, p.cmdSN+3, iscsi.BHS(rsp.BHS[:]).MaxCmdSN())
		p.settle(0)
		slow.Hold(storetest.Read)
		for range 5 { // one too many
			p.command(cmd{cdb: read10(0, 1), read: 512})
		}
		p.nop(1, nil)
		n := iscsi.BHS(p.pdu(iscsi.OpNOPIn).BHS[:])
		require.Equal(t, p.cmdSN-1, n.ExpCmdSN())
		require.Equal(t, p.cmdSN-2, n.MaxCmdSN(), "closed")
		p.cmdSN--
		old := p.cmdSN - 2
		p.command(cmd{cdb: read10(0, 1), read: 512, cmdSN: &old})
		slow.Release()
		last := iscsi.SN(0)
		for i := range 4 {
			r := iscsi.BHS(p.pdu(iscsi.OpSCSIResponse).BHS[:])
			require.True(t, i == 0 || last.LessEqual(r.MaxCmdSN()))
			last = r.MaxCmdSN()
		}
		require.Equal(t, p.cmdSN+3, last)
		synctest.Wait()
		_, some := p.peek()
		require.False(t, some, "neither the one beyond nor the old one was answered")

		first, second := p.cmdSN, p.cmdSN+1
		late := p.command(cmd{cdb: read10(0, 1), read: 512, cmdSN: &second})
		synctest.Wait()
		_, some = p.peek()
		require.False(t, some, "it waits")
		early := p.command(cmd{cdb: read10(0, 1), read: 512, cmdSN: &first})
		p.cmdSN += 2
		got := []uint32{p.response().ITT(), p.response().ITT()}
		require.ElementsMatch(t, []uint32{early, late}, got)
		p.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestRejects: what is wrong with a PDU by itself, or in its place, has its reason; the command's number is used up
// and the session goes on.
func TestRejects(t *testing.T) {
	change := func(c *Config) { c.Limits.Immediate = 2 }
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, change, slow, memory(t, 1<<20))
		p := connect(t, s).disk()
		reject := func(pdu *iscsi.PDU, want iscsi.RejectReason) {
			t.Helper()
			p.inject(pdu)
			rsp := p.pdu(iscsi.OpReject)
			require.Equal(t, want, iscsi.Reject(rsp.BHS[:]).Reason())
			require.Equal(t, pdu.BHS[:], rsp.Data, "the header in question comes back")
		}
		bad := p.request(cmd{cdb: read10(0, 1), read: 512})
		iscsi.SCSICommand(bad.BHS[:]).SetFinal(false)
		reject(bad, iscsi.RejectInvalidField)
		bad = p.request(cmd{cdb: read10(0, 1), read: 512})
		bad.Data = make([]byte, 10)
		reject(bad, iscsi.RejectInvalidField)
		snack := &iscsi.PDU{}
		iscsi.SNACKRequest(snack.BHS[:]).Init()
		reject(snack, iscsi.RejectProtocolError)
		unknown := &iscsi.PDU{}
		unknown.BHS[0] = 0x1c
		reject(unknown, iscsi.RejectNotSupported)
		wrong := &iscsi.PDU{}
		wrong.BHS[0] = byte(iscsi.OpSCSIResponse)
		reject(wrong, iscsi.RejectProtocolError)

		slow.Hold(storetest.Read)
		itt := p.command(cmd{cdb: read10(0, 1), read: 512, now: true})
		p.command(cmd{cdb: read10(0, 1), read: 512, now: true})
		reject(p.request(cmd{cdb: read10(0, 1), read: 512, now: true}), iscsi.RejectTooManyImm)
		reject(p.request(cmd{itt: itt, cdb: read10(0, 1), read: 512}), iscsi.RejectTaskInProgress)
		slow.Release()
		p.response()
		p.response()
		p.dataOut(4711, 0, 0, pattern(10, 1), true) // data of a task that is gone: no answer

		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.Zero(t, p.response().Status())
		require.EqualValues(t, 7, s.Status().Sessions[0].Counters.Rejects)

		login := p.loginRequest(normalKeys()...)
		reject(login, iscsi.RejectProtocolError)
		require.ErrorIs(t, p.ended(), ErrProtocol)
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestSmallSegments: towards a peer that takes 128 octets no PDU carries more.
func TestSmallSegments(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, small)
		p.discovery()
		all := ""
		p.inject(p.textRequest(iscsi.ReservedTag, true, false, loginText("SendTargets", "All")))
		for {
			rsp := p.pdu(iscsi.OpTextRsp)
			require.LessOrEqual(t, len(rsp.Data), 128)
			all += string(rsp.Data)
			h := iscsi.TextResponse(rsp.BHS[:])
			if h.Final() {
				break
			}
			p.inject(p.textRequest(h.TTT(), true, false, nil))
		}
		require.Contains(t, all, targetName)
		p.leave()

		p = connect(t, s, small)
		p.login(normalKeys()...)
		p.command(cmd{cdb: make([]byte, 6)})
		rsp := p.pdu(iscsi.OpSCSIResponse)
		require.EqualValues(t, 2, iscsi.SCSIResponse(rsp.BHS[:]).Status())
		require.NotEmpty(t, rsp.Data)
		require.LessOrEqual(t, len(rsp.Data), 128)
		p.leave()
	})
}

// TestUnexpectedPDUs: over RDMA, no more than the peer is ready for (RFC 7145, section 8.1.1), and a place is kept for a ping.
func TestUnexpectedPDUs(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, func(p *peer) { p.info.RDMA = true })
		p.login(normalKeys("RDMAExtensions", "Yes", "MaxOutstandingUnexpectedPDUs", "3",
			"InitiatorRecvDataSegmentLength", "8192", "TargetRecvDataSegmentLength", "8192")...)
		acked := p.statSN
		for range 5 {
			stray := &iscsi.PDU{}
			stray.BHS[0] = 0x1c
			iscsi.BHS(stray.BHS[:]).SetExpStatSN(acked)
			p.inject(stray)
		}
		synctest.Wait()
		p.pdu(iscsi.OpReject)
		p.pdu(iscsi.OpReject)
		_, some := p.peek()
		require.False(t, some)
		h := iscsi.NOPIn(p.pdu(iscsi.OpNOPIn).BHS[:])
		require.NotEqual(t, iscsi.ReservedTag, h.TTT())
		p.nop(6, nil) // acknowledges
		p.pdu(iscsi.OpNOPIn)
		stray := &iscsi.PDU{}
		stray.BHS[0] = 0x1c
		p.inject(stray)
		p.pdu(iscsi.OpReject)
		p.leave()
	})
}

// TestAnsweredPingsAreRetired: however many of them there were without anything else to acknowledge (RFC 7145, section 8.1.2).
func TestAnsweredPingsAreRetired(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, func(p *peer) { p.info.RDMA = true })
		p.login(normalKeys("RDMAExtensions", "Yes", "MaxOutstandingUnexpectedPDUs", "2",
			"InitiatorRecvDataSegmentLength", "8192", "TargetRecvDataSegmentLength", "8192")...)
		for range 6 {
			h := iscsi.NOPIn(p.pdu(iscsi.OpNOPIn).BHS[:])
			p.pong([]uint32{h.TTT()})
		}
		p.leave()
	})
}

// TestLogout: reasons and CIDs (RFC 7143, section 11.14); the target closes behind its response; commands under way end
// without one.
func TestLogout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow, memory(t, 1<<20))
		p := connect(t, s).disk()
		code := func() iscsi.LogoutCode {
			return iscsi.LogoutResponse(p.pdu(iscsi.OpLogoutRsp).BHS[:]).Response()
		}
		p.logoutRequest(iscsi.LogoutRecovery, 0)
		require.Equal(t, iscsi.LogoutNoRecovery, code())
		p.logoutRequest(iscsi.LogoutConnection, 5)
		require.Equal(t, iscsi.LogoutNoCID, code())
		slow.Hold()
		p.command(cmd{cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		<-slow.Arrived()
		start := time.Now()
		p.logoutRequest(iscsi.LogoutConnection, 0)
		synctest.Wait()
		p.command(cmd{cdb: make([]byte, 6)})
		require.Equal(t, iscsi.RejectWaitLogout, iscsi.Reject(p.pdu(iscsi.OpReject).BHS[:]).Reason())
		require.Equal(t, iscsi.LogoutOK, code())
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, p.ended())
		require.True(t, p.graceful)
		require.True(t, s.Status().Sessions[0].Ending)
		slow.Release()
		synctest.Wait()
		require.Empty(t, s.Status().Sessions)
		p.noLeak()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestLogoutOverRDMA: the initiator may close first, however it does that; if it does not, the target closes.
func TestLogoutOverRDMA(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(p *peer)
		took time.Duration
	}{
		{"initiator closes", func(p *peer) { p.cut(nil) }, 0},
		{"initiator resets", func(p *peer) { p.cut(io.ErrUnexpectedEOF) }, 0},
		{"target closes", func(*peer) {}, closeWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, nil, memory(t, 1<<20), memory(t, 1<<20))
				p := connect(t, s, func(p *peer) { p.info.RDMA = true })
				p.login(normalKeys("RDMAExtensions", "Yes")...)
				p.logoutRequest(iscsi.LogoutSession, 0)
				require.Equal(t, iscsi.LogoutOK, iscsi.LogoutResponse(p.pdu(iscsi.OpLogoutRsp).BHS[:]).Response())
				start := time.Now()
				c.end(p)
				require.NoError(t, p.ended())
				require.Equal(t, c.took, time.Since(start))
				require.Equal(t, c.took > 0, p.graceful)
				require.Empty(t, s.Status().Sessions)
				p.noLeak()
			})
		})
	}
}

// TestShutdown: initiators are asked to log out; those that do not are served to the end of what was accepted; every
// unit is flushed; nobody is let in any more.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow, memory(t, 1<<20))
		p := connect(t, s).disk()
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		idle := connect(t, s)
		slow.Hold()
		p.command(cmd{cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		<-slow.Arrived()
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		a := iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:])
		require.Equal(t, iscsi.AsyncLogout, a.Event())
		require.EqualValues(t, 2, a.Parameter3())
		require.ErrorIs(t, idle.ended(), ErrClosed)
		require.Equal(t, iscsi.AsyncLogout, iscsi.AsyncMessage(q.pdu(iscsi.OpAsync).BHS[:]).Event())
		q.leave()
		require.ErrorIs(t, s.Serve(newFakeDown(t), PortalInfo{}), ErrClosed)

		<-time.After(3 * time.Second) // beyond LogoutWait
		synctest.Wait()
		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.EqualValues(t, 8, p.response().Status(), "BUSY: nothing new is accepted")
		slow.Release()
		require.Zero(t, p.response().Status(), "what was accepted is answered")
		require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.ErrorIs(t, p.ended(), ErrClosed)
		require.NoError(t, <-done)
		require.ErrorIs(t, s.Shutdown(context.Background()), ErrClosed)
		p.noLeak()
	})
}

// newFakeDown is a connection that nobody will serve.
func newFakeDown(t *testing.T) *fake {
	f := newFake(t)
	go f.run()
	return f
}

// TestShutdownForced: a store that stalls delays a stop with a deadline by no more than that.
func TestShutdownForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow, memory(t, 1<<20))
		p := connect(t, s).disk()
		slow.Hold()
		p.command(cmd{cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		<-slow.Arrived()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := s.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 8*time.Second)
		require.ErrorIs(t, p.ended(), ErrClosed)
		slow.Release()
		synctest.Wait()
		p.noLeak()
	})
}

// TestFlushFails: Shutdown says which logical unit is not durable.
func TestFlushFails(t *testing.T) {
	bad := storetest.Fail(storetest.Forget(memory(t, 1<<20)), nil)
	bad.Next(storetest.Flush, errors.New("no"))
	s := newServer(t, nil, bad, memory(t, 1<<20))
	err := s.Shutdown(context.Background())
	require.ErrorContains(t, err, targetName+" LUN 0")
}

// TestTinyMemory: many commands with memory for one or two get their turns, in order, without a deadlock.
func TestTinyMemory(t *testing.T) {
	for _, limit := range []int{4096, 8192, 16384, 20000, 40000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			variants(t, func(t *testing.T, s *Server, m *store.Memory) {
				p := connect(t, s, func(p *peer) { p.limit = limit }).disk("InitialR2T", "No")
				data := map[uint32][]byte{}
				reads := map[uint32]int{}
				for i := range 60 {
					n := []int{512, 4096, 16384, 65536, 131072}[i%5]
					if i%2 == 0 {
						lba, d := uint32(i*256), pattern(n, byte(i))
						w := cmd{cdb: write10(lba, uint16(n/512)), write: d}
						switch {
						case i%4 == 0:
							w.immediate = min(n, 4096)
							p.command(w)
						case n > 8192:
							w.immediate, w.more = 512, true
							p.dataOut(p.command(w), 0, 512, d[512:8192], true)
						default:
							p.command(w)
						}
						data[lba] = d
					} else {
						reads[p.command(cmd{cdb: read10(0, uint16(n/512)), read: n})] = n
					}
				}
				for range 60 {
					r := p.response()
					require.Zero(t, r.Status())
					require.Zero(t, r.Residual())
				}
				got := map[uint32]int{}
				for _, x := range p.sent {
					if x.in != nil {
						require.Equal(t, got[x.in.ITT], x.in.Offset)
						got[x.in.ITT] += x.in.Len
					}
				}
				for itt, n := range reads {
					require.Equal(t, n, got[itt])
				}
				for lba, d := range data {
					back := make([]byte, len(d))
					_, err := m.ReadAt(back, int64(lba)*512)
					require.NoError(t, err)
					require.NoError(t, same(d, back), "%d octets at LBA %d", len(d), lba)
				}
				p.leave()
			})
		})
	}
}

// TestSlowPeersHoldNoWorker: with one worker, a transfer that waits for its peer lets others of the
// logical unit run, and ends when it is aborted.
func TestSlowPeersHoldNoWorker(t *testing.T) {
	change := func(c *Config) { c.Limits.Workers, c.Limits.Chunk = 1, 8192 }
	inBubble(t, change, []store.Store{blocking(memory(t, 1<<20)), memory(t, 4096)}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		p.holdGets = true
		data := pattern(65536, 1)
		sn := p.cmdSN
		slow := p.command(cmd{cdb: write10(0, 128), write: data, immediate: 8192})
		x, _ := p.next() // its first chunk is there; it runs, and the peer is asked for more
		require.NotNil(t, x.out)
		synctest.Wait()
		for range 3 {
			p.command(cmd{cdb: read10(200, 1), read: 512})
			require.Equal(t, p.itt, p.response().ITT())
		}
		p.tmf(iscsi.AbortTask, 0, slow, sn)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		p.command(cmd{cdb: write10(0, 1), write: data[:512], immediate: 512})
		require.Zero(t, p.response().Status(), "nothing is fenced off any more")
		p.leave()
	})
}

// TestOverlappingSessions: an ORDERED command of one initiator waits for those of another, and only at its own
// logical unit.
func TestOverlappingSessions(t *testing.T) {
	slow := storetest.Delay(memory(t, 1<<20))
	inBubble(t, nil, []store.Store{slow, memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		q.settle(0, 1)
		p := connect(t, s).disk()
		slow.Hold(storetest.Read)
		q.command(cmd{cdb: read10(0, 1), read: 512})
		<-slow.Arrived()
		p.command(cmd{cdb: write10(8, 1), write: pattern(512, 1), immediate: 512, attr: iscsi.AttrOrdered})
		p.command(cmd{lun: 1, cdb: read10(0, 1), read: 512})
		require.Equal(t, p.itt, p.response().ITT(), "the other logical unit is not concerned")
		q.cut(nil) // its read stays in the store
		require.NoError(t, q.ended())
		synctest.Wait()
		_, some := p.peek()
		require.False(t, some)
		slow.Release()
		require.Zero(t, p.response().Status())
		p.leave()
		synctest.Wait()
		q.noLeak()
	})
}
