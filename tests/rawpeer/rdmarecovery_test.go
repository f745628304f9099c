package rawpeer

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// lead2 opens an iSER session at ErrorRecoveryLevel 2, takes the unit attention, and returns the stream and the TSIH. The next CmdSN is 2.
func lead2(t *testing.T, tr *transcript, addr, connections string) (*stream, uint16) {
	t.Helper()
	a := dial(t, tr, "A", addr)
	agreed, tsih := a.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: names("RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=8192",
		"TargetRecvDataSegmentLength=8192", "MaxOutstandingUnexpectedPDUs=8", "InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=65536",
		"FirstBurstLength=8192", "MaxConnections="+connections, "ErrorRecoveryLevel=2", "DefaultTime2Wait=0", "DefaultTime2Retain=20")})
	require.Equal(t, []string{"Yes", "2", connections}, []string{agreed["RDMAExtensions"], agreed["ErrorRecoveryLevel"], agreed["MaxConnections"]})
	s := a.request(mpaCRC, 1, nil)
	s.sendPDU(testUnitReady(1, 1))
	p, _ := s.pdu(opSCSIResp)
	require.Equal(t, byte(2), p.bhs[3], "unit attention of the new nexus")
	return s, tsih
}

// join2 adds a connection to that session, or reinstates one; it goes on in iSER without being asked (RFC 7145, section 5.1).
func join2(t *testing.T, tr *transcript, name, addr string, tsih, cid uint16, cmdSN uint32) *stream {
	t.Helper()
	b := dial(t, tr, name, addr)
	agreed, again := b.login(login{isid: firstISID, tsih: tsih, cid: cid, cmdSN: cmdSN, keys: []string{"InitiatorName=" + initiatorName, "TargetName=" + targetName}})
	require.Equal(t, tsih, again)
	require.NotContains(t, agreed, "RDMAExtensions")
	return b.request(mpaCRC, 1, nil)
}

// reassigned has a task go on here, with memory that is advertised anew (RFC 7145, section 7.3.3).
func (s *stream) reassigned(itt, cmdSN, task uint32, header []byte) {
	s.t.Helper()
	s.sendWith(header, taskManagement(tmfReassign, itt, cmdSN, task, 0, 0))
	p, _ := s.pdu(opTMFResp)
	require.Equal(s.t, []uint32{itt, 0}, []uint32{p.itt(), uint32(p.bhs[2])}, "function complete")
}

// TestRDMAReassign: the only connection is lost with a write that waits for its data and a read whose status is not acknowledged. A login with its
// CID takes its place, in iSER again, and both tasks go on there with STags of their own (RFC 7145, sections 7.3.3 and 10.2.2).
func TestRDMAReassign(t *testing.T) {
	tr := record(t, "RFC 7145, 7.3.3 and 10.2.2: the only connection is lost and reinstated, ErrorRecoveryLevel 2 over iSER")
	addr := serve(t)
	s, tsih := lead2(t, tr, addr, "1")
	const old, fresh, base = 0x0a0a0a01, 0x0a0a0b01, 0x2000
	data := pattern(4096, 51)
	s.sendWith(iserHeader(old, base, 0, 0), write10(2, 2, 0, 8))
	g := s.next()
	require.Equal(t, []uint32{rdmaReadReq, old}, []uint32{uint32(g.op), binary.BigEndian.Uint32(g.payload[16:])})
	tr.note("the RDMA Read is not answered")
	s.holdStatus = true
	s.sendWith(iserHeader(0, 0, old+1, base), read10(3, 3, 100, 2))
	require.Equal(t, make([]byte, 1024), s.written(old+1, base, 1024))
	s.response(3, old+1)
	tr.note("the status of the read is not acknowledged")
	s.close()
	r := join2(t, tr, "B", addr, tsih, 1, 4)
	tr.note("the write goes on")
	r.reassigned(0x10, 4, 2, iserHeader(fresh, base, 0, 0))
	r.read(fresh, base, data, 0, 1400)
	r.response(2, fresh)
	tr.note("the read: all of its data, and its status")
	r.reassigned(0x11, 4, 3, iserHeader(0, 0, fresh+1, base))
	require.Equal(t, make([]byte, 1024), r.written(fresh+1, base, 1024))
	r.response(3, fresh+1)
	r.sendWith(iserHeader(0, 0, fresh+2, 0), read10(4, 4, 0, 8))
	sameData(t, data, r.written(fresh+2, 0, 4096))
	r.response(4, fresh+2)
	r.logout(5, 5)
	r.ended()
}

// TestRDMAReassignOnAnother: one of two connections is lost; it is logged out for recovery on the other one, which takes the write (RFC 7143,
// section 11.14). Before that the task is still allegiant.
func TestRDMAReassignOnAnother(t *testing.T) {
	tr := record(t, "RFC 7145, 10.2.2, and RFC 7143, 7.2.2: one of two iSER connections is lost, ErrorRecoveryLevel 2")
	addr := serve(t)
	a, tsih := lead2(t, tr, addr, "2")
	b := join2(t, tr, "B", addr, tsih, 2, 2)
	const old, fresh, base = 0x0a0a0a01, 0x0a0a0b01, 0x2000
	data := pattern(4096, 52)
	b.sendWith(iserHeader(old, base, 0, 0), write10(2, 2, 0, 8))
	require.Equal(t, byte(rdmaReadReq), b.next().op)
	b.close()
	p, _ := a.pdu(opAsync)
	require.Equal(t, []uint16{2, 2}, []uint16{uint16(p.bhs[36]), p.u16(38)}, "connection 2 was dropped")
	a.sendWith(iserHeader(fresh, base, 0, 0), taskManagement(tmfReassign, 0x10, 3, 2, 0, 0))
	p, _ = a.pdu(opTMFResp)
	require.Equal(t, byte(3), p.bhs[2], "task still allegiant: the connection was not logged out")
	a.sendPDU(logoutRequest(2, 0x11, 3, 2))
	p, _ = a.pdu(opLogoutRsp)
	require.Equal(t, byte(0), p.bhs[2])
	a.reassigned(0x12, 3, 2, iserHeader(fresh+1, base, 0, 0))
	a.read(fresh+1, base, data, 0, 1400)
	a.response(2, fresh+1)
	a.sendWith(iserHeader(0, 0, fresh+2, 0), read10(3, 3, 0, 8))
	sameData(t, data, a.written(fresh+2, 0, 4096))
	a.response(3, fresh+2)
	a.logout(4, 4)
	a.ended()
}

// lose2 plays a target at ErrorRecoveryLevel 2 over iSER: at iser's first command that fits, script does what it does with it, and the connection
// is lost. The next one has to be a login with the same CID and TSIH that goes on in iSER. It returns that connection's end.
func lose2(t *testing.T, tr *transcript, l *net.TCPListener, fits func(p *pdu) bool, script func(g *target, p *pdu, header []byte)) (g *target, lost *pdu) {
	t.Helper()
	g = newTarget(t, tr, l)
	g.rdma, g.level = true, "2"
	g.send(g.login())
	g.startMPA()
	for lost == nil {
		p, header := g.request()
		if p.bhs[0]&0x40 == 0 {
			g.expCmdSN++
		}
		require.Equal(t, opNames[opSCSICmd], opNames[p.op()])
		if fits(p) {
			script(g, p, header)
			lost = p
			continue
		}
		g.command(p, header)
	}
	g.close()
	h := newTarget(t, tr, l)
	h.name, h.rdma, h.level, h.disk, h.tsih = "B", true, "2", g.disk, 5
	h.taken = g.expCmdSN
	h.send(h.login())
	h.startMPA()
	return h, lost
}

// reassign takes the TASK REASSIGN for a task, and returns the header that advertises memory anew.
func (g *target) reassign(task *pdu, before []byte) []byte {
	g.t.Helper()
	p, header := g.request()
	require.Equal(g.t, []string{opNames[opTMFReq]}, []string{opNames[p.op()]})
	require.Equal(g.t, []uint32{tmfReassign, task.itt(), 0}, []uint32{uint32(p.bhs[1] & 0x7f), p.u32(20), p.u32(36)}, "function, task, ExpDataSN")
	require.Equal(g.t, before[0], header[0], "the same directions as before")
	for _, at := range []int{4, 16} {
		if stag := binary.BigEndian.Uint32(header[at:]); stag != 0 {
			require.NotEqual(g.t, binary.BigEndian.Uint32(before[at:]), stag, "an STag of its own")
		}
	}
	q := &pdu{}
	q.bhs[0], q.bhs[1] = opTMFResp, 0x80
	q.set32(16, p.itt())
	g.respond(g.number(q, true), nil)
	return header
}

// TestInitiatorRDMAReassign: iser's connection is lost under a read of which a part has come; it goes on with that on another one.
func TestInitiatorRDMAReassign(t *testing.T) {
	tr := record(t, "RFC 7145, 7.3.3 and 10.2.2: iser --handover --recovery-level 2 loses its connection under a read")
	l := listen(t)
	done := client(t, "read", "--handover", "--recovery-level", "2", url("iser", l.Addr().String()), "--length", "4096")
	var before []byte
	h, lost := lose2(t, tr, l, isRead, func(g *target, p *pdu, header []byte) {
		before = header
		stag, base := binary.BigEndian.Uint32(header[16:]), binary.BigEndian.Uint64(header[20:])
		g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base, payload: g.disk[:1024]}))
	})
	header := h.reassign(lost, before)
	h.command(lost, header)
	h.serve()
	h.c.CloseWrite()
	out, log, err := done()
	require.NoError(t, err, log)
	sameData(t, h.disk[:4096], []byte(out))
}

// TestInitiatorRDMAReassignWrite is the same for a write whose status is lost: the target has its data, and tells of that once more.
func TestInitiatorRDMAReassignWrite(t *testing.T) {
	tr := record(t, "RFC 7145, 10.2.2: iser --handover --recovery-level 2 loses its connection before the status of a write")
	l := listen(t)
	data := pattern(16384, 53)
	f := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(f, data, 0o600))
	done := client(t, "write", "--handover", "--recovery-level", "2", url("iser", l.Addr().String()), f)
	isWrite := func(p *pdu) bool { return p.bhs[32] == 0x2a || p.bhs[32] == 0x8a }
	var before []byte
	h, lost := lose2(t, tr, l, isWrite, func(g *target, p *pdu, header []byte) {
		before = header
		at := copy(g.disk, p.data)
		g.fetch(binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint64(header[8:])+uint64(at), g.disk[at:len(data)])
	})
	header := h.reassign(lost, before)
	h.status(lost, iserHeader(binary.BigEndian.Uint32(header[4:]), 0, 0, 0), 0, uint32(len(data)), nil)
	h.serve()
	h.c.CloseWrite()
	_, log, err := done()
	require.NoError(t, err, log)
	sameData(t, data, h.disk[:len(data)])
}
