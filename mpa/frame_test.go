package mpa

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func genFrame(t *rapid.T) Frame {
	f := Frame{
		Reply:    rapid.Bool().Draw(t, "reply"),
		Markers:  rapid.Bool().Draw(t, "markers"),
		CRC:      rapid.Bool().Draw(t, "crc"),
		Revision: rapid.IntRange(0, 255).Draw(t, "revision"),
	}
	f.Reject = f.Reply && rapid.Bool().Draw(t, "reject")
	limit := MaxPrivateData
	if f.Enhanced = f.Revision >= 2 && rapid.Bool().Draw(t, "enhanced"); f.Enhanced {
		f.IRD = rapid.IntRange(0, UlpNegotiates).Draw(t, "ird")
		f.ORD = rapid.IntRange(0, UlpNegotiates).Draw(t, "ord")
		if f.PeerToPeer = rapid.Bool().Draw(t, "p2p"); f.PeerToPeer {
			f.RTR = RTR(rapid.IntRange(0, 7).Draw(t, "rtr"))
		}
		limit -= depthsLen
	}
	f.PrivateData = rapid.SliceOfN(rapid.Byte(), 0, limit).Draw(t, "private")
	if len(f.PrivateData) == 0 {
		f.PrivateData = nil
	}
	return f
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFrame(t)
		b := f.AppendTo(nil)
		g, err := ParseFrame(b)
		require.NoError(t, err)
		require.Equal(t, f, g)
		require.NotContains(t, f.String(), "\n")
	})
}

// No prefix of a frame is a frame, and none asks for more octets than the frame has.
func TestFrameTruncated(t *testing.T) {
	for _, f := range []Frame{
		{Revision: 1, PrivateData: make([]byte, 100)},
		{Reply: true, Revision: 2, Enhanced: true, PrivateData: make([]byte, 508)},
	} {
		b := f.AppendTo(nil)
		for n := range b {
			_, err := ParseFrame(b[:n])
			require.ErrorIs(t, err, ErrFrame, "%d octets", n)
			need, err := frameLen(b[:n], f.Reply)
			require.NoError(t, err)
			require.Greater(t, need, n)
			require.LessOrEqual(t, need, len(b))
		}
		_, err := ParseFrame(append(b, 0))
		require.ErrorIs(t, err, ErrFrame)
	}
}

// A wrong key is noticed at its first wrong octet, without waiting for the rest (RFC 5044, section 7.1.1).
func TestFrameWrongKey(t *testing.T) {
	for i := range keyLen {
		b := []byte(requestKey)
		b[i] ^= 0x20
		for n := i + 1; n <= keyLen; n++ {
			_, err := frameLen(b[:n], false)
			require.ErrorIs(t, err, ErrFrame)
		}
		_, err := frameLen(b[:i], false)
		require.NoError(t, err)
	}
}

func TestFramePrivateDataLength(t *testing.T) {
	f := Frame{Revision: 1, PrivateData: make([]byte, MaxPrivateData)}
	b := f.AppendTo(nil)
	_, err := ParseFrame(b)
	require.NoError(t, err)
	binary.BigEndian.PutUint16(b[18:], MaxPrivateData+1)
	_, err = ParseFrame(append(b, 0))
	require.ErrorIs(t, err, ErrFrame)
	require.ErrorContains(t, err, "513")
	for n := range depthsLen { // no room for IRD and ORD
		e := Frame{Revision: 2, PrivateData: make([]byte, n)}
		b := e.AppendTo(nil)
		b[16] |= flagEnhanced
		_, err = ParseFrame(b)
		require.ErrorIs(t, err, ErrFrame)
	}
}

// Reserved bits are not looked at: the low ones ever, S in revision 1, R in a Request.
func TestFrameReservedBits(t *testing.T) {
	f := Frame{Revision: 1, PrivateData: []byte("abcdefgh")}
	b := f.AppendTo(nil)
	b[16] |= 0x0f | flagEnhanced | flagReject
	g, err := ParseFrame(b)
	require.NoError(t, err)
	require.Equal(t, f, g)
}

// RFC 6581, section 9: a fixed picture of each bit.
func TestFrameDepthBits(t *testing.T) {
	for _, c := range []struct {
		word string
		d    Depths
	}{
		{"0001 0001", Depths{IRD: 1, ORD: 1}},
		{"3fff 3fff", Depths{IRD: UlpNegotiates, ORD: UlpNegotiates}},
		{"c001 0002", Depths{PeerToPeer: true, RTR: RTRSend, IRD: 1, ORD: 2}},
		{"8001 8002", Depths{PeerToPeer: true, RTR: RTRWrite, IRD: 1, ORD: 2}},
		{"8001 4002", Depths{PeerToPeer: true, RTR: RTRRead, IRD: 1, ORD: 2}},
		{"c000 c000", Depths{PeerToPeer: true, RTR: rtrAll}},
	} {
		b := unhex(t, c.word)
		require.Equal(t, c.d, parseDepths(b), c.word)
		require.Equal(t, b, c.d.append(nil), c.word)
	}
	// Without A the others mean nothing, and are not sent.
	require.Equal(t, Depths{IRD: 5, ORD: 6}, parseDepths(unhex(t, "4005 c006")))
	require.Equal(t, unhex(t, "0005 0006"), Depths{RTR: rtrAll, IRD: 5, ORD: 6}.append(nil))
}

func TestRTRString(t *testing.T) {
	require.Equal(t, "none", RTR(0).String())
	require.Equal(t, "Send|Write|Read", rtrAll.String())
}
