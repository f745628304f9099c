package iscsi

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chapGrant makes a target demand CHAP, and hands out the handshake.
func chapGrant(t testing.TB, mutual bool, seen **CHAPTarget) TargetLoginConfig {
	c := targetConfig()
	c.Identify = func(Identity) (Grant, error) {
		a := chapTarget(t, mutual)
		if seen != nil {
			*seen = a
		}
		return Grant{PortalGroup: 7, Auth: []Authenticator{a}}, nil
	}
	return c
}

// TestCHAPLogin: both machines log in, one-way and mutual, with each algorithm.
func TestCHAPLogin(t *testing.T) {
	for _, mutual := range []bool{false, true} {
		for _, a := range CHAPAlgorithms() {
			var tg *CHAPTarget
			ic := initiatorConfig()
			ini := chapInitiator(t, mutual)
			ini.cfg.Algorithms = []CHAPAlgorithm{a}
			ic.Auth = []Authenticator{ini}
			ip, _, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(chapGrant(t, true, &tg)))
			require.NoError(t, ierr)
			require.NoError(t, terr)
			require.EqualValues(t, 7, ip.PortalGroup)
			require.Equal(t, "alice", tg.User())
			require.NoError(t, ini.Done())
		}
	}
}

// TestCHAPLoginFails: the status tells no more than that it failed.
func TestCHAPLoginFails(t *testing.T) {
	for name, change := range map[string]func(*CHAPInitiatorConfig){
		"secret": func(c *CHAPInitiatorConfig) { c.Secret = secret(t, "another secret") },
		"user":   func(c *CHAPInitiatorConfig) { c.User = "carol" },
		"mutual": func(c *CHAPInitiatorConfig) {
			c.Mutual = Credentials{User: "disk", Secret: secret(t, "no target's secret")}
		},
	} {
		ini := chapInitiator(t, false)
		change(&ini.cfg)
		ic := initiatorConfig()
		ic.Auth = []Authenticator{ini}
		_, _, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(chapGrant(t, true, nil)))
		if name == "mutual" {
			require.NoError(t, terr, "the initiator was right")
			require.ErrorIs(t, ierr, ErrCHAP)
			continue
		}
		require.ErrorIs(t, terr, &LoginError{Class: 2, Detail: 1}, name)
		require.ErrorIs(t, terr, ErrCHAP, name)
		require.EqualError(t, ierr, "iscsi: login refused by the target: 0201 (authentication failure)", name)
	}
}

// TestCHAPInNoHurry: a peer that asks for the next stage with every request gets it when both proofs are exchanged, not before, and the
// tag is in the first response.
func TestCHAPInNoHurry(t *testing.T) { // RFC 7143, sections 6.3.2 and 13.9
	var tg *CHAPTarget
	l := NewTargetLogin(chapGrant(t, true, &tg))
	say := func(pairs ...string) (LoginResponse, map[string]string) {
		t.Helper()
		step, err := l.Step(request(StageSecurity, true, StageOperational, pairs...))
		require.NoError(t, err)
		return LoginResponse(step.Response.BHS[:]), answers(t, step.Response)
	}
	h, a := say(names("AuthMethod=CHAP")...)
	require.False(t, h.Transit())
	require.Equal(t, map[string]string{"AuthMethod": "CHAP", "TargetPortalGroupTag": "7"}, a)
	h, a = say("CHAP_A=5")
	require.False(t, h.Transit())
	require.Len(t, a, 3)
	r := md5Response(tg.challenge.id, chapSecret, tg.challenge.octets)
	h, a = say("CHAP_N=alice", "CHAP_R="+FormatBinary(r), "CHAP_I=5", "CHAP_C=0x0102")
	require.True(t, h.Transit())
	require.Equal(t, StageOperational, h.NSG())
	require.Equal(t, map[string]string{"CHAP_N": "disk", "CHAP_R": FormatBinary(md5Response(5, chapMutual, []byte{1, 2}))}, a)

	// The stage cannot be left while nothing is proven, nor the proof be put off.
	l = NewTargetLogin(chapGrant(t, true, &tg))
	say(names("AuthMethod=CHAP")...)
	h, _ = say()
	require.False(t, h.Transit())
	_, err := l.Step(request(StageOperational, true, StageFullFeature))
	require.ErrorIs(t, err, &LoginError{Class: 2})
	// Nor does a proof that is too long, or malformed, end in anything but 0201.
	for _, r := range []string{"0b" + strings.Repeat("A", 4096), "0x123", "0x" + strings.Repeat("0", 2*MaxBinaryLen+2)} {
		l = NewTargetLogin(chapGrant(t, true, &tg))
		say(names("AuthMethod=CHAP")...)
		say("CHAP_A=5")
		_, err := l.Step(request(StageSecurity, true, StageOperational, "CHAP_N=alice", "CHAP_R="+r))
		require.ErrorIs(t, err, &LoginError{Class: 2, Detail: 1})
	}
}

// TestTargetEndsCHAPWithoutProof: an initiator that asked for a proof does not go on without one.
func TestTargetEndsCHAPWithoutProof(t *testing.T) {
	begin := func() (*InitiatorLogin, *PDU) {
		c := initiatorConfig()
		c.Auth = []Authenticator{chapInitiator(t, true)}
		l := NewInitiatorLogin(c)
		l.First()
		_, err := l.Step(response(StageSecurity, false, 0, "AuthMethod=CHAP", "TargetPortalGroupTag=1"))
		require.NoError(t, err)
		step, err := l.Step(response(StageSecurity, false, 0, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x0102"))
		require.NoError(t, err)
		return l, step.Request
	}
	l, _ := begin()
	_, err := l.Step(response(StageSecurity, true, StageOperational))
	require.ErrorContains(t, err, "has not proven itself")
	l, sent := begin()
	m := answers(t, sent)
	_, err = l.Step(response(StageSecurity, true, StageOperational, "CHAP_N=disk", "CHAP_R="+m["CHAP_R"]))
	require.ErrorContains(t, err, "own proof back")
	l, sent = begin()
	m = answers(t, sent)
	_, err = l.Step(response(StageSecurity, false, 0, "CHAP_N=disk", "CHAP_C="+m["CHAP_C"], "CHAP_I="+m["CHAP_I"]))
	require.ErrorContains(t, err, "CHAP_C sent twice")
}

// TestPeersLogIn drives the target's machine with the keys that initiators in the field send, in their order and over their stages,
// with and without CHAP.
func TestPeersLogIn(t *testing.T) {
	type peer struct {
		auth  string   // AuthMethod when it has credentials
		none  string   // and when it has none; "" starts at the operational stage
		first []string // besides the names
		op    []string
		upper bool // hexadecimal in upper case
		rush  bool // asks for the next stage with every request
	}
	for name, p := range map[string]peer{
		"open-iscsi": {
			auth: "CHAP", none: "None", first: []string{"InitiatorAlias=host"},
			op: []string{
				"HeaderDigest=None", "DataDigest=None", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No",
				"ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192", "FirstBurstLength=262144",
				"MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "MaxRecvDataSegmentLength=262144",
			},
		},
		"Windows": {
			auth: "CHAP", none: "None,CHAP", rush: true,
			op: []string{
				"HeaderDigest=None,CRC32C", "DataDigest=None,CRC32C", "ErrorRecoveryLevel=2", "InitialR2T=No", "ImmediateData=Yes",
				"MaxRecvDataSegmentLength=65536", "MaxBurstLength=262144", "FirstBurstLength=65536", "MaxConnections=1",
				"DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "DefaultTime2Wait=0", "DefaultTime2Retain=60", "MaxOutstandingR2T=16",
			},
		},
		"ESXi": {
			auth: "CHAP,None", none: "None", first: []string{"InitiatorAlias=esx"},
			op: []string{
				"HeaderDigest=None", "DataDigest=None", "DefaultTime2Wait=0", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No",
				"ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=262144", "FirstBurstLength=262144",
				"MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes",
				"MaxRecvDataSegmentLength=131072", "X-com.example.vendor=1",
			},
		},
		"FreeBSD": {
			auth: "CHAP", none: "None", upper: false,
			op: []string{
				"HeaderDigest=None", "DataDigest=None", "ImmediateData=Yes", "MaxBurstLength=262144", "FirstBurstLength=65536",
				"InitialR2T=Yes", "MaxOutstandingR2T=1", "MaxRecvDataSegmentLength=65536", "DefaultTime2Wait=0", "DefaultTime2Retain=0",
				"ErrorRecoveryLevel=0", "iSCSIProtocolLevel=2",
			},
		},
		"libiscsi": {
			auth: "CHAP,None", none: "None", upper: true, rush: true,
			op: []string{
				"HeaderDigest=None,CRC32C", "DataDigest=None", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=262144",
				"FirstBurstLength=262144", "MaxRecvDataSegmentLength=262144", "DataPDUInOrder=Yes", "DefaultTime2Wait=2",
				"DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No", "MaxConnections=1", "MaxOutstandingR2T=1",
				"ErrorRecoveryLevel=0", "DataSequenceInOrder=Yes",
			},
		},
	} {
		for _, credentials := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " with CHAP", false: " without"}[credentials], func(t *testing.T) {
				c := targetConfig()
				var tg *CHAPTarget
				method := p.none
				if credentials {
					c, method = chapGrant(t, true, &tg), p.auth
				}
				l := NewTargetLogin(c)
				step, err := l.Step(request(StageSecurity, !credentials || p.rush, StageOperational, append(names("AuthMethod="+method), p.first...)...))
				require.NoError(t, err)
				a := answers(t, step.Response)
				require.Contains(t, a, "TargetPortalGroupTag")
				require.Equal(t, !credentials, LoginResponse(step.Response.BHS[:]).Transit())
				if credentials {
					require.Equal(t, "CHAP", a["AuthMethod"])
					step, err = l.Step(request(StageSecurity, p.rush, StageOperational, "CHAP_A=5"))
					require.NoError(t, err)
					a = answers(t, step.Response)
					require.Equal(t, "5", a["CHAP_A"])
					proof := hex.EncodeToString(md5Response(tg.challenge.id, chapSecret, tg.challenge.octets))
					if p.upper {
						proof = strings.ToUpper(proof)
					}
					step, err = l.Step(request(StageSecurity, true, StageOperational, "CHAP_N=alice", "CHAP_R=0x"+proof))
					require.NoError(t, err)
					require.True(t, LoginResponse(step.Response.BHS[:]).Transit())
				} else {
					require.Equal(t, None, a["AuthMethod"])
				}
				step, err = l.Step(request(StageOperational, true, StageFullFeature, p.op...))
				require.NoError(t, err)
				if !step.Ready { // the target had something to say first
					require.False(t, LoginResponse(step.Response.BHS[:]).Transit())
					t.Fatalf("another round: %v", answers(t, step.Response))
				}
				step = l.Finish(1)
				a = answers(t, step.Response)
				for _, kv := range p.op {
					k, offer, _ := strings.Cut(kv, "=")
					key, known := LookupKey(k)
					switch {
					case !known:
						require.Equal(t, NotUnderstood, a[k])
					case key.Func == Declare:
					case k == "IFMarker", k == "OFMarker":
						require.Equal(t, No, a[k])
					default:
						require.NotContains(t, []string{Rejected, NotUnderstood, Irrelevant, ""}, a[k], "%s=%s", k, offer)
					}
				}
			})
		}
	}
}
