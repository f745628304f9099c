package target

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
)

// more makes a peer a further connection of a session.
func more(first *peer, tsih, cid uint16) func(*peer) {
	return func(p *peer) { p.isid, p.tsih, p.cid, p.cmdSN = first.isid, tsih, cid, first.cmdSN }
}

// proven logs a user in, with MC/S, and gives the handle of the session.
func (p *peer) proven(user, secret string) uint16 {
	p.t.Helper()
	require.Equal(p.t, iscsi.LoginOK, p.prove(user, secret, normalKeys()))
	p.inject(p.loginRequest("MaxConnections", "4", "ErrorRecoveryLevel", "2"))
	rsp := iscsi.LoginResponse(p.pdu(iscsi.OpLoginRsp).BHS[:])
	require.Equal(p.t, iscsi.LoginOK, rsp.Status())
	return rsp.TSIH()
}

// joins asks for a place in a session whose users have to prove who they are, and gives the status.
func (p *peer) joins(user, secret string) iscsi.LoginStatus {
	p.t.Helper()
	if status := p.prove(user, secret, normalKeys()); status != iscsi.LoginOK {
		return status
	}
	p.inject(p.loginRequest())
	return iscsi.LoginResponse(p.pdu(iscsi.OpLoginRsp).BHS[:]).Status()
}

// TestJoinByAnotherUser: a session belongs to the user who began it. Another one, as good as its own proof may be, gets no connection in it,
// and the session does not notice.
func TestJoinByAnotherUser(t *testing.T) {
	change := func(c *Config) { c.Targets[0].Access = &Access{Rules: []AccessRule{aliceRule(t)}} }
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		a := connect(t, s)
		tsih := a.proven("alice", aliceSecret)
		a.settle(0)
		require.Equal(t, iscsi.LoginForbidden, connect(t, s, more(a, tsih, 1)).joins("bob", "bob's long secret"))
		require.Equal(t, iscsi.LoginAuthFailed, connect(t, s, more(a, tsih, 1)).joins("alice", "a wrong guess"))
		unproven := connect(t, s, more(a, tsih, 1))
		require.Equal(t, iscsi.LoginAuthFailed, unproven.status(unproven.loginRequest(normalKeys()...)))
		require.Equal(t, iscsi.LoginForbidden, connect(t, s, more(a, tsih, 0)).joins("bob", "bob's long secret"), "nor in place of a connection")
		b := connect(t, s, more(a, tsih, 1))
		require.Equal(t, iscsi.LoginOK, b.joins("alice", aliceSecret))
		synctest.Wait()
		require.Equal(t, 2, s.Status().Sessions[0].Connections)
		require.Equal(t, "alice", s.Status().Sessions[0].User)
		status, _ := a.outcome(cmd{cdb: make([]byte, 6)})
		require.Zero(t, status)
		b.cmdSN = a.cmdSN
		status, _ = b.outcome(cmd{cdb: make([]byte, 6)})
		require.Zero(t, status)
		a.cmdSN = b.cmdSN

		// Without her the session ends, all of it.
		r := aliceRule(t)
		r.Users = r.Users[:1]
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{r}}))
		for _, p := range []*peer{a, b} {
			require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:]).Event())
			require.ErrorIs(t, p.ended(), ErrAccessLost)
		}
		synctest.Wait()
		require.Empty(t, s.Status().Sessions, "and nothing is kept for recovery")
	})
}

// TestJoinFromElsewhere: what a session sees is one for all of its connections, so that one from where another rule holds is not
// included (RFC 7143, section 11.13.5, status 0208); rules that change end those that do not fit any more, and them alone.
func TestJoinFromElsewhere(t *testing.T) {
	home := netip.MustParsePrefix("192.0.2.0/28")
	change := func(c *Config) {
		c.Targets[0].Access = &Access{Rules: []AccessRule{{Networks: []netip.Prefix{home}}, {LUNs: []LUNMapping{{LUN: 0, Device: 1}}}}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20), memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		a := connect(t, s)
		tsih := iscsi.LoginResponse(a.login(append(normalKeys(), "MaxConnections", "4", "ErrorRecoveryLevel", "2")...).BHS[:]).TSIH()
		a.settle(0, 1)
		away := connect(t, s, from("198.51.100.9"), more(a, tsih, 1))
		require.Equal(t, iscsi.LoginCannotInclude, away.status(away.loginRequest(normalKeys()...)))
		require.Equal(t, []int{0, 1}, a.reportLUNs(), "the view is as it was")
		near := connect(t, s, from("192.0.2.10"), more(a, tsih, 1))
		near.login(normalKeys()...)
		synctest.Wait()
		require.Equal(t, 2, s.Status().Sessions[0].Connections)

		only := netip.MustParsePrefix("192.0.2.9/32")
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{{Networks: []netip.Prefix{only}}, {LUNs: []LUNMapping{{LUN: 0, Device: 1}}}}}))
		require.ErrorIs(t, near.ended(), ErrAccessLost)
		msg := iscsi.AsyncMessage(a.pdu(iscsi.OpAsync).BHS[:])
		require.Equal(t, iscsi.AsyncDropConnection, msg.Event())
		require.EqualValues(t, 1, msg.Parameter1())
		require.Zero(t, msg.Parameter3(), "nothing of it is kept")
		require.Equal(t, []int{0, 1}, a.reportLUNs())
		require.Equal(t, 1, s.Status().Sessions[0].Connections)
		a.leave()
	})
}

// TestHiddenTarget: who has no access to it cannot tell it from one that does not exist, however the question is put.
func TestHiddenTarget(t *testing.T) {
	const missing = "iqn.2026-11.com.example:missing"
	for _, hidden := range []bool{false, true} {
		for _, closed := range []bool{false, true} { // discovery, to everybody
			change := func(c *Config) {
				c.Targets[0].Access = &Access{Hidden: hidden, Rules: []AccessRule{{Initiators: []string{otherName}}}}
				if closed {
					c.Discovery = &Access{}
				}
			}
			inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
				ask := func(keys ...string) *iscsi.PDU {
					p := connect(t, s)
					p.inject(p.loginRequest(keys...))
					rsp := p.pdu(iscsi.OpLoginRsp)
					iscsi.LoginResponse(rsp.BHS[:]).SetStatSN(0)
					return rsp
				}
				for _, kind := range []string{"Normal", "Discovery"} {
					keys := []string{"InitiatorName", initiatorName, "SessionType", kind}
					there := ask(append(keys, "TargetName", targetName)...)
					want := iscsi.LoginForbidden
					if hidden {
						want = iscsi.LoginNotFound
						require.Equal(t, ask(append(keys, "TargetName", missing)...), there, "octet by octet")
					}
					require.Equal(t, want, iscsi.LoginResponse(there.BHS[:]).Status())
				}
				p := connect(t, s, as(7))
				p.login(keysOf(otherName)...)
				p.settle(0)
				p.leave()
			})
		}
	}
}
