package target

import (
	"context"
	"net"
	"net/netip"
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

const (
	aliceSecret = "correct horse battery"
	diskSecret  = "the target's own proof"
)

func aliceRule(t testing.TB) AccessRule {
	return AccessRule{
		Name: "alice", Users: []iscsi.Credentials{credentials(t, "bob", "bob's long secret"), credentials(t, "alice", aliceSecret)},
		Mutual: credentials(t, "disk", diskSecret),
	}
}

// security sends a request of the security stage and gives the answer's keys, or the status that ends the login.
func (p *peer) security(transit bool, kv ...string) (iscsi.Text, iscsi.LoginStatus) {
	p.t.Helper()
	pdu := p.loginRequest(kv...)
	h := iscsi.LoginRequest(pdu.BHS[:])
	h.SetCSG(iscsi.StageSecurity)
	h.SetTransit(transit)
	h.SetNSG(0)
	if transit {
		h.SetNSG(iscsi.StageOperational)
	}
	p.inject(pdu)
	rsp := p.pdu(iscsi.OpLoginRsp)
	text, err := iscsi.ParseText(rsp.Data)
	require.NoError(p.t, err)
	return text, iscsi.LoginResponse(rsp.BHS[:]).Status()
}

// prove runs the handshake of an initiator and gives the status that it ends with.
func (p *peer) prove(user, secret string, keys []string) iscsi.LoginStatus {
	p.t.Helper()
	ini, err := iscsi.NewCHAPInitiator(iscsi.CHAPInitiatorConfig{Credentials: credentials(p.t, user, secret)})
	require.NoError(p.t, err)
	_, status := p.security(false, append(keys, "AuthMethod", "CHAP")...)
	for in := iscsi.Text(nil); status == iscsi.LoginOK && ini.Done() != nil; {
		out, last, err := ini.Exchange(in)
		require.NoError(p.t, err)
		var kv []string
		for _, pair := range out {
			kv = append(kv, pair.Key, pair.Value)
		}
		in, status = p.security(last, kv...)
	}
	return status
}

// TestCHAPDemanded: who does not prove itself is told 0201 at once, however it tries to get around it.
func TestCHAPDemanded(t *testing.T) {
	change := func(c *Config) { c.Targets[0].Access = &Access{Rules: []AccessRule{aliceRule(t)}} }
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		start := time.Now()
		p := connect(t, s)
		require.Equal(t, iscsi.LoginAuthFailed, p.status(p.loginRequest(normalKeys()...)), "starting behind it")
		p = connect(t, s)
		_, status := p.security(true, append(normalKeys(), "AuthMethod", "None")...)
		require.Equal(t, iscsi.LoginAuthFailed, status)
		p = connect(t, s)
		require.Equal(t, iscsi.LoginAuthFailed, p.prove("alice", "a wrong guess", normalKeys()))
		p = connect(t, s)
		require.Equal(t, iscsi.LoginAuthFailed, p.prove("carol", aliceSecret, normalKeys()))
		require.Zero(t, time.Since(start))
		p = connect(t, s)
		require.Equal(t, iscsi.LoginOK, p.prove("alice", aliceSecret, normalKeys()))
		p.inject(p.loginRequest())
		p.pdu(iscsi.OpLoginRsp)
		synctest.Wait()
		require.Equal(t, "alice", s.Status().Sessions[0].User)
		// Taking the user away ends what it began; a new secret does not.
		r := aliceRule(t)
		r.Users[1] = credentials(t, "alice", "a new secret of hers")
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{r}}))
		synctest.Wait()
		require.Len(t, s.Status().Sessions, 1)
		r.Users = r.Users[:1]
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{r}}))
		p.pdu(iscsi.OpAsync)
		require.ErrorIs(t, p.ended(), ErrAccessLost)
	})
}

// TestDiscoveryAuthentication: discovery has users of its own, its setting is enforced, and a Normal session asks about its own
// target only.
func TestDiscoveryAuthentication(t *testing.T) {
	const other = "iqn.2026-11.com.example:other"
	change := func(c *Config) {
		c.Discovery = &Access{Rules: []AccessRule{{Users: []iscsi.Credentials{credentials(t, "scout", "who goes there?")}}}}
		c.Targets = append(c.Targets, Target{Name: other, Device: scsi.NewDevice(scsi.Port{}), Access: &Access{}})
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		keys := []string{"InitiatorName", initiatorName, "SessionType", "Discovery"}
		p := connect(t, s)
		require.Equal(t, iscsi.LoginAuthFailed, p.status(p.loginRequest(keys...)))
		p = connect(t, s)
		_, status := p.security(true, append(keys[:4:4], "AuthMethod", "None")...)
		require.Equal(t, iscsi.LoginAuthFailed, status)
		p = connect(t, s)
		require.Equal(t, iscsi.LoginOK, p.prove("scout", "who goes there?", keys))
		p.inject(p.loginRequest())
		p.pdu(iscsi.OpLoginRsp)
		text := p.sendTargets("All")
		require.Contains(t, text, targetName)
		require.NotContains(t, text, other, "nobody has access to it")
		require.Empty(t, p.sendTargets(other))
		p.leave()
		p = connect(t, s)
		p.login(normalKeys()...)
		require.Equal(t, "SendTargets=Reject\x00", p.sendTargets("All"))
		require.Empty(t, p.sendTargets(other))
		p.leave()
	})
}

// TestGuessingIsSlowed: an address that fails too often is not heard for a time that doubles, whichever connection it comes by and
// even if it is right then; others are, and so is what is open to everybody.
func TestGuessingIsSlowed(t *testing.T) {
	change := func(c *Config) {
		c.Limits.AuthFailures = 3
		c.Targets[0].Access = &Access{Rules: []AccessRule{{Initiators: []string{otherName}}, aliceRule(t)}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		for range 3 {
			require.Equal(t, iscsi.LoginAuthFailed, connect(t, s).prove("alice", "a wrong guess", normalKeys()))
		}
		require.Equal(t, iscsi.LoginUnavailable, connect(t, s).prove("alice", aliceSecret, normalKeys()))
		away := connect(t, s, from("192.0.2.10"), as(1))
		require.Equal(t, iscsi.LoginOK, away.prove("alice", aliceSecret, normalKeys()))
		free := connect(t, s, as(2))
		free.login(keysOf(otherName)...)
		time.Sleep(time.Second)
		require.Equal(t, iscsi.LoginAuthFailed, connect(t, s).prove("alice", "a wrong guess", normalKeys()))
		time.Sleep(time.Second)
		require.Equal(t, iscsi.LoginUnavailable, connect(t, s).prove("alice", aliceSecret, normalKeys()), "twice as long now")
		time.Sleep(time.Second)
		p := connect(t, s)
		require.Equal(t, iscsi.LoginOK, p.prove("alice", aliceSecret, normalKeys()))
		p.inject(p.loginRequest())
		p.pdu(iscsi.OpLoginRsp)
		require.Equal(t, iscsi.LoginAuthFailed, connect(t, s, as(3)).prove("alice", "a wrong guess", normalKeys()), "counted anew")
		p.leave()
		free.leave()
	})
}

// TestGuessingInParallel: connections that had their challenge before the address was shut out are not heard either.
func TestGuessingInParallel(t *testing.T) {
	change := func(c *Config) {
		c.Limits.AuthFailures = 2
		c.Targets[0].Access = &Access{Rules: []AccessRule{aliceRule(t)}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		var peers []*peer
		var proofs [][]string
		for i := range 4 {
			p := connect(t, s, as(byte(i)))
			secret := "a wrong guess"
			if i == 3 {
				secret = aliceSecret
			}
			ini, err := iscsi.NewCHAPInitiator(iscsi.CHAPInitiatorConfig{Credentials: credentials(t, "alice", secret)})
			require.NoError(t, err)
			p.security(false, append(normalKeys(), "AuthMethod", "CHAP")...)
			out, _, _ := ini.Exchange(nil)
			in, _ := p.security(false, out[0].Key, out[0].Value)
			out, _, err = ini.Exchange(in)
			require.NoError(t, err)
			peers, proofs = append(peers, p), append(proofs, []string{out[0].Key, out[0].Value, out[1].Key, out[1].Value})
		}
		for i, p := range peers {
			_, status := p.security(true, proofs[i]...)
			require.Equal(t, iscsi.LoginAuthFailed, status, "%d", i)
		}
	})
}

// TestGuard: memory is bounded, an IPv6 host counts as its network, and failures are forgotten in time.
func TestGuard(t *testing.T) {
	g := guard{limit: 2}
	now := time.Unix(1000, 0)
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2:3")
	g.failed(a, now)
	g.failed(b, now)
	left, blocked := g.blocked(netip.MustParseAddr("2001:db8::ffff"), now)
	require.True(t, blocked)
	require.Equal(t, time.Second, left)
	_, blocked = g.blocked(netip.MustParseAddr("2001:db8:0:1::1"), now)
	require.False(t, blocked)
	for range 100 {
		g.failed(a, now)
	}
	left, _ = g.blocked(a, now)
	require.Equal(t, guardLongest, left)
	g.failed(a, now.Add(guardForget+guardLongest))
	_, blocked = g.blocked(a, now.Add(guardForget+guardLongest))
	require.False(t, blocked, "it was long ago")
	for i := range 3 * guardMax {
		g.failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	require.Equal(t, guardMax, g.order.Len())
	require.Len(t, g.known, guardMax)
	_, blocked = g.blocked(a, now)
	require.False(t, blocked, "the oldest is forgotten")
	g.passed(netip.AddrFrom4([4]byte{10, 0, byte((3*guardMax - 1) >> 8), byte((3*guardMax - 1) & 0xff)}))
	require.Len(t, g.known, guardMax-1)
	g.failed(netip.Addr{}, now)
	g.failed(netip.Addr{}, now)
	_, blocked = g.blocked(netip.Addr{}, now)
	require.True(t, blocked)
	off := guard{limit: -1}
	off.failed(a, now)
	require.Empty(t, off.known)
}

// TestLimits: over a bound a login is told so with status 0302, and gets in once there is room.
func TestLimits(t *testing.T) {
	for name, set := range map[string]func(*Limits){
		"of an initiator": func(l *Limits) { l.InitiatorSessions = 2 },
		"connections":     func(l *Limits) { l.Connections = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *Config) { set(&c.Limits) }, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
				first := connect(t, s, as(1))
				first.login(normalKeys()...)
				connect(t, s, as(2)).login(normalKeys()...)
				synctest.Wait()
				p := connect(t, s, as(3))
				require.Equal(t, iscsi.LoginNoResources, p.status(p.loginRequest(normalKeys()...)))
				other := connect(t, s, as(4))
				if name == "connections" {
					require.Equal(t, iscsi.LoginNoResources, other.status(other.loginRequest(keysOf(otherName)...)))
				} else {
					other.login(keysOf(otherName)...)
				}
				first.leave()
				synctest.Wait()
				connect(t, s, as(3)).login(normalKeys()...)
				// Reinstatement needs no room of its own where sessions are counted.
				if name != "connections" {
					connect(t, s, as(3)).login(normalKeys()...)
				}
			})
		})
	}
}

// TestRedirection: a login is sent elsewhere with the status and address, but not one that is there already, nor an initiator that
// would have no business there.
func TestRedirection(t *testing.T) { // RFC 7143, sections 11.13.5 and 13.8
	change := func(c *Config) {
		c.Targets[0].Access = &Access{Rules: []AccessRule{{Initiators: []string{initiatorName}}}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		moved := func(setup ...func(*peer)) (iscsi.LoginStatus, string) {
			p := connect(t, s, setup...)
			p.inject(p.loginRequest(normalKeys()...))
			rsp := p.pdu(iscsi.OpLoginRsp)
			h := iscsi.LoginResponse(rsp.BHS[:])
			if h.Status() == iscsi.LoginOK {
				p.leave()
			} else {
				require.Error(t, p.ended())
			}
			return h.Status(), string(rsp.Data)
		}
		tag := func(n uint16) func(*peer) { return func(p *peer) { p.portal.Tag = n } }
		require.NoError(t, s.SetRedirect(targetName, &Redirect{Address: "198.51.100.7"}))
		status, text := moved()
		require.Equal(t, iscsi.LoginMovedTemporarily, status)
		require.Equal(t, "TargetAddress=198.51.100.7:3260\x00", text)
		require.NoError(t, s.SetRedirect(targetName, &Redirect{Address: "[2001:db8::1]:3261", Permanent: true, From: []uint16{3}}))
		status, text = moved(tag(3))
		require.Equal(t, iscsi.LoginMovedPermanently, status)
		require.Equal(t, "TargetAddress=[2001:db8::1]:3261\x00", text)
		status, _ = moved(tag(4))
		require.Equal(t, iscsi.LoginOK, status)
		require.NoError(t, s.SetRedirect(targetName, &Redirect{Address: "192.0.2.1:3260"}))
		status, _ = moved()
		require.Equal(t, iscsi.LoginOK, status, "it is here")
		require.NoError(t, s.SetRedirect(targetName, &Redirect{Address: "198.51.100.7"}))
		p := connect(t, s)
		require.Equal(t, iscsi.LoginForbidden, p.status(p.loginRequest(keysOf(otherName)...)))
		d := connect(t, s)
		d.discovery()
		require.NotEmpty(t, d.sendTargets("All"))
		d.leave()
		require.NoError(t, s.SetRedirect(targetName, nil))
		status, _ = moved()
		require.Equal(t, iscsi.LoginOK, status)
		require.Error(t, s.SetRedirect(targetName, &Redirect{Address: "a b"}))
		require.Error(t, s.SetRedirect(targetName, &Redirect{Address: "192.0.2.1:3260,1"}))
		require.ErrorIs(t, s.SetRedirect("iqn.2026-11.com.example:none", nil), ErrNoTarget)
	})
}

// TestPortalsByGroup: SendTargets tells each group's addresses with its tag, a connection has the tag of its portal, and a target is
// reached through its groups alone.
func TestPortalsByGroup(t *testing.T) { // RFC 7143, section 4.4.3.2 and appendix C
	const other = "iqn.2026-11.com.example:other"
	change := func(c *Config) {
		c.PortalGroups = []PortalGroup{
			{Tag: 1, Portals: []string{"0.0.0.0:3260", "[::]:3261"}},
			{Tag: 2, Portals: []string{"san.example", "[2001:db8::1]:860"}},
		}
		c.Targets = append(c.Targets, Target{Name: other, Device: scsi.NewDevice(scsi.Port{}), PortalGroups: []uint16{2}})
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s, func(p *peer) { p.portal.Tag = 2 })
		p.discovery()
		require.Equal(t, strings.Join([]string{
			"TargetName=" + targetName,
			"TargetAddress=192.0.2.1:3260,1", "TargetAddress=192.0.2.1:3261,1",
			"TargetAddress=san.example:3260,2", "TargetAddress=[2001:db8::1]:860,2",
			"TargetName=" + other,
			"TargetAddress=san.example:3260,2", "TargetAddress=[2001:db8::1]:860,2", "",
		}, "\x00"), p.sendTargets("All"))
		p.leave()
		// The same initiator port has a session in each group: two I_T nexuses (RFC 7143, section 4.4.3.2).
		one := connect(t, s, func(p *peer) { p.portal.Tag = 1 })
		require.Contains(t, string(one.login(normalKeys()...).Data), "TargetPortalGroupTag=1\x00")
		two := connect(t, s, func(p *peer) { p.portal.Tag = 2 })
		require.Contains(t, string(two.login(normalKeys()...).Data), "TargetPortalGroupTag=2\x00")
		synctest.Wait()
		require.Len(t, s.Status().Sessions, 2)
		require.ElementsMatch(t, []uint16{1, 2}, []uint16{s.Status().Sessions[0].Params.PortalGroup, s.Status().Sessions[1].Params.PortalGroup})
		wrong := connect(t, s, func(p *peer) { p.portal.Tag = 1 })
		require.Equal(t, iscsi.LoginNotFound, wrong.status(wrong.loginRequest(withKeys(normalKeys(), []string{"TargetName", other})...)))
		one.leave()
		two.leave()

		require.NoError(t, s.SetPortalGroups([]PortalGroup{{Tag: 9, Portals: []string{"192.0.2.77:1"}}}))
		p = connect(t, s)
		p.discovery()
		require.Equal(t, "TargetName="+targetName+"\x00TargetAddress=192.0.2.77:1,9\x00TargetName="+other+"\x00", p.sendTargets("All"))
		p.leave()
		for want, g := range map[string][]PortalGroup{
			"no tag":          {{Portals: []string{"a"}}},
			"twice":           {{Tag: 1, Portals: []string{"a"}}, {Tag: 1, Portals: []string{"b"}}},
			"no portals":      {{Tag: 1}},
			"no address:port": {{Tag: 1, Portals: []string{"a,3"}}},
		} {
			err := s.SetPortalGroups(g)
			require.ErrorIs(t, err, ErrPortals)
			require.ErrorContains(t, err, want)
		}
	})
}

// TestDrain: initiators are asked to log out within a time and are then closed once what was accepted is answered; new logins are
// refused until the target is resumed, and another target does not notice.
func TestDrain(t *testing.T) {
	const other = "iqn.2026-11.com.example:other"
	m := memory(t, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(m)
		s := newServer(t, func(c *Config) {
			c.LogoutWait = 3 * time.Second
			c.Targets = append(c.Targets, Target{Name: other, Device: scsi.NewDevice(scsi.Port{})})
		}, slow)
		polite, busy, bystander := connect(t, s, as(1)), connect(t, s, as(2)), connect(t, s, as(3))
		polite.login(normalKeys()...)
		busy.login(normalKeys()...)
		bystander.login(withKeys(normalKeys(), []string{"TargetName", other})...)
		busy.settle(0)
		slow.Hold(storetest.Write)
		busy.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		<-slow.Arrived()
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.Drain(context.Background(), targetName) }()
		for _, p := range []*peer{polite, busy} {
			h := iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:])
			require.Equal(t, iscsi.AsyncLogout, h.Event())
			require.EqualValues(t, 3, h.Parameter3())
		}
		polite.leave()
		late := connect(t, s, as(4))
		require.Equal(t, iscsi.LoginUnavailable, late.status(late.loginRequest(normalKeys()...)))
		require.NoError(t, s.SetRedirect(targetName, &Redirect{Address: "198.51.100.7"}))
		late = connect(t, s, as(4))
		require.Equal(t, iscsi.LoginMovedTemporarily, late.status(late.loginRequest(normalKeys()...)))
		require.NoError(t, s.SetRedirect(targetName, nil))
		time.Sleep(4 * time.Second)
		require.Empty(t, done)
		slow.Release()
		require.Zero(t, busy.response().Status(), "what was accepted is answered")
		require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(busy.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.ErrorIs(t, busy.ended(), ErrDrained)
		require.NoError(t, <-done)
		require.Equal(t, 4*time.Second, time.Since(start))
		require.True(t, s.Status().Targets[0].Draining)
		require.NoError(t, s.Resume(targetName))
		again := connect(t, s, as(4))
		again.login(normalKeys()...)
		synctest.Wait()
		require.True(t, s.Disconnect(s.Status().Sessions[1].Params.TSIH))
		require.False(t, s.Disconnect(4711))
		require.Equal(t, iscsi.AsyncLogout, iscsi.AsyncMessage(again.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(again.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.ErrorIs(t, again.ended(), ErrDrained)
		bystander.nop(1, nil)
		bystander.pdu(iscsi.OpNOPIn)
		bystander.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestDrainIsBounded: a store that never answers holds a drain up only as long as its context.
func TestDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, nil, slow)
		p := connect(t, s)
		p.login(normalKeys()...)
		p.settle(0)
		slow.Hold(storetest.Write)
		p.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1), immediate: 4096})
		<-slow.Arrived()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, s.Drain(ctx, targetName), context.DeadlineExceeded)
		p.pdu(iscsi.OpAsync)
		require.ErrorIs(t, p.ended(), ErrDrained)
		slow.Release()
		require.ErrorIs(t, s.Drain(ctx, "iqn.2026-11.com.example:none"), ErrNoTarget)
		require.ErrorIs(t, s.Resume("iqn.2026-11.com.example:none"), ErrNoTarget)
		synctest.Wait()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestAddrOf: addresses are compared as IP addresses whatever they came in.
func TestAddrOf(t *testing.T) {
	require.Equal(t, netip.MustParseAddr("192.0.2.9"), addrOf(&net.TCPAddr{IP: net.ParseIP("192.0.2.9")}))
	require.Equal(t, netip.MustParseAddr("2001:db8::1"), addrOf(&net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 1}))
	require.False(t, addrOf(nil).IsValid())
	require.False(t, addrOf(&net.UnixAddr{Name: "x"}).IsValid())
}
