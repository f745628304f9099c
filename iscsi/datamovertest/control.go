package datamovertest

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// testLogin sends a login of several PDUs, the largest that the phase allows (RFC 7143, section 6.3:
// 8192 octets before anything is negotiated), and then the first PDUs of full feature phase at once.
func testLogin(t *testing.T, m Maker) {
	c := start(t, m)
	defer c.end()
	for k, n := range []int{0, 1, 511, 8192} {
		req, rsp := pattern(1, k, n), pattern(2, k, n)
		c.i.send(loginRequest(false, req), nil)
		got := c.g.pdu(iscsi.OpLoginReq)
		require.True(t, bytes.Equal(req, got.Data), "Login Request of %d octets", n)
		require.Equal(t, byte(iscsi.OpLoginReq)|0x40, got.BHS[0], "the I bit is kept")
		c.g.send(loginResponse(false, uint32(k), rsp), nil)
		require.True(t, bytes.Equal(rsp, c.i.pdu(iscsi.OpLoginRsp).Data), "Login Response of %d octets", n)
	}
	c.login()
	c.g.send(nopIn(reservedTag, 9, nil), nil)
	require.Equal(t, uint32(9), field(c.i.pdu(iscsi.OpNOPIn), offCmdSN))
	c.roundTrip(3)
	c.i.quiet()
	c.g.quiet()
	info := c.g.dm.Info()
	require.NotEmpty(t, info.Transport)
	require.NotNil(t, info.LocalAddr)
	require.NotNil(t, info.RemoteAddr)
	require.Positive(t, info.MaxPutData)
}

// testLoginRefused: resources that were allocated for a login that fails are given back, and the
// refusal still reaches the initiator.
func testLoginRefused(t *testing.T, m Maker) {
	c := start(t, m)
	defer c.end()
	c.i.send(loginRequest(true, nil), nil)
	c.g.pdu(iscsi.OpLoginReq)
	c.g.allocate()
	c.g.dm.DeallocateConnectionResources()
	p := loginResponse(false, 1, nil)
	p.BHS[36], p.BHS[37] = 2, 1 // Status-Class, Status-Detail: initiator error, authentication
	c.g.send(p, nil)
	c.g.dm.ConnectionTerminate(true)
	require.Equal(t, byte(2), c.i.pdu(iscsi.OpLoginRsp).BHS[36])
	require.Equal(t, terminated, c.i.next().kind)
	c.g.quiet()
}

// testControl sends PDUs of all small lengths and of the largest both ways at once and expects
// them whole and in order.
func testControl(t *testing.T, m Maker) {
	c := full(t, m)
	for round := range 4 {
		for k := range uint32(Window / 2) {
			n := int(k)
			if k == Window/2-1 {
				n = c.i.segment() - round
			}
			c.i.send(nopOut(k+2, pattern(k, round, n)), nil)
		}
		for k := range uint32(Window / 2) {
			p := c.g.pdu(iscsi.OpNOPOut)
			require.Equal(t, k+2, field(p, offITT), "order")
			require.NoError(t, mismatch(p.Data, k, round))
			n := min(len(p.Data), c.g.segment())
			c.g.send(nopIn(k+2, uint32(round)*Window+k, p.Data[:n]), nil)
		}
		for k := range uint32(Window / 2) {
			p := c.i.pdu(iscsi.OpNOPIn)
			require.Equal(t, k+2, field(p, offITT), "order")
			require.NoError(t, mismatch(p.Data, k, round))
			require.Equal(t, uint32(round)*Window+k, field(p, offCmdSN), "StatSN is the caller's")
		}
	}
	c.i.quiet()
	c.g.quiet()
}

// testAHS sends a command with an extended CDB (RFC 7143, section 11.2.2.3).
func testAHS(t *testing.T, m Maker) {
	c := full(t, m)
	ahs := pattern(5, 0, 20) // 17 octets of AHS and 3 of padding
	be.PutUint16(ahs, 14)
	ahs[2] = 1
	p := command(9, 1, 0, 4, []byte{1, 2, 3}, false)
	p.AHS = ahs
	out := &heap{t: t, b: []byte{1, 2, 3, 4}}
	c.i.send(p, &iscsi.TaskBuffers{Out: out, OutLen: 4, Unsolicited: 3})
	got := c.g.pdu(iscsi.OpSCSICommand)
	require.Equal(t, ahs, got.AHS)
	require.Equal(t, []byte{1, 2, 3}, got.Data)
	require.Equal(t, byte(5), got.BHS[4], "TotalAHSLength")
	require.Equal(t, []byte{0, 0, 3}, got.BHS[5:8], "DataSegmentLength")
	c.g.send(response(9, 1, statusGood, 1, 0, nil), nil)
	rsp := c.i.pdu(iscsi.OpSCSIResponse)
	require.Equal(t, uint32(1), field(rsp, offResidual))
}

// owner counts the PDUs that come back.
type owner struct{ released atomic.Int64 }

func (o *owner) ReleasePDU(*iscsi.PDU) { o.released.Add(1) }

// testPDURelease: PDUs given to SendControl come back to their owner once, sent or not.
func testPDURelease(t *testing.T, m Maker) {
	c := start(t, m).login()
	var o owner
	const n = 20
	for k := range uint32(n) {
		p := nopOut(k, pattern(k, 0, 10))
		p.Owner = &o
		c.i.send(p, nil)
	}
	for range n {
		c.g.pdu(iscsi.OpNOPOut)
	}
	c.i.dm.ConnectionTerminate(true)
	c.i.done()
	require.EqualValues(t, n, o.released.Load())
	p := nopOut(1, nil)
	p.Owner = &o
	require.Error(t, c.i.dm.SendControl(p, nil))
	require.EqualValues(t, n+1, o.released.Load(), "a PDU that could not be sent is released as well")
	c.end()
}
