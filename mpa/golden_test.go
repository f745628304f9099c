package mpa

import (
	"bufio"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/tests/capture"
)

// unhex decodes hex with blanks between.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// exchange is one conversation with a Linux soft-iWARP peer, as recorded in testdata/siw-*.txt: the
// startup frames and the FPDUs of both directions.
type exchange struct {
	name    string
	request []byte
	reply   []byte   // empty if the peer closed instead
	fpdus   [][]byte // sent and received
}

func (x exchange) crc() bool { return len(x.reply) > 16 && x.reply[16]&flagCRC != 0 }

func readExchanges(t testing.TB, file string) []exchange {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	require.NoError(t, err)
	defer f.Close()
	var all []exchange
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if name, ok := strings.CutPrefix(line, "## "); ok {
			all = append(all, exchange{name: name})
			continue
		}
		x := &all[len(all)-1]
		kind, octets, _ := strings.Cut(line, " ")
		b := unhex(t, octets)
		switch kind {
		case "REQ":
			x.request = b
		case "REP":
			x.reply = b
		default:
			x.fpdus = append(x.fpdus, b)
		}
	}
	return all
}

func allExchanges(t testing.TB) []exchange {
	return append(readExchanges(t, "siw-responder.txt"), readExchanges(t, "siw-initiator.txt")...)
}

// TestGoldenStartupFrames parses what siw and its probe said to each other, and says it again.
func TestGoldenStartupFrames(t *testing.T) {
	seen := 0
	for _, x := range allExchanges(t) {
		for i, b := range [][]byte{x.request, x.reply} {
			if len(b) == 0 {
				continue
			}
			f, err := ParseFrame(b)
			// In these an enhanced frame has no room for IRD and ORD.
			if b[16]&flagEnhanced != 0 && b[17] >= 2 && len(b) < headerLen+depthsLen {
				require.ErrorIs(t, err, ErrFrame, x.name)
				continue
			}
			require.NoError(t, err, x.name)
			require.Equal(t, i == 1, f.Reply, x.name)
			require.Equal(t, b, f.AppendTo(nil), x.name)
			seen++
		}
	}
	require.Greater(t, seen, 50)
}

// TestGoldenFPDUs reads the FPDUs of both sides through a Conn, and writes them again.
func TestGoldenFPDUs(t *testing.T) {
	seen := 0
	for _, x := range allExchanges(t) {
		withCRC := x.crc() || strings.HasPrefix(x.name, "crc")
		for _, b := range x.fpdus {
			rewrite(t, x.name, b, withCRC, 1)
			seen++
		}
	}
	require.Greater(t, seen, 45)
}

// rewrite takes a stream of FPDUs apart and puts it together again; both have to be byte for byte
// the same.
func rewrite(t *testing.T, name string, octets []byte, withCRC bool, least int) {
	t.Helper()
	a, b := MemPipe(len(octets))
	x, y := MemPipe(len(octets))
	defer func() {
		for _, s := range []*MemSocket{a, b, x, y} {
			s.Close()
		}
	}()
	require.NoError(t, writeAll(a, octets))
	a.CloseWrite()
	p := &Params{CRC: withCRC}
	in, out := newConn(b, p, 0), newConn(x, p, MaxULPDU)
	n := 0
	for ; ; n++ {
		f, err := in.Next()
		if err != nil {
			require.Equal(t, "EOF", err.Error(), name)
			break
		}
		require.NoError(t, f.Fill(), name)
		out.AppendCopy(f.Head[:min(14, f.Len)], [][]byte{f.Head[min(14, f.Len):]})
	}
	require.NoError(t, out.Flush())
	require.GreaterOrEqual(t, n, least, name)
	got, err := readAll(y, len(octets))
	require.NoError(t, err)
	require.Equal(t, octets, got, name)
}

// TestGoldenCaptures does the same with whole connections of Linux kernels.
func TestGoldenCaptures(t *testing.T) {
	for _, file := range []string{"siw-rping", "siw-rping-4k", "siw-rping-crc", "siw-rping-p2p", "ib_iser-lio"} {
		t.Run(file, func(t *testing.T) {
			conns, err := capture.Read("../tests/testdata/" + file + ".pcap")
			require.NoError(t, err)
			seen := 0
			for _, c := range conns {
				if len(c.FromServer) == 0 {
					continue
				}
				req, toServer := splitFrame(t, c.FromClient)
				rep, toClient := splitFrame(t, c.FromServer)
				require.False(t, req.Reply)
				require.True(t, rep.Reply)
				require.Equal(t, req.CRC, rep.CRC)
				require.Equal(t, file == "siw-rping-crc", rep.CRC)
				require.NoError(t, checkReply(&req, &rep))
				rewrite(t, c.Client, toServer, rep.CRC, 2)
				rewrite(t, c.Server, toClient, rep.CRC, 2)
				seen++
			}
			require.Positive(t, seen)
		})
	}
}

func splitFrame(t *testing.T, b []byte) (Frame, []byte) {
	t.Helper()
	n, err := frameLen(b, string(b[:keyLen]) == replyKey)
	require.NoError(t, err)
	f, err := ParseFrame(b[:n])
	require.NoError(t, err)
	require.Equal(t, b[:n], f.AppendTo(nil))
	return f, b[n:]
}
