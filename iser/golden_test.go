package iser

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// sent is one Send of a captured session between Linux's ib_iser and isert.
type sent struct {
	fromTarget  bool
	invalidated rnic.STag
	msg         []byte
}

// capturedSends reads testdata/ib_iser-lio-sends.bin: direction (1), invalidated STag (4), length (4), message.
func capturedSends(t testing.TB) []sent {
	t.Helper()
	b, err := os.ReadFile("testdata/ib_iser-lio-sends.bin")
	require.NoError(t, err)
	var out []sent
	for len(b) > 0 {
		n := int(binary.BigEndian.Uint32(b[5:]))
		out = append(out, sent{b[0] == 1, rnic.STag(binary.BigEndian.Uint32(b[1:])), b[9 : 9+n]})
		b = b[9+n:]
	}
	require.Len(t, out, 56)
	return out
}

// encode makes the message that a PDU is sent as.
func encode(h Header, p *iscsi.PDU, pad bool) []byte {
	msg := append([]byte(nil), h[:HeaderLen]...)
	msg = append(msg, p.BHS[:]...)
	bhs := iscsi.BHS(msg[HeaderLen:])
	bhs.SetAHSLen(len(p.AHS))
	bhs.SetDataLen(len(p.Data))
	msg = append(msg, p.AHS...)
	msg = append(msg, p.Data...)
	if pad {
		msg = append(msg, make([]byte, iscsi.Pad(len(p.Data)))...)
	}
	return msg
}

// TestLinuxSession decodes every Send of a session of ib_iser with isert and encodes it again, octet for octet,
// and plays the initiator's part of it to the target's bookkeeping.
func TestLinuxSession(t *testing.T) {
	type seen struct{ logins, reads, writes, immediate, dataOut, responses, invalidated int }
	var got seen
	d := &Datamover{target: true, window: 64, remote: map[uint32]mapping{}, linuxBase: true}
	d.params.FirstBurstLength = 65536
	unpadded := 0
	for i, s := range capturedSends(t) {
		h := Header(s.msg)
		require.Equal(t, OpControl, h.Opcode(), "message %d", i)
		var p iscsi.PDU
		require.NoError(t, parse(&p, s.msg), "message %d", i)
		require.NoError(t, iscsi.Validate(&p, !s.fromTarget), "message %d: %v", i, iscsi.BHS(p.BHS[:]))
		padded := len(s.msg)%4 == 0
		if !padded {
			unpadded++
		}
		out := make(Header, HeaderLen)
		out.Init()
		if h.WriteValid() {
			out.SetWrite(h.WriteSTag(), h.WriteBase())
		}
		if h.ReadValid() {
			out.SetRead(h.ReadSTag(), h.ReadBase())
		}
		require.Equal(t, s.msg, encode(out, &p, padded), "message %d", i)

		itt := iscsi.BHS(p.BHS[:]).ITT()
		if !s.fromTarget {
			require.Zero(t, s.invalidated)
			require.NoError(t, d.account(&p, h, 0), "message %d", i)
			switch p.Opcode() {
			case iscsi.OpLoginReq:
				got.logins++
			case iscsi.OpDataOut:
				got.dataOut++
			case iscsi.OpSCSICommand:
				c := iscsi.SCSICommand(p.BHS[:])
				require.Equal(t, c.Read() && c.EDTL() > 0, h.ReadValid())
				require.Equal(t, c.Write() && int(c.EDTL()) > len(p.Data), h.WriteValid(), "no STag when all data is immediate")
				switch {
				case c.Read():
					got.reads++
				case c.Write():
					got.writes++
				}
				if len(p.Data) > 0 {
					got.immediate++
				}
			}
			continue
		}
		require.False(t, h.ReadValid() || h.WriteValid(), "a target advertises nothing")
		if p.Opcode() != iscsi.OpSCSIResponse {
			require.Zero(t, s.invalidated)
			continue
		}
		got.responses++
		m := d.remote[itt]
		require.Equal(t, m.invalidate(), s.invalidated, "message %d: isert names the Read STag, else the Write STag", i)
		if s.invalidated != 0 {
			got.invalidated++
		}
		delete(d.remote, itt)
	}
	require.Empty(t, d.remote, "every task had its response")
	require.Equal(t, 1, got.logins)
	require.Equal(t, 25, got.invalidated)
	require.Positive(t, got.reads)
	require.Positive(t, got.writes)
	require.Equal(t, got.reads+got.writes+2, got.responses, "two commands moved no data")
	t.Logf("%+v, %d unpadded", got, unpadded)
}
