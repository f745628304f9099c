package iscsi

import (
	"bytes"
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

func TestImpossibleSettings(t *testing.T) {
	for _, s := range []Settings{
		{MaxBurstLength: 100},
		{MaxRecvDataSegment: 1 << 24},
		{FirstBurstLength: -1},
		{MaxOutstandingR2T: 65536},
		{DefaultTime2Wait: 3601},
		{DefaultTime2Retain: -1},
		{ProtocolLevel: 32},
		{TargetRecvDataSegment: 511},
		{InitiatorRecvDataSegment: 1 << 24},
		{MaxOutstandingUnexpectedPDUs: 1},
		{MaxAHSLength: 1},
		{HeaderDigest: []string{"MD4"}},
		{TaskReporting: []string{""}},
	} {
		require.ErrorIs(t, s.Check(), ErrSettings, "%+v", s)
	}
	require.NoError(t, (&Settings{}).Check())
	require.NoError(t, (&Settings{MaxBurstLength: 512, FirstBurstLength: MaxDataSegment, HeaderDigest: []string{"CRC32C", None}}).Check())
}
