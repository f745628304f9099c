package mpa

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// MPA's Responder sends nothing before the initiator's first FPDU (RFC 5044, section 7.1.2, rule 4): no
// FPDU, no Marker; TryFlush leaves it queued, Flush waits.
func TestResponderSendsNothingBeforeFirstFPDU(t *testing.T) {
	for _, bad := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := MemPipe(1000)
			defer a.Close()
			c := newConn(b, &Params{Role: Responder, CRC: true, MarkersOut: true}, 0)
			defer c.Close()
			c.Append([]byte("too early"), nil)
			done, err := c.TryFlush()
			require.NoError(t, err)
			require.False(t, done)
			flushed := make(chan error, 1)
			go func() { flushed <- c.Flush() }()
			synctest.Wait()
			require.Zero(t, a.Readable())

			first := octetsOf(t, true, false, []byte("hello"))
			require.NoError(t, writeAll(a, first[:len(first)-1]))
			read := make(chan error, 1)
			go func() { read <- f2err(c.Next()) }()
			synctest.Wait()
			require.Zero(t, a.Readable(), "not for a part of it")
			last := first[len(first)-1]
			if bad {
				last ^= 1
			}
			require.NoError(t, writeAll(a, []byte{last}))
			err = <-read
			require.NoError(t, <-flushed)
			// The initiator is in full operation once it has sent an FPDU, even a damaged one, and a
			// Terminate Message that says so has to be possible.
			if bad {
				require.ErrorIs(t, err, ErrCRC)
			} else {
				require.NoError(t, err)
			}
			got, err := readAll(a, markerLen+fpduLen(9))
			require.NoError(t, err)
			require.Equal(t, octetsOf(t, true, true, []byte("too early")), got)
		})
	}
}

// A Flush that waits for the first FPDU ends with the connection.
func TestFlushEndsWithConnection(t *testing.T) {
	for _, how := range []string{"close", "peer closes", "peer finishes", "peer finishes within its first FPDU", "drain"} {
		synctest.Test(t, func(t *testing.T) {
			a, b := MemPipe(1000)
			c := newConn(b, &Params{Role: Responder}, 0)
			c.Append([]byte("never"), nil)
			flushed := make(chan error, 1)
			go func() { flushed <- c.Flush() }()
			synctest.Wait()
			switch how {
			case "close":
				require.NoError(t, c.Close())
			case "peer closes":
				a.Close()
				require.Equal(t, io.EOF, f2err(c.Next()))
			case "peer finishes":
				a.CloseWrite()
				require.Equal(t, io.EOF, f2err(c.Next()))
			case "peer finishes within its first FPDU":
				require.NoError(t, writeAll(a, []byte{0}))
				a.CloseWrite()
				require.ErrorIs(t, f2err(c.Next()), ErrLost)
			case "drain":
				require.ErrorIs(t, c.Drain(time.Now().Add(time.Second)), os.ErrDeadlineExceeded)
			}
			err := <-flushed
			require.ErrorIs(t, err, ErrLost)
			_, again := c.TryFlush()
			require.Equal(t, err, again, "the error stays")
			require.Zero(t, a.Readable(), "not an octet was sent")
			a.Close()
			b.Close()
		})
	}
}

// Queued octets leave in pieces as the socket takes them; Pending and Sent follow, and each end that
// Append returned is reached in order.
func TestTryFlushTakesWhatFits(t *testing.T) {
	a, b := MemPipe(100)
	defer a.Close()
	defer b.Close()
	ca, cb := direct(a, b, true, false, 0)
	var ends []uint64
	for i := range 5 {
		ends = append(ends, ca.Append([]byte("head"), [][]byte{pattern(3000, uint64(i))}))
	}
	require.Equal(t, int(ends[4]), ca.Pending())
	got := 0
	for i := 0; ; {
		done, err := ca.TryFlush()
		require.NoError(t, err)
		require.Equal(t, done, ca.Pending() == 0)
		require.Equal(t, ends[4], ca.Sent()+uint64(ca.Pending()))
		if done {
			break
		}
		again, err := ca.TryFlush()
		require.False(t, again)
		require.NoError(t, err)
		n := b.Readable()
		require.Positive(t, n)
		_, err = readAll(b, n)
		require.NoError(t, err)
		got += n
		for i < len(ends) && ca.Sent() >= ends[i] {
			i++
		}
	}
	require.NotNil(t, cb)
	require.Equal(t, int(ends[4]), got+b.Readable())
}

// While more is queued than leaves, and never all, the memory that was sent is used again.
func TestArenaIsBounded(t *testing.T) {
	a, b := MemPipe(32 << 10)
	defer a.Close()
	defer b.Close()
	for _, markers := range []bool{false, true} {
		ca, _ := direct(a, b, true, markers, MaxULPDU)
		payload, sink := pattern(30_000, 1), make([]byte, 32<<10)
		for range 500 {
			for ca.Pending() < 100_000 {
				ca.AppendCopy([]byte("head"), [][]byte{payload})
				for range 20 {
					ca.Append([]byte("small"), [][]byte{payload[:100]})
				}
				ca.Append([]byte("head"), [][]byte{payload})
			}
			_, err := ca.TryFlush()
			require.NoError(t, err)
			_, err = b.Read(&SliceScatter{B: sink})
			require.NoError(t, err)
			require.LessOrEqual(t, len(ca.out.arena), 20)
			require.LessOrEqual(t, len(ca.out.list), 2*keepList)
		}
		for ca.Pending() > 0 {
			ca.TryFlush()
			b.Read(&SliceScatter{B: sink})
		}
		require.Len(t, ca.out.arena, 1, "an idle connection keeps one piece")
		require.LessOrEqual(t, cap(ca.out.list), keepList)
		for range b.Readable() {
			readAll(b, 1)
		}
	}
}

// Append refers to the payload, AppendCopy does not.
func TestAppendCopyHoldsStill(t *testing.T) {
	for _, n := range []int{100, 3000, 60_000} {
		a, b := MemPipe(1 << 20)
		ca, cb := direct(a, b, true, false, MaxULPDU)
		p := pattern(n, 1)
		ca.AppendCopy([]byte("head"), [][]byte{p[:n/2], p[n/2:]})
		clear(p)
		require.NoError(t, ca.Flush())
		f, err := cb.Next()
		require.NoError(t, err)
		require.NoError(t, f.Fill())
		require.True(t, bytes.Equal(pattern(n, 1), f.Head[4:]))
		ca.Close()
		cb.Close()
	}
}

// More buffers than one vectored write can take.
func TestFlushOfManyBuffers(t *testing.T) {
	for _, k := range socketKinds[:2] {
		a, b := k.pair(t)
		ca, cb := direct(a, b, true, false, MaxULPDU)
		payload := pattern(3000, 1)
		const count = 900 // two buffers each
		flushed := make(chan error, 1)
		go func() {
			for range count {
				ca.Append([]byte("head"), [][]byte{payload[:1500], payload[1500:]})
			}
			done, err := ca.TryFlush()
			if err == nil && !done {
				err = ca.Flush()
			}
			flushed <- err
		}()
		for range count {
			f, err := cb.Next()
			require.NoError(t, err)
			require.True(t, bytes.Equal(payload, f.Head[4:]))
		}
		require.NoError(t, <-flushed)
		ca.Close()
		cb.Close()
	}
}

// A ULPDU that the length field cannot express is the caller's mistake.
func TestAppendTooLong(t *testing.T) {
	a, b := MemPipe(10)
	defer a.Close()
	defer b.Close()
	c, _ := direct(a, b, true, false, 0)
	require.Panics(t, func() { c.Append(make([]byte, 14), [][]byte{make([]byte, MaxULPDU)}) })
	require.Zero(t, c.Pending())
	c.Append(make([]byte, 20_000), [][]byte{make([]byte, 100)}) // a long head is none
	require.Equal(t, fpduLen(20_100), c.Pending())
}

// MULPDU follows the EMSS, within what the options allow (RFC 5044, section 4.5).
func TestMULPDUFollowsEMSS(t *testing.T) {
	a, b := MemPipe(1 << 20)
	defer a.Close()
	defer b.Close()
	c, peer := direct(a, b, true, false, 0)
	require.Equal(t, 1454, c.MULPDU())
	a.SetEMSS(8948)
	for c.Sent() <= emssRefresh {
		c.Append(make([]byte, c.MULPDU()), nil)
		require.NoError(t, c.Flush())
		f, err := peer.Next()
		require.NoError(t, err)
		require.NoError(t, f.Fill())
	}
	require.Equal(t, 8942, c.MULPDU())

	for _, l := range []struct {
		markers bool
		limit   int
		want    int
	}{
		{false, 0, 8942},
		{true, 0, 8870},
		{false, 1000, 8942},
		{false, 32768, 32768},
		{false, MaxULPDU, MaxULPDU},
		{true, MaxULPDU, MaxMULPDU},
	} {
		c := newConn(a, &Params{MarkersOut: l.markers}, l.limit)
		require.Equal(t, l.want, c.MULPDU())
	}
}

// A full-sized FPDU fills a TCP segment, so that the next one begins with the next segment.
func TestFullFPDUFillsSegment(t *testing.T) {
	for _, emss := range []int{536, 1448, 1460, 8948} {
		a, b := MemPipe(1 << 20)
		a.SetEMSS(emss)
		c, _ := direct(a, b, true, false, 0)
		end := c.Append(make([]byte, c.MULPDU()), nil)
		require.EqualValues(t, emss, end)
		a.Close()
		b.Close()
	}
}

// Write errors are error 1 and name their cause.
func TestWriteErrors(t *testing.T) {
	a, b := MemPipe(10)
	c, _ := direct(a, b, true, false, 0)
	b.Close()
	c.Append([]byte("x"), nil)
	err := c.Flush()
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, err, syscall.EPIPE)
	require.Equal(t, err, c.Flush())
	require.NoError(t, c.Close())
	require.ErrorIs(t, f2err(c.Next()), net.ErrClosed)
	require.NotNil(t, c.LocalAddr())
	require.NotNil(t, c.RemoteAddr())
	require.NotNil(t, c.Params())
}

// TestSteadyStateAllocatesNothing: not one allocation per FPDU, neither way, on any socket, with or
// without CRCs and Markers, small or large, copied or referred to.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, k := range socketKinds[:2] {
		for _, mode := range []struct{ crc, markers bool }{{false, false}, {true, false}, {true, true}} {
			a, b := k.pair(t)
			ca, cb := direct(a, b, mode.crc, mode.markers, MaxULPDU)
			payload, sink, head := pattern(50_000, 1), make([]byte, 50_000), make([]byte, 14)
			list, into := make([][]byte, 2), &SliceScatter{}
			for _, n := range []int{0, 64, 1442, 5000, 50_000} {
				i := 0
				list[0], list[1] = payload[:n/2], payload[n/2:n]
				allocs := testing.AllocsPerRun(200, func() {
					if i++; i%2 == 0 {
						ca.Append(head, list)
					} else {
						ca.AppendCopy(head, list)
					}
					// Write and read in turn, for there is one goroutine here.
					done, err := ca.TryFlush()
					f, e := cb.Next()
					if err = errors.Join(err, e); err != nil {
						t.Fatal(err)
					}
					if !done {
						if err := ca.Flush(); err != nil {
							t.Fatal(err)
						}
					}
					into.B = sink[:n]
					if f.Whole {
						f.CopyTo(14, sink[:n])
					} else if err := f.ReadTo(14, into); err != nil {
						t.Fatal(err)
					}
					cb.Buffered()
					ca.MULPDU()
				})
				require.Zero(t, allocs, "%s crc %t markers %t payload %d", k.name, mode.crc, mode.markers, n)
			}
			ca.Close()
			cb.Close()
		}
	}
}

// wall is a Guard that can be shut.
type wall struct {
	err  error
	held int
}

func (w *wall) Acquire() error {
	if w.err == nil {
		w.held++
	}
	return w.err
}

func (w *wall) Release() { w.held-- }

// A Guard is asked around each attempt; its refusal ends the writing half.
func TestGuardWrites(t *testing.T) {
	for _, k := range socketKinds[:3] {
		t.Run(k.name, func(t *testing.T) {
			a, b := k.pair(t)
			c, peer := direct(a, b, true, false, 0)
			defer c.Close()
			defer peer.Close()
			g := &wall{}
			c.GuardWrites(g)
			c.Append([]byte("x"), nil)
			require.NoError(t, c.Flush())
			require.Zero(t, g.held)
			g.err = errors.New("invalidated")
			c.Append([]byte("y"), nil)
			require.ErrorIs(t, c.Flush(), g.err)
			f, err := peer.Next()
			require.NoError(t, err)
			require.Equal(t, "x", string(f.Head))
		})
	}
}

// CloseWrite ends one half; the other goes on (RFC 5044, section 7.2).
func TestHalfClose(t *testing.T) {
	for _, k := range socketKinds[:2] {
		a, b := k.pair(t)
		ca, cb := direct(a, b, true, false, 0)
		ca.Append([]byte("last"), nil)
		require.NoError(t, ca.Flush())
		require.NoError(t, ca.CloseWrite())
		f, err := cb.Next()
		require.NoError(t, err)
		require.Equal(t, "last", string(f.Head))
		require.Equal(t, io.EOF, f2err(cb.Next()))
		cb.Append([]byte("answer"), nil)
		require.NoError(t, cb.Flush())
		f, err = ca.Next()
		require.NoError(t, err)
		require.Equal(t, "answer", string(f.Head))
		ca.Close()
		cb.Close()
	}
}

// Drain throws away what the peer still sends, until its FIN, and gives up at the deadline.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(100_000)
		defer a.Close()
		c, _ := direct(b, a, true, false, 0)
		defer c.Close()
		require.NoError(t, writeAll(a, make([]byte, 90_000)))
		begin := time.Now()
		require.ErrorIs(t, c.Drain(begin.Add(time.Second)), os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begin))
		require.Zero(t, b.Readable())
		a.CloseWrite()
		require.Equal(t, io.EOF, c.Drain(time.Now().Add(time.Second)))
		require.ErrorIs(t, f2err(c.Next()), ErrLost, "the reading half is over")
	})
}

// SetWriteDeadline bounds Flush against a peer that reads nothing.
func TestFlushDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(10)
		defer b.Close()
		c, _ := direct(a, b, true, false, 0)
		defer c.Close()
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		c.Append(make([]byte, 100), nil)
		require.ErrorIs(t, c.Flush(), os.ErrDeadlineExceeded)
	})
}
