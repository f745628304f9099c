package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chopper is a Socket whose reads return as many octets as cuts says, in turn: TCP may split the
// stream anywhere.
type chopper struct {
	Socket
	cuts []int
	i    int
}

func (c *chopper) Read(s Scatter) (int, error) {
	n := c.cuts[c.i%len(c.cuts)]
	c.i++
	return c.Socket.Read(&limited{Scatter: s, n: n})
}

// limited lends at most n octets of another Scatter.
type limited struct {
	Scatter
	n int
}

func (l *limited) Acquire() ([][]byte, error) {
	bufs, err := l.Scatter.Acquire()
	var out [][]byte
	left := l.n
	for _, b := range bufs {
		b = b[:min(len(b), left)]
		out = append(out, b)
		left -= len(b)
	}
	return out, err
}

// take consumes an FPDU in one of the ways that there are and returns its ULPDU.
func take(f *FPDU, way int) ([]byte, error) {
	got := make([]byte, f.Len)
	off := min(f.Len, 14)
	if way%3 == 0 {
		off = len(f.Head)
	}
	switch way % 3 {
	case 1:
		if err := f.Fill(); err != nil {
			return nil, err
		}
		f.CopyTo(0, got)
		return got, nil
	default:
		copy(got, f.Head[:off])
		if off < f.Len {
			// Two pieces, as from a scatter list, and more than is needed.
			if err := f.ReadTo(off, &SliceScatter{B: got[off:]}); err != nil {
				return nil, err
			}
		} else if err := f.Fill(); err != nil {
			return nil, err
		}
		return got, nil
	}
}

// Any ULPDUs, cut anywhere on their way, arrive as they were, however they are consumed.
func TestFPDUProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		withCRC, markers := rapid.Bool().Draw(rt, "crc"), rapid.Bool().Draw(rt, "markers")
		size := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 3000), rapid.IntRange(4000, 20000), rapid.IntRange(30000, MaxULPDU))
		sizes := rapid.SliceOfN(size, 1, 8).Draw(rt, "sizes")
		cuts := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 100_000)), 1, 10).Draw(rt, "cuts")
		way := rapid.IntRange(0, 2)
		a, b := MemPipe(rapid.SampledFrom([]int{64, 4096, 1 << 20}).Draw(rt, "pipe"))
		ca, cb := direct(a, &chopper{Socket: b, cuts: cuts}, withCRC, markers, MaxULPDU)
		defer ca.Close()
		defer cb.Close()
		done := make(chan error, 1)
		go func() {
			for i, n := range sizes {
				p := pattern(n, uint64(i))
				h := min(n, 18)
				if i%2 == 0 {
					ca.Append(p[:h], [][]byte{p[h:]})
				} else {
					ca.AppendCopy(p[:h], [][]byte{p[h : h+(n-h)/3], p[h+(n-h)/3:]})
				}
				if i%3 != 0 {
					ca.Flush()
				}
			}
			ca.Flush()
			done <- ca.CloseWrite()
		}()
		for i, n := range sizes {
			f, err := cb.Next()
			require.NoError(rt, err)
			require.Equal(rt, n, f.Len)
			got, err := take(f, way.Draw(rt, "way"))
			require.NoError(rt, err)
			require.True(rt, bytes.Equal(pattern(n, uint64(i)), got))
		}
		_, err := cb.Next()
		require.Equal(rt, io.EOF, err)
		require.NoError(rt, <-done)
		in, out := cb.Stats(), ca.Stats()
		require.Equal(rt, uint64(len(sizes)), in.FPDUsIn)
		require.Equal(rt, in.FPDUsIn, out.FPDUsOut)
		require.Equal(rt, in.OctetsIn, out.OctetsOut)
		require.Equal(rt, in.MarkersIn, out.MarkersOut)
		require.Equal(rt, in.CRCsChecked, out.CRCsComputed)
		require.Equal(rt, withCRC, in.CRCsChecked > 0)
		require.Equal(rt, ca.Sent(), uint64(ca.out.queued))
	})
}

// One flipped bit anywhere: the FPDU that it lies in is never delivered, none after it is, and the ones
// before it are. With a damaged length the error may also be that the stream ends too early.
func TestCorruptionIsNeverDelivered(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		markers := rapid.Bool().Draw(rt, "markers")
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 600), rapid.IntRange(4000, 6000), rapid.IntRange(32<<10, MaxULPDU)), 1, 4).Draw(rt, "sizes")
		var ulpdus [][]byte
		for i, n := range sizes {
			ulpdus = append(ulpdus, pattern(n, uint64(i)))
		}
		octets := octetsOf(t, true, markers, ulpdus...)
		at := rapid.IntRange(0, len(octets)-1).Draw(rt, "at")
		octets[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		c := over(t, true, markers, octets)
		way := rapid.IntRange(0, 2).Draw(rt, "way")
		for i := 0; ; i++ {
			f, err := c.Next()
			var got []byte
			if err == nil {
				got, err = take(f, way)
			}
			if err != nil {
				require.True(rt, errors.Is(err, ErrCRC) || errors.Is(err, ErrLost), "%v", err)
				_, again := c.Next()
				require.Equal(rt, err, again, "the error stays")
				require.False(rt, c.Buffered())
				break
			}
			require.Less(rt, i, len(ulpdus), "the damage went unnoticed")
			require.True(rt, bytes.Equal(ulpdus[i], got), "damaged FPDU was delivered")
		}
	})
}

// Damage to ULPDU, pad or CRC field is error 2, in each way of reading, and MPA does not close.
func TestCRCError(t *testing.T) {
	for _, n := range []int{10, 5001, 50001} {
		for _, at := range []int{2, 2 + n/2, 2 + n - 1, 2 + n, fpduLen(n) - 1} {
			for way := range 3 {
				octets := octetsOf(t, true, false, pattern(n, 1), pattern(10, 2))
				octets[at] ^= 0x10
				c := over(t, true, false, octets)
				f, err := c.Next()
				if err == nil {
					_, err = take(f, way)
				}
				require.ErrorIs(t, err, ErrCRC)
				require.EqualValues(t, 1, c.Stats().CRCErrors)
				require.Zero(t, c.Stats().FPDUsIn)
				require.Equal(t, err, f2err(c.Next()))
				c.Append([]byte("terminate"), nil)
				done, err := c.TryFlush()
				require.NoError(t, err)
				require.True(t, done)
			}
		}
	}
}

func f2err(_ *FPDU, err error) error { return err }

// Without CRCs the field holds anything (RFC 5044, section 4.1), and pads are not looked at.
func TestCRCOffIsUnchecked(t *testing.T) {
	for _, n := range []int{9, 5001} {
		for way := range 3 {
			octets := octetsOf(t, false, false, pattern(n, 1))
			require.Zero(t, binary.BigEndian.Uint32(octets[len(octets)-4:]))
			for i := 2 + n; i < len(octets); i++ {
				octets[i] = 0xaa
			}
			c := over(t, false, false, octets)
			f, err := c.Next()
			require.NoError(t, err)
			got, err := take(f, way)
			require.NoError(t, err)
			require.Equal(t, pattern(n, 1), got)
			require.Zero(t, c.Stats().CRCsChecked)
		}
	}
}

// A pad that is not zero is no error as long as the CRC says the same.
func TestPadIsIgnored(t *testing.T) {
	octets := octetsOf(t, true, false, pattern(9, 1))
	octets[11] = 0xff
	binary.LittleEndian.PutUint32(octets[12:], crc(0, octets[:12]))
	f, err := over(t, true, false, octets).Next()
	require.NoError(t, err)
	require.Equal(t, pattern(9, 1), f.Head)
}

// FIN at every octet: io.EOF between FPDUs, error 1 within one.
func TestFINEverywhere(t *testing.T) {
	for _, markers := range []bool{false, true} {
		octets := octetsOf(t, true, markers, pattern(30, 1), pattern(5000, 2))
		first := fpduLen(30)
		if markers {
			first += markerLen
		}
		for n := 0; n < len(octets); n++ {
			if n > 200 && n < len(octets)-100 {
				n += 60 // the midst of the payload is all the same
			}
			c := over(t, true, markers, octets[:n])
			f, err := c.Next()
			for ; err == nil; f, err = c.Next() {
				if _, err = take(f, n%3); err != nil {
					break
				}
			}
			if n == 0 || n == first {
				require.Equal(t, io.EOF, err, n)
			} else {
				require.ErrorIs(t, err, ErrLost, n)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
			}
		}
	}
}

// Hardware peers send what fits a segment, software peers more: any size is taken, split anywhere.
// And ours can be kept within a segment of any size.
func TestFieldFPDUSizes(t *testing.T) {
	for _, n := range []int{1, 1460, 9000, 16 << 10, 65532, MaxULPDU} {
		for _, cut := range []int{1, 2, 1459, 65536} {
			octets := octetsOf(t, true, false, pattern(n, 1), pattern(20, 2))
			c := over(t, true, false, octets)
			c.sock = &chopper{Socket: c.sock, cuts: []int{cut}}
			f, err := c.Next()
			require.NoError(t, err)
			got, err := take(f, cut%3)
			require.NoError(t, err)
			require.True(t, bytes.Equal(pattern(n, 1), got))
			f, err = c.Next()
			require.NoError(t, err)
			require.Equal(t, pattern(20, 2), f.Head)
		}
	}
	a, b := MemPipe(1 << 20)
	defer b.Close()
	defer a.Close()
	a.SetEMSS(536)
	c := newConn(a, &Params{CRC: true}, 0)
	require.Equal(t, 530, c.MULPDU())
	c.Append(make([]byte, c.MULPDU()), nil)
	require.Equal(t, 536, c.Pending())
}

// Whether an FPDU is whole, how much of its head there is, and when the next one is.
func TestNextHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(1 << 20)
		defer a.Close()
		defer b.Close()
		c := newConn(b, &Params{CRC: true}, 0)
		big := octetsOf(t, true, false, pattern(20_000, 1), pattern(100, 2), pattern(50, 3))
		require.NoError(t, writeAll(a, big[:2+HeadSize]))
		f, err := c.Next()
		require.NoError(t, err)
		require.False(t, f.Whole)
		require.Equal(t, pattern(20_000, 1)[:HeadSize], f.Head)
		require.Zero(t, f.CopyTo(0, make([]byte, 10)))
		require.False(t, c.Buffered())
		require.Zero(t, c.Stats().FPDUsIn, "not before it has been checked")
		done := make(chan error, 1)
		go func() { done <- f.Fill() }()
		synctest.Wait()
		require.NoError(t, writeAll(a, big[2+HeadSize:len(big)-1]))
		require.NoError(t, <-done)
		require.True(t, f.Whole)
		require.Equal(t, pattern(20_000, 1), f.Head)
		require.True(t, c.Buffered())
		f, err = c.Next()
		require.NoError(t, err)
		require.True(t, f.Whole)
		require.NoError(t, f.Fill(), "filling a whole one does nothing")
		require.Equal(t, 100, f.CopyTo(0, make([]byte, 200)))
		require.Equal(t, 10, f.CopyTo(90, make([]byte, 200)))
		require.Zero(t, f.CopyTo(100, make([]byte, 1)))
		require.False(t, c.Buffered(), "its last octet is missing")
		require.NoError(t, writeAll(a, big[len(big)-1:]))
		f, err = c.Next()
		require.NoError(t, err)
		require.Equal(t, pattern(50, 3), f.Head)
	})
}

// An FPDU that nobody read is checked and dropped.
func TestUnreadFPDUIsDropped(t *testing.T) {
	for _, n := range []int{10, 50_000} {
		octets := octetsOf(t, true, false, pattern(n, 1), pattern(10, 2))
		c := over(t, true, false, octets)
		_, err := c.Next()
		require.NoError(t, err)
		f, err := c.Next()
		require.NoError(t, err)
		require.Equal(t, pattern(10, 2), f.Head)

		octets[2+n-1] ^= 1
		c = over(t, true, false, octets)
		c.Next()
		_, err = c.Next()
		require.ErrorIs(t, err, ErrCRC)
	}
}

// A destination that is withdrawn before or within a placement does not harm the stream: its error is
// the caller's, and the next FPDU is found.
func TestReadToWithdrawnDestination(t *testing.T) {
	gone := errors.New("invalidated")
	for after := range 4 {
		octets := octetsOf(t, true, false, pattern(40_000, 1), pattern(10, 2))
		c := over(t, true, false, octets)
		c.sock = &chopper{Socket: c.sock, cuts: []int{2000, 7000}}
		f, err := c.Next()
		require.NoError(t, err)
		require.False(t, f.Whole)
		l := &lender{SliceScatter: SliceScatter{B: make([]byte, 40_000)}}
		if after == 0 {
			l.err = gone
		}
		l.while = func() {
			if l.attempts == after {
				l.err = gone
			}
		}
		require.Equal(t, gone, f.ReadTo(14, l))
		require.False(t, l.lent)
		require.Error(t, f.ReadTo(14, l), "once only")
		require.Zero(t, c.Stats().FPDUsIn)
		f, err = c.Next()
		require.NoError(t, err)
		require.Equal(t, pattern(10, 2), f.Head)
		require.EqualValues(t, 2, c.Stats().CRCsChecked)
	}
}

// ReadTo fills exactly the ULPDU, whatever more is lent, and says so when there is less.
func TestReadToBounds(t *testing.T) {
	for _, n := range []int{100, 40_000} {
		octets := octetsOf(t, true, false, pattern(n, 1), pattern(300, 2))
		c := over(t, true, false, octets)
		f, err := c.Next()
		require.NoError(t, err)
		require.ErrorIs(t, f.ReadTo(n+1, &SliceScatter{}), ErrLocal)
		buf := make([]byte, n+100)
		require.NoError(t, f.ReadTo(0, &SliceScatter{B: buf}))
		require.True(t, bytes.Equal(pattern(n, 1), buf[:n]))
		require.Equal(t, make([]byte, 100), buf[n:])

		c = over(t, true, false, octets)
		c.sock = &chopper{Socket: c.sock, cuts: []int{300}}
		f, err = c.Next()
		require.NoError(t, err)
		err = f.ReadTo(0, &SliceScatter{B: buf[:n-10]})
		require.ErrorIs(t, err, ErrLocal)
		f, err = c.Next()
		require.NoError(t, err)
		require.Equal(t, pattern(300, 2), f.Head)
	}
}

// In a stream of large FPDUs each payload goes to its place without a detour: what is read beyond it
// is no more than the next head.
func TestLargeFPDUsAreReadInPlace(t *testing.T) {
	a, b := MemPipe(1 << 20)
	defer a.Close()
	defer b.Close()
	ca, cb := direct(a, b, true, false, MaxULPDU)
	for i := range 8 {
		ca.Append(make([]byte, 14), [][]byte{pattern(60_000, uint64(i))})
	}
	require.NoError(t, ca.Flush())
	for i := range 8 {
		f, err := cb.Next()
		require.NoError(t, err)
		if i > 1 { // the first read could not know
			require.False(t, f.Whole)
			require.LessOrEqual(t, cb.in.w-cb.in.r, readAhead+HeadSize)
		}
		got := make([]byte, 60_000)
		require.NoError(t, f.ReadTo(14, &SliceScatter{B: got}))
		require.True(t, bytes.Equal(pattern(60_000, uint64(i)), got))
	}
}
