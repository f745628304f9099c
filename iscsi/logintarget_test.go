package iscsi

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// request is a Login Request with text, as a peer would send it.
func request(csg Stage, transit bool, nsg Stage, pairs ...string) *PDU {
	p := new(PDU)
	h := LoginRequest(p.BHS[:])
	h.Init()
	h.SetCSG(csg)
	h.SetTransit(transit)
	h.SetNSG(nsg)
	h.SetISID([6]byte{0, 2, 0x3d, 0, 0, 1})
	h.SetCmdSN(1)
	p.Data = []byte(strings.Join(pairs, "\x00") + "\x00")
	if len(pairs) == 0 {
		p.Data = nil
	}
	return p
}

func names(more ...string) []string {
	return append([]string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget, "SessionType=Normal"}, more...)
}

// answers are the keys of a response, with special answers only if asked.
func answers(t testing.TB, p *PDU) map[string]string {
	t.Helper()
	text, err := ParseText(p.Data)
	require.NoError(t, err)
	require.Empty(t, text.Duplicate())
	m := map[string]string{}
	for _, kv := range text {
		m[kv.Key] = kv.Value
	}
	return m
}

// The target's answer to each key, offered alone.
func TestTargetAnswersEveryKey(t *testing.T) { // RFC 7143, section 13; RFC 7145, section 6
	for _, tc := range []struct {
		offer string
		rdma  bool
		want  string // "" for no answer
	}{
		{"HeaderDigest=CRC32C", false, "CRC32C"},
		{"HeaderDigest=None,CRC32C", false, "None"},
		{"DataDigest=X-md4,CRC32C,None", false, "CRC32C"},
		{"DataDigest=X-md4", false, "Reject"},
		{"DataDigest=", false, "Reject"},
		{"HeaderDigest=CRC32C,None", true, "None"},
		{"HeaderDigest=CRC32C", true, "Reject"},
		{"MaxConnections=4", false, "1"},
		{"MaxConnections=0", false, "Reject"},
		{"InitialR2T=No", false, "Yes"},
		{"InitialR2T=Yes", false, "Yes"},
		{"InitialR2T=yes", false, "Reject"},
		{"ImmediateData=Yes", false, "Yes"},
		{"ImmediateData=No", false, "No"},
		{"MaxBurstLength=16776192", false, "1048576"},
		{"MaxBurstLength=0x200", false, "512"},
		{"MaxBurstLength=511", false, "Reject"},
		{"MaxBurstLength=16777216", false, "Reject"},
		{"MaxBurstLength=512~8192", false, "Reject"},
		{"FirstBurstLength=262144", false, "65536"},
		{"DefaultTime2Wait=0", false, "2"},
		{"DefaultTime2Wait=3600", false, "3600"},
		{"DefaultTime2Wait=3601", false, "Reject"},
		{"DefaultTime2Retain=20", false, "0"},
		{"MaxOutstandingR2T=65535", false, "8"},
		{"MaxOutstandingR2T=1", false, "1"},
		{"DataPDUInOrder=No", false, "Yes"},
		{"DataSequenceInOrder=No", false, "Yes"},
		{"ErrorRecoveryLevel=2", false, "0"},
		{"ErrorRecoveryLevel=3", false, "Reject"},
		{"TaskReporting=FastAbort,ResponseFence,RFC3720", false, "RFC3720"},
		{"iSCSIProtocolLevel=2", false, "2"},
		{"iSCSIProtocolLevel=31", false, "2"},
		{"X#NodeArchitecture=Linux,x86_64", false, ""},
		{"InitiatorAlias=box", false, ""},
		{"MaxRecvDataSegmentLength=512", false, ""},
		{"IFMarker=No", false, "No"},
		{"OFMarker=Yes", false, "No"},
		{"OFMarkInt=1~65535", false, "Reject"},
		{"RDMAExtensions=Yes", false, "No"},
		{"RDMAExtensions=Yes", true, "Yes"},
		{"TargetRecvDataSegmentLength=8192", false, "Irrelevant"},
		{"TargetRecvDataSegmentLength=65536", true, "8192"},
		{"InitiatorRecvDataSegmentLength=512", true, "512"},
		{"InitiatorRecvDataSegmentLength=16777215", true, "8192"},
		{"InitiatorRecvDataSegmentLength=16777216", true, "Reject"},
		{"MaxOutstandingUnexpectedPDUs=2", true, "8"}, // both declare
		{"iSERHelloRequired=No", true, ""},
		{"TaggedBufferForSolicitedDataOnly=Yes", false, ""},
		{"X-com.example.foo=1", false, "NotUnderstood"},
		{"Foo=1", false, "NotUnderstood"},
		{"Foo=NotUnderstood", false, ""},
	} {
		t.Run(fmt.Sprintf("%s rdma=%t", tc.offer, tc.rdma), func(t *testing.T) {
			c := targetConfig()
			c.RDMA = tc.rdma
			step, err := NewTargetLogin(c).Step(request(StageOperational, false, 0, names(tc.offer)...))
			require.NoError(t, err)
			key, _, _ := strings.Cut(tc.offer, "=")
			got := answers(t, step.Response)
			require.Equal(t, "7", got["TargetPortalGroupTag"])
			if key == KeyMaxRecvDataSegment { // the target's own declaration
				require.Equal(t, "262144", got[key])
				return
			}
			require.Equal(t, tc.want, got[key])
		})
	}
}

func TestFirstBurstLengthFollowsTheOthers(t *testing.T) { // RFC 7143, section 13.14
	c := targetConfig()
	step, err := NewTargetLogin(c).Step(request(StageOperational, false, 0, names("FirstBurstLength=8192", "InitialR2T=Yes", "ImmediateData=No")...))
	require.NoError(t, err)
	require.Equal(t, Irrelevant, answers(t, step.Response)["FirstBurstLength"])
	step, err = NewTargetLogin(c).Step(request(StageOperational, false, 0, names("FirstBurstLength=65536", "MaxBurstLength=4096")...))
	require.NoError(t, err)
	require.Equal(t, "4096", answers(t, step.Response)["FirstBurstLength"], "whatever the order, it does not pass MaxBurstLength")
}

func TestDiscoveryHasNoSessionKeys(t *testing.T) { // RFC 7145, sections 5.1 and 6.3
	c := targetConfig()
	c.RDMA = true
	step, err := NewTargetLogin(c).Step(request(StageOperational, true, StageFullFeature, "InitiatorName="+testInitiator, "SessionType=Discovery",
		"RDMAExtensions=Yes", "InitialR2T=No", "MaxConnections=2", "TargetRecvDataSegmentLength=8192", "MaxRecvDataSegmentLength=32768", "DefaultTime2Wait=0", "HeaderDigest=CRC32C,None"))
	require.NoError(t, err)
	require.True(t, step.Ready)
	require.True(t, step.Params.Discovery)
	require.False(t, step.Params.RDMAExtensions)
	require.Equal(t, 32768, step.Params.MaxSendDataSegment)
	require.Equal(t, 262144, step.Params.MaxRecvDataSegment)
	require.Empty(t, step.Params.TargetName)
}

// status runs requests into a fresh target and returns the status of the refusal, which must be the last response.
func status(t testing.TB, c TargetLoginConfig, reqs ...*PDU) LoginStatus {
	t.Helper()
	l := NewTargetLogin(c)
	for i, r := range reqs {
		step, err := l.Step(r)
		if i < len(reqs)-1 {
			require.NoError(t, err)
			require.NotNil(t, step.Response)
			continue
		}
		var le *LoginError
		require.ErrorAs(t, err, &le)
		require.NotNil(t, step.Response, "a refusal is told")
		h := LoginResponse(step.Response.BHS[:])
		require.Equal(t, le.Status(), h.Status())
		require.False(t, h.Transit())
		require.NoError(t, Validate(step.Response, false))
		return h.Status()
	}
	return 0
}

func TestTargetRefusals(t *testing.T) { // RFC 7143, section 11.13.5
	op := func(pairs ...string) *PDU { return request(StageOperational, true, StageFullFeature, pairs...) }
	raw := func(f func(LoginRequest)) *PDU {
		p := op(names()...)
		f(LoginRequest(p.BHS[:]))
		return p
	}
	rdma := targetConfig()
	rdma.RDMA = true
	for name, tc := range map[string]struct {
		cfg  TargetLoginConfig
		reqs []*PDU
		want LoginStatus
	}{
		"no InitiatorName":           {targetConfig(), []*PDU{op("TargetName=" + testTarget)}, LoginMissingParameter},
		"no TargetName":              {targetConfig(), []*PDU{op("InitiatorName=" + testInitiator)}, LoginMissingParameter},
		"no text":                    {targetConfig(), []*PDU{op()}, LoginMissingParameter},
		"name that is none":          {targetConfig(), []*PDU{op("InitiatorName=bob", "TargetName="+testTarget)}, LoginInitiatorError},
		"unknown session type":       {targetConfig(), []*PDU{op("InitiatorName="+testInitiator, "SessionType=Chat", "TargetName="+testTarget)}, LoginBadSessionType},
		"version":                    {targetConfig(), []*PDU{raw(func(h LoginRequest) { h.SetVersionMin(1); h.SetVersionMax(2) })}, LoginBadVersion},
		"T and C":                    {targetConfig(), []*PDU{raw(func(h LoginRequest) { h.SetContinue(true) })}, LoginInitiatorError},
		"stage 2":                    {targetConfig(), []*PDU{raw(func(h LoginRequest) { h.SetCSG(2) })}, LoginInitiatorError},
		"full feature stage":         {targetConfig(), []*PDU{raw(func(h LoginRequest) { h.SetCSG(3) })}, LoginInitiatorError},
		"not a login":                {targetConfig(), []*PDU{func() *PDU { p := new(PDU); NOPOut(p.BHS[:]).Init(); return p }()}, LoginInvalidRequest},
		"key twice in one PDU":       {targetConfig(), []*PDU{op(names("MaxBurstLength=8192", "MaxBurstLength=8192")...)}, LoginInitiatorError},
		"special word offered":       {targetConfig(), []*PDU{op(names("MaxBurstLength=Irrelevant")...)}, LoginInitiatorError},
		"target's key":               {targetConfig(), []*PDU{op(names("TargetPortalGroupTag=1")...)}, LoginInitiatorError},
		"SendTargets during login":   {targetConfig(), []*PDU{op(names("SendTargets=All")...)}, LoginInitiatorError},
		"impossible declaration":     {targetConfig(), []*PDU{op(names("MaxRecvDataSegmentLength=100")...)}, LoginInitiatorError},
		"broken text":                {targetConfig(), []*PDU{op(names("nonsense")...)}, LoginInitiatorError},
		"operational key too early":  {targetConfig(), []*PDU{request(StageSecurity, true, StageOperational, names("MaxBurstLength=8192")...)}, LoginInitiatorError},
		"AuthMethod too late":        {targetConfig(), []*PDU{op(names("AuthMethod=None")...)}, LoginInitiatorError},
		"unknown AuthMethod":         {targetConfig(), []*PDU{request(StageSecurity, true, StageOperational, names("AuthMethod=KRB5")...)}, LoginAuthFailed},
		"CHAP key without a method":  {targetConfig(), []*PDU{request(StageSecurity, true, StageOperational, names("CHAP_A=5")...)}, LoginInitiatorError},
		"RDMAExtensions=No on RDMA":  {rdma, []*PDU{op(names("RDMAExtensions=No")...)}, LoginInitiatorError},
		"no RDMAExtensions on RDMA":  {rdma, []*PDU{op(names()...)}, LoginInitiatorError},
		"key twice in two PDUs":      {targetConfig(), []*PDU{request(StageOperational, false, 0, names()...), op("InitiatorName=" + testInitiator)}, LoginInitiatorError},
		"session type in second PDU": {targetConfig(), []*PDU{request(StageOperational, false, 0, names()[:2]...), op("SessionType=Discovery")}, LoginInitiatorError},
		"stage goes back":            {targetConfig(), []*PDU{request(StageOperational, false, 0, names()...), request(StageSecurity, false, 0)}, LoginInitiatorError},
		"ITT changes": {targetConfig(), []*PDU{request(StageOperational, false, 0, names()...), func() *PDU {
			p := op()
			LoginRequest(p.BHS[:]).SetITT(5)
			return p
		}()}, LoginInitiatorError},
		"ISID changes": {targetConfig(), []*PDU{request(StageOperational, false, 0, names()...), func() *PDU {
			p := op()
			LoginRequest(p.BHS[:]).SetISID([6]byte{1})
			return p
		}()}, LoginInitiatorError},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, status(t, tc.cfg, tc.reqs...)) })
	}
}

func TestTargetNamesTheRepeatedKey(t *testing.T) {
	l := NewTargetLogin(targetConfig())
	_, err := l.Step(request(StageOperational, false, 0, names()...))
	require.NoError(t, err)
	_, err = l.Step(request(StageOperational, true, StageFullFeature, "InitiatorName="+testInitiator))
	require.EqualError(t, err, "iscsi: login refused: 0200 (initiator error): key InitiatorName sent twice")
}

func TestTargetsDecisionBecomesTheStatus(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want LoginStatus
	}{
		{NewLoginError(LoginNotFound, "no such target"), LoginNotFound},
		{fmt.Errorf("acl: %w", NewLoginError(LoginForbidden, "not yours")), LoginForbidden},
		{errors.New("disk on fire"), LoginTargetError},
	} {
		c := targetConfig()
		c.Identify = func(Identity) (Grant, error) { return Grant{}, tc.err }
		require.Equal(t, tc.want, status(t, c, request(StageOperational, true, StageFullFeature, names()...)))
	}
	l := NewTargetLogin(targetConfig())
	step, err := l.Step(request(StageOperational, true, StageFullFeature, names()...))
	require.NoError(t, err)
	require.True(t, step.Ready)
	step = l.Refuse(NewLoginError(LoginNoResources, "no memory"))
	require.Equal(t, LoginNoResources, LoginResponse(step.Response.BHS[:]).Status())
	require.Zero(t, l.Finish(1), "a refused login is over")
}

func TestRequestWhileTheFinalResponseIsDue(t *testing.T) {
	l := NewTargetLogin(targetConfig())
	r := request(StageOperational, true, StageFullFeature, names()...)
	step, err := l.Step(r)
	require.NoError(t, err)
	require.True(t, step.Ready)
	_, err = l.Step(r)
	require.ErrorIs(t, err, &LoginError{Class: 2, Detail: 0x0b})
}

func TestNamesAreComparedInOneForm(t *testing.T) {
	c := targetConfig()
	c.Identify = func(id Identity) (Grant, error) {
		require.Equal(t, "iqn.1991-05.com.example:host7", id.InitiatorName)
		require.Equal(t, "iqn.2026-11.com.example:test001", id.TargetName)
		require.Equal(t, "Box", id.InitiatorAlias)
		return Grant{}, nil
	}
	_, err := NewTargetLogin(c).Step(request(StageOperational, true, StageFullFeature,
		"InitiatorName=IQN.1991-05.com.example:Host7", "TargetName=iqn.2026-11.com.example:TEST001", "InitiatorAlias=Box"))
	require.NoError(t, err)
}

func TestLinuxInitiatorLogsIn(t *testing.T) {
	req, _, err := DecodePDU(readCaptured(t, "linux-iser.txt")[0].bytes, false, false, LoginSegment)
	require.NoError(t, err)
	c := targetConfig()
	c.RDMA = true
	l := NewTargetLogin(c)
	step, err := l.Step(&req)
	require.NoError(t, err)
	require.True(t, step.Ready, "one exchange")
	step = l.Finish(1)
	got := answers(t, step.Response)
	want := map[string]string{
		"TargetPortalGroupTag": "7", "DefaultTime2Wait": "2", "DefaultTime2Retain": "0", "IFMarker": "No", "OFMarker": "No", "ErrorRecoveryLevel": "0",
		"InitialR2T": "Yes", "ImmediateData": "Yes", "MaxBurstLength": "1048576", "FirstBurstLength": "65536", "MaxOutstandingR2T": "1", "MaxConnections": "1",
		"DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes", "InitiatorRecvDataSegmentLength": "8192", "TargetRecvDataSegmentLength": "8192",
		"RDMAExtensions": "Yes", // and no declaration that open-iscsi does not know: it would end the login
	}
	require.Equal(t, want, got)
	require.True(t, step.Params.RDMAExtensions)
}

// A text of any length crosses in PDUs joined by C, in both directions, answered by empty PDUs.
func TestLongTextCrossesInPieces(t *testing.T) { // RFC 7143, section 6.2
	l := NewTargetLogin(targetConfig())
	var text Text
	for _, kv := range names() {
		k, v, _ := strings.Cut(kv, "=")
		text.Add(k, v)
	}
	for i := range 100 {
		text.Add(fmt.Sprintf("X-com.example.k%d", i), strings.Repeat("v", 250))
	}
	var s TextSplitter
	s.Load(text)
	answered := Text{}
	var c TextCollector
	var step TargetStep
	var err error
	for s.Len() > 0 {
		p := request(StageOperational, false, 0)
		data, more := s.Next(LoginSegment)
		p.Data = data
		LoginRequest(p.BHS[:]).SetContinue(more)
		step, err = l.Step(p)
		require.NoError(t, err)
		if more {
			require.Empty(t, step.Response.Data)
			require.Equal(t, byte(0x04), step.Response.BHS[1], "no T, no C")
		}
	}
	for range 3 {
		h := LoginResponse(step.Response.BHS[:])
		got, done, err := c.Add(step.Response.Data, h.Continue())
		require.NoError(t, err)
		if done {
			answered = got
			break
		}
		step, err = l.Step(request(StageOperational, false, 0))
		require.NoError(t, err)
	}
	n := 0
	for _, kv := range answered {
		if kv.Value == NotUnderstood {
			n++
		}
	}
	require.Equal(t, 100, n)
	step, err = l.Step(request(StageOperational, true, StageFullFeature))
	require.NoError(t, err)
	require.True(t, step.Ready)
}

func TestTargetBringsUpWhatItCannotLeave(t *testing.T) {
	c := targetConfig()
	c.Settings = Settings{NoImmediateData: true, FirstBurstLength: 4096, MaxBurstLength: 65536, DataDigest: []string{"CRC32C"}}
	l := NewTargetLogin(c)
	step, err := l.Step(request(StageOperational, true, StageFullFeature, names()...))
	require.NoError(t, err)
	require.False(t, LoginResponse(step.Response.BHS[:]).Transit(), "offers are open")
	got := answers(t, step.Response)
	require.Equal(t, "No", got["ImmediateData"])
	require.Equal(t, "4096", got["FirstBurstLength"])
	require.Equal(t, "65536", got["MaxBurstLength"])
	require.Equal(t, "CRC32C", got["DataDigest"])
	step, err = l.Step(request(StageOperational, true, StageFullFeature, "FirstBurstLength=4096", "MaxBurstLength=8192", "DataDigest=CRC32C"))
	require.NoError(t, err)
	require.True(t, step.Ready)
	require.False(t, step.Params.ImmediateData)
	require.Equal(t, 8192, step.Params.MaxBurstLength)
	require.True(t, step.Params.DataDigest)
}

func TestTargetThatInsistsOnADigest(t *testing.T) {
	c := targetConfig()
	c.Settings.HeaderDigest = []string{"CRC32C"}
	l := NewTargetLogin(c)
	_, err := l.Step(request(StageOperational, true, StageFullFeature, names()...))
	require.NoError(t, err)
	_, err = l.Step(request(StageOperational, true, StageFullFeature, "HeaderDigest=Reject"))
	require.ErrorIs(t, err, ErrNegotiation)
}

func FuzzTargetLogin(f *testing.F) {
	for _, c := range readCaptured(f, "linux-iser.txt") {
		if BHS(c.bytes).Opcode() == OpLoginReq {
			f.Add(c.bytes, c.bytes, true)
		}
	}
	a := request(StageSecurity, true, StageOperational, names("AuthMethod=None")...)
	b := request(StageOperational, true, StageFullFeature, "MaxBurstLength=8192")
	f.Add(append(a.BHS[:], a.Data...), append(b.BHS[:], b.Data...), false)
	f.Fuzz(func(t *testing.T, one, two []byte, rdma bool) {
		c := targetConfig()
		c.RDMA = rdma
		l := NewTargetLogin(c)
		for _, in := range [][]byte{one, two, one} {
			p := new(PDU)
			p.Data = in[copy(p.BHS[:], in):]
			step, err := l.Step(p)
			if step.Response != nil {
				if verr := Validate(step.Response, false); verr != nil {
					t.Fatal(verr)
				}
				if _, perr := ParseText(step.Response.Data); perr != nil && !LoginResponse(step.Response.BHS[:]).Continue() && err == nil {
					t.Fatal(perr)
				}
			}
			if step.Ready {
				if step.Params.MaxSendDataSegment < 512 || step.Params.MaxBurstLength < 512 {
					t.Fatalf("%+v", step.Params)
				}
				l.Finish(1)
			}
		}
	})
}
