package scsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransportID(t *testing.T) { // SPC-4, section 7.6.4.6
	name := "iqn.2026-11.com.example:host,i,0x00023d000001"
	p := appendTransportID(nil, name)
	require.Equal(t, append(append([]byte{0x45, 0, 0, 48}, name...), 0, 0, 0), p)
	got, size, ok := parseTransportID(append(p, 1, 2, 3))
	require.True(t, ok)
	require.Equal(t, len(p), size)
	require.Equal(t, name, got)

	short := appendTransportID(nil, "iqn.x")
	require.Len(t, short, 24, "never shorter")
	require.EqualValues(t, 0x05, short[0], "a device has no ISID")
	got, _, ok = parseTransportID(short)
	require.True(t, ok)
	require.Equal(t, "iqn.x", got)

	// Case and leading zeros do not make another port.
	got, _, ok = parseTransportID(append([]byte{0x45, 0, 0, 20}, "IQN.X,i,0x23D000001\x00"...)[:23+0])
	require.False(t, ok, "cut short")
	require.Empty(t, got)
	got, _, ok = parseTransportID(append([]byte{0x45, 0, 0, 20}, "IQN.X,i,0x23D00001\x00\x00"...))
	require.True(t, ok)
	require.Equal(t, "iqn.x,i,0x000023d00001", got)

	for what, bad := range map[string][]byte{
		"no end":           append([]byte{0x45, 0, 0, 20}, "iqn.x,i,0x0123456789"...),
		"another protocol": append([]byte{0x46, 0, 0, 20}, p[4:24]...),
		"port without one": append([]byte{0x45, 0, 0, 20}, "iqn.x\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...),
		"after the end":    append([]byte{0x05, 0, 0, 20}, "iqn.x\x00y\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...),
		"too short":        append([]byte{0x05, 0, 0, 16}, make([]byte, 16)...),
		"empty":            append([]byte{0x05, 0, 0, 20}, make([]byte, 20)...),
		"format 3":         append([]byte{0xc5}, p[1:]...),
		"ISID too long":    append([]byte{0x45, 0, 0, 24}, "a,i,0x01234567890123\x00\x00\x00\x00"...),
	} {
		_, _, ok := parseTransportID(bad)
		require.False(t, ok, what)
	}
}

func FuzzTransportID(f *testing.F) {
	f.Add(appendTransportID(nil, "iqn.2026-11.com.example:host,i,0x00023d000001"))
	f.Add(appendTransportID(nil, "iqn.x"))
	f.Fuzz(func(t *testing.T, p []byte) {
		name, size, ok := parseTransportID(p)
		if !ok {
			return
		}
		require.LessOrEqual(t, size, len(p))
		again := appendTransportID(nil, name)
		back, n, ok := parseTransportID(again)
		require.True(t, ok)
		require.Equal(t, len(again), n)
		require.Equal(t, name, back)
		require.True(t, bytes.Equal(appendTransportID(nil, back), again))
	})
}

func FuzzKeptReservations(f *testing.F) {
	f.Add([]byte(`{"version":1,"registrations":[{"initiator":"a","port":1,"key":"0x1"}],"type":1,"holder":0}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := decodeKept(p)
		if err != nil || len(s.list) == 0 {
			return
		}
		data, err := s.encode()
		require.NoError(t, err)
		again, err := decodeKept(data)
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

func FuzzReservationData(f *testing.F) {
	f.Add(byte(PRReadFullStatus), []byte{0, 0, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, action byte, p []byte) {
		_, _ = ParseReservation(action, p)
	})
}
