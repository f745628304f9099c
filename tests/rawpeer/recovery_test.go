package rawpeer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// recovering logs a connection in with both digests and an ErrorRecoveryLevel, and takes the unit attention. The next CmdSN is 2.
func recovering(t *testing.T, tr *transcript, addr, level string, more ...string) *wire {
	t.Helper()
	a := dial(t, tr, "A", addr)
	agreed, _ := a.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: names(append([]string{
		"HeaderDigest=CRC32C", "DataDigest=CRC32C",
		"ErrorRecoveryLevel=" + level, "MaxRecvDataSegmentLength=1024", "MaxBurstLength=4096", "FirstBurstLength=4096", "InitialR2T=Yes",
		"DefaultTime2Wait=0", "DefaultTime2Retain=20", "MaxOutstandingR2T=1",
	}, more...)...)})
	require.Equal(t, []string{level, "CRC32C", "CRC32C"}, []string{agreed["ErrorRecoveryLevel"], agreed["HeaderDigest"], agreed["DataDigest"]})
	a.hd, a.dd = true, true
	a.attention(1, 1)
	return a
}

// replica insists that b is what a was, but for the command window (RFC 7143, section 11.16).
func replica(t *testing.T, a, b *pdu) {
	t.Helper()
	x, y := *a, *b
	for _, at := range []int{28, 32} {
		x.set32(at, 0)
		y.set32(at, 0)
	}
	if x.op() == opR2T { // carries the current StatSN
		x.set32(24, 0)
		y.set32(24, 0)
	}
	require.Equal(t, x.describe(), y.describe())
	require.Equal(t, x.bhs, y.bhs)
	sameData(t, x.data, y.data)
}

// rejected reads a Reject that returns the header of bad.
func (w *wire) rejected(reason byte, bad *pdu) *pdu {
	w.t.Helper()
	p := w.want(opReject)
	require.Equal(w.t, reason, p.bhs[2], "reason of the Reject")
	require.Equal(w.t, uint32(none), p.itt())
	require.GreaterOrEqual(w.t, len(p.data), 48)
	require.Equal(w.t, bad.bhs[:], p.data[:48], "the header of the PDU that was rejected")
	return p
}

// fulfil answers R2Ts with PDUs of at most 1024 octets, until the command's status comes.
func (w *wire) fulfil(itt uint32, data []byte, r2ts ...*pdu) *pdu {
	w.t.Helper()
	for {
		var p *pdu
		if len(r2ts) > 0 {
			p, r2ts = r2ts[0], r2ts[1:]
		} else {
			p = w.receive()
		}
		require.Equal(w.t, itt, p.itt())
		if p.op() == opSCSIResp {
			return p
		}
		require.Equal(w.t, opNames[opR2T], opNames[p.op()])
		w.send(answers(p, data)...)
	}
}

// answers are the Data-Out PDUs that an R2T asks for.
func answers(r2t *pdu, data []byte) []*pdu {
	var ps []*pdu
	at, end := r2t.u32(40), r2t.u32(40)+r2t.u32(44)
	for sn := uint32(0); at < end; sn++ {
		n := min(1024, end-at)
		p := dataOut(r2t.itt(), r2t.u32(20), sn, at, at+n == end, data[at:at+n])
		ps = append(ps, p)
		at += n
	}
	return ps
}

// TestDataOutDigest: a Data-Out with a wrong data digest is rejected with reason 02h and asked for again by a recovery R2T (RFC 7143,
// sections 7.1.4.1, 7.8 and 11.8).
func TestDataOutDigest(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8: data digest error in a Data-Out PDU, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 3)
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	out := answers(r, data)
	out[1].damage = damageData
	a.send(out...)
	a.rejected(0x02, out[1])
	rr := a.want(opR2T)
	require.Equal(t, r.u32(36)+1, rr.u32(36), "a recovery R2T has the next R2TSN")
	require.LessOrEqual(t, rr.u32(40), uint32(1024))
	require.GreaterOrEqual(t, rr.u32(40)+rr.u32(44), uint32(2048))
	p := a.fulfil(2, data, rr)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.send(read10(3, 3, 0, 8))
	sameData(t, data, a.dataIn(3, 4096))
}

// TestLastDataOutDigest: the same for the PDU with the F bit, whose digest error must not end the sequence.
func TestLastDataOutDigest(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8: data digest error in the last Data-Out PDU of a sequence, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 4)
	a.send(write10(2, 2, 0, 8))
	out := answers(a.want(opR2T), data)
	out[3].damage = damageData
	a.send(out...)
	a.rejected(0x02, out[3])
	p := a.fulfil(2, data)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.send(read10(3, 3, 0, 8))
	sameData(t, data, a.dataIn(3, 4096))
}

// TestDataOutSequence: a gap in DataSN means that a PDU was lost, and is recovered like a digest error (RFC 7143, section 7.9).
func TestDataOutSequence(t *testing.T) {
	tr := record(t, "RFC 7143, 7.9: a Data-Out PDU is missing, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 5)
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	out := answers(r, data)
	tr.note("the Data-Out with DataSN 1 does not arrive")
	a.send(out[0], out[2], out[3])
	rr := a.want(opR2T)
	require.Equal(t, r.u32(36)+1, rr.u32(36), "a recovery R2T has the next R2TSN")
	p := a.fulfil(2, data, rr)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.send(read10(3, 3, 0, 8))
	sameData(t, data, a.dataIn(3, 4096))
}

// TestImmediateDataDigest: a command whose immediate data is damaged is rejected and counts as not received; sent once more it is
// carried out (RFC 7143, sections 7.2.1, 7.3 and 7.8).
func TestImmediateDataDigest(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8 and 7.3: data digest error in a SCSI Command with immediate data, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1", "ImmediateData=Yes")
	bad := write10(2, 2, 0, 1)
	bad.data = pattern(512, 6)
	bad.damage = damageData
	a.send(bad)
	p := a.rejected(0x02, bad)
	require.Equal(t, uint32(2), p.expCmdSN(), "the command was not received")
	p = a.quiet(9, 2)
	require.Equal(t, uint32(2), p.expCmdSN(), "the command was not received")
	tr.note("the same command once more")
	again := write10(2, 2, 0, 1)
	again.data = pattern(512, 6)
	a.send(again)
	a.good(2)
	a.send(read10(3, 3, 0, 1))
	sameData(t, pattern(512, 6), a.dataIn(3, 512))
}

// TestNopOutDigest: a PDU that is neither command nor data is rejected and forgotten (RFC 7143, section 7.8).
func TestNopOutDigest(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8: data digest error in a NOP-Out, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	bad := nopOut(2, 2, "ping")
	bad.damage = damageData
	a.send(bad)
	a.rejected(0x02, bad)
	a.quiet(3, 2)
}

// TestCommandHeaderDigest: behind a header digest error nothing tells where the next PDU begins, so the connection is closed, or what follows is
// found by the length as it was received (RFC 7143, section 7.8). Either way nothing of the PDU is carried out.
func TestCommandHeaderDigest(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8: header digest error in a SCSI Command, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	bad := testUnitReady(2, 2)
	bad.damage = damageHeader
	a.send(bad)
	a.ended()
}

// TestDataSNACK: Data-In PDUs that the initiator has lost are sent again as they were (RFC 7143, sections 7.8 and 11.16).
func TestDataSNACK(t *testing.T) {
	tr := record(t, "RFC 7143, 11.16: SNACK for Data-In PDUs, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	a.holdStatus = true
	a.send(read10(2, 2, 0, 8))
	var got []*pdu
	for len(got) < 4 {
		got = append(got, a.want(opDataIn))
	}
	status := got[3]
	if status.bhs[1]&1 == 0 {
		status = a.want(opSCSIResp)
	}
	tr.note("the Data-In with DataSN 1 came with a wrong digest")
	a.send(snack(snackData, 2, none, 1, 1))
	replica(t, got[1], a.want(opDataIn))
	tr.note("DataSN 2 and all behind it")
	a.send(snack(snackData, 2, none, 2, 0))
	replica(t, got[2], a.want(opDataIn))
	replica(t, got[3], a.want(opDataIn))
	tr.note("a number that was never sent")
	bad := snack(snackData, 2, none, 9, 1)
	a.send(bad)
	p := a.rejected(0x04, bad)
	require.Equal(t, uint32(4), p.u32(36), "the next DataSN")
	tr.note("all that is not acknowledged")
	a.send(snack(snackData, 2, none, 0, 0))
	for _, g := range got {
		replica(t, g, a.want(opDataIn))
	}
	tr.note("the status is acknowledged; data of the task is not there any more")
	a.holdStatus = false
	a.expStatSN = p.statSN() + 1
	require.Greater(t, a.expStatSN, status.statSN())
	a.quiet(9, 3)
	bad = snack(snackData, 2, none, 1, 1)
	a.send(bad)
	a.rejected(0x04, bad)
	a.send(testUnitReady(3, 3))
	a.good(3)
}

// TestStatusSNACK: responses of every kind are sent again as they were, with the StatSN they had (RFC 7143, sections 11.4.9 and 11.16).
func TestStatusSNACK(t *testing.T) {
	tr := record(t, "RFC 7143, 11.16: SNACK for status, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	a.holdStatus = true
	a.send(testUnitReady(2, 2))
	first := a.good(2)
	a.send(scsiCommand(3, 3, flagFinal, 0, 0, 0xff)) // no such command
	second := a.want(opSCSIResp)
	require.Equal(t, byte(2), second.bhs[3])
	a.send(nopOut(4, 4, "numbered, too"))
	third := a.want(opNopIn)
	bad := nopOut(5, 4, "spoiled")
	bad.damage = damageData
	a.send(bad)
	fourth := a.rejected(0x02, bad)
	tr.note("the second one alone")
	a.send(snack(snackStatus, none, none, second.statSN(), 1))
	replica(t, second, a.want(opSCSIResp))
	tr.note("the third and all behind it")
	a.send(snack(snackStatus, none, none, third.statSN(), 0))
	replica(t, third, a.want(opNopIn))
	replica(t, fourth, a.want(opReject))
	tr.note("all that is not acknowledged")
	a.send(snack(snackStatus, none, none, 0, 0))
	for _, p := range []*pdu{first, second, third, fourth} {
		replica(t, p, a.receive())
	}
	tr.note("acknowledge them, then ask for one of them, and for one that was never sent")
	a.holdStatus = false
	a.expStatSN = fourth.statSN() + 1
	a.quiet(6, 4)
	bad = snack(snackStatus, none, none, second.statSN(), 1)
	a.send(bad)
	a.rejected(0x04, bad)
	bad = snack(snackStatus, none, none, fourth.statSN()+50, 1)
	a.send(bad)
	a.rejected(0x04, bad)
	a.send(testUnitReady(7, 4))
	a.good(7)
}

// TestR2TSNACK: an R2T is sent again with its number and tag (RFC 7143, section 11.16).
func TestR2TSNACK(t *testing.T) {
	tr := record(t, "RFC 7143, 11.16: SNACK for an R2T, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 7)
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	a.send(snack(snackData, 2, none, 0, 1))
	rr := a.want(opR2T)
	replica(t, r, rr)
	p := a.fulfil(2, data, rr)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
}

// TestDataACK: data is acknowledged where the target asks for it, and not sent again afterwards (RFC 7143, sections 11.7.2 and 11.16.2).
func TestDataACK(t *testing.T) {
	tr := record(t, "RFC 7143, 11.7.2 and 11.16.2: positive acknowledgment of data, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	a.holdStatus = true
	a.send(read10(2, 2, 0, 32)) // 16 KiB, four bursts
	var last *pdu
	var asked, sinceA int
	for n := uint32(0); n < 16; n++ {
		last = a.want(opDataIn)
		require.Equal(t, n, last.u32(36))
		sinceA += len(last.data)
		if last.bhs[1]&0x40 != 0 {
			asked++
			require.NotEqual(t, uint32(none), last.u32(20), "a Data-In with A has a Target Transfer Tag")
			if last.bhs[1]&1 == 0 {
				require.GreaterOrEqual(t, sinceA, 4096, "A at most once for each MaxBurstLength")
			}
			sinceA = 0
			ack := snack(snackDataACK, none, last.u32(20), n+1, 0)
			copy(ack.bhs[8:16], last.bhs[8:16])
			a.send(ack)
		}
	}
	a.good(2)
	tr.note("%d acknowledgments were asked for", asked)
	if asked > 0 {
		bad := snack(snackData, 2, none, 0, 1)
		a.send(bad)
		a.rejected(0x04, bad)
	}
}

// TestRetryInProgress: a command that is sent again although the target has it is ignored (RFC 7143, sections 4.2.2.1 and 7.2.1).
func TestRetryInProgress(t *testing.T) {
	tr := record(t, "RFC 7143, 7.2.1: retry of a command in progress, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 8)
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	a.send(write10(2, 2, 0, 8))
	a.quiet(9, 3)
	p := a.fulfil(2, data, r)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.quiet(9, 3)
}

// TestRDataSNACK: after MaxRecvDataSegmentLength has changed, data is cut anew and the status carries the SNACK Tag (RFC 7143,
// section 11.16.3).
func TestRDataSNACK(t *testing.T) {
	tr := record(t, "RFC 7143, 11.16.3: R-Data SNACK with resegmentation, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	a.holdStatus = true
	a.send(read10(2, 2, 0, 8))
	var data []byte
	var status *pdu
	for status == nil {
		p := a.receive()
		if p.op() == opDataIn {
			require.Len(t, p.data, 1024)
			data = append(data, p.data...)
		}
		if p.op() == opSCSIResp || p.bhs[1]&1 != 0 {
			status = p
		}
	}
	req := request(opTextReq, true, true, 3, 3)
	req.set32(20, none)
	req.data = text("MaxRecvDataSegmentLength=512")
	a.send(req)
	require.Equal(t, uint32(3), a.want(opTextResp).itt())
	a.send(snack(snackRData, 2, 0x51515151, 0, 0))
	var again []byte
	for n := uint32(0); len(again) < len(data); n++ {
		p := a.want(opDataIn)
		require.Equal(t, n, p.u32(36), "DataSN begins anew")
		require.LessOrEqual(t, len(p.data), 512)
		again = append(again, p.data...)
	}
	sameData(t, data, again)
	p := a.want(opSCSIResp)
	require.Equal(t, uint32(0x51515151), p.u32(20), "SNACK Tag")
	require.Equal(t, status.statSN(), p.statSN())
	require.Equal(t, byte(0), p.bhs[3])
}

// TestBeyondTheLevel: what a session did not negotiate is answered so (RFC 7143, sections 7.2.2 and 11.15.1).
func TestBeyondTheLevel(t *testing.T) {
	tr := record(t, "RFC 7143, 7.2.2 and 11.15.1: connection recovery is asked for at ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	a.send(taskManagement(tmfReassign, 3, 3, 2, 0, 0))
	require.Equal(t, byte(4), a.want(opTMFResp).bhs[2], "task allegiance reassignment not supported")
	a.send(logoutRequest(2, 4, 3, 1))
	require.Equal(t, byte(2), a.want(opLogoutRsp).bhs[2], "connection recovery is not supported")
	p := a.fulfil(2, pattern(4096, 9), r)
	require.Equal(t, byte(0), p.bhs[3])
}

// TestSNACKAtLevel0: SNACK belongs to recovery within a connection, which level 0 does not have.
func TestSNACKAtLevel0(t *testing.T) {
	tr := record(t, "RFC 7143, 7.1.5: SNACK at ErrorRecoveryLevel 0")
	a := recovering(t, tr, serve(t), "0")
	a.holdStatus = true
	a.send(read10(2, 2, 0, 1))
	a.want(opDataIn)
	bad := snack(snackData, 2, none, 0, 1)
	a.send(bad)
	p := a.want(opReject)
	require.Contains(t, []byte{0x03, 0x04, 0x05, 0x09}, p.bhs[2])
}

// TestDataDigestAtLevel0: no recovery, but the Reject stays a must (RFC 7143, section 7.8); the task ends with CHECK CONDITION, or the
// session ends.
func TestDataDigestAtLevel0(t *testing.T) {
	tr := record(t, "RFC 7143, 7.8: data digest error in a Data-Out PDU, ErrorRecoveryLevel 0")
	a := recovering(t, tr, serve(t), "0")
	data := pattern(4096, 3)
	a.send(write10(2, 2, 0, 8))
	out := answers(a.want(opR2T), data)
	out[1].damage = damageData
	a.send(out...)
	a.rejected(0x02, out[1])
	if a.fill(1) != nil { // escalated to session recovery, as either side may
		a.ended()
		return
	}
	p := a.want(opSCSIResp)
	require.Equal(t, byte(2), p.bhs[3])
	require.Equal(t, []byte{0x0b, 0x47, 0x05}, []byte{p.data[4] & 0xf, p.data[14], p.data[15]}, "ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR")
}
