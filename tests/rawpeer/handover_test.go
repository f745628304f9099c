package rawpeer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// rdmaKeys are what an initiator offers that wants iSER on this connection (RFC 7145, section 6): RDMAExtensions first of the
// operational keys.
func rdmaKeys(more ...string) []string {
	return names(append([]string{
		"RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192",
		"MaxOutstandingUnexpectedPDUs=8", "InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=65536", "FirstBurstLength=8192",
		"ErrorRecoveryLevel=0", "DefaultTime2Wait=0", "DefaultTime2Retain=20",
	}, more...)...)
}

// offered logs in and insists that the target agrees to iSER.
func (w *wire) offered(more ...string) {
	w.t.Helper()
	agreed, _ := w.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: rdmaKeys(more...)})
	require.Equal(w.t, "Yes", agreed["RDMAExtensions"])
	for _, k := range []string{"HeaderDigest", "DataDigest"} {
		require.Contains(w.t, []string{"", "None"}, agreed[k])
	}
}

// disk plays the commands of a session that has just become iSER: TEST UNIT READY, INQUIRY, a WRITE with and one without immediate data, a READ, logout.
func (s *stream) disk(data []byte) {
	t := s.t
	t.Helper()
	const readSTag, writeSTag, base = 0x0b0b0b01, 0x0c0c0c01, 0x10000
	s.sendPDU(testUnitReady(1, 1))
	p, _ := s.pdu(opSCSIResp)
	require.Equal(t, byte(2), p.bhs[3], "unit attention of the new nexus")
	s.sendWith(iserHeader(0, 0, readSTag, base), inquiry(2, 2, 36))
	in := s.written(readSTag, base, 36)
	s.response(2, readSTag)
	require.Zero(t, in[0]&0x1f)
	s.sendWith(iserHeader(writeSTag, base, 0, 0), write10(3, 3, 0, uint16(len(data)/512)))
	s.read(writeSTag, base, data, 0, 1400)
	s.response(3, writeSTag)
	w := write10(4, 4, 8, 1)
	w.data = data[:512]
	s.tr.note("all of it immediate: nothing is advertised")
	s.sendPDU(w)
	s.response(4, 0)
	w = write10(5, 5, 16, 2)
	w.data = data[:512]
	s.tr.note("half of it immediate; the Write Base Offset is that of the whole buffer (RFC 7145, section 7.3.1)")
	s.sendWith(iserHeader(writeSTag+1, base, 0, 0), w)
	s.read(writeSTag+1, base, data[:1024], 512, 1400)
	s.response(5, writeSTag+1)
	s.sendWith(iserHeader(0, 0, readSTag+1, 0x7fff_0000_0000), read10(6, 6, 0, uint16(len(data)/512)))
	sameData(t, data, s.written(readSTag+1, 0x7fff_0000_0000, len(data)))
	s.response(6, readSTag+1)
	s.sendWith(iserHeader(0, 0, readSTag+2, 0), read10(7, 7, 16, 2))
	sameData(t, data[:1024], s.written(readSTag+2, 0, 1024))
	s.response(7, readSTag+2)
	s.logout(8, 8)
}

// logout ends the session; the target closes the stream (RFC 7145, section 5.2.2), or waits that the initiator does.
func (s *stream) logout(itt, cmdSN uint32) {
	s.t.Helper()
	s.sendPDU(logoutRequest(0, itt, cmdSN, 0))
	p, _ := s.pdu(opLogoutRsp)
	require.Equal(s.t, byte(0), p.bhs[2])
}

// TestHandover is RFC 7145's own order: the login in octets, MPA's startup behind it on the same connection, then iSER.
func TestHandover(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: login over TCP, the same connection becomes iSER; no Hello")
	a := dial(t, tr, "A", serve(t))
	a.offered()
	a.request(mpaCRC, 1, nil).disk(pattern(4096, 31))
	a.ended()
}

// TestHandoverHello is the same with the exchange of Hello and HelloReply (RFC 7145, section 5.1.3).
func TestHandoverHello(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1.3: iSERHelloRequired=Yes")
	a := dial(t, tr, "A", serve(t))
	a.offered("iSERHelloRequired=Yes")
	s := a.request(mpaCRC, 1, nil)
	s.hello(4)
	s.disk(pattern(4096, 32))
	a.ended()
}

// hello sends a Hello and reads the HelloReply; the target's ORD is no more than the initiator's IRD.
func (s *stream) hello(ird uint16) {
	s.t.Helper()
	s.write(s.frame(s.message(iserHello(ird))))
	g := s.next()
	require.Equal(s.t, byte(rdmaSend), g.op&^4|rdmaSend&3)
	require.Len(s.t, g.payload, 28)
	require.Equal(s.t, []byte{0x30, 10<<4 | 10}, g.payload[:2], "HelloReply, accepted, version 10")
	ord := uint16(g.payload[2])<<8 | uint16(g.payload[3])
	require.NotZero(s.t, ord)
	require.LessOrEqual(s.t, ord, ird)
}

// TestHandoverEnhanced starts MPA as RFC 6581 has it: revision 2, with the depths of the Read queues in the private data.
func TestHandoverEnhanced(t *testing.T) {
	tr := record(t, "RFC 6581: enhanced MPA startup behind the login")
	a := dial(t, tr, "A", serve(t))
	a.offered()
	a.request(mpaCRC|mpaEnhanced, 2, []byte{0, 4, 0, 0}).disk(pattern(4096, 33))
	a.ended()
}

// TestHandoverWithoutCRC leaves the choice of CRCs to the target (RFC 5044, section 7.1.1).
func TestHandoverWithoutCRC(t *testing.T) {
	tr := record(t, "RFC 5044, 7.1.1: the initiator has no wish for CRCs, the target's Reply decides")
	a := dial(t, tr, "A", serve(t))
	a.offered()
	a.request(0, 1, nil).disk(pattern(4096, 34))
	a.ended()
}

// TestHandoverSecurityStage logs in through both stages, one request each, the operational keys spread over two requests.
func TestHandoverSecurityStage(t *testing.T) {
	tr := record(t, "RFC 7145, 6.3: login through both stages; RDMAExtensions in the first operational request")
	a := dial(t, tr, "A", serve(t))
	a.send(loginRequest(firstISID, 0, 1, 0, 1, true, 1, names("AuthMethod=None")...))
	p := a.want(opLoginResp)
	require.Equal(t, []byte{0x81, 0, 0}, []byte{p.bhs[1], p.bhs[36], p.bhs[37]})
	a.send(loginRequest(firstISID, 0, 1, 1, 3, false, 1, "RDMAExtensions=Yes", "InitialR2T=Yes"))
	p = a.want(opLoginResp)
	require.Equal(t, "Yes", keys(p.data)["RDMAExtensions"], "answered in the next response")
	a.send(loginRequest(firstISID, 0, 1, 1, 3, true, 1, "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192", "ImmediateData=Yes"))
	p = a.want(opLoginResp)
	require.Equal(t, []byte{0x87, 0, 0}, []byte{p.bhs[1], p.bhs[36], p.bhs[37]})
	a.request(mpaCRC, 1, nil).disk(pattern(4096, 35))
	a.ended()
}

// TestHandoverOctets writes everything one octet for a TCP segment.
func TestHandoverOctets(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: the whole connection in TCP segments of one octet")
	a := dial(t, tr, "A", serve(t))
	a.c.SetNoDelay(true)
	a.cut = 1
	a.offered("iSERHelloRequired=Yes")
	s := a.request(mpaCRC, 1, nil)
	s.hello(1)
	s.disk(pattern(1024, 36))
	a.ended()
}

// TestHandoverSplits cuts what follows the login (MPA Request; Hello; first command) at each place: the first part in one TCP segment, the
// rest in the next one.
func TestHandoverSplits(t *testing.T) {
	addr := serve(t)
	run := func(tr *transcript, cut int) int {
		a := dial(t, tr, "A", addr)
		defer a.c.Close()
		a.offered("iSERHelloRequired=Yes")
		b := mpaFrame(mpaRequestKey, mpaCRC, 1, nil)
		tr.mpa("->", a.name, b)
		k := min(cut, len(b))
		a.write(b[:k])
		a.write(b[k:])
		s := a.reply(mpaCRC, 1)
		h := s.frame(s.message(iserHello(2)))
		k = max(0, min(cut-len(b), len(h)))
		a.write(h[:k])
		a.write(h[k:])
		g := s.next()
		require.Equal(t, byte(3), g.payload[0]>>4)
		s.sendPDU(testUnitReady(1, 1))
		s.pdu(opSCSIResp)
		s.logout(2, 2)
		return len(b) + len(h)
	}
	tr := record(t, "RFC 7145, 5.1: MPA Request and Hello cut at every place; the transcript is that of the first cut, all others are the same")
	end := run(tr, 1)
	for cut := 2; cut < end; cut++ {
		again := &transcript{numbered: map[string]map[uint64]uint64{}}
		run(again, cut)
		if t.Failed() {
			t.Fatalf("cut at %d", cut)
		}
	}
}

// TestHandoverReplyAwaited sends the first FPDUs together with the MPA Request. An initiator may not: it has to validate the Reply first
// (RFC 5044, section 7.1.2 (3)). A responder that takes them carries on; one that does not closes. It must not stand still, or answer out of order.
func TestHandoverReplyAwaited(t *testing.T) {
	tr := record(t, "RFC 5044, 7.1.2 (3), violated: the first FPDU follows the MPA Request in the same TCP segment")
	a := dial(t, tr, "A", serve(t))
	a.offered("iSERHelloRequired=Yes")
	b := mpaFrame(mpaRequestKey, mpaCRC, 1, nil)
	tr.mpa("->", a.name, b)
	s := &stream{wire: a}
	a.write(append(b, s.frame(s.message(iserHello(2)))...))
	if a.fill(1) != nil {
		a.ended()
		return
	}
	require.Zero(t, a.startup(mpaReplyKey)[16]&mpaReject)
	if a.fill(1) != nil {
		a.ended()
		return
	}
	require.Equal(t, byte(3), s.next().payload[0]>>4)
	s.sendPDU(testUnitReady(1, 1))
	s.pdu(opSCSIResp)
	s.logout(2, 2)
	a.ended()
}

// TestHandoverTooEarly sends the MPA Request in one TCP segment with the final Login Request, before the target could agree. The order of
// octets is the same as in a connection that waits, but the initiator anticipates the answer (RFC 7145, section 5.1.1: "after the target
// returns the Login Response"). The target takes it octet by octet, or closes; it must not take the MPA Request for iSCSI.
func TestHandoverTooEarly(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1.1, violated: the MPA Request follows the last Login Request in the same TCP segment")
	a := dial(t, tr, "A", serve(t))
	b := a.encode(loginRequest(firstISID, 0, 1, 1, 3, true, 1, rdmaKeys()...))
	m := mpaFrame(mpaRequestKey, mpaCRC, 1, nil)
	tr.mpa("->", a.name, m)
	a.write(append(b, m...))
	p := a.want(opLoginResp)
	require.Equal(t, []byte{0x87, 0, 0}, []byte{p.bhs[1], p.bhs[36], p.bhs[37]})
	if a.fill(1) != nil {
		a.ended()
		return
	}
	s := a.reply(mpaCRC, 1)
	s.disk(pattern(1024, 37))
	a.ended()
}

// TestHandoverNoRequest sends something else than an MPA Request behind the login: the connection ends (RFC 5044, section 7.1.2 (2)).
func TestHandoverNoRequest(t *testing.T) {
	addr := serve(t)
	for name, b := range map[string][]byte{
		"Reply":     mpaFrame(mpaReplyKey, mpaCRC, 1, nil),
		"Revision0": mpaFrame(mpaRequestKey, mpaCRC, 0, nil),
		"Private":   mpaFrame(mpaRequestKey, mpaCRC, 1, make([]byte, 513)),
		"PDU":       testUnitReady(1, 1).encode(false, false),
	} {
		t.Run(name, func(t *testing.T) {
			tr := record(t, "RFC 5044, 7.1.2: no proper MPA Request follows the login: "+name)
			a := dial(t, tr, "A", addr)
			a.offered()
			tr.note("%d octets are sent", len(b))
			tr.hex(0, b[:min(len(b), 64)])
			a.write(b)
			a.ended()
		})
	}
}

// TestHandoverUnwantedHello sends a Hello that was not negotiated: an iSER protocol error (RFC 7145, sections 5.1.3 and 10.1.3.4), though one that
// a target may answer for the sake of RFC 5046's initiators.
func TestHandoverUnwantedHello(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1.3: a Hello although iSERHelloRequired is No")
	a := dial(t, tr, "A", serve(t))
	a.offered("iSERHelloRequired=No")
	s := a.request(mpaCRC, 1, nil)
	s.write(s.frame(s.message(iserHello(2))))
	s.broken()
}

// TestHandoverMissingHello sends a command where the Hello ought to be.
func TestHandoverMissingHello(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1.3: no Hello although iSERHelloRequired is Yes")
	a := dial(t, tr, "A", serve(t))
	a.offered("iSERHelloRequired=Yes")
	s := a.request(mpaCRC, 1, nil)
	s.sendPDU(testUnitReady(1, 1))
	s.broken()
}

// TestHandoverHelloVersion declares versions that this iSER does not overlap with (RFC 7145, section 10.1.3.2): the HelloReply rejects, or
// the connection ends.
func TestHandoverHelloVersion(t *testing.T) {
	tr := record(t, "RFC 7145, 10.1.3.2: a Hello of another version")
	a := dial(t, tr, "A", serve(t))
	a.offered("iSERHelloRequired=Yes")
	s := a.request(mpaCRC, 1, nil)
	h := iserHello(2)
	h[1] = 11<<4 | 11
	s.write(s.frame(s.message(h)))
	g := s.next()
	require.Len(t, g.payload, 28)
	require.Equal(t, byte(0x31), g.payload[0], "HelloReply with REJ")
	require.Equal(t, byte(10<<4), g.payload[1]&0xf0)
	a.ended()
}

// broken insists that the stream ends; a Terminate may come before.
func (s *stream) broken() {
	s.t.Helper()
	if s.fill(1) == nil {
		g := s.next()
		require.Equal(s.t, rdmapNames[rdmaTerminate], rdmapNames[g.op])
	}
	s.ended()
}

// TestHandoverCRC damages the first FPDU: the stream ends with a Terminate at most (RFC 5044, section 8).
func TestHandoverCRC(t *testing.T) {
	tr := record(t, "RFC 5044, 8: wrong CRC in the first FPDU")
	a := dial(t, tr, "A", serve(t))
	a.offered()
	s := a.request(mpaCRC, 1, nil)
	b := s.frame(s.control(iserHeader(0, 0, 0, 0), testUnitReady(1, 1)))
	b[len(b)-1] ^= 1
	tr.note("the CRC of that FPDU is wrong")
	s.write(b)
	s.broken()
}

// TestHandoverForeignInvalidate sends a command by Send with Invalidate of an STag that the target does not have: the stream ends with a
// Terminate at most (RFC 5040, section 5.3), and nothing of the command is carried out.
func TestHandoverForeignInvalidate(t *testing.T) {
	tr := record(t, "RFC 5040, 5.3: an initiator's Send with Invalidate names an STag that the target does not have")
	addr := serve(t)
	a := dial(t, tr, "A", addr)
	a.offered()
	s := a.request(mpaCRC, 1, nil)
	s.sendPDU(testUnitReady(1, 1))
	s.pdu(opSCSIResp) // the unit attention
	w := write10(2, 2, 0, 1)
	w.data = pattern(512, 38)
	m := s.control(iserHeader(0, 0, 0, 0), w)
	m.op, m.stag = rdmaSendInv, 0x0f0f0f01
	s.write(s.frame(m))
	s.broken()
	tr.note("another session finds the block as it was")
	b := dial(t, tr, "B", addr)
	other := firstISID
	other[5]++
	b.login(login{isid: other, cid: 1, cmdSN: 1, keys: names("MaxRecvDataSegmentLength=8192", "InitialR2T=Yes")})
	b.attention(1, 1)
	b.send(read10(2, 2, 0, 1))
	sameData(t, make([]byte, 512), b.dataIn(2, 512))
}

// TestHandoverDeclined: without RDMAExtensions=Yes from both, and in Discovery, the connection stays what it is (RFC 7145,
// section 5.1).
func TestHandoverDeclined(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: RDMAExtensions=No, or in Discovery: the connection stays iSCSI")
	addr := serve(t)
	a := dial(t, tr, "A", addr)
	agreed, _ := a.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: names("RDMAExtensions=No", "HeaderDigest=None")})
	require.NotEqual(t, "Yes", agreed["RDMAExtensions"])
	a.attention(1, 1)
	a.send(logoutRequest(0, 2, 2, 0))
	a.want(opLogoutRsp)
	a.ended()
	tr.note("Discovery")
	b := dial(t, tr, "B", addr)
	agreed, _ = b.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: []string{"InitiatorName=" + initiatorName, "SessionType=Discovery", "RDMAExtensions=Yes"}})
	require.NotEqual(t, "Yes", agreed["RDMAExtensions"])
	b.send(logoutRequest(0, 2, 1, 0))
	b.want(opLogoutRsp)
	b.ended()
}

// TestHandoverTwoConnections: iSER is the session's, so the second connection hands over without the key (RFC 7145, section 5.1); both
// share one sequence of CmdSN.
func TestHandoverTwoConnections(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: a second connection of an iSER session, without RDMAExtensions")
	addr := serve(t)
	a := dial(t, tr, "A", addr)
	agreed, tsih := a.login(login{isid: firstISID, cid: 1, cmdSN: 1, keys: rdmaKeys("MaxConnections=2")})
	require.Equal(t, []string{"Yes", "2"}, []string{agreed["RDMAExtensions"], agreed["MaxConnections"]})
	s := a.request(mpaCRC, 1, nil)
	s.sendPDU(testUnitReady(1, 1))
	s.pdu(opSCSIResp) // the unit attention
	b := dial(t, tr, "B", addr)
	agreed, _ = b.login(login{isid: firstISID, tsih: tsih, cid: 2, cmdSN: 2, keys: []string{"InitiatorName=" + initiatorName, "TargetName=" + targetName}})
	require.NotContains(t, agreed, "RDMAExtensions")
	r := b.request(mpaCRC, 1, nil)
	tr.note("3 on B waits for 2 on A")
	const stag, base = 0x0e0e0e01, 4096
	r.sendWith(iserHeader(0, 0, stag, base), read10(3, 3, 0, 2))
	r.sendPDU(nopOut(0x100, 4, "still there?"))
	p, _ := r.pdu(opNopIn)
	require.Equal(t, uint32(2), p.expCmdSN())
	s.sendPDU(testUnitReady(2, 2))
	s.response(2, 0)
	r.written(stag, base, 1024)
	r.response(3, stag)
	tr.note("logout of B, on B; A goes on")
	r.sendPDU(logoutRequest(1, 4, 4, 2))
	p, _ = r.pdu(opLogoutRsp)
	require.Zero(t, p.bhs[2])
	b.ended()
	s.sendPDU(testUnitReady(5, 4))
	s.response(5, 0)
	s.logout(6, 5)
	a.ended()
}
