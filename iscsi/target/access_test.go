package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
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
)

const otherName = "iqn.1991-05.com.example:host7"

func credentials(t testing.TB, user, secret string) iscsi.Credentials {
	t.Helper()
	s, err := iscsi.NewSecret(secret)
	require.NoError(t, err)
	return iscsi.Credentials{User: user, Secret: s}
}

// from makes a peer come from an address.
func from(addr string) func(*peer) {
	return func(p *peer) { p.info.RemoteAddr = &net.TCPAddr{IP: net.ParseIP(addr), Port: 40000} }
}

// as makes a peer another initiator port.
func as(port byte) func(*peer) { return func(p *peer) { p.isid[5] = port } }

func keysOf(initiator string) []string {
	return withKeys(normalKeys(), []string{"InitiatorName", initiator})
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true},
		{"*", "iqn.x", true},
		{"iqn.*:host?", "iqn.com.example:host7", true},
		{"iqn.*:host?", "iqn.com.example:host", false},
		{"iqn.*:host?", "iqn.com.example:host77", false},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXc", false},
		{"?", "", false},
		{"abc", "abc", true},
		{"abc", "abcd", false},
		{"**a**", "bab", true},
	} {
		require.Equal(t, c.want, matches(c.pattern, c.s), "%s %s", c.pattern, c.s)
	}
	hard := strings.Repeat("*a", 100)
	require.False(t, matches(hard, strings.Repeat("a", 99)+"b"), "and soon")
}

// TestAccessMatrix: names, in any case, patterns and networks, alone and together; the first rule that fits decides.
func TestAccessMatrix(t *testing.T) {
	rule := func(initiators, networks []string) AccessRule {
		r := AccessRule{Initiators: initiators}
		for _, n := range networks {
			r.Networks = append(r.Networks, netip.MustParsePrefix(n))
		}
		return r
	}
	for _, c := range []struct {
		name  string
		rules []AccessRule
		addr  string
		want  bool
	}{
		{"no rules", nil, "192.0.2.9", false},
		{"any", []AccessRule{{}}, "192.0.2.9", true},
		{"name", []AccessRule{rule([]string{initiatorName}, nil)}, "192.0.2.9", true},
		{"name in capitals", []AccessRule{rule([]string{strings.ToUpper(initiatorName)}, nil)}, "192.0.2.9", true},
		{"pattern in capitals", []AccessRule{rule([]string{"IQN.2026-11.COM.EXAMPLE:*"}, nil)}, "192.0.2.9", true},
		{"another name", []AccessRule{rule([]string{otherName}, nil)}, "192.0.2.9", false},
		{"network", []AccessRule{rule(nil, []string{"198.51.100.0/24", "192.0.2.0/24"})}, "192.0.2.9", true},
		{"another network", []AccessRule{rule(nil, []string{"192.0.2.0/29"})}, "192.0.2.9", false},
		{"IPv6", []AccessRule{rule(nil, []string{"2001:db8::/32"})}, "2001:db8::9", true},
		{"another IPv6", []AccessRule{rule(nil, []string{"2001:db8::/32"})}, "2001:db9::9", false},
		{"IPv4 in IPv6 clothes", []AccessRule{rule(nil, []string{"192.0.2.0/24"})}, "::ffff:192.0.2.9", true},
		{"rule in IPv6 clothes", []AccessRule{rule(nil, []string{"::ffff:192.0.2.0/120"})}, "192.0.2.9", true},
		{"both", []AccessRule{rule([]string{initiatorName}, []string{"192.0.2.9/32"})}, "192.0.2.9", true},
		{"name, wrong network", []AccessRule{rule([]string{initiatorName}, []string{"192.0.2.8/32"})}, "192.0.2.9", false},
		{"second rule", []AccessRule{rule([]string{otherName}, nil), rule([]string{initiatorName}, nil)}, "192.0.2.9", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := func(cfg *Config) { cfg.Targets[0].Access = &Access{Rules: c.rules} }
			inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
				p := connect(t, s, from(c.addr))
				if !c.want {
					require.Equal(t, iscsi.LoginForbidden, p.status(p.loginRequest(normalKeys()...)))
				} else {
					p.login(normalKeys()...)
					p.leave()
				}
				d := connect(t, s, from(c.addr))
				d.discovery()
				require.Equal(t, c.want, d.sendTargets("All") != "", "what may not be used is not seen")
				require.Equal(t, c.want, d.sendTargets(targetName) != "")
				d.leave()
			})
		})
	}
}

// TestAccessRefused: lists that cannot be are refused, and change nothing.
func TestAccessRefused(t *testing.T) {
	alice := credentials(t, "alice", "correct horse battery")
	for want, r := range map[string]AccessRule{
		"not an iSCSI name": {Initiators: []string{"host"}},
		"is there twice":    {Initiators: []string{initiatorName, strings.ToUpper(initiatorName)}},
		"initiator pattern": {Initiators: []string{"iqn.*,x"}},
		"no address":        {Networks: []netip.Prefix{{}}},
		"mapped twice":      {LUNs: []LUNMapping{{LUN: 0, Device: 1}, {LUN: 0, Device: 2}}},
		"shown twice":       {LUNs: []LUNMapping{{LUN: 0, Device: 1}, {LUN: 1, Device: 1}}},
		"numbers go from":   {LUNs: []LUNMapping{{LUN: -1}}},
		"without users":     {Mutual: alice},
		"two secrets":       {Users: []iscsi.Credentials{alice}, Mutual: iscsi.Credentials{User: "disk", Secret: alice.Secret}},
		"user":              {Users: []iscsi.Credentials{{Secret: alice.Secret}}},
	} {
		a := &Access{Rules: []AccessRule{{}, r}}
		err := a.Check()
		require.ErrorIs(t, err, ErrAccess, want)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "rule 2")
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "horse")
		inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
			require.ErrorIs(t, s.SetAccess(targetName, a), ErrAccess)
			require.ErrorIs(t, s.SetAccess("iqn.2026-11.com.example:none", nil), ErrNoTarget)
			p := connect(t, s)
			p.login(normalKeys()...)
			p.leave()
		})
	}
}

// reportLUNs asks for the list.
func (p *peer) reportLUNs() (luns []int) {
	p.t.Helper()
	p.command(cmd{cdb: []byte{scsi.OpReportLUNs, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, read: 256})
	var data []byte
	for {
		s, ok := p.next()
		require.True(p.t, ok)
		if s.in != nil {
			data = append(data, s.data...)
			continue
		}
		require.Equal(p.t, iscsi.OpSCSIResponse, s.pdu.Opcode())
		p.statSN = iscsi.BHS(s.pdu.BHS[:]).StatSN() + 1
		require.Zero(p.t, iscsi.SCSIResponse(s.pdu.BHS[:]).Status())
		break
	}
	for n := binary.BigEndian.Uint32(data); n > 0; n -= 8 {
		number, ok := scsi.DecodeLUN(binary.BigEndian.Uint64(data[n:]))
		require.True(p.t, ok)
		luns = append([]int{number}, luns...)
	}
	return luns
}

// sense runs a command and gives its status and its sense's additional code.
func (p *peer) outcome(c cmd) (status byte, code scsi.Code) {
	p.t.Helper()
	p.command(c)
	rsp := p.pdu(iscsi.OpSCSIResponse)
	status = iscsi.SCSIResponse(rsp.BHS[:]).Status()
	if len(rsp.Data) > 15 {
		code = scsi.Code(uint16(rsp.Data[2+12])<<8 | uint16(rsp.Data[2+13]))
	}
	return status, code
}

// TestMasking: an initiator has the logical units of its rule under the rule's numbers, and what is masked is absent for every
// command; the other initiator has all.
func TestMasking(t *testing.T) {
	m := []*store.Memory{memory(t, 1<<20), memory(t, 2<<20), memory(t, 4<<20)}
	change := func(c *Config) {
		c.Targets[0].Access = &Access{Rules: []AccessRule{
			{Initiators: []string{otherName}, LUNs: []LUNMapping{{LUN: 0, Device: 2}, {LUN: 5, Device: 0, ReadOnly: true}, {LUN: 9, Device: 77}}},
			{},
		}}
	}
	inBubble(t, change, []store.Store{m[0], m[1], m[2]}, func(t *testing.T, s *Server) {
		all := connect(t, s)
		all.login(normalKeys()...)
		all.settle(0, 1, 2)
		require.Equal(t, []int{0, 1, 2}, all.reportLUNs())

		p := connect(t, s, as(7))
		p.login(keysOf(otherName)...)
		p.settle(0, 5)
		require.Equal(t, []int{0, 5}, p.reportLUNs(), "one that is not there is not listed")
		status, _ := p.outcome(cmd{lun: 0, cdb: write10(7, 1), write: pattern(512, 3), immediate: 512})
		require.Zero(t, status)
		got := make([]byte, 512)
		_, err := m[2].ReadAt(got, 7*512)
		require.NoError(t, err)
		require.Equal(t, pattern(512, 3), got, "LUN 0 is the device's 2")

		status, code := p.outcome(cmd{lun: 5, cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		require.Equal(t, byte(scsi.StatusCheckCondition), status)
		require.Equal(t, scsi.CodeWriteProtected, code)
		status, _ = all.outcome(cmd{lun: 0, cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		require.Zero(t, status, "for others it is writable")

		for _, lun := range []int{1, 2, 9, 77} {
			for _, cdb := range [][]byte{make([]byte, 6), read10(0, 1), {scsi.OpReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
				status, code := p.outcome(cmd{lun: lun, cdb: cdb, read: 512})
				require.Equal(t, byte(scsi.StatusCheckCondition), status)
				require.Equal(t, scsi.CodeLUNotSupported, code, "LUN %d %x", lun, cdb)
			}
			p.tmf(iscsi.LogicalUnitReset, lun, iscsi.ReservedTag, 0)
			require.Equal(t, iscsi.TaskNoLUN, p.managed())
		}

		// A target reset resets what is seen and no more.
		p.tmf(iscsi.TargetWarmReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		status, _ = all.outcome(cmd{lun: 1, cdb: make([]byte, 6)})
		require.Zero(t, status)
		status, code = all.outcome(cmd{lun: 2, cdb: make([]byte, 6)})
		require.Equal(t, byte(scsi.StatusCheckCondition), status)
		require.Equal(t, scsi.CodeBusReset, code)
		p.leave()
		all.leave()
	})
}

// TestReadOnlyRule: a rule that is read-only refuses writes to every logical unit, and the mode parameters say so.
func TestReadOnlyRule(t *testing.T) {
	change := func(c *Config) { c.Targets[0].Access = &Access{Rules: []AccessRule{{ReadOnly: true}}} }
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		p.login(normalKeys()...)
		p.settle(0)
		status, code := p.outcome(cmd{cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		require.Equal(t, byte(scsi.StatusCheckCondition), status)
		require.Equal(t, scsi.CodeWriteProtected, code)
		p.command(cmd{cdb: []byte{scsi.OpModeSense6, 8, 8, 0, 255, 0}, read: 255})
		in, ok := p.next()
		require.True(t, ok)
		require.EqualValues(t, 0x80, in.data[2]&0x80, "WP")
		p.pdu(iscsi.OpSCSIResponse)
		p.leave()
	})
}

// TestAccessReplaced: a new list drops the sessions that it does not let in, shows others what they see now, and leaves the rest
// alone, commands in flight included.
func TestAccessReplaced(t *testing.T) {
	m := memory(t, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		slow := blocking(m)
		s := newServer(t, nil, slow, memory(t, 1<<20))
		kept := connect(t, s)
		kept.login(normalKeys()...)
		kept.settle(0, 1)
		lost := connect(t, s, as(7))
		lost.login(keysOf(otherName)...)
		lost.settle(0, 1)
		moved := connect(t, s, as(8))
		moved.login(keysOf("iqn.2026-11.com.example:third")...)
		moved.settle(0, 1)
		ask := connect(t, s, as(9))
		ask.discovery()

		require.NoError(t, s.SetAccess(strings.ToUpper(targetName), &Access{Rules: []AccessRule{
			{Initiators: []string{initiatorName}},
			{Initiators: []string{"*:third"}, LUNs: []LUNMapping{{LUN: 3, Device: 1}}},
		}}))
		require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(lost.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.ErrorIs(t, lost.ended(), ErrAccessLost)
		status, _ := kept.outcome(cmd{cdb: make([]byte, 6)})
		require.Zero(t, status, "not even told")
		status, code := moved.outcome(cmd{lun: 3, cdb: make([]byte, 6)})
		require.Equal(t, byte(scsi.StatusCheckCondition), status)
		require.Equal(t, scsi.CodeReportedLUNsChanged, code)
		require.Equal(t, []int{3}, moved.reportLUNs())
		_, code = moved.outcome(cmd{lun: 0, cdb: make([]byte, 6)})
		require.Equal(t, scsi.CodeLUNotSupported, code)
		again := connect(t, s, as(7))
		require.Equal(t, iscsi.LoginForbidden, again.status(again.loginRequest(keysOf(otherName)...)))

		// Authentication that is demanded now drops who has not passed it.
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{
			{Initiators: []string{initiatorName}, Users: []iscsi.Credentials{credentials(t, "alice", "correct horse battery")}}, {},
		}}))
		require.Equal(t, iscsi.AsyncDropSession, iscsi.AsyncMessage(kept.pdu(iscsi.OpAsync).BHS[:]).Event())
		require.ErrorIs(t, kept.ended(), ErrAccessLost)
		require.Contains(t, ask.sendTargets("All"), targetName)
		require.NoError(t, s.SetDiscovery(&Access{}))
		require.ErrorIs(t, ask.ended(), ErrAccessLost)
		ask = connect(t, s, as(9))
		require.Equal(t, iscsi.LoginForbidden, ask.status(ask.loginRequest("InitiatorName", initiatorName, "SessionType", "Discovery")))
		require.NoError(t, s.SetAccess(targetName, nil))
		require.Equal(t, []int{0, 1}, moved.reportLUNs())
		moved.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestCreatedTwice: names that differ by case alone are one, when targets come and go as well.
func TestCreatedTwice(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		const name = "iqn.2026-11.com.example:TEST001"
		lower := strings.ToLower(name)
		d := scsi.NewDevice(scsi.Port{})
		require.NoError(t, s.AddTarget(Target{Name: name, Device: d, Access: &Access{Rules: []AccessRule{{Initiators: []string{"IQN.1991-05.com.example:Host7"}}}}}))
		require.ErrorIs(t, s.AddTarget(Target{Name: lower, Device: d}), ErrTargetTaken)
		p := connect(t, s, as(7))
		p.login(withKeys(keysOf(otherName), []string{"TargetName", lower})...)
		done := make(chan error, 1)
		go func() { done <- s.RemoveTarget(context.Background(), strings.ToUpper(name)) }()
		require.Equal(t, iscsi.AsyncLogout, iscsi.AsyncMessage(p.pdu(iscsi.OpAsync).BHS[:]).Event())
		p.leave()
		require.NoError(t, <-done)
		require.ErrorIs(t, s.RemoveTarget(context.Background(), name), ErrNoTarget)
		q := connect(t, s, as(7))
		require.Equal(t, iscsi.LoginNotFound, q.status(q.loginRequest(withKeys(keysOf(otherName), []string{"TargetName", lower})...)))
		require.NoError(t, s.AddTarget(Target{Name: lower, Device: d}))
	})
}

// TestNoSecretInLogs: what a server says about access shows no secret.
func TestNoSecretInLogs(t *testing.T) {
	var log bytes.Buffer
	change := func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Targets[0].Access = &Access{Rules: []AccessRule{{Name: "weak", Users: []iscsi.Credentials{credentials(t, "alice", "swordfish")}}}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		require.Equal(t, iscsi.LoginAuthFailed, p.status(p.loginRequest(normalKeys()...)))
		time.Sleep(time.Second)
	})
	require.NotContains(t, log.String(), "swordfish")
	require.Contains(t, log.String(), "shorter than 12 octets", "but it warns")
}
