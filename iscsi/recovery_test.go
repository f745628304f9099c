package iscsi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// negotiate lets an initiator and a target agree on their settings and returns both sides' parameters.
func negotiate(t *testing.T, i, g *Negotiator) (initiator, target Params) {
	t.Helper()
	i.Offer()
	require.NoError(t, g.Receive(i.Take()))
	g.Offer()
	require.NoError(t, i.Receive(g.Take()))
	require.NoError(t, g.Receive(i.Take()))
	require.NoError(t, i.Apply(&initiator))
	require.NoError(t, g.Apply(&target))
	return initiator, target
}

// TestRecoveryKeys: the level is the lower of the two; above 0 a task has one R2T outstanding (RFC 7143, section 13.19), and tasks are
// retained at level 2 alone.
func TestRecoveryKeys(t *testing.T) {
	target := Settings{ErrorRecoveryLevel: 2, MaxConnections: 4, DefaultTime2Retain: 20, MaxOutstandingR2T: 8}
	for _, c := range []struct {
		initiator                  Settings
		level, conns, r2ts, retain int
	}{
		{Settings{MaxOutstandingR2T: 8}, 0, 1, 8, 0},
		{Settings{MaxOutstandingR2T: 8, DefaultTime2Retain: 30}, 0, 1, 8, 0},
		{Settings{ErrorRecoveryLevel: 1, MaxConnections: 2, MaxOutstandingR2T: 8, DefaultTime2Retain: 30}, 1, 2, 1, 0},
		{Settings{ErrorRecoveryLevel: 2, MaxConnections: 8, DefaultTime2Retain: 30}, 2, 4, 1, 20},
		{Settings{ErrorRecoveryLevel: 2, DefaultTime2Retain: 5}, 2, 1, 1, 5},
	} {
		ip, tp := negotiate(t, NewNegotiator(RoleInitiator, c.initiator, false), NewNegotiator(RoleTarget, target, false))
		for _, p := range []Params{ip, tp} {
			require.Equal(t, c.level, p.ErrorRecoveryLevel)
			require.Equal(t, c.conns, p.MaxConnections)
			require.Equal(t, c.r2ts, p.MaxOutstandingR2T)
			require.Equal(t, c.retain, p.DefaultTime2Retain)
		}
	}
}

// TestLevelOfDiscoveryIsZero: RFC 7143, section 7.4.1.
func TestLevelOfDiscoveryIsZero(t *testing.T) {
	i := NewNegotiator(RoleInitiator, Settings{ErrorRecoveryLevel: 2}, false)
	g := NewNegotiator(RoleTarget, Settings{ErrorRecoveryLevel: 2}, false)
	i.SetDiscovery(true)
	g.SetDiscovery(true)
	ip, tp := negotiate(t, i, g)
	require.Zero(t, ip.ErrorRecoveryLevel)
	require.Zero(t, tp.ErrorRecoveryLevel)
}

// TestJoiningKeepsTheSessionsParameters: what the leading login settled is neither offered nor changed by a further
// connection (RFC 7143, section 6.3.3); what is the connection's own is.
func TestJoiningKeepsTheSessionsParameters(t *testing.T) {
	set := Settings{ErrorRecoveryLevel: 2, MaxConnections: 4, DefaultTime2Retain: 20, MaxBurstLength: 65536, FirstBurstLength: 4096}
	ip, tp := negotiate(t, NewNegotiator(RoleInitiator, set, false), NewNegotiator(RoleTarget, set, false))

	other := Settings{HeaderDigest: []string{"CRC32C"}, MaxRecvDataSegment: 1024, MaxBurstLength: 512, DefaultTime2Wait: 9}
	i, g := NewNegotiator(RoleInitiator, other, false), NewNegotiator(RoleTarget, Settings{}, false)
	i.Join(&ip)
	g.Join(&tp)
	i2, g2 := negotiate(t, i, g)
	for k, p := range []Params{i2, g2} {
		first := []Params{ip, tp}[k]
		require.True(t, p.HeaderDigest)
		first.HeaderDigest, first.MaxRecvDataSegment, first.MaxSendDataSegment = p.HeaderDigest, p.MaxRecvDataSegment, p.MaxSendDataSegment
		require.Equal(t, first, p)
	}
	require.Equal(t, 1024, g2.MaxSendDataSegment)

	// An initiator that says them all the same is told what holds, and refused what would change it.
	g = NewNegotiator(RoleTarget, Settings{}, false)
	g.Join(&tp)
	var offer Text
	offer.Add(KeyMaxBurstLength, "1048576")
	offer.Add(KeyFirstBurstLength, "512")
	offer.Add(KeyErrorRecoveryLevel, "2")
	require.NoError(t, g.Receive(offer))
	var want Text
	want.Add(KeyMaxBurstLength, "65536")
	want.Add(KeyFirstBurstLength, Rejected)
	want.Add(KeyErrorRecoveryLevel, "2")
	require.Equal(t, want, g.Take())
}
