package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// status sends a Login Request that must be refused and gives the status; the connection ends behind it.
func (p *peer) status(pdu *iscsi.PDU) iscsi.LoginStatus {
	p.t.Helper()
	p.inject(pdu)
	rsp := p.pdu(iscsi.OpLoginRsp)
	require.Error(p.t, p.ended())
	require.True(p.t, p.graceful, "the response is still sent")
	require.False(p.t, p.enabled)
	return iscsi.LoginResponse(rsp.BHS[:]).Status()
}

// TestLoginRefused: each fault has its status, and the connection is closed behind it.
func TestLoginRefused(t *testing.T) {
	tsih := func(v uint16) func(*iscsi.PDU) {
		return func(p *iscsi.PDU) { iscsi.LoginRequest(p.BHS[:]).SetTSIH(v) }
	}
	for _, c := range []struct {
		name   string
		keys   []string
		change func(*iscsi.PDU)
		want   iscsi.LoginStatus
	}{
		{"no such target", []string{"InitiatorName", initiatorName, "TargetName", "iqn.2026-11.com.example:other"}, nil, iscsi.LoginNotFound},
		{"no initiator name", []string{"TargetName", targetName}, nil, iscsi.LoginMissingParameter},
		{"no target name", []string{"InitiatorName", initiatorName}, nil, iscsi.LoginMissingParameter},
		{"no such session", normalKeys(), tsih(99), iscsi.LoginNoSession},
		{"second connection", normalKeys(), func(p *iscsi.PDU) {
			tsih(1)(p)
			iscsi.LoginRequest(p.BHS[:]).SetCID(1)
		}, iscsi.LoginTooManyConnections},
		{"version", normalKeys(), func(p *iscsi.PDU) { iscsi.LoginRequest(p.BHS[:]).SetVersionMin(9) }, iscsi.LoginBadVersion},
		{"another PDU", nil, func(p *iscsi.PDU) { p.BHS[0] = byte(iscsi.OpTextReq) }, iscsi.LoginInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
				first := connect(t, s)
				first.login(normalKeys()...)
				p := connect(t, s)
				pdu := p.loginRequest(c.keys...)
				if c.change != nil {
					c.change(pdu)
				}
				require.Equal(t, c.want, p.status(pdu))
				require.Len(t, s.Status().Sessions, 1, "others go on")
				first.leave()
			})
		})
	}
}

// TestRepeatedInitiatorName: a key sent again in a later PDU of the login is refused with 0200 and
// one log line that names it.
func TestRepeatedInitiatorName(t *testing.T) {
	var log bytes.Buffer
	change := func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		first := p.loginRequest(normalKeys()...)
		iscsi.LoginRequest(first.BHS[:]).SetTransit(false)
		iscsi.LoginRequest(first.BHS[:]).SetNSG(0)
		p.inject(first)
		rsp := iscsi.LoginResponse(p.pdu(iscsi.OpLoginRsp).BHS[:])
		require.Equal(t, iscsi.LoginOK, rsp.Status())
		require.Equal(t, iscsi.LoginInitiatorError, p.status(p.loginRequest("InitiatorName", initiatorName)))
	})
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "%s", log.String())
	require.Contains(t, log.String(), "InitiatorName")
}

// TestPortalGroupTag: the first Login Response carries the tag that SendTargets tells.
func TestPortalGroupTag(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		rsp := p.login(normalKeys()...)
		require.Contains(t, string(rsp.Data), "TargetPortalGroupTag=7\x00")
		require.Contains(t, string(rsp.Data), "TargetAlias=a disk\x00")
		require.Contains(t, p.sendTargets(""), ",7\x00")
		p.leave()
	})
}

// TestNamesWithoutCase: names differ not by case alone, in configuration, login and reinstatement.
func TestNamesWithoutCase(t *testing.T) {
	d := scsi.NewDevice(scsi.Port{})
	_, err := New(Config{Targets: []Target{
		{Name: "iqn.2026-11.com.example:TEST001", Device: d}, {Name: "IQN.2026-11.com.example:test001", Device: d},
	}})
	require.ErrorContains(t, err, "twice")

	change := func(c *Config) { c.Targets[0].Name = strings.ToUpper(targetName) }
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		p.login(normalKeys()...)
		require.Equal(t, targetName, s.Status().Targets[0].Name)
		q := connect(t, s)
		q.login("InitiatorName", "IQN.2026-11.COM.example:HOST", "TargetName", "iqn.2026-11.com.EXAMPLE:disk")
		require.ErrorIs(t, p.ended(), ErrReinstated)
		require.Len(t, s.Status().Sessions, 1)
		q.leave()
	})
}

// sendTargets asks and returns the text of the answer, which must come in one PDU.
func (p *peer) sendTargets(value string) string {
	p.t.Helper()
	p.inject(p.textRequest(iscsi.ReservedTag, true, false, loginText("SendTargets", value)))
	rsp := p.pdu(iscsi.OpTextRsp)
	require.True(p.t, iscsi.TextResponse(rsp.BHS[:]).Final())
	require.Equal(p.t, iscsi.ReservedTag, iscsi.TextResponse(rsp.BHS[:]).TTT())
	return string(rsp.Data)
}

func (p *peer) textRequest(ttt uint32, final, more bool, data []byte) *iscsi.PDU {
	pdu := &iscsi.PDU{Data: data}
	h := iscsi.TextRequest(pdu.BHS[:])
	h.Init()
	h.SetITT(77)
	h.SetTTT(ttt)
	h.SetFinal(final)
	h.SetContinue(more)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	return pdu
}

// discovery logs in to a Discovery session.
func (p *peer) discovery(kv ...string) {
	p.t.Helper()
	p.login(append([]string{"InitiatorName", initiatorName, "SessionType", "Discovery"}, kv...)...)
}

// TestSendTargets: a Discovery session sees all, a Normal one only its own target, and the
// address is the one connected to unless another is to be advertised.
func TestSendTargets(t *testing.T) {
	const other = "iqn.2026-11.com.example:other"
	change := func(c *Config) {
		c.Targets = append(c.Targets, Target{Name: other, Device: scsi.NewDevice(scsi.Port{})})
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		own := "TargetName=" + targetName + "\x00TargetAddress=192.0.2.1:3260,7\x00"
		foreign := "TargetName=" + other + "\x00TargetAddress=192.0.2.1:3260,1\x00"
		p := connect(t, s)
		p.discovery()
		require.Equal(t, own+foreign, p.sendTargets("All"))
		require.Equal(t, foreign, p.sendTargets(strings.ToUpper(other)))
		require.Empty(t, p.sendTargets("iqn.2026-11.com.example:none"))
		require.Equal(t, "SendTargets=Reject\x00", p.sendTargets(""))
		require.True(t, p.res.Discovery)
		// Nothing but text, pings and logout is for a Discovery session.
		p.command(cmd{cdb: make([]byte, 6)})
		require.Equal(t, iscsi.RejectNotSupported, iscsi.Reject(p.pdu(iscsi.OpReject).BHS[:]).Reason())
		p.leave()

		p = connect(t, s)
		p.login(normalKeys()...)
		require.Equal(t, own, p.sendTargets(""))
		require.Equal(t, own, p.sendTargets(targetName))
		require.Equal(t, "SendTargets=Reject\x00", p.sendTargets("All"))
		require.Empty(t, p.sendTargets(other))
		p.leave()

		p = connect(t, s, func(p *peer) {
			p.info.LocalAddr = &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 3261, Zone: "lo"}
		})
		p.discovery("TargetName", targetName)
		require.Contains(t, p.sendTargets(""), "TargetAddress=[fe80::1]:3261,7\x00")
		p.leave()

		p = connect(t, s, func(p *peer) { p.portal.Advertise = "san.example:860" })
		p.discovery()
		require.Contains(t, p.sendTargets("All"), "TargetAddress=san.example:860,7\x00")
		p.leave()
	})
}

// TestTextContinues: text longer than a PDU goes in pieces both ways (RFC 7143, section 11.10).
func TestTextContinues(t *testing.T) {
	change := func(c *Config) {
		for i := range 20 {
			c.Targets = append(c.Targets, Target{Name: targetName + string(rune('a'+i)), Device: scsi.NewDevice(scsi.Port{})})
		}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		p.discovery("MaxRecvDataSegmentLength", "512")
		ask := loginText("SendTargets", "All")
		p.inject(p.textRequest(iscsi.ReservedTag, false, true, ask[:5]))
		rsp := p.pdu(iscsi.OpTextRsp)
		h := iscsi.TextResponse(rsp.BHS[:])
		require.Empty(t, rsp.Data)
		require.False(t, h.Final())
		ttt := h.TTT()
		require.NotEqual(t, iscsi.ReservedTag, ttt)
		var all []byte
		p.inject(p.textRequest(ttt, true, false, ask[5:]))
		for {
			rsp := p.pdu(iscsi.OpTextRsp)
			require.LessOrEqual(t, len(rsp.Data), 512)
			all = append(all, rsp.Data...)
			h := iscsi.TextResponse(rsp.BHS[:])
			if h.Final() {
				break
			}
			require.True(t, h.Continue())
			p.inject(p.textRequest(h.TTT(), true, false, nil))
		}
		text, err := iscsi.ParseText(all)
		require.NoError(t, err)
		targets, err := iscsi.ParseTargets(text)
		require.NoError(t, err)
		require.Len(t, targets, 21)
		// A tag of no exchange, and a key twice.
		p.inject(p.textRequest(4711, true, false, nil))
		require.Equal(t, iscsi.RejectInvalidField, iscsi.Reject(p.pdu(iscsi.OpReject).BHS[:]).Reason())
		p.inject(p.textRequest(iscsi.ReservedTag, true, false, append(ask, ask...)))
		require.Equal(t, iscsi.RejectProtocolError, iscsi.Reject(p.pdu(iscsi.OpReject).BHS[:]).Reason())
		p.leave()
	})
}

// TestLoginTimeout: a peer that says nothing, or stops in the middle, is dropped.
func TestLoginTimeout(t *testing.T) {
	for _, begun := range []bool{false, true} {
		inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
			start := time.Now()
			p := connect(t, s)
			if begun {
				pdu := p.loginRequest(normalKeys()...)
				iscsi.LoginRequest(pdu.BHS[:]).SetTransit(false)
				iscsi.LoginRequest(pdu.BHS[:]).SetNSG(0)
				p.inject(pdu)
			}
			require.ErrorIs(t, p.ended(), ErrLoginTimeout)
			require.Equal(t, 15*time.Second, time.Since(start))
		})
	}
}

// TestReconnect: a link that is cut a hundred times under I/O leaves one session, and 300 ISIDs are 300 sessions.
func TestReconnect(t *testing.T) {
	inBubble(t, nil, []store.Store{blocking(memory(t, 1<<20))}, func(t *testing.T, s *Server) {
		for i := range 100 {
			p := connect(t, s)
			p.login(normalKeys()...)
			require.Len(t, s.Status().Sessions, 1)
			p.command(cmd{cdb: read10(0, 64), read: 64 * 512})
			p.command(cmd{cdb: write10(0, 64), write: pattern(64*512, byte(i))})
			if i%2 == 0 {
				p.cut(iscsi.ErrConnection)
				require.ErrorIs(t, p.ended(), iscsi.ErrConnection)
				synctest.Wait()
				p.noLeak()
			} // else the next login reinstates it
		}
		synctest.Wait()
		require.LessOrEqual(t, len(s.Status().Sessions), 1)
	})
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		for i := range 300 {
			p := connect(t, s)
			binary.BigEndian.PutUint32(p.isid[2:], uint32(i))
			p.login(normalKeys()...)
		}
		seen := map[uint16]bool{}
		for _, ss := range s.Status().Sessions {
			require.NotZero(t, ss.Params.TSIH)
			seen[ss.Params.TSIH] = true
		}
		require.Len(t, seen, 300)
	})
}

// TestReinstatement: the final Login Response waits until the old session's write has left the store, while other
// connections and logical units go on (RFC 7143, section 6.3.5).
func TestReinstatement(t *testing.T) {
	m := memory(t, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(m)
		s := newServer(t, nil, slow, memory(t, 1<<20))
		old := connect(t, s).disk()
		slow.Hold(storetest.Write)
		old.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1)})
		<-slow.Arrived()

		p := connect(t, s)
		p.inject(p.loginRequest(normalKeys()...))
		synctest.Wait()
		select {
		case <-old.done:
		default:
			require.Fail(t, "the old connection is down first: its STags are dead")
		}
		require.ErrorIs(t, old.ended(), ErrReinstated)
		require.Empty(t, p.sent, "no response while the old write is in the store")
		require.Equal(t, 1, len(s.Status().Sessions))
		require.True(t, s.Status().Sessions[0].Ending)

		other := connect(t, s)
		other.isid[5] = 99
		other.login(normalKeys()...)
		other.settle(1)
		other.command(cmd{lun: 1, cdb: read10(0, 1), read: 512})
		require.Zero(t, other.response().Status())

		slow.Release()
		rsp := p.pdu(iscsi.OpLoginRsp)
		require.Equal(t, iscsi.LoginOK, iscsi.LoginResponse(rsp.BHS[:]).Status())
		got := make([]byte, 4096)
		_, _ = m.ReadAt(got, 0)
		require.Equal(t, pattern(4096, 1), got, "the old write had ended before")
		p.settle(0)
		p.leave()
		other.leave()
		old.noLeak()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestReinstatementTimesOut: a store that never lets go ends the new login with a status, not in silence, and nothing
// else.
func TestReinstatementTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow)
		old := connect(t, s)
		old.login(normalKeys()...)
		old.settle(0)
		slow.Hold(storetest.Write)
		old.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1)})
		<-slow.Arrived()
		p := connect(t, s)
		require.Equal(t, iscsi.LoginUnavailable, p.status(p.loginRequest(normalKeys()...)))
		slow.Release()
		synctest.Wait()
		require.Empty(t, s.Status().Sessions)
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestNoResources: a Datamover that cannot prepare makes the login end with 0302.
func TestNoResources(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, func(p *peer) { p.noAlloc = iscsi.ErrNoMemory })
		require.Equal(t, iscsi.LoginNoResources, p.status(p.loginRequest(normalKeys()...)))
		require.Empty(t, s.Status().Sessions)
	})
}

// TestSessionLimit: beyond the limit a login is told that there is no room.
func TestSessionLimit(t *testing.T) {
	inBubble(t, func(c *Config) { c.Limits.Sessions = 2 }, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		for i := range 2 {
			p := connect(t, s)
			p.isid[5] = byte(i)
			p.login(normalKeys()...)
		}
		synctest.Wait()
		p := connect(t, s)
		p.isid[5] = 9
		require.Equal(t, iscsi.LoginNoResources, p.status(p.loginRequest(normalKeys()...)))
	})
}
