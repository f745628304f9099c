package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iser"
	"goiwarp/mpa"
	"goiwarp/rdmap"
	"goiwarp/tests/capture"
)

// The captures in testdata are of Linux kernels that talk to each other: rping over siw in four
// settings, and ib_iser with LIO. None of their octets is ours. These tests take them apart with every layer's
// own code, and put them together again byte for byte.

// toggle turns a flag of a startup frame into the option that asks for it.
func toggle(on bool) mpa.Toggle {
	if on {
		return mpa.On
	}
	return mpa.Off
}

// offer is the startup options that make our initiator say what the captured one said.
func offer(req mpa.Frame) mpa.Options {
	return mpa.Options{
		Revision: req.Revision, Enhanced: toggle(req.Enhanced), CRC: toggle(req.CRC), Markers: toggle(req.Markers),
		PeerToPeer: toggle(req.PeerToPeer), RTR: req.RTR,
	}
}

// frameLen is the length of the startup frame that b begins with.
func frameLen(b []byte) int { return 20 + int(binary.BigEndian.Uint16(b[18:])) }

// pair is an initiator and a responder of our own, started up with captured frames and ready to
// carry what followed them.
type pair struct {
	initiator, responder *mpa.Conn
	// toInitiator and toResponder take octets as if the peer sent them, and return what our side sent.
	toInitiator, toResponder *mpa.MemSocket
	request, reply           mpa.Frame
}

// startUp lets our initiator speak with the captured responder, and our responder with the captured initiator.
func startUp(t *testing.T, c *capture.Conn) *pair {
	t.Helper()
	reqLen, repLen := frameLen(c.FromClient), frameLen(c.FromServer)
	p := &pair{}
	var err error
	p.request, err = mpa.ParseFrame(c.FromClient[:reqLen])
	require.NoError(t, err)
	p.reply, err = mpa.ParseFrame(c.FromServer[:repLen])
	require.NoError(t, err)
	require.Equal(t, c.FromClient[:reqLen], p.request.AppendTo(nil))
	require.Equal(t, c.FromServer[:repLen], p.reply.AppendTo(nil))

	size := len(c.FromClient) + len(c.FromServer)
	var own *mpa.MemSocket
	p.toInitiator, own = mpa.MemPipe(size)
	_, err = p.toInitiator.TryWrite([][]byte{c.FromServer})
	require.NoError(t, err)
	p.initiator, _, err = mpa.Initiate(context.Background(), own, offer(p.request), p.request.PrivateData, p.request.IRD, p.request.ORD)
	require.NoError(t, err)
	require.Equal(t, c.FromClient[:reqLen], take(t, p.toInitiator, reqLen), "our Request is the captured one")

	p.toResponder, own = mpa.MemPipe(size)
	// The rest follows after the Reply, as the captured initiator had it.
	_, err = p.toResponder.TryWrite([][]byte{c.FromClient[:reqLen]})
	require.NoError(t, err)
	req, err := mpa.ReadRequest(context.Background(), own, nil, mpa.Options{CRC: mpa.Off, RTR: p.reply.RTR})
	require.NoError(t, err)
	p.responder, _, err = req.Accept(context.Background(), p.reply.PrivateData, p.reply.IRD, p.reply.ORD)
	require.NoError(t, err)
	require.Equal(t, c.FromServer[:repLen], take(t, p.toResponder, repLen), "our Reply is the captured one")
	_, err = p.toResponder.TryWrite([][]byte{c.FromClient[reqLen:]})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.initiator.Close()
		_ = p.responder.Close()
		_ = p.toInitiator.Close()
		_ = p.toResponder.Close()
	})
	require.NoError(t, p.toInitiator.CloseWrite())
	require.NoError(t, p.toResponder.CloseWrite())
	return p
}

// take reads n octets.
func take(t *testing.T, s *mpa.MemSocket, n int) []byte {
	t.Helper()
	into := mpa.SliceScatter{B: make([]byte, n)}
	all := into.B
	for len(into.B) > 0 {
		_, err := s.Read(&into)
		require.NoError(t, err)
	}
	return all
}

// ulpdus reads the rest of a connection's FPDUs.
func ulpdus(t *testing.T, c *mpa.Conn) [][]byte {
	t.Helper()
	var all [][]byte
	for {
		f, err := c.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, "FPDU %d", len(all))
		if !f.Whole {
			require.NoError(t, f.Fill())
		}
		u := make([]byte, f.Len)
		require.Equal(t, f.Len, f.CopyTo(0, u))
		all = append(all, u)
	}
}

// reframe sends ulpdus through c and returns the octets that came out at the other end.
func reframe(t *testing.T, c *mpa.Conn, out *mpa.MemSocket, ulpdus [][]byte) []byte {
	t.Helper()
	var wire []byte
	for _, u := range ulpdus {
		c.Append(u, nil)
		n := c.Pending()
		require.NoError(t, c.Flush())
		wire = append(wire, take(t, out, n)...)
	}
	return wire
}

// reencode takes one ULPDU apart down to RDMAP's headers and puts it together again.
func reencode(t *testing.T, u []byte) (out []byte, op rdmap.Opcode) {
	t.Helper()
	h := ddp.Control(u)
	out = make([]byte, h.HeaderLen())
	ctrl := rdmap.Control(h.ULP())
	op = ctrl.Opcode()
	require.Equal(t, uint8(rdmap.Version), ctrl.Version())
	require.Equal(t, op.Tagged(), h.Tagged(), "%v", op)
	body := u[h.HeaderLen():]
	if h.Tagged() {
		f := ddp.Tagged(u).Fields()
		f.ULP = uint8(rdmap.MakeControl(op))
		ddp.Tagged(out).Encode(&f)
		return append(out, body...), op
	}
	f := ddp.Untagged(u).Fields()
	require.Equal(t, op.Queue(), f.QN, "%v", op)
	f.ULP = uint8(rdmap.MakeControl(op))
	ddp.Untagged(out).Encode(&f)
	if op == rdmap.OpReadRequest {
		r := rdmap.ReadRequest(body).Fields()
		body = make([]byte, len(body))
		rdmap.ReadRequest(body).Encode(&r)
	}
	return append(out, body...), op
}

func captures(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// TestCapturesDownToRDMAP decodes every captured connection through mpa, ddp and rdmap, and encodes it again to
// the very octets of the capture.
func TestCapturesDownToRDMAP(t *testing.T) {
	for _, file := range captures(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			conns, err := capture.Read(file)
			require.NoError(t, err)
			require.NotEmpty(t, conns)
			for _, c := range conns {
				p := startUp(t, c)
				fromClient, fromServer := ulpdus(t, p.responder), ulpdus(t, p.initiator)
				require.NotEmpty(t, fromClient)
				require.NotEmpty(t, fromServer)
				assert.Equal(t, c.FromClient[frameLen(c.FromClient):], reframe(t, p.initiator, p.toInitiator, fromClient))
				assert.Equal(t, c.FromServer[frameLen(c.FromServer):], reframe(t, p.responder, p.toResponder, fromServer))
				for _, u := range append(fromClient, fromServer...) {
					out, op := reencode(t, u)
					require.Equal(t, u, out, "%v", op)
				}
			}
		})
	}
}

// sends puts the messages of queue 0 together, in order, segment by segment.
func sends(t *testing.T, ulpdus [][]byte) [][]byte {
	t.Helper()
	var all [][]byte
	var open []byte
	msn := uint32(1)
	for _, u := range ulpdus {
		if ddp.Control(u).Tagged() || ddp.Untagged(u).QN() != rdmap.QueueSend {
			continue
		}
		h := ddp.Untagged(u)
		require.Equal(t, msn, h.MSN())
		require.EqualValues(t, len(open), h.MO())
		open = append(open, u[ddp.Control(u).HeaderLen():]...)
		if h.Last() {
			all, open = append(all, open), nil
			msn++
		}
	}
	require.Empty(t, open)
	return all
}

// reencodeISER takes a Send of iSER apart into header, BHS, text and CDB, and puts it together again.
func reencodeISER(t *testing.T, msg []byte, fromInitiator bool, seen map[string]int) {
	t.Helper()
	h := iser.Header(msg)
	require.Equal(t, iser.OpControl, h.Opcode())
	out := make([]byte, iser.HeaderLen)
	iser.Header(out).Init()
	if h.WriteValid() {
		iser.Header(out).SetWrite(h.WriteSTag(), h.WriteBase())
	}
	if h.ReadValid() {
		iser.Header(out).SetRead(h.ReadSTag(), h.ReadBase())
	}
	require.Equal(t, msg[:iser.HeaderLen], out)

	wire := msg[iser.HeaderLen:]
	f := iscsi.FrameOf(wire, false, false)
	var p iscsi.PDU
	copy(p.BHS[:], wire)
	p.AHS = wire[iscsi.BHSLen : iscsi.BHSLen+f.AHS]
	p.Data = wire[iscsi.BHSLen+f.AHS:][:f.Data]
	require.NoError(t, iscsi.Validate(&p, fromInitiator), "%v", iscsi.BHS(p.BHS[:]))
	seen[p.Opcode().String()]++

	switch p.Opcode() {
	case iscsi.OpLoginReq, iscsi.OpLoginRsp, iscsi.OpTextReq, iscsi.OpTextRsp:
		text, err := iscsi.ParseText(p.Data)
		require.NoError(t, err)
		require.Empty(t, text.Duplicate())
		p.Data = text.Append(nil)
		for _, kv := range text {
			key, known := iscsi.LookupKey(kv.Key)
			if !known {
				continue // RDMA keys of other vendors, say
			}
			if kv.Value != "NotUnderstood" && kv.Value != "Irrelevant" && kv.Value != "Reject" {
				assert.True(t, key.Valid(kv.Value), "%s=%s", kv.Key, kv.Value)
			}
		}
	case iscsi.OpSCSICommand:
		cmd := iscsi.SCSICommand(p.BHS[:])
		seen[fmt.Sprintf("CDB %02x", cmd.CDB()[0])]++
	case iscsi.OpSCSIResponse:
		rsp := iscsi.SCSIResponse(p.BHS[:])
		if rsp.Status() == uint8(scsi.StatusCheckCondition) {
			seen["CHECK CONDITION"]++
			require.NotEmpty(t, iscsi.SenseData(p.Data))
		}
	}
	again, err := iscsi.AppendPDU(nil, &p, false, false)
	require.NoError(t, err)
	// Linux leaves the padding out; RFC 7143 has it.
	require.True(t, bytes.HasPrefix(again, wire) || bytes.HasPrefix(wire, again), "%v", iscsi.BHS(p.BHS[:]))
	require.Less(t, len(again)-len(wire), 4)
}

// TestCaptureDownToSCSI decodes the kernel initiator's session with the kernel target down to CDBs, keys and sense data, and
// encodes every PDU of it again.
func TestCaptureDownToSCSI(t *testing.T) {
	conns, err := capture.Read("testdata/ib_iser-lio.pcap")
	require.NoError(t, err)
	for _, c := range conns {
		p := startUp(t, c)
		for _, private := range [][]byte{p.request.PrivateData, p.reply.PrivateData} {
			hdr, ok := iser.ParsePrivate(private)
			require.True(t, ok)
			assert.Equal(t, private, hdr.Append(nil))
		}
		seen := map[string]int{}
		for _, msg := range sends(t, ulpdus(t, p.responder)) {
			reencodeISER(t, msg, true, seen)
		}
		for _, msg := range sends(t, ulpdus(t, p.initiator)) {
			reencodeISER(t, msg, false, seen)
		}
		t.Log(seen)
		for _, what := range []string{"CDB 12", "CDB a0", "CDB 28", "CDB 2a"} {
			assert.Positive(t, seen[what], "the session has %s", what)
		}
	}
}
