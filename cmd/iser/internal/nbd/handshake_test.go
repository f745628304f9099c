package nbd

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	waitFor = 30 * time.Second
	tick    = time.Millisecond
)

// script is a client that says all at once.
type script struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error) { return s.out.Write(b) }

func unhex(t testing.TB, lines ...string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(strings.Join(lines, "")))
	require.NoError(t, err)
	return b
}

const (
	hello    = "4e42444d41474943 49484156454f5054 0003" // NBDMAGIC IHAVEOPT, fixed newstyle and no zeroes
	haveOpt  = "49484156454f5054"
	optReply = "0003e889045565a9"
)

// TestHandshakes compares octets put together from the protocol's text.
func TestHandshakes(t *testing.T) {
	zeroes := strings.Repeat("00", 124)
	for name, c := range map[string]struct {
		client, server []string
		err            string // part of it; "" is the transmission phase
		agreed         agreement
	}{
		"export name, no zeroes": {
			client: []string{"00000003", haveOpt, "00000001 00000000"},
			server: []string{hello, "0000000000100000 016d"},
		},
		"export name with zeroes": {
			client: []string{"00000001", haveOpt, "00000001 00000004", hex.EncodeToString([]byte("disk"))},
			server: []string{hello, "0000000000100000 016d", zeroes},
		},
		"go": {
			client: []string{"00000003", haveOpt, "00000007 00000006", "00000000 0000"},
			server: []string{
				hello,
				optReply, "00000007 00000003 0000000c", "0000 0000000000100000 016d",
				optReply, "00000007 00000003 0000000e", "0003 00000200 00001000 02000000",
				optReply, "00000007 00000001 00000000",
			},
		},
		"info with name and description, then go": {
			client: []string{
				"00000003", haveOpt, "00000006 0000000e", "00000004", hex.EncodeToString([]byte("disk")), "0002 0001 0002",
				haveOpt, "00000007 00000006", "00000000 0000",
			},
			server: []string{
				hello,
				optReply, "00000006 00000003 0000000c", "0000 0000000000100000 016d",
				optReply, "00000006 00000003 0000000e", "0003 00000200 00001000 02000000",
				optReply, "00000006 00000003 00000006", "0001", hex.EncodeToString([]byte("disk")),
				optReply, "00000006 00000003 00000008", "0002", hex.EncodeToString([]byte("a disk")),
				optReply, "00000006 00000001 00000000",
				optReply, "00000007 00000003 0000000c", "0000 0000000000100000 016d",
				optReply, "00000007 00000003 0000000e", "0003 00000200 00001000 02000000",
				optReply, "00000007 00000001 00000000",
			},
		},
		"list, unknown options and abort": {
			client: []string{"00000003", haveOpt, "00000003 00000000", haveOpt, "0000000b 00000000", haveOpt, "00000005 00000000", haveOpt, "00000002 00000000"},
			server: []string{
				hello,
				optReply, "00000003 00000002 0000000e", "00000004", hex.EncodeToString([]byte("diska disk")),
				optReply, "00000003 00000001 00000000",
				optReply, "0000000b 80000001 00000000",
				optReply, "00000005 80000001 00000000",
				optReply, "00000002 00000001 00000000",
			},
			err: "chose no export",
		},
		"go for another export, and one that is malformed": {
			client: []string{"00000003", haveOpt, "00000007 00000007", "00000001 78 0000", haveOpt, "00000007 00000006", "00000009 0000", haveOpt, "00000007 00000006", "00000000 0001"},
			server: []string{
				hello, optReply, "00000007 80000006 00000000", optReply, "00000007 80000003 00000000", optReply, "00000007 80000003 00000000",
			},
			err: "EOF",
		},
		"structured replies, the list of contexts, a choice, go": {
			client: []string{
				"00000003", haveOpt, "00000008 00000000",
				haveOpt, "00000009 00000008", "00000000 00000000",
				haveOpt, "00000009 00000011", "00000000 00000001 00000005", hex.EncodeToString([]byte("base:")),
				haveOpt, "0000000a 00000022", "00000000 00000002 0000000f", hex.EncodeToString([]byte("base:allocation")), "00000003 783a79",
				haveOpt, "00000007 00000006", "00000000 0000",
			},
			server: []string{
				hello,
				optReply, "00000008 00000001 00000000",
				optReply, "00000009 00000004 00000013", "00000000", hex.EncodeToString([]byte("base:allocation")), optReply, "00000009 00000001 00000000",
				optReply, "00000009 00000004 00000013", "00000000", hex.EncodeToString([]byte("base:allocation")), optReply, "00000009 00000001 00000000",
				optReply, "0000000a 00000004 00000013", "00000001", hex.EncodeToString([]byte("base:allocation")), optReply, "0000000a 00000001 00000000",
				optReply, "00000007 00000003 0000000c", "0000 0000000000100000 01ed",
				optReply, "00000007 00000003 0000000e", "0003 00000200 00001000 02000000",
				optReply, "00000007 00000001 00000000",
			},
			agreed: agreement{structured: true, allocation: true},
		},
		"a context without structured replies, then with them, then none": {
			client: []string{
				"00000003", haveOpt, "0000000a 0000001b", "00000000 00000001 0000000f", hex.EncodeToString([]byte("base:allocation")),
				haveOpt, "00000008 00000000", haveOpt, "00000008 00000000",
				haveOpt, "0000000a 0000001b", "00000000 00000001 0000000f", hex.EncodeToString([]byte("base:allocation")),
				haveOpt, "0000000a 00000009", "00000001 78 00000000",
				haveOpt, "0000000a 0000000c", "00000000 00000001 00000001",
				haveOpt, "00000001 00000000",
			},
			server: []string{
				hello,
				optReply, "0000000a 80000003 00000000",
				optReply, "00000008 00000001 00000000", optReply, "00000008 80000003 00000000",
				optReply, "0000000a 00000004 00000013", "00000001", hex.EncodeToString([]byte("base:allocation")), optReply, "0000000a 00000001 00000000",
				optReply, "0000000a 80000006 00000000",
				optReply, "0000000a 80000003 00000000",
				"0000000000100000 01ed",
			},
			agreed: agreement{structured: true},
		},
		"option that is too long": {
			client: []string{"00000003", haveOpt, "00000007 00002000", strings.Repeat("00", 0x2000)},
			server: []string{hello, optReply, "00000007 80000009 00000000"},
			err:    "EOF",
		},
		"option that never ends":       {client: []string{"00000003", haveOpt, "00000007 ffffffff"}, server: []string{hello}, err: "octets of data"},
		"export name that is unknown":  {client: []string{"00000003", haveOpt, "00000001 00000001 78"}, server: []string{hello}, err: "none with the name"},
		"client flags that are unkown": {client: []string{"00000013"}, server: []string{hello}, err: "client flags"},
		"no option":                    {client: []string{"00000003", "0000000000000000 00000001 00000000"}, server: []string{hello}, err: "begins with"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{in: bytes.NewReader(unhex(t, c.client...))}
			h := &handshake{x: export(newRAM(1 << 20)), rw: s}
			err := h.run()
			if c.err == "" {
				require.NoError(t, err)
				require.Equal(t, c.agreed, h.agreement)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, hex.EncodeToString(unhex(t, c.server...)), hex.EncodeToString(s.out.Bytes()))
		})
	}
}

// TestWhatAnExportOffers: flags beyond the kernel's, each where it is true.
func TestWhatAnExportOffers(t *testing.T) {
	x := export(newRAM(1 << 20))
	offers := func(change func(*Export), structured bool) TransmissionFlags {
		y := x
		change(&y)
		return (&handshake{x: y, agreement: agreement{structured: structured}}).flags() &^ x.Flags()
	}
	require.Zero(t, offers(func(*Export) {}, false))
	require.Equal(t, SendDF, offers(func(*Export) {}, true))
	require.Equal(t, SendCache, offers(func(x *Export) { x.Prefetch = true }, false))
	require.Equal(t, SendFastZero, offers(func(x *Export) { x.ReadsZeros = true }, false))
	require.Zero(t, offers(func(x *Export) { x.ReadsZeros, x.UnmapSame = true, false }, false), "zeroes would be written out")
	require.Equal(t, ReadOnly, offers(func(x *Export) { x.ReadsZeros, x.ReadOnly = true, true }, false))
}

// TestHandshakeCutAnywhere: an error, never a transmission phase.
func TestHandshakeCutAnywhere(t *testing.T) {
	whole := unhex(t, "00000003", haveOpt, "00000006 00000006", "00000000 0000", haveOpt, "00000007 00000006", "00000000 0000")
	for n := range whole {
		s := &script{in: bytes.NewReader(whole[:n])}
		require.Error(t, (&handshake{x: export(newRAM(1 << 20)), rw: s}).run(), "%d octets", n)
	}
}

func TestHandshakeHasAnEnd(t *testing.T) {
	d := newRAM(1 << 20)
	s, err := New(d, export(d), Config{HandshakeTimeout: time.Millisecond})
	require.NoError(t, err)
	near, far := pair(t, "tcp")
	defer near.Close()
	require.ErrorContains(t, s.Serve(t.Context(), far), "timeout")
	b := unhex(t, "00000003")
	for range maxOptions + 1 {
		b = append(b, unhex(t, haveOpt, "00000003 00000000")...)
	}
	require.ErrorContains(t, (&handshake{x: export(d), rw: &script{in: bytes.NewReader(b)}}).run(), "no export chosen")
}

// TestListen: several clients at once, and an end that waits for them.
func TestListen(t *testing.T) {
	d := newRAM(1 << 20)
	s, err := New(d, export(d), Config{MaxConnections: 2})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Listen(ctx, ln) }()
	for range 4 { // one after the other, more than MaxConnections
		c, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		_, err = c.Write(unhex(t, "00000003", haveOpt, "00000001 00000000"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 18+10))
		require.NoError(t, err)
		_, e := (&client{t, c}).do(CmdRead, 0, 0, 512, nil)
		require.Zero(t, e)
		require.NoError(t, c.Close())
	}
	cancel()
	require.NoError(t, <-done)
	s.Close()
	require.Zero(t, d.lent.Load())
}

// full is a listener that finds no descriptor for the first connection.
type full struct {
	net.Listener
	once sync.Once
}

func (f *full) Accept() (c net.Conn, err error) {
	f.once.Do(func() { err = &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)} })
	if err != nil {
		return nil, err
	}
	return f.Listener.Accept()
}

// TestListenGoesOn: who is connected is still served when no more can connect, and those can later.
func TestListenGoesOn(t *testing.T) {
	d := newRAM(1 << 20)
	s, err := New(d, export(d), Config{})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Listen(ctx, &full{Listener: ln}) }()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 18))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	cancel()
	require.NoError(t, <-done)
	s.Close()
}

func FuzzHandshake(f *testing.F) {
	f.Add(unhex(f, "00000003", haveOpt, "00000006 0000000c", "00000004", hex.EncodeToString([]byte("disk")), "0001 0001", haveOpt, "00000007 00000006", "00000000 0000"))
	f.Add(unhex(f, "00000003", haveOpt, "00000008 00000000", haveOpt, "0000000a 0000001b", "00000000 00000001 0000000f", hex.EncodeToString([]byte("base:allocation"))))
	f.Add(unhex(f, "00000003", haveOpt, "00000008 00000000", haveOpt, "00000009 0000000c", "00000000 00000001 00000000"))
	f.Add(unhex(f, "00000001", haveOpt, "00000001 00000000"))
	f.Add(unhex(f, "00000003", haveOpt, "00000003 00000000", haveOpt, "00000002 00000000"))
	x := export(newRAM(1 << 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &script{in: bytes.NewReader(b)}
		err := (&handshake{x: x, rw: s}).run()
		if err == nil && len(b) < 4+optionLen {
			t.Fatal("a transmission phase out of nothing")
		}
		if s.out.Len() > 200*(1+len(b)/optionLen)+1024+len(b) {
			t.Fatalf("%d octets answered to %d", s.out.Len(), len(b))
		}
	})
}
