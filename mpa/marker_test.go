package mpa

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// octetsOf returns what a Conn with these settings puts on the wire for ULPDUs.
func octetsOf(t testing.TB, crc, markers bool, ulpdus ...[]byte) []byte {
	t.Helper()
	a, b := MemPipe(1)
	defer a.Close()
	defer b.Close()
	c := newConn(a, &Params{CRC: crc, MarkersOut: markers}, MaxULPDU)
	for i, u := range ulpdus {
		h := min(len(u), 14)
		if i%2 == 0 {
			c.Append(u[:h], [][]byte{u[h:]})
		} else {
			c.AppendCopy(u[:h], [][]byte{u[h:]})
		}
	}
	var out []byte
	for _, p := range c.out.list {
		out = append(out, p...)
	}
	require.Len(t, out, c.Pending())
	return out
}

// over returns a Conn that reads the given octets and then the end of the stream.
func over(t testing.TB, crc, markers bool, octets []byte) *Conn {
	t.Helper()
	a, b := MemPipe(len(octets))
	t.Cleanup(func() { a.Close(); b.Close() })
	require.NoError(t, writeAll(a, octets))
	a.CloseWrite()
	return newConn(b, &Params{CRC: crc, MarkersIn: markers}, 0)
}

// TestMarkerVectors has the two example FPDUs of RFC 5044, section 4.4.
func TestMarkerVectors(t *testing.T) {
	first := unhex(t, "00000000 002a 4143 00000000 00000000 00000001 00000000"+
		"000000000000000000000000000000000000000000000000 52239983")
	ulpdu := first[6 : len(first)-4]
	require.Equal(t, first, octetsOf(t, true, true, ulpdu))
	f, err := over(t, true, true, first).Next()
	require.NoError(t, err)
	require.Equal(t, ulpdu, f.Head)

	// The second example follows an FPDU that ends 492 octets after the first Marker began.
	before := make([]byte, 492-4-2-4)
	second := unhex(t, "002a 4143 00000000 00000000 00000002 00000000 00000014"+
		"000000000000000000000000000000000000000000000000 84925898")
	ulpdu = append(append([]byte{}, second[2:20]...), second[24:len(second)-4]...)
	out := octetsOf(t, true, true, before, ulpdu)
	require.Equal(t, second, out[492:])
	c := over(t, true, true, out)
	_, err = c.Next()
	require.NoError(t, err)
	f, err = c.Next()
	require.NoError(t, err)
	require.Equal(t, ulpdu, f.Head)
}

// TestCRCVector is an FPDU that siw took for good (its probe "CRC requested").
func TestCRCVector(t *testing.T) {
	want := unhex(t, "0022 4143 00000000 00000000 00000001 00000000 0000000000001000 00abcd01 00000040 866997f7")
	require.Equal(t, want, octetsOf(t, true, false, want[2:36]))
}

// plainMarkers puts Markers into FPDUs the slow way, octet by octet, from the rules alone.
func plainMarkers(ulpdus [][]byte, withCRC bool) []byte {
	var out []byte
	for _, u := range ulpdus {
		body := binary.BigEndian.AppendUint16(nil, uint16(len(u)))
		body = append(body, u...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		begin, start := len(out), len(out)
		if start%512 == 0 {
			out = append(out, 0, 0, 0, 0)
			start += 4
		}
		for i := range len(body) + 1 { // before each octet, and before the CRC
			if len(out)%512 == 0 {
				back := len(out) - start
				out = append(out, 0, 0, byte(back>>8), byte(back))
			}
			if i < len(body) {
				out = append(out, body[i])
			}
		}
		sum := uint32(0)
		if withCRC {
			sum = crc(0, out[begin:])
		}
		out = binary.LittleEndian.AppendUint32(out, sum)
	}
	return out
}

// TestMarkersEveryOffset moves the Marker through every place that it can have in an FPDU: before it, in
// the ULPDU, between ULPDU, pad and CRC, behind it; and has FPDUs with up to five Markers. Writer
// and reader are held against plainMarkers.
func TestMarkersEveryOffset(t *testing.T) {
	for _, withCRC := range []bool{true, false} {
		seconds := []int{0, 3, 507, 2000}
		if !withCRC {
			seconds = []int{14}
		}
		for first := range 520 {
			for _, second := range seconds {
				ulpdus := [][]byte{pattern(first, 1), pattern(second, 2), pattern(30, 3)}
				want := plainMarkers(ulpdus, withCRC)
				require.True(t, string(want) == string(octetsOf(t, withCRC, true, ulpdus...)), "%d, %d", first, second)
				c := over(t, withCRC, true, want)
				for _, u := range ulpdus {
					f, err := c.Next()
					require.NoError(t, err, "%d, %d", first, second)
					require.True(t, f.Whole && string(u) == string(f.Head), "%d, %d", first, second)
				}
				_, err := c.Next()
				require.Equal(t, io.EOF, err)
			}
		}
	}
}

// The largest FPDUs, whose last Markers are farther from the start than FPDUPTR can say.
func TestMarkersInLargestFPDU(t *testing.T) {
	for _, n := range []int{MaxMULPDU, MaxULPDU - 1, MaxULPDU} {
		for lead := 0; lead < 512; lead += 100 {
			ulpdus := [][]byte{pattern(lead, 1), pattern(n, 2)}
			want := plainMarkers(ulpdus, true)
			require.True(t, string(want) == string(octetsOf(t, true, true, ulpdus...)))
			require.LessOrEqual(t, len(want), lead+32+maxFPDU)
			c := over(t, true, true, want)
			for _, u := range ulpdus {
				f, err := c.Next()
				require.NoError(t, err)
				require.True(t, string(u) == string(f.Head))
			}
		}
	}
}

// With a good CRC, a Marker that points elsewhere is error 3, and the FPDU is not delivered. The
// pointer's low bits and the reserved half do not matter.
func TestMarkerDisagrees(t *testing.T) {
	ulpdus := [][]byte{pattern(400, 1), pattern(1400, 2)}
	good := plainMarkers(ulpdus, false)
	for _, c := range []struct {
		name   string
		marker int // which one
		at     int // octet in it
		xor    byte
		nth    int // the FPDU that fails, from 1; 0: none
	}{
		{"reserved", 1, 0, 0xff, 0},
		{"low bits", 1, 3, 0x03, 0},
		{"low bits of the one before an FPDU", 0, 3, 0x03, 0},
		{"one before an FPDU", 0, 3, 0x04, 1},
		{"inner", 1, 3, 0x04, 2},
		{"inner, high", 1, 2, 0x80, 2},
		{"second inner", 2, 3, 0x08, 2},
	} {
		for _, withCRC := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				b := append([]byte{}, good...)
				b[c.marker*markerStep+c.at] ^= c.xor
				if withCRC { // make it right again
					first := markerLen + fpduLen(400)
					binary.LittleEndian.PutUint32(b[first-crcLen:], crc(0, b[:first-crcLen]))
					binary.LittleEndian.PutUint32(b[len(b)-crcLen:], crc(0, b[first:len(b)-crcLen]))
				}
				conn := over(t, withCRC, true, b)
				for i := range ulpdus {
					_, err := conn.Next()
					if c.nth == i+1 {
						require.ErrorIs(t, err, ErrMarker)
						_, again := conn.Next()
						require.Equal(t, err, again)
						return
					}
					require.NoError(t, err)
				}
			})
		}
	}
}

// RFC 5044, section 4.5.
func TestMULPDU(t *testing.T) {
	for _, c := range []struct{ emss, plain, marked int }{
		{0, 128, 128},
		{88, 128, 128},
		{134, 128, 128},
		{136, 130, 128},
		{512, 506, 502},
		{513, 506, 498},
		{536, 530, 522},
		{1448, 1442, 1430},
		{1460, 1454, 1442},
		{8948, 8942, 8870},
		{65483, 64768, 64768},
	} {
		require.Equal(t, c.plain, mulpdu(c.emss, false), c.emss)
		require.Equal(t, c.marked, mulpdu(c.emss, true), c.emss)
		if n := mulpdu(c.emss, true); n > MinMULPDU && n < MaxMULPDU {
			for pos := uint64(0); pos < markerStep; pos += 4 { // wherever the FPDU lies, it fits
				pre := 0
				if pos == 0 {
					pre = markerLen
				}
				size := fpduLen(n)
				require.LessOrEqual(t, pre+size+markerLen*innerMarkers(pos+uint64(pre), size), c.emss)
			}
		}
	}
}
