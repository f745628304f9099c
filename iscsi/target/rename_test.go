package target

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// TestRenameAndMove: alias and portal groups change for the next login, and for discovery; who is logged in stays.
func TestRenameAndMove(t *testing.T) { // RFC 7143, sections 4.4.3.2 and 13.7
	change := func(c *Config) {
		c.Targets[0].Alias = "old"
		c.PortalGroups = []PortalGroup{{Tag: 1, Portals: []string{"192.0.2.1:3260"}}, {Tag: 2, Portals: []string{"192.0.2.2:3260"}}}
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		one := connect(t, s, func(p *peer) { p.portal.Tag = 1 })
		require.Contains(t, string(one.login(normalKeys()...).Data), "TargetAlias=old\x00")
		require.NoError(t, s.SetAlias(strings.ToUpper(targetName), "new"))
		require.NoError(t, s.SetGroups(targetName, []uint16{2}))
		two := connect(t, s, func(p *peer) { p.portal.Tag = 2 })
		require.Contains(t, string(two.login(normalKeys()...).Data), "TargetAlias=new\x00")
		wrong := connect(t, s, func(p *peer) { p.portal.Tag = 1 })
		require.Equal(t, iscsi.LoginNotFound, wrong.status(wrong.loginRequest(normalKeys()...)))
		synctest.Wait()
		require.Len(t, s.Status().Sessions, 2, "the first one stays")
		require.Equal(t, "new", s.Status().Targets[0].Alias)
		one.leave()
		two.leave()
		p := connect(t, s, func(p *peer) { p.portal.Tag = 1 })
		p.discovery()
		require.Equal(t, "TargetName="+targetName+"\x00TargetAddress=192.0.2.2:3260,2\x00", p.sendTargets("All"))
		p.leave()
		require.Error(t, s.SetAlias(targetName, "a\x00InitialR2T=No"))
		require.ErrorIs(t, s.SetAlias("iqn.2026-11.com.example:none", ""), ErrNoTarget)
		require.ErrorIs(t, s.SetGroups("iqn.2026-11.com.example:none", nil), ErrNoTarget)
	})
}

// TestPortsOfOwnGroups: a target's device has a port for each group that it is reached through, and none for others.
func TestPortsOfOwnGroups(t *testing.T) { // RFC 7143, section 4.4.1
	dev := scsi.NewDevice(scsi.Port{Name: targetName + ",t,0x0002", DeviceName: targetName, Relative: 2, Protocol: 5})
	s := newServer(t, func(c *Config) {
		c.PortalGroups = []PortalGroup{{Tag: 2, Portals: []string{"192.0.2.2:3260"}}, {Tag: 7, Portals: []string{"192.0.2.7:3260"}}}
		c.Targets = []Target{{Name: targetName, Device: dev, PortalGroups: []uint16{2}}}
	})
	tags := func() (all []uint16) {
		for _, p := range dev.Ports() {
			require.Equal(t, p.Relative, p.Group)
			all = append(all, p.Group)
		}
		return all
	}
	require.Equal(t, []uint16{2}, tags())
	require.NoError(t, s.SetGroups(targetName, nil))
	require.Equal(t, []uint16{2, 7}, tags())
}
