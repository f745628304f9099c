package iscsi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
			refuse(LoginAuthFailed),
			LoginError{Class: 2, Detail: 1, Remote: true, Text: "the target demands authentication and no credentials are configured"},
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

// TestJoinOffersNothingOfTheLeadingLogin: the login of a further connection says whose it is, and what is settled for each connection;
// the session's type and values are the leading login's alone.
func TestJoinOffersNothingOfTheLeadingLogin(t *testing.T) {
	cfg := initiatorConfig()
	leading := answers(t, NewInitiatorLogin(cfg).First().Request)
	require.Contains(t, leading, KeySessionType)
	require.Contains(t, leading, KeyMaxConnections)
	cfg.Join = &Params{MaxConnections: 4, MaxBurstLength: 262144, FirstBurstLength: 65536, MaxOutstandingR2T: 1}
	join := answers(t, NewInitiatorLogin(cfg).First().Request)
	require.Contains(t, join, KeyInitiatorName)
	require.Contains(t, join, KeyTargetName)
	for _, k := range []string{KeySessionType, KeyMaxConnections, KeyInitialR2T, KeyMaxBurstLength, KeyErrorRecoveryLevel} {
		require.NotContains(t, join, k)
	}
}
