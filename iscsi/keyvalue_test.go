package iscsi

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTextKeepsOrderAndEqualSigns(t *testing.T) {
	text := Text{{"InitiatorName", "iqn.2026-11.com.example:a"}, {"InitiatorAlias", ""}, {"CHAP_R", "0bAAAA=="}, {"X#NodeArchitecture", "none"}}
	b := text.Append(nil)
	require.Equal(t, "InitiatorName=iqn.2026-11.com.example:a\x00InitiatorAlias=\x00CHAP_R=0bAAAA==\x00X#NodeArchitecture=none\x00", string(b))
	got, err := ParseText(append(b, 0, 0))
	require.NoError(t, err)
	require.Equal(t, text, got)
	v, ok := got.Get("CHAP_R")
	require.True(t, ok)
	require.Equal(t, "0bAAAA==", v)
}

func TestBadTextIsRefused(t *testing.T) { // RFC 7143, section 6.1
	long := strings.Repeat("x", 300)
	for name, b := range map[string]string{
		"no end":           "A=b",
		"no equal sign":    "Abc\x00",
		"no key":           "=b\x00",
		"at sign first":    "@bc=d\x00",
		"digit first":      "1A=d\x00",
		"space in the key": "A b=d\x00",
		"long key":         "A" + strings.Repeat("b", MaxKeyLen) + "=d\x00",
		"long value":       "A=" + long + "\x00",
		"long binary":      "CHAP_C=0x" + strings.Repeat("0", 2*8192+1) + "\x00",
	} {
		_, err := ParseText([]byte(b))
		require.ErrorIs(t, err, ErrText, name)
	}
	for _, b := range []string{
		"A" + strings.Repeat("b", MaxKeyLen-1) + "=d\x00",
		"A=" + long[:MaxValueLen] + "\x00",
		"CHAP_C=0x" + strings.Repeat("0", 2*8192) + "\x00",
	} {
		_, err := ParseText([]byte(b))
		require.NoError(t, err)
	}
}

func TestDuplicateKeysAreFound(t *testing.T) {
	require.Equal(t, "A", Text{{"B", ""}, {"A", "1"}, {"A", "1"}}.Duplicate())
	require.Empty(t, Text{{"A", ""}, {"a", ""}}.Duplicate())
}

func TestNumbers(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "8192": 8192, "0x2000": 8192, "0XfF": 255, "18446744073709551615": 1<<64 - 1} {
		n, err := ParseNumber(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "0x", "-1", "+1", " 1", "1 ", "1~2", "0x1g", "1e3", "1_0", "0x+1", "18446744073709551616"} {
		_, err := ParseNumber(s)
		require.ErrorIs(t, err, ErrText, "%q", s)
	}
}

func TestBinaryValues(t *testing.T) {
	for s, want := range map[string][]byte{
		"0xabc": {0x0a, 0xbc}, "0X00ff": {0, 0xff}, "0bAP8=": {0, 0xff}, "0BAP8=": {0, 0xff},
	} {
		b, err := ParseBinary(s, 2)
		require.NoError(t, err, s)
		require.Equal(t, want, b, s)
	}
	for _, s := range []string{"", "0x", "ff", "0xg0", "0b=", "0bAP8", "0bAP\n8=", "0xabcdef", "0x" + strings.Repeat("0", 100), "12345"} {
		_, err := ParseBinary(s, 2)
		require.ErrorIs(t, err, ErrText, "%q", s)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "b")
		got, err := ParseBinary(FormatBinary(b), 64)
		require.NoError(t, err)
		require.Equal(t, b, got)
	})
}

func TestTextCrossesPDUs(t *testing.T) { // RFC 7143, section 6.1: a logical text data segment
	rapid.Check(t, func(t *rapid.T) {
		var text Text
		for i := range rapid.IntRange(0, 40).Draw(t, "pairs") {
			text.Add("K"+strings.Repeat("a", i), rapid.StringMatching(`[a-z0-9.:]{0,60}`).Draw(t, "v"))
		}
		var s TextSplitter
		s.Load(text)
		limit := rapid.IntRange(1, 300).Draw(t, "limit")
		var c TextCollector
		for {
			data, more := s.Next(limit)
			require.LessOrEqual(t, len(data), limit)
			got, done, err := c.Add(data, more)
			require.NoError(t, err)
			require.Equal(t, !more, done)
			if done {
				require.Equal(t, text, got)
				break
			}
		}
		require.Zero(t, s.Len())
		require.False(t, c.Pending())
	})
}

func TestCollectedTextIsBounded(t *testing.T) {
	c := TextCollector{Limit: 100}
	_, _, err := c.Add(make([]byte, 60), true)
	require.NoError(t, err)
	_, _, err = c.Add(make([]byte, 41), true)
	require.ErrorIs(t, err, ErrText)
}

func TestNamesHaveOneForm(t *testing.T) {
	for in, want := range map[string]string{
		"iqn.2026-11.com.example:TEST001":      "iqn.2026-11.com.example:test001",
		"IQN.1991-05.com.example:Host7":        "iqn.1991-05.com.example:host7",
		"iqn.2026-11.com.example":              "iqn.2026-11.com.example",
		"eui.02004567A425678D":                 "eui.02004567a425678d",
		"naa.52004567BA64678D":                 "naa.52004567ba64678d",
		"NAA.62004567BA64678D0123456789ABCDEF": "naa.62004567ba64678d0123456789abcdef",
		"iqn.2026-11.com.example:Node_1":       "iqn.2026-11.com.example:node_1",
		DiscoveryTarget:                        DiscoveryTarget,
	} {
		got, err := NormalizeName(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
		again, err := NormalizeName(got)
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
	for _, in := range []string{
		"", "iqn", "iqn.", "iqn.2026-13.com.example", "iqn.2026-00.com.example", "iqn.26-11.com.example", "iqn.2026-11.", "iqn.2026-11.:x", "iqn.20x6-11.com",
		"eui.0200", "eui.02004567A425678G", "naa.52004567BA64678", "disk1", "iqn.2026-11.com.example:a b", "iqn.2026-11.com.example:a/b",
		"iqn.2026-11.com.example:a\x00", "iqn.2026-11.com.example:\xff", "iqn.2026-11.com.example:" + strings.Repeat("x", 200),
	} {
		_, err := NormalizeName(in)
		require.ErrorIs(t, err, ErrName, "%q", in)
	}
}

func TestSendTargetsRoundTrip(t *testing.T) { // RFC 7143, appendix C
	targets := []TargetInfo{
		{Name: "iqn.2026-11.com.example:a", Portals: []Portal{{"10.0.0.1:3260", 1, true}, {"[2001:db8::1]:3261", 65535, true}}},
		{Name: "iqn.2026-11.com.example:b", Alias: "second", Portals: []Portal{{"host.example.com:3260", 0, true}}},
		{Name: "iqn.2026-11.com.example:c"},
	}
	got, err := ParseTargets(AppendTargets(nil, targets))
	require.NoError(t, err)
	require.Equal(t, targets, got)
}

func TestTargetAddresses(t *testing.T) { // RFC 7143, section 13.8
	for in, want := range map[string]Portal{
		"10.0.0.1":              {Addr: "10.0.0.1:3260"},
		"10.0.0.1:5000,3":       {Addr: "10.0.0.1:5000", Group: 3, HasGroup: true},
		"[2001:db8::1],0":       {Addr: "[2001:db8::1]:3260", HasGroup: true},
		"[fe80::1%eth0]:3260,1": {Addr: "[fe80::1%eth0]:3260", Group: 1, HasGroup: true},
		"2001:db8::1":           {Addr: "[2001:db8::1]:3260"},
		"host.example.com:1":    {Addr: "host.example.com:1"},
	} {
		p, err := ParsePortal(in)
		require.NoError(t, err, in)
		require.Equal(t, want, p, in)
	}
	for _, in := range []string{"", ",1", ":3260", "h:0", "h:65536", "h:x", "h,65536", "h,", "a:b:c", "[", "]", "a b"} {
		_, err := ParsePortal(in)
		require.ErrorIs(t, err, ErrText, "%q", in)
	}
}

func TestSendTargetsRefusalIsAnError(t *testing.T) {
	_, err := ParseTargets(Text{{"SendTargets", "Reject"}})
	require.ErrorIs(t, err, ErrText)
	_, err = ParseTargets(Text{{"TargetName", "nonsense"}})
	require.ErrorIs(t, err, ErrName)
	got, err := ParseTargets(Text{{"TargetAddress", "1.2.3.4"}, {"TargetName", "iqn.2026-11.com.example:a"}, {"TargetAddress", "::::"}, {"X-y", ""}})
	require.NoError(t, err)
	require.Equal(t, []TargetInfo{{Name: "iqn.2026-11.com.example:a"}}, got)
}

func FuzzParseText(f *testing.F) {
	for _, c := range readCaptured(f, "linux-iser.txt") {
		if op := BHS(c.bytes).Opcode(); op == OpLoginReq || op == OpLoginRsp {
			f.Add(c.bytes[BHSLen:])
		}
	}
	f.Add([]byte("SendTargets=All\x00TargetName=iqn.2026-11.com.example:a\x00TargetAddress=[::1]:3260,1\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text, err := ParseText(b)
		if err != nil {
			return
		}
		again, err := ParseText(text.Append(nil))
		if err != nil || !bytes.Equal(again.Append(nil), text.Append(nil)) {
			t.Fatalf("%q", b)
		}
		_, _ = ParseTargets(text)
		for _, kv := range text {
			_, _ = ParseNumber(kv.Value)
			if v, err := ParseBinary(kv.Value, 64); err == nil && len(v) > 64 {
				t.Fatal("limit")
			}
			if n, err := NormalizeName(kv.Value); err == nil {
				if m, err := NormalizeName(n); err != nil || m != n {
					t.Fatalf("%q is not its own form: %q %v", n, m, err)
				}
			}
			if p, err := ParsePortal(kv.Value); err == nil {
				if q, err := ParsePortal(p.String()); err != nil || q != p {
					t.Fatalf("%q: %v %v %v", kv.Value, p, q, err)
				}
			}
		}
	})
}
