package rdmap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
	"goiwarp/tests/capture"
)

// logged are the ULPDUs of a log of probes of a Linux soft-iWARP: lines of "TX" or "RX" and one FPDU in hex each. Those that
// are too short to have an RDMAP header, or that the log has cut, are left out.
func logged(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	require.NoError(t, err)
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		dir, dump, ok := strings.Cut(strings.TrimSpace(sc.Text()), " ")
		if !ok || dir != "TX" && dir != "RX" || strings.Contains(dump, "…") {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(dump), " ", ""))
		require.NoError(t, err, dump)
		n := int(binary.BigEndian.Uint16(b))
		require.Equal(t, 2+n+(-(n+2)&3)+4, len(b), dump)
		all = append(all, b[2:2+n])
	}
	require.NotEmpty(t, all)
	return all
}

// captured are the ULPDUs of both directions of all connections of a capture; none of these has Markers.
func captured(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	conns, err := capture.Read(file)
	require.NoError(t, err)
	for _, c := range conns {
		for _, b := range [][]byte{c.FromClient, c.FromServer} {
			if !bytes.HasPrefix(b, []byte("MPA ID Re")) {
				continue
			}
			b = b[20+int(binary.BigEndian.Uint16(b[18:])):]
			for len(b) >= 2 {
				n := int(binary.BigEndian.Uint16(b))
				size := 2 + n + (-(n + 2) & 3) + 4
				require.LessOrEqual(t, size, len(b))
				all = append(all, b[2:2+n])
				b = b[size:]
			}
			require.Empty(t, b)
		}
	}
	return all
}

// again takes a ULPDU apart and puts it together from the values.
func again(t *testing.T, u []byte) []byte {
	t.Helper()
	c := Control(ddp.Control(u).ULP())
	op := c.Opcode()
	if ddp.Control(u).Tagged() {
		out := make([]byte, ddp.TaggedLen)
		f := ddp.Tagged(u).Fields()
		ddp.Tagged(out).Encode(&f)
		return append(out, u[ddp.TaggedLen:]...)
	}
	out := make([]byte, ddp.UntaggedLen)
	f := ddp.Untagged(u).Fields()
	ddp.Untagged(out).Encode(&f)
	body := u[ddp.UntaggedLen:]
	switch op {
	case OpReadRequest:
		require.Len(t, body, ReadRequestLen)
		rf := ReadRequest(body).Fields()
		out = append(out, make([]byte, ReadRequestLen)...)
		ReadRequest(out[ddp.UntaggedLen:]).Encode(&rf)
		return out
	case OpTerminate:
		tm, err := ParseTerminate(body, true)
		require.NoError(t, err)
		assert.True(t, tm.Swapped, "soft-iWARP's form")
		assert.True(t, plausible(tm.Layer, tm.Type, tm.Code, true), "%+v", tm)
		// In the RFC's form the same values take the same room; only the control word differs.
		rfc := tm.Append(nil)
		assert.Equal(t, body[termControl:], rfc[termControl:])
		assert.Equal(t, body[0]>>4|body[0]<<4, rfc[0])
		assert.Equal(t, body[1], rfc[1])
		return append(out, body...)
	}
	return append(out, body...)
}

func TestGoldenProbeLogs(t *testing.T) {
	seen := map[Opcode]int{}
	for _, file := range []string{"siw-initiator-probes.txt", "siw-responder-probes.txt"} {
		for _, u := range logged(t, file) {
			h := ddp.Control(u)
			if h.Version() != ddp.Version || Control(h.ULP()).Version() != Version {
				continue // wrong on purpose: TestProbes has them
			}
			assert.Equal(t, hex.EncodeToString(u), hex.EncodeToString(again(t, u)))
			seen[Control(h.ULP()).Opcode()]++
		}
	}
	for _, op := range []Opcode{OpWrite, OpReadRequest, OpReadResponse, OpSend, OpSendInvalidate, OpSendSE, OpTerminate} {
		assert.NotZero(t, seen[op], "%v", op)
	}
}

func TestGoldenCaptures(t *testing.T) {
	files, err := filepath.Glob("../tests/testdata/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			all := captured(t, file)
			require.NotEmpty(t, all)
			for _, u := range all {
				if !bytes.Equal(u, again(t, u)) {
					t.Fatalf("%x", u)
				}
			}
		})
	}
}

// TestGoldenReplay plays what a Linux soft-iWARP sent into a stream: nothing of it may be refused. The STags of the
// capture are not ours, so that it ends with the first message, rping's advertisement.
func TestGoldenReplay(t *testing.T) {
	for _, name := range []string{"siw-rping.pcap", "siw-rping-4k.pcap", "siw-rping-crc.pcap", "siw-rping-p2p.pcap"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conns, err := capture.Read(filepath.Join("..", "tests", "testdata", name))
				require.NoError(t, err)
				require.NotEmpty(t, conns)
				a, b := mpa.MemPipe(1 << 20)
				b.SetEMSS(1460)
				_, err = a.Write([][]byte{conns[0].FromClient[:20+int(binary.BigEndian.Uint16(conns[0].FromClient[18:]))]})
				require.NoError(t, err)
				req, err := mpa.ReadRequest(t.Context(), b, nil, mpa.Options{CRC: mpa.Off})
				require.NoError(t, err)
				c, p, err := req.Accept(t.Context(), nil, 16, 16)
				require.NoError(t, err)
				s := newSide(t, c, Config{Role: Responder, IRD: 16, ORD: 16}, allRights, sideMem)
				s.expect(0, 64, 16)
				s.run()
				rest := conns[0].FromClient[20+int(binary.BigEndian.Uint16(conns[0].FromClient[18:])):]
				// Up to the end of the first Send: rping's advertisement.
				for n, sends := 0, 0; sends == 0; {
					l := int(binary.BigEndian.Uint16(rest[n:]))
					u := rest[n+2 : n+2+l]
					if Control(ddp.Control(u).ULP()).Opcode() == OpSend {
						sends++
					}
					n += 2 + l + (-(l + 2) & 3) + 4
					if sends > 0 {
						_, err = a.Write([][]byte{rest[:n]})
						require.NoError(t, err)
					}
				}
				synctest.Wait()
				msgs, _ := s.rec.snapshot()
				require.NotEmpty(t, msgs, "%v: %v", p, s.rec.err)
				require.Equal(t, 16, msgs[0].Len, "address, key and size")
			})
		})
	}
}
