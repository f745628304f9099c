package rawpeer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is lost without anything behind it to tell of it is found by time alone. How much is each end's own choice (RFC 7143, section 7.1.4.1: "a
// certain time"); these scripts wait for it.

// TestDataOutStops: the last Data-Out of a sequence is lost, so that no number is passed over. The target asks for it again (RFC 7143, sections
// 7.1.4.1 and 7.9).
func TestDataOutStops(t *testing.T) {
	tr := record(t, "RFC 7143, 7.1.4.1: the last Data-Out PDU of a sequence is lost, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 41)
	a.send(write10(2, 2, 0, 8))
	r := a.want(opR2T)
	out := answers(r, data)
	tr.note("the Data-Out with DataSN 3 and the F bit does not arrive; some time passes")
	a.send(out[:3]...)
	rr := a.want(opR2T)
	require.Equal(t, []uint32{2, 1}, []uint32{rr.itt(), rr.u32(36)}, "a recovery R2T has the next R2TSN")
	require.Equal(t, []uint32{3072, 1024}, []uint32{rr.u32(40), rr.u32(44)}, "what is missing")
	p := a.fulfil(2, data, rr)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.send(read10(3, 3, 0, 8))
	sameData(t, data, a.dataIn(3, 4096))
}

// TestR2TIsLost: the R2T itself does not reach the initiator, which is silent therefore. The target asks for all of it again.
func TestR2TIsLost(t *testing.T) {
	tr := record(t, "RFC 7143, 7.1.4.1: an R2T is lost, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(4096, 42)
	a.send(write10(2, 2, 0, 8))
	a.want(opR2T)
	tr.note("the initiator does not see it; some time passes")
	rr := a.want(opR2T)
	require.Equal(t, []uint32{2, 1, 0, 4096}, []uint32{rr.itt(), rr.u32(36), rr.u32(40), rr.u32(44)})
	tr.note("its R2TSN tells the initiator that it has missed one; what that asked for is in this one, too")
	p := a.fulfil(2, data, rr)
	require.Equal(t, byte(0), p.bhs[3], "status: % x", p.data)
	a.send(read10(3, 3, 0, 8))
	sameData(t, data, a.dataIn(3, 4096))
}

// TestStatusIsLost: a response is lost, and nothing follows it. The initiator asks how things are (NOP-Out), learns from the StatSN that it
// misses one, and asks for it (RFC 7143, sections 7.1.4.1 and 11.16).
func TestStatusIsLost(t *testing.T) {
	tr := record(t, "RFC 7143, 11.16: a status is lost, the next NOP-In tells of it, ErrorRecoveryLevel 1")
	a := recovering(t, tr, serve(t), "1")
	data := pattern(512, 43)
	a.holdStatus = true
	w := write10(2, 2, 0, 1)
	a.send(w)
	a.send(answers(a.want(opR2T), data)...)
	lost := a.want(opSCSIResp)
	tr.note("the initiator does not see it")
	ping := a.quiet(9, 3)
	require.Equal(t, lost.statSN()+1, ping.statSN())
	a.send(snack(snackStatus, none, none, lost.statSN(), 1))
	replica(t, lost, a.want(opSCSIResp))
	a.holdStatus = false
	a.expStatSN = ping.statSN() + 1
	a.send(read10(3, 3, 0, 1))
	sameData(t, data, a.dataIn(3, 512))
}

// losing is a scripted target at ErrorRecoveryLevel 1 with digests that loses something of iser's first READ: by lose, which sends the rest.
func losing(t *testing.T, title string, lose func(g *target, p *pdu)) {
	t.Helper()
	tr := record(t, title)
	l := listen(t)
	done := client(t, "read", "--digests", "--recovery-level", "1", url("iscsi", l.Addr().String()), "--length", "2048")
	g := newTarget(t, tr, l)
	g.digests, g.level = true, "1"
	g.send(g.login())
	g.hd, g.dd = true, true
	lost := false
	g.lie = func(p *pdu, _ []byte) bool {
		if lost || !isRead(p) {
			return false
		}
		lost = true
		lose(g, p)
		tr.rest("iser has all of it, and logs out while what waited behind the status is being handed up")
		return true
	}
	g.serve()
	require.True(t, lost)
	g.c.CloseWrite()
	out, log, err := done()
	require.NoError(t, err, log)
	sameData(t, g.disk[:2048], []byte(out))
}

// parts are the Data-In PDUs and the response of a READ of 2048 octets, numbered as they are to leave.
func (g *target) parts(p *pdu) (data []*pdu, response *pdu) {
	for sn := range uint32(4) {
		d := g.number(dataIn(p.itt(), sn, 512*sn, sn == 3, g.disk[512*sn:][:512]), false)
		d.set32(24, 0)
		data = append(data, d)
	}
	response = &pdu{}
	response.bhs[0], response.bhs[1] = opSCSIResp, 0x80
	response.set32(16, p.itt())
	response.set32(36, 4)
	return data, g.number(response, true)
}

// asked reads a SNACK Request and checks what it asks for.
func (g *target) asked(kind byte, itt uint32) *pdu {
	g.t.Helper()
	p := g.want(opSNACK)
	require.Equal(g.t, kind, p.bhs[1]&0xf, "type of the SNACK")
	require.Equal(g.t, itt, p.itt())
	return p
}

// TestInitiatorMissesData: a Data-In does not arrive; the next one tells of it, and iser asks for it (RFC 7143, sections 7.9 and 11.16).
func TestInitiatorMissesData(t *testing.T) {
	losing(t, "RFC 7143, 7.9: a Data-In PDU is lost, iser --recovery-level 1", func(g *target, p *pdu) {
		data, response := g.parts(p)
		g.tr.note("the Data-In with DataSN 1 does not arrive")
		g.send(data[0], data[2], data[3], response)
		q := g.asked(snackData, p.itt())
		require.Equal(g.t, uint32(1), q.u32(40), "BegRun")
		switch q.u32(44) { // RunLength
		case 0:
			g.send(data[1:]...)
		default:
			g.send(data[1:][:q.u32(44)]...)
		}
	})
}

// TestInitiatorMissesTheEnd: the last Data-In and the response do not arrive, and nothing behind them. iser asks how things are, and learns
// from the StatSN of the answer that a status is missing, and from the status that data is.
func TestInitiatorMissesTheEnd(t *testing.T) {
	losing(t, "RFC 7143, 7.1.4.1: the last Data-In PDU and the status are lost, iser --recovery-level 1", func(g *target, p *pdu) {
		data, response := g.parts(p)
		g.tr.note("the Data-In with DataSN 3 and the response do not arrive; some time passes")
		g.send(data[:3]...)
		g.untilAsked(p, data, response, 3)
	})
}

// TestInitiatorMissesStatus: the response alone does not arrive.
func TestInitiatorMissesStatus(t *testing.T) {
	losing(t, "RFC 7143, 7.1.4.1: a status is lost, iser --recovery-level 1", func(g *target, p *pdu) {
		data, response := g.parts(p)
		g.tr.note("the response does not arrive; some time passes")
		g.send(data...)
		g.untilAsked(p, data, response, 4)
	})
}

// untilAsked answers iser's pings, and its SNACKs for what it has lost, until it has all data, of which so many PDUs have arrived, and the response.
func (g *target) untilAsked(p *pdu, data []*pdu, response *pdu, arrived int) {
	g.t.Helper()
	for told := false; !told || arrived < len(data); {
		q := g.receive()
		switch {
		case q.op() == opNopOut && q.itt() != none:
			if q.bhs[0]&0x40 == 0 {
				g.expCmdSN++
			}
			in := &pdu{data: q.data}
			in.bhs[0], in.bhs[1] = opNopIn, 0x80
			in.set32(16, q.itt())
			in.set32(20, none)
			g.send(g.number(in, true))
		case q.op() == opSNACK && q.bhs[1]&0xf == snackStatus:
			first, run := q.u32(40), q.u32(44)
			sn := response.statSN()
			require.True(g.t, first == 0 && run == 0 || first == sn && run <= 1, "%s asks for what was not lost", q.describe())
			g.send(response)
			told = true
		case q.op() == opSNACK && q.bhs[1]&0xf == snackData:
			require.Equal(g.t, p.itt(), q.itt())
			first, run := q.u32(40), q.u32(44)
			if run == 0 {
				run = uint32(len(data)) - first
			}
			require.LessOrEqual(g.t, int(first+run), len(data))
			require.Equal(g.t, arrived, int(first), "%s asks for what was not lost", q.describe())
			g.send(data[first : first+run]...)
			arrived = int(first + run)
		default:
			g.t.Fatalf("the initiator sends %s", q.describe())
		}
	}
}
