package rawpeer

import (
	"encoding/binary"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// diskSize is that of the scripted target's disk.
const diskSize = 64 << 10

// target is a scripted target: it follows RFC 7143 and RFC 7145 but for the lies that a scenario tells it.
type target struct {
	*wire
	s *stream // once the connection is iSER's
	// rdma and digests: what it agrees to.
	rdma, digests bool
	// invalidates: responses over iSER name their STag by Send with Invalidate, instead of in the header.
	invalidates bool
	// level is the ErrorRecoveryLevel that it agrees to; tsih is the session's, 0 for the first one.
	level string
	// tsih and taken: the login has to be for that session, whose commands before that CmdSN the target has; 0 for a new one.
	tsih  uint16
	taken uint32
	// lie, if set, may answer a SCSI command in its own way, and then says true.
	lie  func(p *pdu, header []byte) bool
	past struct { // what the last command before the lie advertised for its data-in
		stag uint32
		base uint64
	}
	// helloRequired is what the initiator has declared.
	helloRequired    bool
	statSN, expCmdSN uint32
	disk             []byte
}

func newTarget(t *testing.T, tr *transcript, l *net.TCPListener) *target {
	t.Helper()
	w := accept(t, tr, "A", l)
	w.statBase = 1
	return &target{wire: w, statSN: 1, disk: pattern(diskSize, 77)}
}

// answer is the text that answers an initiator's keys, in their order (RFC 7143, section 13; RFC 7145, section 6).
func (g *target) answer(data []byte) []string {
	var out []string
	for pair := range strings.SplitSeq(strings.TrimRight(string(data), "\x00"), "\x00") {
		k, v, _ := strings.Cut(pair, "=")
		offered, _, _ := strings.Cut(v, ",")
		switch k {
		case "", "InitiatorName", "InitiatorAlias", "TargetName", "SessionType", "MaxRecvDataSegmentLength", "MaxOutstandingUnexpectedPDUs", "MaxAHSLength",
			"TaggedBufferForSolicitedDataOnly":
			continue // declarations
		case "iSERHelloRequired":
			g.helloRequired = v == "Yes"
		case "RDMAExtensions":
			if !g.rdma {
				v = "No"
			}
		case "AuthMethod":
			v = "None"
		case "HeaderDigest", "DataDigest":
			v = "None"
			if g.digests && offered == "CRC32C" {
				v = "CRC32C"
			}
		case "InitialR2T", "DataPDUInOrder", "DataSequenceInOrder":
			v = "Yes"
		case "ErrorRecoveryLevel":
			v = "0"
			if g.level != "" {
				v = g.level
			}
		case "MaxConnections", "MaxOutstandingR2T":
			v = "1"
		case "OFMarker", "IFMarker":
			v = "No"
		case "ImmediateData", "MaxBurstLength", "FirstBurstLength", "DefaultTime2Wait", "DefaultTime2Retain", "InitiatorRecvDataSegmentLength",
			"TargetRecvDataSegmentLength":
		default:
			v = "NotUnderstood"
		}
		out = append(out, k+"="+v)
	}
	return out
}

// number gives a response its StatSN, ExpCmdSN and MaxCmdSN.
func (g *target) number(p *pdu, status bool) *pdu {
	p.set32(24, g.statSN)
	p.set32(28, g.expCmdSN)
	p.set32(32, g.expCmdSN+31)
	if status {
		g.statSN++
	}
	return p
}

// loginResponse answers a Login Request, and agrees to the stage that it wants to go to.
func (g *target) loginResponse(req *pdu, pairs ...string) *pdu {
	p := &pdu{bhs: req.bhs, data: text(pairs...)}
	p.bhs[0] = opLoginResp
	p.bhs[3] = 0
	for i := 20; i < 48; i++ {
		p.bhs[i] = 0
	}
	if req.bhs[1]&0x83 == 0x83 {
		binary.BigEndian.PutUint16(p.bhs[14:], 5) // TSIH
	}
	return g.number(p, true)
}

// login plays the login phase and returns the final Login Response without sending it.
func (g *target) login() *pdu {
	g.t.Helper()
	told := false
	for {
		req := g.receive()
		require.Equal(g.t, byte(opLoginReq), req.op())
		g.expCmdSN = max(req.u32(24), g.taken)
		if g.tsih != 0 {
			require.Equal(g.t, []uint16{g.tsih, 0}, []uint16{req.u16(14), req.u16(20)}, "TSIH and CID")
		}
		pairs := g.answer(req.data)
		if !told {
			pairs = append(pairs, "TargetPortalGroupTag=1")
			told = true
		}
		final := req.bhs[1]&0x83 == 0x83
		if req.bhs[1]>>2&3 == 1 && !g.rdma && final {
			pairs = append(pairs, "MaxRecvDataSegmentLength=8192")
		}
		p := g.loginResponse(req, pairs...)
		if final {
			return p
		}
		g.send(p)
	}
}

// startMPA takes the MPA Request and answers it.
func (g *target) startMPA() *stream {
	g.t.Helper()
	b := g.startup(mpaRequestKey)
	g.reply(b)
	g.s = &stream{wire: g.wire}
	return g.s
}

func (g *target) reply(req []byte) {
	g.t.Helper()
	b := accepting(g.t, req)
	g.tr.mpa("->", g.name, b)
	g.write(b)
}

// accepting is the MPA Reply that accepts a Request, enhanced if that is (RFC 6581, section 10): as many inbound Reads as the
// initiator wants to send, and no more outbound ones than it takes, four at most.
func accepting(t *testing.T, req []byte) []byte {
	t.Helper()
	if req[16]&mpaEnhanced == 0 {
		return mpaFrame(mpaReplyKey, mpaCRC, 1, nil)
	}
	require.Equal(t, byte(2), req[17])
	require.GreaterOrEqual(t, len(req), 24)
	ird, ord := binary.BigEndian.Uint16(req[20:]), binary.BigEndian.Uint16(req[22:])
	require.Zero(t, ird&0xc000|ord&0xc000, "the client-server model")
	p := binary.BigEndian.AppendUint16(nil, ord)
	return mpaFrame(mpaReplyKey, mpaCRC|mpaEnhanced, 2, binary.BigEndian.AppendUint16(p, min(ird, 4)))
}

// hello takes the Hello and answers it.
func (g *target) hello() {
	g.t.Helper()
	m := g.s.next()
	require.Len(g.t, m.payload, 28)
	require.Equal(g.t, []byte{0x20, 10<<4 | 10}, m.payload[:2], "Hello, version 10")
	ird := binary.BigEndian.Uint16(m.payload[2:])
	require.NotZero(g.t, ird)
	g.write(g.s.frame(g.s.message(iserHelloReply(false, min(ird, 4)))))
}

// respond sends a PDU, in a Send where the connection is iSER's.
func (g *target) respond(p *pdu, header []byte) {
	g.t.Helper()
	if g.s == nil {
		g.send(p)
		return
	}
	if header == nil {
		header = iserHeader(0, 0, 0, 0)
	}
	stag := binary.BigEndian.Uint32(header[16:]) | binary.BigEndian.Uint32(header[4:])
	if !g.invalidates || stag == 0 {
		g.s.sendWith(header, p)
		return
	}
	m := g.s.control(iserHeader(0, 0, 0, 0), p)
	m.op, m.stag = rdmaSendInv, stag
	g.write(g.s.frame(m))
}

// request reads the next PDU of the initiator, with its iSER header.
func (g *target) request() (*pdu, []byte) {
	g.t.Helper()
	if g.s == nil {
		return g.receive(), nil
	}
	m := g.s.next()
	require.Contains(g.t, []byte{rdmaSend, rdmaSendSE}, m.op)
	require.GreaterOrEqual(g.t, len(m.payload), 76)
	require.Equal(g.t, byte(0x10), m.payload[0]&0xf0, "iSER opcode")
	p := &pdu{}
	copy(p.bhs[:], m.payload[28:])
	n := int(p.bhs[5])<<16 | int(p.bhs[6])<<8 | int(p.bhs[7])
	require.Equal(g.t, 76+n, len(m.payload), "length of the Send that carries %s", p.describe())
	p.data = m.payload[76:]
	return p, m.payload[:28]
}

// serveToEnd serves iser until it has logged out, closes the connection, and returns what iser wrote; it has to end well.
func (g *target) serveToEnd(t *testing.T, done func() (stdout, stderr string, err error)) string {
	t.Helper()
	g.serve()
	g.c.CloseWrite()
	out, log, err := done()
	require.NoError(t, err, log)
	return out
}

// serve answers the initiator until it has logged out.
func (g *target) serve() {
	g.t.Helper()
	for {
		p, header := g.request()
		if p.bhs[0]&0x40 == 0 && p.op() != opDataOut {
			require.Equal(g.t, g.expCmdSN, p.u32(24), "CmdSN of %s", p.describe())
			g.expCmdSN++
		}
		switch p.op() {
		case opSCSICmd:
			g.command(p, header)
		case opNopOut:
			if p.itt() == none {
				continue
			}
			q := &pdu{data: p.data}
			q.bhs[0], q.bhs[1] = opNopIn, 0x80
			q.set32(16, p.itt())
			q.set32(20, none)
			g.respond(g.number(q, true), nil)
		case opLogoutReq:
			q := &pdu{}
			q.bhs[0], q.bhs[1] = opLogoutRsp, 0x80
			q.set32(16, p.itt())
			g.respond(g.number(q, true), nil)
			return
		default:
			g.t.Fatalf("the initiator sends %s", p.describe())
		}
	}
}

// status ends a command.
func (g *target) status(p *pdu, header []byte, status byte, moved uint32, sense []byte) {
	g.t.Helper()
	q := &pdu{data: sense}
	q.bhs[0], q.bhs[1], q.bhs[3] = opSCSIResp, 0x80, status
	if edtl := p.u32(20); moved < edtl {
		q.bhs[1] |= 0x02
		q.set32(44, edtl-moved)
	}
	q.set32(16, p.itt())
	g.respond(g.number(q, true), header)
}

// check ends a command with CHECK CONDITION, ILLEGAL REQUEST.
func (g *target) check(p *pdu, asc byte) {
	sense := make([]byte, 20)
	sense[1], sense[2], sense[4], sense[9], sense[14] = 18, 0x70, 5, 10, asc
	g.status(p, nil, 2, 0, sense)
}

// command answers one SCSI command.
func (g *target) command(p *pdu, header []byte) {
	g.t.Helper()
	if g.lie != nil && g.lie(p, header) {
		return
	}
	cdb := p.bhs[32:48]
	be := binary.BigEndian
	var in []byte
	switch {
	case cdb[0] == 0x00, cdb[0] == 0x35, cdb[0] == 0x91: // TEST UNIT READY, SYNCHRONIZE CACHE
		g.status(p, nil, 0, 0, nil)
		return
	case cdb[0] == 0x12 && cdb[1] == 0:
		in = []byte("\x00\x00\x06\x02\x1f\x00\x00\x02RAWPEERxScripted disk   1   ")
	case cdb[0] == 0x12 && cdb[2] == 0x00:
		in = []byte{0, 0, 0, 3, 0, 0x80, 0x83}
	case cdb[0] == 0x12 && cdb[2] == 0x80:
		in = []byte{0, 0x80, 0, 4, 'R', 'A', 'W', '1'}
	case cdb[0] == 0x12 && cdb[2] == 0x83:
		in = []byte{0, 0x83, 0, 12, 1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, 1}
	case cdb[0] == 0x25:
		in = be.AppendUint32(be.AppendUint32(nil, diskSize/512-1), 512)
	case cdb[0] == 0x9e && cdb[1]&0x1f == 0x10:
		in = make([]byte, 32)
		be.PutUint64(in, diskSize/512-1)
		be.PutUint32(in[8:], 512)
	case cdb[0] == 0xa0:
		in = []byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	case cdb[0] == 0x1a:
		in = []byte{3, 0, 0, 0}
	case cdb[0] == 0x5a:
		in = []byte{0, 6, 0, 0, 0, 0, 0, 0}
	case cdb[0] == 0x28 || cdb[0] == 0x88:
		at, n := extent(cdb)
		in = g.disk[at:][:n]
	case cdb[0] == 0x2a || cdb[0] == 0x8a:
		at, n := extent(cdb)
		g.takeWrite(p, header, g.disk[at:][:n])
		return
	case cdb[0] == 0x12:
		g.check(p, 0x24)
		return
	default:
		g.check(p, 0x20)
		return
	}
	g.give(p, header, in[:min(len(in), int(p.u32(20)))])
}

// extent is where READ and WRITE (10) and (16) point to.
func extent(cdb []byte) (at, n int) {
	be := binary.BigEndian
	if cdb[0]&0x80 == 0 {
		return int(be.Uint32(cdb[2:])) * 512, int(be.Uint16(cdb[7:])) * 512
	}
	return int(be.Uint64(cdb[2:])) * 512, int(be.Uint32(cdb[10:])) * 512
}

// give sends the data of a read and its status.
func (g *target) give(p *pdu, header, in []byte) {
	g.t.Helper()
	if g.s != nil {
		require.NotZero(g.t, header[0]&0x04, "a read advertises a Read STag")
		stag, base := binary.BigEndian.Uint32(header[16:]), binary.BigEndian.Uint64(header[20:])
		for at := 0; at < len(in); at += 1400 {
			end := min(at+1400, len(in))
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: end == len(in), stag: stag, to: base + uint64(at), payload: in[at:end]}))
		}
		g.status(p, iserHeader(0, 0, stag, 0), 0, uint32(len(in)), nil)
		return
	}
	n := uint32(0)
	for at := 0; at < len(in); at += 1024 {
		end := min(at+1024, len(in))
		q := dataIn(p.itt(), n, uint32(at), end == len(in), in[at:end])
		g.number(q, false)
		q.set32(24, 0)
		g.send(q)
		n++
	}
	q := &pdu{}
	q.bhs[0], q.bhs[1] = opSCSIResp, 0x80
	if edtl := p.u32(20); uint32(len(in)) < edtl {
		q.bhs[1] |= 0x02
		q.set32(44, edtl-uint32(len(in)))
	}
	q.set32(16, p.itt())
	q.set32(36, n)
	g.send(g.number(q, true))
}

func dataIn(itt, sn, offset uint32, final bool, data []byte) *pdu {
	q := &pdu{data: data}
	q.bhs[0] = opDataIn
	if final {
		q.bhs[1] = 0x80
	}
	q.set32(16, itt)
	q.set32(20, none)
	q.set32(36, sn)
	q.set32(40, offset)
	return q
}

// takeWrite gets the data of a write, what came with the command and the rest by R2T or RDMA Read, and ends the command.
func (g *target) takeWrite(p *pdu, header, to []byte) {
	g.t.Helper()
	at := copy(to, p.data)
	require.LessOrEqual(g.t, len(p.data), len(to))
	if g.s != nil {
		stag, base := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint64(header[8:])
		if at < len(to) {
			require.NotZero(g.t, header[0]&0x08, "a write with solicited data advertises a Write STag")
			g.fetch(stag, base+uint64(at), to[at:])
		}
		if header[0]&0x08 == 0 {
			g.status(p, nil, 0, uint32(len(to)), nil)
		} else {
			g.status(p, iserHeader(stag, 0, 0, 0), 0, uint32(len(to)), nil)
		}
		return
	}
	for sn := uint32(0); at < len(to); sn++ {
		n := min(len(to)-at, 8192)
		q := &pdu{}
		q.bhs[0], q.bhs[1] = opR2T, 0x80
		copy(q.bhs[8:16], p.bhs[8:16])
		q.set32(16, p.itt())
		q.set32(20, 0x4100+sn)
		g.number(q, false)
		q.set32(36, sn)
		q.set32(40, uint32(at))
		q.set32(44, uint32(n))
		g.send(q)
		for k, dsn := 0, uint32(0); k < n; dsn++ {
			d := g.receive()
			require.Equal(g.t, []uint32{opDataOut, p.itt(), 0x4100 + sn, dsn, uint32(at + k)}, []uint32{uint32(d.op()), d.itt(), d.u32(20), d.u32(36), d.u32(40)})
			k += copy(to[at+k:at+n], d.data)
			require.Equal(g.t, k == n, d.bhs[1]&0x80 != 0, "F bit of Data-Out")
		}
		at += n
	}
	g.status(p, nil, 0, uint32(len(to)), nil)
}

// fetch reads memory of the initiator by one RDMA Read Request.
func (g *target) fetch(stag uint32, to uint64, into []byte) {
	g.t.Helper()
	be := binary.BigEndian
	const sink = 0x0d0d0d01
	b := be.AppendUint32(nil, sink)
	b = be.AppendUint64(b, 0)
	b = be.AppendUint32(b, uint32(len(into)))
	b = be.AppendUint32(b, stag)
	b = be.AppendUint64(b, to)
	g.write(g.s.frame(&segment{op: rdmaReadReq, last: true, qn: 1, payload: b}))
	for got := 0; got < len(into); {
		m := g.s.next()
		require.Equal(g.t, []uint32{rdmaReadResp, sink}, []uint32{uint32(m.op), m.stag})
		require.LessOrEqual(g.t, int(m.to)+len(m.payload), len(into))
		copy(into[m.to:], m.payload)
		got += len(m.payload)
		require.Equal(g.t, got == len(into), m.last)
	}
}
