package iscsi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoginThatHandsOver: in the byte stream RDMAExtensions decides what the other keys come to mean (RFC 7145, sections 5.1 and 6).
func TestLoginThatHandsOver(t *testing.T) {
	for name, c := range map[string]struct {
		initiator, target bool // can hand over
		change            func(i, t *Settings)
		rdma, digest      bool
		err               error
	}{
		"both":                          {initiator: true, target: true, rdma: true},
		"target declines":               {initiator: true},
		"initiator does not ask":        {target: true},
		"initiator insists":             {initiator: true, change: func(i, _ *Settings) { i.RequireRDMA = true }, err: ErrNoRDMA},
		"insisting where both can":      {initiator: true, target: true, change: func(i, _ *Settings) { i.RequireRDMA = true }, rdma: true},
		"target insists":                {target: true, change: func(_, t *Settings) { t.RequireRDMA = true }, err: ErrNoRDMA},
		"digests are given up":          {initiator: true, target: true, change: digests, rdma: true},
		"digests where it stays plain":  {initiator: true, change: digests, digest: true},
		"digests of a plain initiator":  {target: true, change: digests, digest: true},
		"lengths of the mode in force":  {initiator: true, target: true, rdma: true},
		"lengths where it stays plain ": {initiator: true},
	} {
		t.Run(name, func(t *testing.T) {
			ic, tc := initiatorConfig(), targetConfig()
			ic.Handover, tc.Handover = c.initiator, c.target
			ic.Settings = Settings{MaxRecvDataSegment: 32768, TargetRecvDataSegment: 16384, InitiatorRecvDataSegment: 4096, MaxOutstandingUnexpectedPDUs: 5, MaxAHSLength: 512}
			tc.Settings = Settings{MaxRecvDataSegment: 65536}
			if c.change != nil {
				c.change(&ic.Settings, &tc.Settings)
			}
			ip, tp, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
			if c.err != nil {
				require.True(t, ierr != nil || terr != nil)
				if c.initiator {
					require.ErrorIs(t, ierr, c.err)
				}
				return
			}
			require.NoError(t, ierr)
			require.NoError(t, terr)
			for _, p := range []*Params{ip, tp} {
				require.Equal(t, c.rdma, p.RDMAExtensions)
				require.Equal(t, c.digest, p.DataDigest)
			}
			want := [2]int{32768, 65536}
			if c.rdma {
				want = [2]int{4096, 8192}
				require.EqualValues(t, 5, tp.MaxOutstandingUnexpectedPDUs)
				require.EqualValues(t, 512, tp.MaxAHSLength)
			}
			require.Equal(t, want, [2]int{ip.MaxRecvDataSegment, ip.MaxSendDataSegment})
			require.Equal(t, want, [2]int{tp.MaxSendDataSegment, tp.MaxRecvDataSegment})
		})
	}
}

func digests(i, _ *Settings) { i.DataDigest = []string{"CRC32C", "None"} }

// answering has a target's negotiator answer texts, one after the other.
func answering(t *testing.T, n *Negotiator, texts ...Text) (answers []Text) {
	for _, x := range texts {
		require.NoError(t, n.Receive(x))
		n.Offer()
		answers = append(answers, n.Take())
	}
	return answers
}

// TestRDMAExtensionsComesFirst: offered behind other keys of the stage it is declined, since those may have been agreed on for the
// other mode (RFC 7145, section 6.3); in the same text its place does not matter.
func TestRDMAExtensionsComesFirst(t *testing.T) {
	n := NewNegotiator(RoleTarget, Settings{}, false)
	n.SetHandover()
	a := answering(t, n, Text{{KeyDataDigest, "CRC32C,None"}, {KeyTargetRecvSegment, "4096"}, {KeyRDMAExtensions, Yes}})
	v, _ := a[0].Get(KeyRDMAExtensions)
	require.Equal(t, Yes, v)
	v, _ = a[0].Get(KeyDataDigest)
	require.Equal(t, None, v)
	v, _ = a[0].Get(KeyTargetRecvSegment)
	require.Equal(t, "4096", v)

	n = NewNegotiator(RoleTarget, Settings{}, false)
	n.SetHandover()
	a = answering(t, n, Text{{KeyDataDigest, "CRC32C,None"}}, Text{{KeyRDMAExtensions, Yes}})
	v, _ = a[1].Get(KeyRDMAExtensions)
	require.Equal(t, No, v)
	var p Params
	require.NoError(t, n.Apply(&p))
	require.False(t, p.RDMAExtensions)
	require.True(t, p.DataDigest)
}

// TestHelloThatTheTargetDoesNotKnow is not sent: the exchange needs both sides (RFC 7145, section 5.1.3).
func TestHelloThatTheTargetDoesNotKnow(t *testing.T) {
	for answer, want := range map[string]bool{"": true, Yes: true, No: false, NotUnderstood: false} {
		n := NewNegotiator(RoleInitiator, Settings{ISERHelloRequired: true}, false)
		n.SetHandover()
		n.Offer()
		var reply Text
		for _, kv := range n.Take() {
			if k, _ := LookupKey(kv.Key); k.Func != Declare {
				reply = append(reply, kv)
			}
		}
		if answer != "" {
			reply = append(reply, KeyValue{KeyISERHello, answer})
		}
		require.NoError(t, n.Receive(reply), answer)
		var p Params
		require.NoError(t, n.Apply(&p))
		require.True(t, p.RDMAExtensions)
		require.Equal(t, want, p.ISERHelloRequired, answer)
	}
}

// TestJoinInheritsRDMA: the mode is the session's; a connection that joins it exchanges no key of use LO (RFC 7145, section 5.1).
func TestJoinInheritsRDMA(t *testing.T) {
	for _, rdma := range []bool{true, false} {
		session := &Params{
			RDMAExtensions: rdma, MaxConnections: 2, MaxBurstLength: 65536, FirstBurstLength: 65536, MaxOutstandingR2T: 1, TaskReporting: "RFC3720",
			ISCSIProtocolLevel: 1, MaxAHSLength: 64, MaxOutstandingUnexpectedPDUs: 3, ISERHelloRequired: true,
		}
		i := NewNegotiator(RoleInitiator, Settings{ISERHelloRequired: true, TargetRecvDataSegment: 4096}, false)
		g := NewNegotiator(RoleTarget, Settings{}, false)
		for _, n := range []*Negotiator{i, g} {
			n.SetHandover()
			n.Join(session)
		}
		i.Offer()
		offer := i.Take()
		for _, key := range []string{KeyRDMAExtensions, KeyMaxUnexpectedPDUs, KeyMaxAHSLength, KeySolicitedOnly, KeyISERHello} {
			_, said := offer.Get(key)
			require.False(t, said, key)
		}
		_, said := offer.Get(KeyTargetRecvSegment)
		require.Equal(t, rdma, said, "it is the connection's own")
		require.NoError(t, i.Receive(answering(t, g, offer)[0]))
		for _, n := range []*Negotiator{i, g} {
			var p Params
			require.NoError(t, n.Apply(&p))
			require.Equal(t, rdma, p.RDMAExtensions)
			require.Equal(t, rdma, p.ISERHelloRequired)
			if rdma {
				require.Equal(t, 4096, p.TargetRecvDataSegmentLength)
				require.EqualValues(t, 64, p.MaxAHSLength)
			}
		}
	}
}

// TestDiscoveryNeverHandsOver: the key has no place in a Discovery session (RFC 7145, section 6.3).
func TestDiscoveryNeverHandsOver(t *testing.T) {
	ic, tc := initiatorConfig(), targetConfig()
	ic.Discovery, ic.TargetName, ic.Handover, tc.Handover = true, "", true, true
	ic.Settings.RequireRDMA = true
	tc.Identify = func(Identity) (Grant, error) { return Grant{PortalGroup: 1}, nil }
	i := NewInitiatorLogin(ic)
	first, err := ParseText(i.First().Request.Data)
	require.NoError(t, err)
	_, said := first.Get(KeyRDMAExtensions)
	require.False(t, said)
	ip, tp, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
	require.NoError(t, ierr)
	require.NoError(t, terr)
	require.False(t, ip.RDMAExtensions || tp.RDMAExtensions)
}
