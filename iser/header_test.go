package iser

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/rnic"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

func TestHeaderGolden(t *testing.T) { // as ib_iser and isert send them
	for _, c := range []struct {
		name, wire, text    string
		write, read         bool
		wstag, rstag        rnic.STag
		writeBase, readBase uint64
	}{
		{"nothing", "10000000 00000000 0000000000000000 00000000 0000000000000000", "iSCSI control PDU", false, false, 0, 0, 0, 0},
		{
			"read", "14000000 00000000 0000000000000000 00f80101 ffff889affadc500",
			"iSCSI control PDU, read STag 0x00f80101 base 0xffff889affadc500", false, true, 0, 0xf80101, 0, 0xffff889affadc500,
		},
		{
			"write", "18000000 a4283b0f ffff889acda28000 00000000 0000000000000000",
			"iSCSI control PDU, write STag 0xa4283b0f base 0xffff889acda28000", true, false, 0xa4283b0f, 0, 0xffff889acda28000, 0,
		},
		{
			"both", "1c000000 00abcd01 0000000000009000 00abcd00 0000000000007000",
			"iSCSI control PDU, write STag 0x00abcd01 base 0x9000, read STag 0x00abcd00 base 0x7000", true, true, 0xabcd01, 0xabcd00, 0x9000, 0x7000,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire := unhex(t, c.wire)
			h := Header(wire)
			require.Equal(t, OpControl, h.Opcode())
			require.Equal(t, c.write, h.WriteValid())
			require.Equal(t, c.read, h.ReadValid())
			require.Equal(t, c.wstag, h.WriteSTag())
			require.Equal(t, c.rstag, h.ReadSTag())
			require.Equal(t, c.writeBase, h.WriteBase())
			require.Equal(t, c.readBase, h.ReadBase())
			require.Equal(t, c.text, h.String())
			out := Header(unhex(t, strings.Repeat("ff", HeaderLen)))
			out.Init()
			if c.write {
				out.SetWrite(c.wstag, c.writeBase)
			}
			if c.read {
				out.SetRead(c.rstag, c.readBase)
			}
			require.Equal(t, wire, []byte(out))
		})
	}
}

func TestHelloGolden(t *testing.T) { // RFC 7145, sections 9.3 and 9.4
	wire := unhex(t, "20 aa 0080"+strings.Repeat("00", 24))
	require.Equal(t, wire, AppendHello(nil, 128))
	h, err := ParseHello(wire)
	require.NoError(t, err)
	require.Equal(t, 128, h.IRD())
	require.Equal(t, 10, h.MaxVersion())
	require.Equal(t, 10, h.MinVersion())
	require.True(t, h.Speaks(Version))
	require.False(t, h.Speaks(1))
	require.Equal(t, "Hello, versions 10 to 10, IRD 128", h.String())

	wire = unhex(t, "31 aa 0010"+strings.Repeat("00", 24))
	require.Equal(t, wire, AppendHelloReply(nil, 16, true))
	r, err := ParseHelloReply(wire)
	require.NoError(t, err)
	require.Equal(t, 16, r.ORD())
	require.True(t, r.Rejected())
	require.Equal(t, 10, r.Version())
	require.Equal(t, 10, r.MaxVersion())
	require.Equal(t, "HelloReply, version 10 of at most 10, ORD 16, rejected", r.String())
	require.Equal(t, []byte{0xff, 0xff}, AppendHelloReply(nil, 1<<20, false)[2:4], "an ORD that the field cannot hold")

	var le *LengthError
	for n := range HeaderLen {
		_, err = ParseHello(AppendHello(nil, 1)[:n])
		require.ErrorAs(t, err, &le, "%d octets", n)
		_, err = ParseHelloReply(AppendHelloReply(nil, 1, false)[:n])
		require.ErrorAs(t, err, &le, "%d octets", n)
	}
	_, err = ParseHello(append(AppendHello(nil, 1), 0))
	require.ErrorAs(t, err, &le)
	var he *HeaderError
	_, err = ParseHello(AppendHelloReply(nil, 1, false))
	require.ErrorAs(t, err, &he)
	_, err = ParseHelloReply(AppendHello(nil, 1))
	require.ErrorAs(t, err, &he)
}

func TestPrivateGolden(t *testing.T) {
	for _, c := range []struct {
		wire, text string
		p          Private
	}{
		{"80000000", "iSER CM header: Send with Invalidate", Private{NoZeroBased: true}},                     // ib_iser, isert
		{"c0000000", "iSER CM header: nothing optional", Private{NoZeroBased: true, NoSendInvalidate: true}}, // libiscsi
		{"00000000", "iSER CM header: zero-based addresses, Send with Invalidate", Private{}},
		{"40000000", "iSER CM header: zero-based addresses", Private{NoSendInvalidate: true}},
	} {
		p, ok := ParsePrivate(unhex(t, c.wire))
		require.True(t, ok)
		require.Equal(t, c.p, p)
		require.Equal(t, unhex(t, c.wire), p.Append(nil))
		require.Equal(t, c.text, p.String())
		more, ok := ParsePrivate(unhex(t, c.wire+"3fffffff"))
		require.True(t, ok)
		require.Equal(t, p, more, "reserved octets and what follows are ignored")
	}
	for n := range PrivateLen {
		p, ok := ParsePrivate(make([]byte, n))
		require.False(t, ok)
		require.Equal(t, Private{NoZeroBased: true, NoSendInvalidate: true}, p, "without the header only the common core")
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header(rapid.SliceOfN(rapid.Byte(), HeaderLen, HeaderLen+8).Draw(t, "dirt"))
		rest := append([]byte{}, h[HeaderLen:]...)
		ws, rs := rnic.STag(rapid.Uint32().Draw(t, "ws")), rnic.STag(rapid.Uint32().Draw(t, "rs"))
		wb, rb := rapid.Uint64().Draw(t, "wb"), rapid.Uint64().Draw(t, "rb")
		h.Init()
		h.SetWrite(ws, wb)
		h.SetRead(rs, rb)
		require.Equal(t, []any{OpControl, true, true, ws, rs, wb, rb},
			[]any{h.Opcode(), h.WriteValid(), h.ReadValid(), h.WriteSTag(), h.ReadSTag(), h.WriteBase(), h.ReadBase()})
		require.Equal(t, rest, []byte(h[HeaderLen:]), "nothing beyond the header is touched")
	})
}
