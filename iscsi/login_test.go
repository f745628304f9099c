package iscsi

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	testInitiator = "iqn.2026-11.com.example:host"
	testTarget    = "iqn.2026-11.com.example:disk"
)

func grantAll(Identity) (Grant, error) { return Grant{PortalGroup: 7}, nil }

func targetConfig() TargetLoginConfig {
	return TargetLoginConfig{Identify: grantAll, StatSN: 0xfffffffe, Window: 32}
}

func initiatorConfig() InitiatorLoginConfig {
	return InitiatorLoginConfig{
		InitiatorName: testInitiator, TargetName: testTarget, ISID: [6]byte{0x80, 1, 2, 3, 4, 5},
		CID: 9, ITT: 0x77, CmdSN: 100,
	}
}

// drive runs both machines against each other until one side ends. It fails the test if they do not come to an end.
func drive(t require.TestingT, i *InitiatorLogin, tg *TargetLogin) (ini, tgt *Params, step InitiatorStep, ierr, terr error) {
	is := i.First()
	for range 2 * maxLoginExchanges {
		ts, err := tg.Step(is.Request)
		if ts.Ready {
			require.Nil(t, ts.Response)
			require.True(t, is.Last, "the last request was announced")
			ts = tg.Finish(0x1234)
			require.True(t, ts.Done)
		}
		require.NotNil(t, ts.Response)
		require.LessOrEqual(t, len(ts.Response.Data), LoginSegment)
		terr = err
		is, ierr = i.Step(ts.Response)
		if terr != nil || ierr != nil {
			return nil, nil, is, ierr, terr
		}
		if is.Done {
			require.NotNil(t, ts.Params)
			return is.Params, ts.Params, is, nil, nil
		}
		require.LessOrEqual(t, len(is.Request.Data), LoginSegment)
	}
	require.Fail(t, "no end")
	return
}

func TestLoginWithDefaults(t *testing.T) {
	i, tg := NewInitiatorLogin(initiatorConfig()), NewTargetLogin(targetConfig())
	ip, tp, step, ierr, terr := drive(t, i, tg)
	require.NoError(t, ierr)
	require.NoError(t, terr)
	require.Equal(t, &Params{
		InitiatorName: testInitiator, TargetName: testTarget, ISID: [6]byte{0x80, 1, 2, 3, 4, 5}, TSIH: 0x1234, CID: 9, PortalGroup: 7,
		InitialR2T: true, ImmediateData: true, MaxBurstLength: 1 << 20, FirstBurstLength: 65536, MaxOutstandingR2T: 8,
		DataPDUInOrder: true, DataSequenceInOrder: true, DefaultTime2Wait: 2, MaxConnections: 1, ISCSIProtocolLevel: 1, TaskReporting: "RFC3720",
		MaxRecvDataSegment: 262144, MaxSendDataSegment: 262144,
	}, ip)
	require.Equal(t, ip, tp)
	require.EqualValues(t, 100, step.ExpCmdSN)
	require.EqualValues(t, 131, step.MaxCmdSN)
	require.EqualValues(t, 0xffffffff, step.ExpStatSN)
	require.Equal(t, step.ExpStatSN, tg.StatSN())
	require.EqualValues(t, 100, tg.CmdSN())
	_, err := i.Step(new(PDU))
	require.Error(t, err)
	_, err = tg.Step(new(PDU))
	require.Error(t, err)
}

func TestLoginOverRDMA(t *testing.T) { // RFC 7145, section 6
	ic, tc := initiatorConfig(), targetConfig()
	ic.RDMA, tc.RDMA = true, true
	ic.Settings = Settings{TargetRecvDataSegment: 16384, InitiatorRecvDataSegment: 4096, MaxOutstandingUnexpectedPDUs: 5, MaxAHSLength: 512, TaggedBufferForSolicitedDataOnly: true}
	tc.Settings = Settings{HeaderDigest: []string{"CRC32C"}, InitiatorRecvDataSegment: 512, MaxOutstandingUnexpectedPDUs: 2}
	ip, tp, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
	require.NoError(t, ierr)
	require.NoError(t, terr)
	require.True(t, ip.RDMAExtensions)
	require.False(t, ip.HeaderDigest || ip.DataDigest)
	require.Equal(t, 8192, ip.TargetRecvDataSegmentLength)
	require.Equal(t, 512, ip.InitiatorRecvDataSegmentLength)
	require.Equal(t, [2]int{512, 8192}, [2]int{ip.MaxRecvDataSegment, ip.MaxSendDataSegment})
	require.Equal(t, [2]int{8192, 512}, [2]int{tp.MaxRecvDataSegment, tp.MaxSendDataSegment})
	require.EqualValues(t, 2, ip.MaxOutstandingUnexpectedPDUs)
	require.EqualValues(t, 5, ip.OwnMaxOutstandingUnexpectedPDUs)
	require.EqualValues(t, 5, tp.MaxOutstandingUnexpectedPDUs)
	require.EqualValues(t, 512, tp.MaxAHSLength)
	require.EqualValues(t, 256, ip.MaxAHSLength)
	require.True(t, ip.TaggedBufferForSolicitedDataOnly && tp.TaggedBufferForSolicitedDataOnly)
	require.False(t, ip.ISERHelloRequired || tp.ISERHelloRequired)
}

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

func TestDiscoveryLogin(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		ic, tc := initiatorConfig(), targetConfig()
		ic.Discovery, ic.TargetName, ic.RDMA, tc.RDMA = true, "", rdma, rdma
		ic.Settings.HeaderDigest = []string{"CRC32C", "None"}
		tc.Identify = func(id Identity) (Grant, error) {
			require.True(t, id.Discovery)
			return Grant{PortalGroup: 1}, nil
		}
		first := NewInitiatorLogin(ic).First()
		text, err := ParseText(first.Request.Data)
		require.NoError(t, err)
		for _, kv := range text {
			k, _ := LookupKey(kv.Key)
			require.False(t, k.NotDiscovery || k.RDMA, "%s in discovery", kv.Key)
		}
		ip, tp, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
		require.NoError(t, ierr)
		require.NoError(t, terr)
		require.Equal(t, ip, tp)
		require.Equal(t, !rdma, ip.HeaderDigest, "a digest in discovery works over TCP and is None over RDMA")
	}
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

// response is a Login Response as a target would send it.
func response(csg Stage, transit bool, nsg Stage, pairs ...string) *PDU {
	p := new(PDU)
	h := LoginResponse(p.BHS[:])
	h.Init()
	h.SetCSG(csg)
	h.SetTransit(transit)
	h.SetNSG(nsg)
	h.SetISID(initiatorConfig().ISID)
	h.SetITT(initiatorConfig().ITT)
	h.SetTSIH(1)
	if len(pairs) > 0 {
		p.Data = []byte(strings.Join(pairs, "\x00") + "\x00")
	}
	return p
}

// fullAnswer answers every offer of an initiator with Settings zero over TCP.
func fullAnswer(change ...string) []string {
	m := []string{
		"TargetPortalGroupTag=1", "HeaderDigest=None", "DataDigest=None", "MaxConnections=1", "InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=262144",
		"FirstBurstLength=65536", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "MaxOutstandingR2T=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "ErrorRecoveryLevel=0",
	}
	for _, c := range change {
		key, _, _ := strings.Cut(c, "=")
		at := -1
		for i, kv := range m {
			if strings.HasPrefix(kv, key+"=") {
				at = i
			}
		}
		if at < 0 {
			m = append(m, c)
		} else if strings.HasSuffix(c, "=-") {
			m = append(m[:at], m[at+1:]...)
		} else {
			m[at] = c
		}
	}
	return m
}

func TestInitiatorTakesSpecialAnswersAndTheTargetsOffers(t *testing.T) {
	l := NewInitiatorLogin(initiatorConfig())
	sent := map[string]int{}
	count := func(p *PDU) map[string]string {
		m := answers(t, p)
		for k := range m {
			sent[k]++
		}
		return m
	}
	first := l.First()
	count(first.Request)
	step, err := l.Step(response(StageOperational, false, 0, fullAnswer(
		"FirstBurstLength=Irrelevant", "MaxOutstandingR2T=Reject", "DefaultTime2Wait=NotUnderstood",
		"MaxRecvDataSegmentLength=8192", "TaskReporting=RFC3720,FastAbort", "X-com.example.foo=bar")...))
	require.NoError(t, err)
	got := count(step.Request)
	require.Equal(t, map[string]string{"TaskReporting": "RFC3720", "X-com.example.foo": "NotUnderstood"}, got)
	require.True(t, LoginRequest(step.Request.BHS[:]).Transit())
	step, err = l.Step(response(StageOperational, true, StageFullFeature))
	require.NoError(t, err)
	require.True(t, step.Done)
	for k, n := range sent {
		require.Equal(t, 1, n, "%s sent twice", k)
	}
	require.Equal(t, 65536, step.Params.FirstBurstLength, "default")
	require.Equal(t, 1, step.Params.MaxOutstandingR2T, "default")
	require.Equal(t, 2, step.Params.DefaultTime2Wait, "default")
	require.Equal(t, 8192, step.Params.MaxSendDataSegment)
}

func TestInitiatorToleratesAFinalAnswerThatNeedsNone(t *testing.T) {
	l := NewInitiatorLogin(initiatorConfig())
	l.First()
	step, err := l.Step(response(StageOperational, true, StageFullFeature, fullAnswer("TaskReporting=RFC3720", "TargetAlias=LIO Target")...))
	require.NoError(t, err)
	require.True(t, step.Done)
}

func TestInitiatorGivesUp(t *testing.T) {
	final := func(pairs ...string) *PDU { return response(StageOperational, true, StageFullFeature, pairs...) }
	set := func(p *PDU, f func(LoginResponse)) *PDU { f(LoginResponse(p.BHS[:])); return p }
	for name, p := range map[string]*PDU{
		"not a login":            func() *PDU { p := new(PDU); NOPIn(p.BHS[:]).Init(); return p }(),
		"initiator's opcode":     request(StageOperational, true, StageFullFeature),
		"larger than offered":    final(fullAnswer("MaxBurstLength=16776192")...),
		"AND turned up":          final(fullAnswer("DefaultTime2Wait=1")...),
		"value not offered":      final(fullAnswer("HeaderDigest=CRC32C")...),
		"no value at all":        final(fullAnswer("InitialR2T=maybe")...),
		"offer left open":        final(fullAnswer("MaxBurstLength=-")...),
		"offer in the last":      final(fullAnswer("TaskReporting=FastAbort,RFC3720")...),
		"key twice":              final(append(fullAnswer(), "TargetPortalGroupTag=1")...),
		"special word offered":   final(fullAnswer("TaskReporting=Reject")...),
		"no session handle":      set(final(fullAnswer()...), func(h LoginResponse) { h.SetTSIH(0) }),
		"other ISID":             set(final(fullAnswer()...), func(h LoginResponse) { h.SetISID([6]byte{}) }),
		"other ITT":              set(final(fullAnswer()...), func(h LoginResponse) { h.SetITT(1) }),
		"other version":          set(final(fullAnswer()...), func(h LoginResponse) { h.SetVersionActive(1) }),
		"other stage":            response(StageSecurity, true, StageOperational),
		"portal group not told":  final(fullAnswer("TargetPortalGroupTag=-")...),
		"portal group differs":   final(fullAnswer("TargetPortalGroupTag=2")...),
		"portal group too large": final(fullAnswer("TargetPortalGroupTag=65536")...),
		"broken text":            final("x"),
	} {
		t.Run(name, func(t *testing.T) {
			c := initiatorConfig()
			c.CheckPortalGroup, c.PortalGroup = true, 1
			l := NewInitiatorLogin(c)
			l.First()
			_, err := l.Step(p)
			var le *LoginError
			require.ErrorAs(t, err, &le)
			require.False(t, le.Remote)
			require.Zero(t, le.Status())
			require.Contains(t, err.Error(), "login given up: ")
			_, err = l.Step(final(fullAnswer()...))
			require.Error(t, err, "over is over")
		})
	}
}

func TestInitiatorReportsARefusal(t *testing.T) {
	refuse := func(s LoginStatus, pairs ...string) *PDU {
		p := response(0, false, 0, pairs...)
		LoginResponse(p.BHS[:]).SetStatus(s)
		p.BHS[1] = 0xff // reserved in a refusal
		return p
	}
	for _, tc := range []struct {
		p    *PDU
		want LoginError
		text string
	}{
		{refuse(LoginNotFound), LoginError{Class: 2, Detail: 3, Remote: true}, "iscsi: login refused by the target: 0203 (target not found)"},
		{
			refuse(LoginAuthFailed), LoginError{Class: 2, Detail: 1, Remote: true, Text: "the target demands authentication and no credentials are configured"},
			"iscsi: login refused by the target: 0201 (authentication failure): the target demands authentication and no credentials are configured",
		},
		{refuse(LoginMovedTemporarily, "TargetAddress=[2001:db8::1]:3260"), LoginError{Class: 1, Detail: 1, Remote: true, Address: "[2001:db8::1]:3260"}, "iscsi: login redirected to [2001:db8::1]:3260: 0101 (target moved temporarily)"},
		{refuse(0x03ff), LoginError{Class: 3, Detail: 0xff, Remote: true}, "iscsi: login refused by the target: 03ff"},
	} {
		l := NewInitiatorLogin(initiatorConfig())
		l.First()
		_, err := l.Step(tc.p)
		var le *LoginError
		require.ErrorAs(t, err, &le)
		require.Equal(t, tc.want, *le)
		require.EqualError(t, err, tc.text)
		require.Equal(t, tc.want.Class == 3, le.Temporary())
	}
}

func TestRDMARefusedByTheTarget(t *testing.T) {
	for _, v := range []string{"No", "NotUnderstood", "Reject", "-"} {
		c := initiatorConfig()
		c.RDMA = true
		l := NewInitiatorLogin(c)
		l.First()
		pairs := fullAnswer("HeaderDigest=-", "DataDigest=-", "RDMAExtensions="+v, "TargetRecvDataSegmentLength=8192", "InitiatorRecvDataSegmentLength=8192")
		if v == "-" {
			pairs = fullAnswer("HeaderDigest=-", "DataDigest=-")
		}
		_, err := l.Step(response(StageOperational, true, StageFullFeature, pairs...))
		require.ErrorIs(t, err, ErrNegotiation, v)
	}
}

func TestInitiatorAgreesWithLIO(t *testing.T) {
	rsp := readCaptured(t, "linux-iser.txt")
	var text Text
	for _, c := range rsp {
		if BHS(c.bytes).Opcode() == OpLoginRsp {
			var err error
			text, err = ParseText(c.bytes[BHSLen:])
			require.NoError(t, err)
		}
	}
	require.NotEmpty(t, text)
	c := initiatorConfig()
	c.RDMA = true
	c.Settings = Settings{MaxBurstLength: 16776192, FirstBurstLength: 262144, MaxOutstandingR2T: 1, InitiatorRecvDataSegment: 262144, ISERHelloRequired: true}
	l := NewInitiatorLogin(c)
	l.First()
	text.Add(KeyISERHello, NotUnderstood) // as LIO answers it where it is declared
	p := response(StageOperational, true, StageFullFeature)
	p.Data = text.Append(nil)
	step, err := l.Step(p)
	require.NoError(t, err)
	require.True(t, step.Params.RDMAExtensions)
	require.Equal(t, 8192, step.Params.MaxSendDataSegment)
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

func TestInitiatorReadsTextInPieces(t *testing.T) {
	l := NewInitiatorLogin(initiatorConfig())
	l.First()
	full := response(StageOperational, true, StageFullFeature, fullAnswer()...)
	data := full.Data
	for i := 0; i < len(data)-1; i += 20 {
		p := response(StageOperational, false, 0)
		p.Data = data[i:min(i+20, len(data)-1)]
		LoginResponse(p.BHS[:]).SetContinue(true)
		step, err := l.Step(p)
		require.NoError(t, err)
		require.Empty(t, step.Request.Data)
		require.Equal(t, byte(0x04), step.Request.BHS[1], "no T, no C")
	}
	p := response(StageOperational, false, 0)
	p.Data = data[len(data)-1:]
	step, err := l.Step(p)
	require.NoError(t, err)
	require.True(t, LoginRequest(step.Request.BHS[:]).Transit())
	step, err = l.Step(response(StageOperational, true, StageFullFeature))
	require.NoError(t, err)
	require.True(t, step.Done)
}

func TestEndlessLoginsEnd(t *testing.T) {
	l := NewTargetLogin(targetConfig())
	_, err := l.Step(request(StageOperational, false, 0, names()...))
	for range maxLoginExchanges {
		if err == nil {
			_, err = l.Step(request(StageOperational, false, 0))
		}
	}
	require.ErrorIs(t, err, &LoginError{Class: 2})

	l = NewTargetLogin(targetConfig())
	err = nil
	for range maxLoginExchanges {
		p := request(StageOperational, false, 0)
		p.Data = bytes.Repeat([]byte("A"), LoginSegment)
		LoginRequest(p.BHS[:]).SetContinue(true)
		if _, err = l.Step(p); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, &LoginError{Class: 2})

	i := NewInitiatorLogin(initiatorConfig())
	i.First()
	err = nil
	for n := range 2 * maxLoginExchanges {
		if _, err = i.Step(response(StageOperational, false, 0)); err != nil {
			require.Equal(t, maxLoginExchanges, n)
			break
		}
	}
	require.Error(t, err)
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

// Both machines agree whatever they are set to, and the outcome obeys both sides.
func TestLoginsAgree(t *testing.T) {
	settings := func(t *rapid.T, who string) Settings {
		n := func(name string, max int) int { return rapid.IntRange(0, max).Draw(t, who+name) }
		size := func(name string) int {
			return rapid.SampledFrom([]int{0, 512, 4096, 65536, MaxDataSegment}).Draw(t, who+name)
		}
		return Settings{
			UnsolicitedData: rapid.Bool().Draw(t, who+"unsolicited"), NoImmediateData: rapid.Bool().Draw(t, who+"immediate"),
			HeaderDigest:       rapid.SampledFrom([][]string{nil, {"CRC32C", "None"}, {"None", "CRC32C"}}).Draw(t, who+"digest"),
			MaxRecvDataSegment: size("recv"), MaxBurstLength: size("burst"), FirstBurstLength: size("first"), MaxOutstandingR2T: n("r2t", 65535),
			DefaultTime2Wait: n("wait", 3600), DefaultTime2Retain: n("retain", 3600), ProtocolLevel: n("level", 2),
			TargetRecvDataSegment: size("trecv"), InitiatorRecvDataSegment: size("irecv"), MaxOutstandingUnexpectedPDUs: uint32(n("unexpected", 9)) * 2,
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		ic, tc := initiatorConfig(), targetConfig()
		ic.Settings, tc.Settings = settings(t, "i"), settings(t, "t")
		ic.RDMA = rapid.Bool().Draw(t, "rdma")
		tc.RDMA = ic.RDMA
		ic.Discovery = rapid.Bool().Draw(t, "discovery")
		ip, tp, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
		require.NoError(t, ierr)
		require.NoError(t, terr)
		require.Equal(t, ip.MaxRecvDataSegment, tp.MaxSendDataSegment)
		require.Equal(t, tp.MaxRecvDataSegment, ip.MaxSendDataSegment)
		require.Equal(t, ip.OwnMaxOutstandingUnexpectedPDUs, tp.MaxOutstandingUnexpectedPDUs)
		if !ic.Discovery {
			require.LessOrEqual(t, ip.FirstBurstLength, max(ip.MaxBurstLength, 512))
			require.Equal(t, ip.MaxBurstLength, tp.MaxBurstLength)
			require.Equal(t, !ic.Settings.UnsolicitedData || !tc.Settings.UnsolicitedData, ip.InitialR2T)
			require.Equal(t, !ic.Settings.NoImmediateData && !tc.Settings.NoImmediateData, ip.ImmediateData)
		}
		same := *tp
		same.MaxRecvDataSegment, same.MaxSendDataSegment = same.MaxSendDataSegment, same.MaxRecvDataSegment
		same.MaxOutstandingUnexpectedPDUs, same.OwnMaxOutstandingUnexpectedPDUs = same.OwnMaxOutstandingUnexpectedPDUs, same.MaxOutstandingUnexpectedPDUs
		require.Equal(t, same, *ip)
	})
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

func FuzzInitiatorLogin(f *testing.F) {
	a := response(StageOperational, false, 0, fullAnswer()...)
	b := response(StageOperational, true, StageFullFeature)
	f.Add(append(a.BHS[:], a.Data...), append(b.BHS[:], b.Data...), false)
	f.Fuzz(func(t *testing.T, one, two []byte, rdma bool) {
		c := initiatorConfig()
		c.RDMA = rdma
		l := NewInitiatorLogin(c)
		l.First()
		for _, in := range [][]byte{one, two, one} {
			p := new(PDU)
			p.Data = in[copy(p.BHS[:], in):]
			step, err := l.Step(p)
			if err != nil {
				return
			}
			if step.Request != nil {
				if verr := Validate(step.Request, true); verr != nil {
					t.Fatal(verr)
				}
			}
			if step.Done && (step.Params.MaxSendDataSegment < 512 || step.Params.FirstBurstLength > step.Params.MaxBurstLength) {
				t.Fatalf("%+v", step.Params)
			}
		}
	})
}
