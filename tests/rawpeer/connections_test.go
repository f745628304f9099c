package rawpeer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// session is one that may have several connections: what its scripts have in common.
type session struct {
	t    *testing.T
	tr   *transcript
	addr string
	isid [6]byte
	tsih uint16
}

// lead opens a session by its first connection, CID 1, and takes the unit attention. The next CmdSN is 2.
func lead(t *testing.T, tr *transcript, addr, level, connections string, more ...string) (*session, *wire) {
	t.Helper()
	s := &session{t: t, tr: tr, addr: addr, isid: firstISID}
	a := dial(t, tr, "A", addr)
	if len(more) == 0 {
		more = []string{"DefaultTime2Retain=20"}
	}
	agreed, tsih := a.login(login{isid: s.isid, cid: 1, cmdSN: 1, keys: names(append([]string{
		"MaxConnections=" + connections,
		"ErrorRecoveryLevel=" + level, "MaxRecvDataSegmentLength=1024", "MaxBurstLength=4096", "FirstBurstLength=4096", "InitialR2T=Yes",
		"ImmediateData=Yes", "DefaultTime2Wait=0",
	}, more...)...)})
	require.Equal(t, []string{connections, level}, []string{agreed["MaxConnections"], agreed["ErrorRecoveryLevel"]})
	s.tsih = tsih
	a.attention(1, 1)
	return s, a
}

// join adds a connection to the session, or reinstates one (RFC 7143, section 6.3.1).
func (s *session) join(name string, cid uint16, cmdSN uint32) *wire {
	s.t.Helper()
	b := dial(s.t, s.tr, name, s.addr)
	_, tsih := b.login(login{isid: s.isid, tsih: s.tsih, cid: cid, cmdSN: cmdSN, keys: []string{
		"InitiatorName=" + initiatorName,
		"TargetName=" + targetName, "MaxRecvDataSegmentLength=1024",
	}})
	require.Equal(s.t, s.tsih, tsih)
	return b
}

// TestTwoConnections: one sequence of CmdSN over two connections, in order, out of order, twice and out of the window; each command is
// answered where it was sent (RFC 7143, sections 4.2.1 and 4.2.2.1).
func TestTwoConnections(t *testing.T) {
	tr := record(t, "RFC 7143, 4.2.2.1: two connections, one command sequence")
	s, a := lead(t, tr, serve(t), "0", "2")
	b := s.join("B", 2, 2)
	tr.note("one command on each connection, in order; the unit attention of the nexus was taken on A")
	a.send(testUnitReady(2, 2))
	a.good(2)
	b.send(testUnitReady(3, 3))
	b.good(3)
	tr.note("5 on B before 4 on A: it waits for 4")
	b.send(read10(5, 5, 0, 1))
	p := b.quiet(0x100, 6)
	require.Equal(t, uint32(4), p.expCmdSN())
	p = a.quiet(0x101, 4)
	require.Equal(t, uint32(4), p.expCmdSN())
	a.send(testUnitReady(4, 4))
	a.good(4)
	b.dataIn(5, 512)
	tr.note("three commands behind a hole, on both connections")
	b.send(testUnitReady(7, 7), testUnitReady(9, 9))
	a.send(testUnitReady(8, 8))
	require.Equal(t, uint32(6), b.quiet(0x102, 10).expCmdSN())
	require.Equal(t, uint32(6), a.quiet(0x103, 10).expCmdSN())
	tr.blankSN = true
	a.send(testUnitReady(6, 6))
	got := map[uint32]bool{}
	quietly := func(w *wire, n int) {
		for range n {
			p := w.receiveQuietly()
			require.Equal(t, byte(opSCSIResp), p.op())
			require.Equal(t, byte(0), p.bhs[3])
			got[p.itt()] = true
		}
	}
	quietly(a, 2)
	require.Equal(t, map[uint32]bool{6: true, 8: true}, got)
	quietly(b, 2)
	require.Equal(t, map[uint32]bool{6: true, 7: true, 8: true, 9: true}, got)
	tr.blankSN = false
	tr.note("A has the responses of 6 and 8, B those of 7 and 9")
	tr.note("a number that was used already, and one beyond MaxCmdSN, are ignored")
	p = a.quiet(0x104, 10)
	require.Equal(t, uint32(10), p.expCmdSN())
	b.send(testUnitReady(0x50, 9), testUnitReady(0x51, p.maxCmdSN()+1))
	b.quiet(0x105, 10)
	tr.note("data of a write goes where the command went")
	data := pattern(4096, 11)
	a.send(write10(10, 10, 0, 8))
	r := a.want(opR2T)
	b.send(testUnitReady(11, 11))
	b.good(11)
	q := a.fulfil(10, data, r)
	require.Equal(t, byte(0), q.bhs[3])
	b.send(read10(12, 12, 0, 8))
	sameData(t, data, b.dataIn(12, 4096))
	tr.note("logout of B, on B; A goes on")
	b.send(logoutRequest(1, 13, 13, 2))
	require.Equal(t, byte(0), b.want(opLogoutRsp).bhs[2])
	b.ended()
	a.send(testUnitReady(13, 13))
	a.good(13)
	tr.note("a CID that the session does not have")
	a.send(logoutRequest(1, 14, 14, 9))
	require.Equal(t, byte(1), a.want(opLogoutRsp).bhs[2], "CID not found")
	tr.note("logout of the session")
	c := s.join("C", 3, 14)
	a.send(logoutRequest(0, 15, 14, 0))
	require.Equal(t, byte(0), a.want(opLogoutRsp).bhs[2])
	a.ended()
	c.ended()
}

// TestFourConnections spreads reads and writes over four connections, the numbers of the last connection first.
func TestFourConnections(t *testing.T) {
	tr := record(t, "RFC 7143, 4.2.2.1: four connections, the commands arriving in reverse order")
	s, a := lead(t, tr, serve(t), "0", "4")
	ws := []*wire{a, s.join("B", 2, 2), s.join("C", 3, 2), s.join("D", 4, 2)}
	for i := 3; i >= 0; i-- {
		w := write10(uint32(i+2), uint32(i+2), uint32(i), 1)
		w.data = pattern(512, byte(i))
		ws[i].send(w)
		if i > 0 {
			require.Equal(t, uint32(2), ws[i].quiet(0x100, 6).expCmdSN())
		}
	}
	tr.note("all four are answered, each on its connection")
	for i, w := range ws {
		p := w.receiveQuietly()
		require.Equal(t, []uint32{opSCSIResp, uint32(i + 2), 0}, []uint32{uint32(p.op()), p.itt(), uint32(p.bhs[3])})
	}
	for i, w := range ws {
		w.send(read10(uint32(i+6), uint32(i+6), uint32(3-i), 1))
		sameData(t, pattern(512, byte(3-i)), w.dataIn(uint32(i+6), 512))
	}
}

// TestJoin: logins that do not fit a session are refused by the table in RFC 7143, section 6.3.1, with the status of section 11.13.5.
func TestJoin(t *testing.T) {
	tr := record(t, "RFC 7143, 6.3.1: logins that want to join a session")
	s, a := lead(t, tr, serve(t), "0", "2")
	keys := []string{"InitiatorName=" + initiatorName, "TargetName=" + targetName}
	other := s.isid
	other[5]++
	tr.note("a TSIH that does not exist")
	dial(t, tr, "B", s.addr).refused(login{isid: s.isid, tsih: s.tsih + 77, cid: 2, cmdSN: 2, keys: keys}, 2, 0x0a)
	tr.note("another ISID")
	dial(t, tr, "C", s.addr).refused(login{isid: other, tsih: s.tsih, cid: 2, cmdSN: 2, keys: keys}, 2, 0x0a)
	tr.note("another initiator")
	dial(t, tr, "D", s.addr).refused(login{isid: s.isid, tsih: s.tsih, cid: 2, cmdSN: 2, keys: []string{
		"InitiatorName=iqn.2026-11.example.rawpeer:thief",
		"TargetName=" + targetName,
	}}, 2, 0x0a)
	tr.note("one connection more than MaxConnections")
	b := s.join("E", 2, 2)
	dial(t, tr, "F", s.addr).refused(login{isid: s.isid, tsih: s.tsih, cid: 3, cmdSN: 2, keys: keys}, 2, 0x06)
	tr.note("nobody was disturbed")
	a.send(testUnitReady(2, 2))
	a.good(2)
	b.send(testUnitReady(3, 3))
	b.good(3)
}

// cleared takes the unit attention that tells of tasks that iSCSI has terminated: 47h/7Fh, SOME COMMANDS CLEARED BY ISCSI PROTOCOL
// EVENT (RFC 7143, section 11.14.5).
func (w *wire) cleared(itt, cmdSN uint32) {
	w.t.Helper()
	w.send(testUnitReady(itt, cmdSN))
	p := w.want(opSCSIResp)
	require.Equal(w.t, itt, p.itt())
	require.Equal(w.t, byte(2), p.bhs[3], "status: a unit attention has to tell of the terminated task")
	require.Equal(w.t, []byte{6, 0x47, 0x7f}, []byte{p.data[4] & 0xf, p.data[14], p.data[15]}, "sense % x", p.data)
}

// TestReinstatedConnection: a login with the CID of a connection takes its place; below ErrorRecoveryLevel 2 its tasks end (RFC 7143,
// sections 6.3.4 and 11.14.5).
func TestReinstatedConnection(t *testing.T) {
	tr := record(t, "RFC 7143, 6.3.4: connection reinstatement, ErrorRecoveryLevel 0")
	s, a := lead(t, tr, serve(t), "0", "1")
	a.send(write10(2, 2, 0, 8))
	a.want(opR2T)
	b := s.join("B", 1, 3)
	a.ended()
	tr.note("the task of the old connection is gone; so says a unit attention")
	b.cleared(3, 3)
	b.send(testUnitReady(4, 4))
	b.good(4)
}

// TestLogoutWithTask: a connection that is logged out takes its tasks along, those that waited for a number as well; the hole is then
// filled on another connection (RFC 7143, sections 11.14 and 11.14.5).
func TestLogoutWithTask(t *testing.T) {
	tr := record(t, "RFC 7143, 11.14: logout of a connection with commands in progress and undelivered")
	s, a := lead(t, tr, serve(t), "0", "2")
	b := s.join("B", 2, 2)
	b.send(write10(2, 2, 0, 8))
	b.want(opR2T)
	tr.note("4 waits for 3, which never comes on this connection")
	b.send(testUnitReady(4, 4))
	b.quiet(0x100, 5)
	b.send(logoutRequest(1, 5, 5, 2))
	require.Equal(t, byte(0), b.want(opLogoutRsp).bhs[2])
	b.ended()
	tr.note("A sends 3, and then 4 anew")
	a.cleared(3, 3)
	p := a.quiet(0x101, 4)
	require.Equal(t, uint32(4), p.expCmdSN(), "the undelivered command was discarded")
	a.send(testUnitReady(0x14, 4))
	a.good(0x14)
}

// TestReinstatedSession: a login with TSIH 0 and the ISID of a session takes its place, with all its connections (RFC 7143, section 6.3.5).
func TestReinstatedSession(t *testing.T) {
	tr := record(t, "RFC 7143, 6.3.5: session reinstatement")
	s, a := lead(t, tr, serve(t), "2", "2")
	b := s.join("B", 2, 2)
	a.send(write10(2, 2, 0, 8))
	a.want(opR2T)
	c := dial(t, tr, "C", s.addr)
	_, tsih := c.login(login{isid: s.isid, cid: 1, cmdSN: 50, keys: names("ErrorRecoveryLevel=2")})
	require.NotEqual(t, s.tsih, tsih)
	tr.note("both connections of the old session are closed")
	a.ended()
	b.ended()
	c.send(testUnitReady(1, 50))
	p := c.want(opSCSIResp)
	require.Equal(t, []byte{2, 6, 0x29}, []byte{p.bhs[3], p.data[4] & 0xf, p.data[14]}, "loss of the nexus")
	c.send(testUnitReady(2, 51))
	c.good(2)
	tr.note("the old session does not exist any more")
	dial(t, tr, "D", s.addr).refused(login{isid: s.isid, tsih: s.tsih, cid: 3, cmdSN: 2, keys: []string{
		"InitiatorName=" + initiatorName,
		"TargetName=" + targetName,
	}}, 2, 0x0a)
}

// async reads the Asynchronous Message by which a target tells on one connection that it has dropped another; it SHOULD (RFC 7143,
// section 7.1.4.3).
func (w *wire) async(cid uint16) {
	w.t.Helper()
	p := w.want(opAsync)
	require.Equal(w.t, byte(2), p.bhs[36], "connection drop notification")
	require.Equal(w.t, cid, p.u16(38))
}

// TestReassign: the connection of two tasks is lost; it is logged out for recovery on another one, and they go on there (RFC 7143,
// sections 7.1.4.3, 7.2.2, 11.5 and 11.14).
func TestReassign(t *testing.T) {
	tr := record(t, "RFC 7143, 7.2.2: two connections, one is lost with a write and a read in progress, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "2")
	b := s.join("B", 2, 2)
	data := pattern(4096, 21)
	b.send(write10(2, 2, 0, 8))
	b.want(opR2T)
	b.holdStatus = true
	b.send(read10(3, 3, 100, 2))
	b.dataIn(3, 1024)
	tr.note("the status of the read is not acknowledged")
	tr.note("a task is still allegiant to its connection: no reassignment yet")
	a.send(taskManagement(tmfReassign, 0x10, 4, 2, 0, 0))
	require.Equal(t, byte(3), a.want(opTMFResp).bhs[2], "task still allegiant")
	b.close()
	a.async(2)
	a.send(taskManagement(tmfReassign, 0x11, 4, 2, 0, 0))
	require.Equal(t, byte(3), a.want(opTMFResp).bhs[2], "task still allegiant: the connection was not logged out")
	a.send(logoutRequest(2, 0x12, 4, 2))
	p := a.want(opLogoutRsp)
	require.Equal(t, byte(0), p.bhs[2])
	require.NotZero(t, p.u16(42), "Time2Retain")
	tr.note("the write goes on")
	a.send(taskManagement(tmfReassign, 0x13, 4, 2, 0, 0))
	require.Equal(t, byte(0), a.want(opTMFResp).bhs[2])
	q := a.fulfil(2, data)
	require.Equal(t, byte(0), q.bhs[3], "% x", q.data)
	tr.note("the read: all data once more, and its status")
	a.send(taskManagement(tmfReassign, 0x14, 4, 3, 0, 0))
	require.Equal(t, byte(0), a.want(opTMFResp).bhs[2])
	a.dataIn(3, 1024)
	tr.note("a task that does not exist")
	a.send(taskManagement(tmfReassign, 0x15, 4, 0x77, 0, 0))
	require.Equal(t, byte(1), a.want(opTMFResp).bhs[2])
	a.send(read10(4, 4, 0, 8))
	sameData(t, data, a.dataIn(4, 4096))
}

// TestReassignAfterReinstatement: the only connection is lost, and comes back with the same CID, which logs the old one out for
// recovery (RFC 7143, sections 6.3.4 and 11.14).
func TestReassignAfterReinstatement(t *testing.T) {
	tr := record(t, "RFC 7143, 6.3.4 and 7.2.2: the only connection is lost and reinstated, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "1")
	data := pattern(8192, 22)
	a.send(write10(2, 2, 0, 16))
	r := a.want(opR2T)
	tr.note("a part of the first burst has arrived")
	a.send(answers(r, data)[:2]...)
	a.quiet(0x100, 3)
	a.close()
	b := s.join("B", 1, 3)
	b.send(taskManagement(tmfReassign, 0x10, 3, 2, 0, 0))
	require.Equal(t, byte(0), b.want(opTMFResp).bhs[2])
	p := b.fulfil(2, data)
	require.Equal(t, byte(0), p.bhs[3], "% x", p.data)
	b.send(read10(3, 3, 0, 16))
	sameData(t, data, b.dataIn(3, 8192))
}

// TestUnacknowledgedStatus: a status that was sent on the lost connection is sent once more on the new one, under a number of the new
// connection (RFC 7143, section 11.4.9), and a write whose status is lost is not done twice.
func TestUnacknowledgedStatus(t *testing.T) {
	tr := record(t, "RFC 7143, 7.2.2: a status is lost with its connection, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "1")
	a.holdStatus = true
	w := write10(2, 2, 0, 1)
	w.data = pattern(512, 23)
	a.send(w)
	a.good(2)
	a.send(scsiCommand(3, 3, flagFinal, 0, 0, 0xff))
	first := a.want(opSCSIResp)
	require.Equal(t, byte(2), first.bhs[3])
	a.close()
	b := s.join("B", 1, 4)
	b.send(taskManagement(tmfReassign, 0x10, 4, 2, 0, 0))
	require.Equal(t, byte(0), b.want(opTMFResp).bhs[2])
	b.good(2)
	b.send(taskManagement(tmfReassign, 0x11, 4, 3, 0, 0))
	require.Equal(t, byte(0), b.want(opTMFResp).bhs[2])
	second := b.want(opSCSIResp)
	require.Equal(t, byte(2), second.bhs[3])
	require.Equal(t, first.data, second.data, "the same sense data")
	b.send(testUnitReady(4, 4))
	b.good(4)
}

// TestReadOnward: a reassigned read goes on behind what was acknowledged (RFC 7143, sections 7.2.2 and 11.5.6).
func TestReadOnward(t *testing.T) {
	tr := record(t, "RFC 7143, 11.5.6: ExpDataSN of TASK REASSIGN, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "1")
	a.holdStatus = true
	a.send(read10(2, 2, 0, 8))
	for range 4 {
		a.want(opDataIn)
	}
	a.close()
	b := s.join("B", 1, 3)
	b.send(taskManagement(tmfReassign, 0x10, 3, 2, 0, 3))
	require.Equal(t, byte(0), b.want(opTMFResp).bhs[2])
	p := b.want(opDataIn)
	require.Equal(t, []uint32{3, 3072}, []uint32{p.u32(36), p.u32(40)}, "DataSN 0 to 2 were acknowledged")
	if p.bhs[1]&1 == 0 {
		b.good(2)
	}
}

// TestNotReassigned: a task that nobody takes up is gone after Time2Wait and Time2Retain (RFC 7143, sections 7.5 and 7.6), and a unit
// attention tells of it.
func TestNotReassigned(t *testing.T) {
	tr := record(t, "RFC 7143, 7.5 and 7.6: a task is not reassigned in time, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "2", "DefaultTime2Retain=1")
	b := s.join("B", 2, 2)
	b.send(write10(2, 2, 0, 8))
	b.want(opR2T)
	b.close()
	a.async(2)
	a.send(logoutRequest(2, 3, 3, 2))
	p := a.want(opLogoutRsp)
	require.Equal(t, byte(0), p.bhs[2])
	wait := time.Duration(p.u16(40)+p.u16(42)) * time.Second
	require.LessOrEqual(t, wait, 5*time.Second)
	tr.note("Time2Wait and Time2Retain pass, and a second more")
	<-time.After(wait + time.Second) // the protocol's own time: there is nothing to wait for but the clock
	a.send(taskManagement(tmfReassign, 4, 3, 2, 0, 0))
	require.Equal(t, byte(1), a.want(opTMFResp).bhs[2], "task does not exist")
	a.cleared(5, 3)
}

// TestSessionTimesOut: a session without a connection is kept for Time2Wait and Time2Retain, and can be joined by nobody afterwards
// (RFC 7143, sections 6.3.5 and 7.5).
func TestSessionTimesOut(t *testing.T) {
	tr := record(t, "RFC 7143, 6.3.5: a session times out after its last connection, ErrorRecoveryLevel 2")
	s, a := lead(t, tr, serve(t), "2", "1", "DefaultTime2Retain=1")
	a.close()
	b := s.join("B", 1, 2)
	b.send(testUnitReady(2, 2))
	b.good(2)
	b.close()
	tr.note("Time2Wait (2 s) and Time2Retain (1 s) pass, and a second more")
	<-time.After(4 * time.Second) // as above
	dial(t, tr, "C", s.addr).refused(login{isid: s.isid, tsih: s.tsih, cid: 1, cmdSN: 3, keys: []string{
		"InitiatorName=" + initiatorName,
		"TargetName=" + targetName,
	}}, 2, 0x0a)
}
