package mpa

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// respond runs a responder against the raw octets of an initiator. It returns the responder's
// outcome and the initiator's end of the stream.
func respond(t testing.TB, octets []byte, opts Options, ird, ord int) (*Conn, *Params, *MemSocket, error) {
	t.Helper()
	peer, own := MemPipe(4 << 10)
	t.Cleanup(func() { peer.Close(); own.Close() })
	require.NoError(t, writeAll(peer, octets))
	r, err := ReadRequest(context.Background(), own, nil, opts)
	if err != nil {
		return nil, nil, peer, err
	}
	c, p, err := r.Accept(context.Background(), nil, ird, ord)
	return c, p, peer, err
}

// call runs an initiator against a peer that answers with raw octets.
func call(t testing.TB, answer []byte, opts Options, ird, ord int) (*Conn, *Params, *MemSocket, error) {
	t.Helper()
	peer, own := MemPipe(4 << 10)
	t.Cleanup(func() { peer.Close(); own.Close() })
	require.NoError(t, writeAll(peer, answer))
	require.NoError(t, peer.CloseWrite())
	c, p, err := Initiate(context.Background(), own, opts, nil, ird, ord)
	return c, p, peer, err
}

// answered reads the frame that our side sent.
func answered(t testing.TB, peer Socket) Frame {
	t.Helper()
	b, err := readAll(peer, headerLen)
	require.NoError(t, err)
	n, err := frameLen(b, string(b[:keyLen]) == replyKey)
	require.NoError(t, err)
	rest, err := readAll(peer, n-headerLen)
	require.NoError(t, err)
	f, err := ParseFrame(append(b, rest...))
	require.NoError(t, err)
	return f
}

// closed asserts that our side closed without an answer.
func closed(t testing.TB, peer Socket) {
	t.Helper()
	_, err := readAll(peer, 1)
	require.Equal(t, io.EOF, err)
}

const (
	reqHex = "4d504120 49442052 65712046 72616d65"
	repHex = "4d504120 49442052 65702046 72616d65"
)

// TestResponderAnswers has the Requests of the soft-iWARP probes and variants of them, and what an
// RFC-conforming responder does.
func TestResponderAnswers(t *testing.T) {
	crcOff := Options{CRC: Off}
	for _, c := range []struct {
		name    string
		request string // behind the key
		opts    Options
		reply   string // behind the key; empty: closed without an answer
	}{
		{"CRC requested", "5002 0004 0001 0001", crcOff, "5002 0004 0001 0001"},
		{"CRC off on both sides", "1002 0004 0001 0001", crcOff, "1002 0004 0001 0001"},
		{"CRC off is their wish alone", "1002 0004 0001 0001", Options{}, "5002 0004 0001 0001"},
		{"Markers requested are honoured", "9002 0004 0001 0001", crcOff, "1002 0004 0001 0001"},
		{"Markers are ours to want", "1002 0004 0001 0001", Options{CRC: Off, Markers: On}, "9002 0004 0001 0001"},
		{"revision 1", "0001 0000", crcOff, "0001 0000"},
		{"revision 1 has no S", "1001 0000", crcOff, "0001 0000"},
		{"revision 0 is RDMAC's", "0000 0000", crcOff, ""},
		{"revision 3", "1003 0004 0001 0001", crcOff, ""},
		{"revision 2 without S", "0002 0000", crcOff, "0002 0000"},
		{"revision 2 with S and no IRD and ORD", "1002 0000", crcOff, ""},
		{"revision 2 where 1 is the limit", "1002 0004 0001 0001", Options{Revision: 1}, ""},
		{"enhanced where that is off", "1002 0004 0001 0001", Options{Enhanced: Off}, ""},
		{"peer-to-peer, Send", "1002 0004 c001 0001", crcOff, "1002 0004 c001 0001"},
		{"peer-to-peer, Write or Read", "1002 0004 8001 c001", crcOff, "1002 0004 8001 c001"},
		{"peer-to-peer, Read", "1002 0004 8001 4001", crcOff, "1002 0004 8001 4001"},
		{"peer-to-peer, Read, no ORD", "1002 0004 8001 4000", crcOff, "1002 0004 8001 4001"},
		{"peer-to-peer, nothing named", "1002 0004 8001 0001", crcOff, "1002 0004 c001 c001"},
		{"peer-to-peer, nothing in common", "1002 0004 c001 0001", Options{CRC: Off, RTR: RTRRead}, "1002 0004 8001 4001"},
		{"0x3fff is mirrored", "1002 0004 3fff 3fff", crcOff, "1002 0004 3fff 3fff"},
		{"no Reads", "1002 0004 0000 0000", crcOff, "1002 0004 0000 0000"},
		{"flags without A are ignored", "1002 0004 4001 c001", crcOff, "1002 0004 0001 0001"},
		{"our limits bind", "1002 0004 0200 0300", crcOff, "1002 0004 0010 0020"},
		{"reserved bits and R are ignored", "3f02 0004 0001 0001", crcOff, "1002 0004 0001 0001"},
		{"PD_Length 513", "1002 0201 0001 0001", crcOff, ""},
		{"PD_Length 65535", "1002 ffff 0001 0001", crcOff, ""},
		{"an octet behind the frame", "1002 0004 0001 0001 00", crcOff, ""},
		{"an FPDU behind the frame", "0001 0000 0022 4143", crcOff, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, _, peer, err := respond(t, unhex(t, reqHex+c.request), c.opts, 16, 32)
			if c.reply == "" {
				require.ErrorIs(t, err, ErrFrame)
				closed(t, peer)
				return
			}
			require.NoError(t, err)
			want := unhex(t, repHex+c.reply)
			// The limits of this table's responder are IRD 16, ORD 32.
			got, err := readAll(peer, len(want))
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, conn.Close())
			closed(t, peer) // nothing follows
		})
	}
}

// A hardware initiator whose control flag A was not copied, with everything around it varied.
func TestFieldControlFlagA(t *testing.T) {
	conn, p, peer, err := respond(t, unhex(t, reqHex+"5002 0004 8001 4002"), Options{}, 1, 1)
	require.NoError(t, err)
	defer conn.Close()
	f := answered(t, peer)
	require.True(t, f.Reply && f.Enhanced && f.PeerToPeer && f.CRC && !f.Reject)
	require.Equal(t, RTRRead, f.RTR, "out of those offered")
	require.Equal(t, 1, f.IRD, "within ours")
	require.Equal(t, 1, f.ORD, "within theirs")
	require.True(t, p.PeerToPeer && p.CRC)
	require.Equal(t, 2, p.PeerORD)

	for _, v := range []struct {
		name, header string
		pd           int
		check        func(f Frame, p *Params)
		fails        bool
	}{
		{name: "revision 1", header: "4001", pd: 0, check: func(f Frame, p *Params) {
			require.False(t, f.Enhanced)
			require.Equal(t, 1, f.Revision)
			require.Empty(t, f.PrivateData)
		}},
		{name: "S=0", header: "4002", pd: 4, check: func(f Frame, p *Params) {
			require.False(t, f.Enhanced)
			require.Len(t, p.PrivateData, 4)
			require.Equal(t, 9, p.IRD, "as the ULP says")
		}},
		{name: "M=1", header: "d002", pd: 4, check: func(f Frame, p *Params) { require.True(t, p.MarkersOut && !p.MarkersIn) }},
		{name: "C=0", header: "1002", pd: 4, check: func(f Frame, p *Params) { require.True(t, f.CRC && p.CRC) }},
		{name: "R=1", header: "7002", pd: 4, check: func(f Frame, p *Params) { require.False(t, f.Reject) }},
		{name: "reserved", header: "5f02", pd: 4, check: func(f Frame, p *Params) { require.True(t, f.Enhanced) }},
		{name: "PD_Length 512", header: "5002", pd: 512, check: func(f Frame, p *Params) { require.Len(t, p.PrivateData, 508) }},
		{name: "PD_Length 513", header: "5002", pd: 513, fails: true},
	} {
		t.Run(v.name, func(t *testing.T) {
			b := append(unhex(t, reqHex+v.header), byte(v.pd>>8), byte(v.pd))
			b = append(b, make([]byte, v.pd)...)
			conn, p, peer, err := respond(t, b, Options{}, 9, 9)
			if v.fails {
				require.ErrorIs(t, err, ErrFrame)
				closed(t, peer)
				return
			}
			require.NoError(t, err)
			defer conn.Close()
			v.check(answered(t, peer), p)
		})
	}
}

// The Ready-To-Receive form is the one that the Reply names, not what the Request offered.
func TestFieldRTRIsTheReplys(t *testing.T) {
	opts := Options{CRC: Off, PeerToPeer: On, RTR: RTRWrite | RTRRead}
	for reply, want := range map[string]RTR{
		"8002 4001": RTRRead,
		"8002 8001": RTRWrite,
		"8002 c001": RTRWrite,
		"c002 4001": RTRRead,
		"c002 0001": 0, // a Send, which we did not offer
	} {
		c, p, _, err := call(t, unhex(t, repHex+"1002 0004"+reply), opts, 4, 4)
		if want == 0 {
			require.ErrorIs(t, err, ErrRTR, reply)
		} else {
			require.NoError(t, err, reply)
			require.Equal(t, want, p.RTR, reply)
		}
		c.Close() // open in both cases: a Terminate Message is due
	}
	c, p, _, err := call(t, unhex(t, repHex+"1002 0004 c002 0001"), Options{CRC: Off, PeerToPeer: On}, 4, 4)
	require.NoError(t, err)
	require.Equal(t, RTRSend, p.RTR)
	c.Close()
}

func TestInitiatorAndReplies(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply string // behind the key
		opts  Options
		code  Code // 0: works
	}{
		{"plain", "1002 0004 0001 0001", Options{CRC: Off}, 0},
		{"CRC although not asked for", "5002 0004 0001 0001", Options{CRC: Off}, 0},
		{"Markers wanted", "9002 0004 0001 0001", Options{}, 0},
		{"revision 1 to a revision 1 Request", "0001 0000", Options{Revision: 1}, 0},
		{"revision 2 without S to the same", "0002 0000", Options{Enhanced: Off}, 0},
		{"revision 1 to an enhanced Request", "0001 0000", Options{}, CodeFrame},
		{"S missing", "0002 0000", Options{}, CodeFrame},
		{"S added", "1002 0004 0001 0001", Options{Enhanced: Off}, CodeFrame},
		{"later revision", "1003 0004 0001 0001", Options{}, CodeFrame},
		{"later revision than 1", "0002 0000", Options{Revision: 1}, CodeFrame},
		{"revision 0", "0000 0000", Options{Revision: 1}, CodeFrame},
		{"enhanced without IRD and ORD", "1002 0000", Options{}, CodeFrame},
		{"PD_Length too large", "1002 0201 0001 0001", Options{}, CodeFrame},
		{"ends within the header", "1002 00", Options{}, CodeLost},
		{"ends within the private data", "1002 0008 0001 0001 aa", Options{}, CodeLost},
		{"Reads beyond our IRD", "1002 0004 0001 0005", Options{}, CodeIRD},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, _, peer, err := call(t, unhex(t, repHex+c.reply), c.opts, 4, 4)
			if c.code == 0 {
				require.NoError(t, err)
				require.NoError(t, conn.Close())
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.code, e.Code, "%v", err)
			require.False(t, e.Remote)
			answered(t, peer) // the Request
			if c.code == CodeIRD {
				require.NotNil(t, conn, "for a Terminate Message")
				conn.Append([]byte("terminate"), nil)
				require.NoError(t, conn.Flush())
				_, err = readAll(peer, fpduLen(9))
				require.NoError(t, err)
				conn.Close()
			}
			closed(t, peer)
		})
	}
}

// Both ends as initiators, and both as responders (RFC 5044, section 7.1.2, rule 8).
func TestBothEndsInTheSameRole(t *testing.T) {
	_, _, peer, err := call(t, unhex(t, reqHex+"1002 0004 0001 0001"), Options{}, 1, 1)
	require.ErrorIs(t, err, ErrFrame)
	require.ErrorContains(t, err, "both ends act as initiator")
	answered(t, peer)
	closed(t, peer)

	_, _, peer, err = respond(t, unhex(t, repHex+"1002 0004 0001 0001"), Options{}, 1, 1)
	require.ErrorIs(t, err, ErrFrame)
	closed(t, peer)

	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(100)
		begin := time.Now()
		_, err := ReadRequest(context.Background(), a, nil, Options{})
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, DefaultRequestTimeout, time.Since(begin))
		b.Close()
	})
}

// Octets that are no MPA at all, and a Request that never becomes whole.
func TestResponderAgainstStrangers(t *testing.T) {
	for _, s := range []string{"GET / HTTP/1.1\r\n\r\n", "M", "MPA ID Req FramE", string(make([]byte, 48))} {
		synctest.Test(t, func(t *testing.T) {
			peer, own := MemPipe(4 << 10)
			require.NoError(t, writeAll(peer, []byte(s)))
			begin := time.Now()
			_, err := ReadRequest(context.Background(), own, nil, Options{})
			require.Error(t, err)
			if s != "M" {
				require.ErrorIs(t, err, ErrFrame)
				require.Zero(t, time.Since(begin), "at once")
			}
			closed(t, peer)
			peer.Close()
		})
	}
}

func TestStartupTimeouts(t *testing.T) {
	frame := unhex(t, reqHex+"1002 0004 0001 0001")
	cancelled := errors.New("changed my mind")
	for _, c := range []struct {
		name  string
		bound time.Duration
		want  error
		start func(ctx context.Context, s Socket) error
		ctx   func(context.Context) (context.Context, context.CancelFunc)
	}{
		{"Request", 5 * time.Second, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			_, err := ReadRequest(ctx, s, frame[:19], Options{})
			return err
		}, nil},
		{"Request, own bound", time.Minute, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			_, err := ReadRequest(ctx, s, frame[:len(frame)-1], Options{RequestTimeout: time.Minute})
			return err
		}, nil},
		{"Reply", 10 * time.Second, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			_, _, err := Initiate(ctx, s, Options{}, nil, 1, 1)
			return err
		}, nil},
		{"Reply, own bound", time.Second, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			_, _, err := Initiate(ctx, s, Options{ReplyTimeout: time.Second}, nil, 1, 1)
			return err
		}, nil},
		{"Reply, context's deadline", 3 * time.Second, context.DeadlineExceeded, func(ctx context.Context, s Socket) error {
			_, _, err := Initiate(ctx, s, Options{}, nil, 1, 1)
			return err
		}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 3*time.Second)
		}},
		{"Request, cancelled", 2 * time.Second, cancelled, func(ctx context.Context, s Socket) error {
			_, err := ReadRequest(ctx, s, nil, Options{})
			return err
		}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(2*time.Second, func() { cancel(cancelled) })
			return ctx, func() {}
		}},
		{"Request not sent", 10 * time.Second, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			for {
				if n, err := s.TryWrite([][]byte{{1}}); n == 0 || err != nil {
					break
				}
			}
			_, _, err := Initiate(ctx, s, Options{}, nil, 1, 1)
			return err
		}, nil},
		{"Reply not sent", 10 * time.Second, os.ErrDeadlineExceeded, func(ctx context.Context, s Socket) error {
			for {
				if n, err := s.TryWrite([][]byte{{1}}); n == 0 || err != nil {
					break
				}
			}
			r, err := ReadRequest(ctx, s, frame, Options{})
			if err != nil {
				return err
			}
			_, _, err = r.Accept(ctx, nil, 1, 1)
			return err
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, own := MemPipe(64)
				ctx := context.Background()
				if c.ctx != nil {
					var cancel context.CancelFunc
					ctx, cancel = c.ctx(ctx)
					defer cancel()
				}
				begin := time.Now()
				err := c.start(ctx, own)
				require.ErrorIs(t, err, ErrLost)
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.bound, time.Since(begin))
				_, err = own.TryWrite([][]byte{{1}})
				require.ErrorIs(t, err, net.ErrClosed, "the socket has been closed")
				peer.Close()
			})
		})
	}
}

// A context that is over before it begins.
func TestStartupWithDeadContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	peer, own := MemPipe(100)
	_, _, err := Initiate(ctx, own, Options{}, nil, 1, 1)
	require.ErrorIs(t, err, context.Canceled)
	closed(t, peer)
	peer.Close()
}

// After the startup its deadlines are gone, and so is the context.
func TestStartupLeavesNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := MemPipe(1000)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan *Conn, 1)
		go func() {
			r, err := ReadRequest(ctx, b, nil, Options{})
			if err != nil {
				panic(err)
			}
			c, _, _ := r.Accept(ctx, nil, 1, 1)
			done <- c
		}()
		ca, _, err := Initiate(ctx, a, Options{}, nil, 1, 1)
		require.NoError(t, err)
		cb := <-done
		cancel()
		synctest.Wait()
		time.AfterFunc(time.Hour, func() {
			ca.Append([]byte("late"), nil)
			ca.Flush()
		})
		f, err := cb.Next()
		require.NoError(t, err)
		require.Equal(t, "late", string(f.Head))
		ca.Close()
		cb.Close()
	})
}

// What goes between the two ULPs: private data of all sizes, both ways, in every kind of frame.
func TestPrivateData(t *testing.T) {
	for _, c := range []struct {
		opts Options
		room int
	}{{Options{}, 508}, {Options{Enhanced: Off}, 512}, {Options{Revision: 1}, 512}} {
		for _, n := range []int{0, 1, 251, 252, 508, 509, 512, 513} {
			synctest.Test(t, func(t *testing.T) {
				a, b := MemPipe(2000)
				defer a.Close()
				defer b.Close()
				data := pattern(n, 3)
				type result struct {
					got []byte
					err error
				}
				done := make(chan result, 1)
				go func() {
					r, err := ReadRequest(context.Background(), b, nil, Options{})
					if err != nil {
						done <- result{nil, err}
						return
					}
					_, _, err = r.Accept(context.Background(), data, 1, 1)
					done <- result{r.PrivateData, err}
				}()
				_, p, err := Initiate(context.Background(), a, c.opts, data, 1, 1)
				r := <-done
				if n > c.room {
					require.ErrorIs(t, err, ErrLocal)
					return
				}
				require.NoError(t, err)
				require.NoError(t, r.err)
				require.Equal(t, data, append([]byte{}, p.PrivateData...))
				require.Equal(t, data, append([]byte{}, r.got...))
			})
		}
	}
}

// The ULP refuses: the Reply says so, and TCP stays, with the stream right behind the frames.
func TestReject(t *testing.T) {
	for _, opts := range []Options{{}, {Revision: 1}} {
		a, b := MemPipe(1000)
		done := make(chan error, 1)
		go func() {
			r, err := ReadRequest(context.Background(), b, nil, Options{})
			if err == nil {
				err = r.Reject(context.Background(), []byte("no room"), 7, 9)
			}
			if err == nil {
				err = writeAll(b, []byte("something else"))
			}
			done <- err
		}()
		c, p, err := Initiate(context.Background(), a, opts, nil, 4, 4)
		require.Nil(t, c)
		require.Nil(t, p)
		var r *RejectError
		require.ErrorAs(t, err, &r)
		require.Equal(t, "no room", string(r.PrivateData))
		if opts.Revision != 1 {
			require.Equal(t, &RejectError{PrivateData: r.PrivateData, Enhanced: true, IRD: 7, ORD: 9}, r)
			require.ErrorContains(t, err, "ORD 9")
		}
		require.NoError(t, <-done)
		got, err := readAll(a, 14)
		require.NoError(t, err)
		require.Equal(t, "something else", string(got), "not an octet too many was read")
		require.NoError(t, writeAll(a, []byte("fine")))
		got, err = readAll(b, 4)
		require.NoError(t, err)
		require.Equal(t, "fine", string(got))
		a.Close()
		b.Close()
	}
}

// An octet that comes between Request and Reply is as wrong as one that comes with the Request.
func TestEarlyOctetsBeforeReply(t *testing.T) {
	for _, kind := range socketKinds[:2] {
		for _, reject := range []bool{false, true} {
			a, b := kind.pair(t)
			require.NoError(t, writeAll(a, unhex(t, reqHex+"1002 0004 0001 0001")))
			r, err := ReadRequest(context.Background(), b, nil, Options{})
			require.NoError(t, err)
			require.NoError(t, writeAll(a, []byte{0}))
			if kind.name == "tcp" { // loopback delivers before the write returns
				require.Positive(t, b.(interface{ Readable() int }).Readable())
			}
			if reject {
				err = r.Reject(context.Background(), nil, 1, 1)
			} else {
				_, _, err = r.Accept(context.Background(), nil, 1, 1)
			}
			require.ErrorIs(t, err, ErrFrame)
			_, err = readAll(a, 1)
			require.Error(t, err)
			a.Close()
			b.Close()
		}
	}
}

// Somebody has looked at the first octets to see what is spoken, and hands them over.
func TestReadRequestAfterPeek(t *testing.T) {
	whole := unhex(t, reqHex+"1002 0008 0001 0001 80000000")
	for n := 0; n <= len(whole); n++ {
		peer, own := MemPipe(1000)
		require.NoError(t, writeAll(peer, whole[n:]))
		r, err := ReadRequest(context.Background(), own, whole[:n], Options{})
		require.NoError(t, err)
		require.Equal(t, []byte{0x80, 0, 0, 0}, r.PrivateData)
		require.Equal(t, 1, r.IRD)
		peer.Close()
		own.Close()
	}
	peer, own := MemPipe(1000)
	_, err := ReadRequest(context.Background(), own, append(whole, make([]byte, 5000)...), Options{})
	require.ErrorIs(t, err, ErrFrame)
	peer.Close()
}

// Frames that arrive octet by octet.
func TestStartupInSingleOctets(t *testing.T) {
	peer, own := MemPipe(1) // holds one octet
	done := make(chan error, 1)
	go func() { done <- writeAll(peer, unhex(t, reqHex+"1002 0008 0001 0001 80000000")) }()
	r, err := ReadRequest(context.Background(), own, nil, Options{})
	require.NoError(t, err)
	require.NoError(t, <-done)
	go func() {
		c, _, err := r.Accept(context.Background(), nil, 1, 1)
		if err == nil {
			c.Close()
		}
		done <- err
	}()
	f := answered(t, peer)
	require.True(t, f.Reply)
	require.NoError(t, <-done)
	peer.Close()
}

// Wrong arguments of ours never reach the peer.
func TestStartupArguments(t *testing.T) {
	for _, d := range [][2]int{{-1, 0}, {0, -1}, {UlpNegotiates + 1, 0}, {0, UlpNegotiates + 1}} {
		peer, own := MemPipe(100)
		_, _, err := Initiate(context.Background(), own, Options{}, nil, d[0], d[1])
		require.ErrorIs(t, err, ErrLocal)
		closed(t, peer)
		peer.Close()
	}
	_, _, peer, err := respond(t, unhex(t, reqHex+"1002 0004 0001 0001"), Options{}, UlpNegotiates+1, 0)
	require.ErrorIs(t, err, ErrLocal)
	closed(t, peer)
	_, _, err = Initiate(context.Background(), peer, Options{Revision: 9}, nil, 0, 0)
	require.ErrorIs(t, err, ErrLocal)
}

func TestErrorText(t *testing.T) {
	require.Equal(t, "mpa: CRC mismatch: here: EOF", (&Error{Code: CodeCRC, Detail: "here", Err: io.EOF}).Error())
	require.Equal(t, "mpa: peer reports insufficient IRD", (&Error{Code: CodeIRD, Remote: true}).Error())
	for c := CodeLost; c <= CodeRTR; c++ {
		require.NotContains(t, c.String(), "error code")
	}
	require.Equal(t, "error code 9", Code(9).String())
	require.False(t, errors.Is(ErrCRC, ErrMarker))
	require.Equal(t, "mpa: connection rejected by the peer, 0 octets of private data", (&RejectError{}).Error())
	p := &Params{Role: Responder, Revision: 2, PeerToPeer: true, RTR: RTRRead}
	require.Contains(t, p.String(), "responder rev 2")
	require.Contains(t, p.String(), "rtr Read")
}
