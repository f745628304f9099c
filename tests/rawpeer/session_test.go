package rawpeer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSession is the plain case that the others stand on: login, INQUIRY, WRITE by R2T, READ, logout (RFC 7143, sections 6.3 and 11).
func TestSession(t *testing.T) {
	tr := record(t, "RFC 7143: one connection, ErrorRecoveryLevel 0")
	a := dial(t, tr, "A", serve(t))
	agreed, tsih := a.login(login{isid: firstISID, cid: 1, cmdSN: 7, keys: names("HeaderDigest=None", "DataDigest=None", "InitialR2T=Yes",
		"ImmediateData=No", "MaxRecvDataSegmentLength=4096", "MaxBurstLength=16384", "FirstBurstLength=4096", "MaxConnections=4", "ErrorRecoveryLevel=2",
		"DefaultTime2Wait=0", "DefaultTime2Retain=20", "MaxOutstandingR2T=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes")})
	t.Log(agreed)
	require.NotZero(t, tsih)
	a.send(inquiry(2, 7, 36))
	in := a.dataIn(2, 36)
	require.Equal(t, byte(0), in[0]&0x1f, "a direct access device")
	a.attention(6, 8)
	data := pattern(8192, 1)
	a.send(write10(3, 9, 16, 16))
	r := a.want(opR2T)
	require.Equal(t, []uint32{3, 0, 0, 8192}, []uint32{r.itt(), r.u32(36), r.u32(40), r.u32(44)})
	a.send(dataOut(3, r.u32(20), 0, 0, false, data[:4096]), dataOut(3, r.u32(20), 1, 4096, true, data[4096:]))
	a.good(3)
	a.send(read10(4, 10, 16, 16))
	sameData(t, data, a.dataIn(4, 8192))
	a.send(logoutRequest(0, 5, 11, 0))
	p := a.want(opLogoutRsp)
	require.Equal(t, byte(0), p.bhs[2])
	a.ended()
}
