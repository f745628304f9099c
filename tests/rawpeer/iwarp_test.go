package rawpeer

import (
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"
)

// Keys of MPA's startup frames (RFC 5044, section 7.1.1).
const (
	mpaRequestKey = "MPA ID Req Frame"
	mpaReplyKey   = "MPA ID Rep Frame"
)

// Flags of a startup frame (RFC 5044, section 7.1.1; S is RFC 6581's).
const (
	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaReject   = 0x20
	mpaEnhanced = 0x10
)

// mpaFrame is a startup frame: key, flags, revision, length of the private data, private data.
func mpaFrame(key string, flags, rev byte, private []byte) []byte {
	b := append([]byte(key), flags, rev)
	b = binary.BigEndian.AppendUint16(b, uint16(len(private)))
	return append(b, private...)
}

// DDP and RDMAP control octets (RFC 5041, section 4.1; RFC 5040, section 4.1): DDP version 1, RDMAP version 1.
const (
	ddpTagged = 0x80
	ddpLast   = 0x40
	ddpV1     = 0x01
	rdmapV1   = 0x40
)

// RDMAP opcodes (RFC 5040, section 4.3, figure 4).
const (
	rdmaWrite     = 0
	rdmaReadReq   = 1
	rdmaReadResp  = 2
	rdmaSend      = 3
	rdmaSendInv   = 4
	rdmaSendSE    = 5
	rdmaSendSEInv = 6
	rdmaTerminate = 7
)

var rdmapNames = []string{"RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send", "Send with Invalidate", "Send with SE", "Send with SE and Invalidate", "Terminate"}

// segment is a DDP segment with its RDMAP control octet.
type segment struct {
	op      byte
	tagged  bool
	last    bool
	stag    uint32 // tagged: STag; untagged: Invalidate STag
	to      uint64 // tagged
	qn, msn uint32 // untagged
	mo      uint32
	payload []byte
}

// encode is the ULPDU of the segment (RFC 5041, sections 4.2 and 4.3).
func (s *segment) encode() []byte {
	ctl := byte(ddpV1)
	if s.tagged {
		ctl |= ddpTagged
	}
	if s.last {
		ctl |= ddpLast
	}
	b := []byte{ctl, rdmapV1 | s.op}
	b = binary.BigEndian.AppendUint32(b, s.stag)
	if s.tagged {
		b = binary.BigEndian.AppendUint64(b, s.to)
	} else {
		b = binary.BigEndian.AppendUint32(b, s.qn)
		b = binary.BigEndian.AppendUint32(b, s.msn)
		b = binary.BigEndian.AppendUint32(b, s.mo)
	}
	return append(b, s.payload...)
}

// fpdu puts a ULPDU into MPA's frame: length, ULPDU, padding to a multiple of four, CRC (RFC 5044, section 4).
func fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return append(b, crc32c(b)...)
}

// iserHeader is RFC 7145, section 9.2: which STags are valid, and the two buffers.
func iserHeader(writeSTag uint32, writeBase uint64, readSTag uint32, readBase uint64) []byte {
	b := make([]byte, 28)
	b[0] = 0x10
	if writeSTag != 0 {
		b[0] |= 0x08
		binary.BigEndian.PutUint32(b[4:], writeSTag)
		binary.BigEndian.PutUint64(b[8:], writeBase)
	}
	if readSTag != 0 {
		b[0] |= 0x04
		binary.BigEndian.PutUint32(b[16:], readSTag)
		binary.BigEndian.PutUint64(b[20:], readBase)
	}
	return b
}

// iserHello and iserHelloReply are RFC 7145, sections 9.3 and 9.4, version 10.
func iserHello(ird uint16) []byte {
	b := make([]byte, 28)
	b[0], b[1] = 0x20, 10<<4|10
	binary.BigEndian.PutUint16(b[2:], ird)
	return b
}

func iserHelloReply(reject bool, ord uint16) []byte {
	b := iserHello(ord)
	b[0] = 0x30
	if reject {
		b[0] |= 1
	}
	return b
}

// stream is a TCP connection whose octets are FPDUs.
type stream struct {
	*wire
	sent, got [3]uint32 // MSNs of the untagged queues
	noCRC     bool
	out, back *markers // Markers of each direction; nil: there are none
}

// request sends an MPA Request, together with what has to be in the same TCP segment before and behind it, and reads the Reply.
func (w *wire) request(flags, rev byte, private []byte) *stream {
	w.t.Helper()
	b := mpaFrame(mpaRequestKey, flags, rev, private)
	w.tr.mpa("->", w.name, b)
	w.write(b)
	return w.reply(flags, rev)
}

// reply reads the MPA Reply that accepts.
func (w *wire) reply(flags, rev byte) *stream {
	w.t.Helper()
	b := w.startup(mpaReplyKey)
	require.Zero(w.t, b[16]&mpaReject, "the connection is rejected")
	require.LessOrEqual(w.t, b[17], rev, "a responder answers with no higher revision than the initiator's (RFC 6581, section 9)")
	return &stream{wire: w, noCRC: (flags|b[16])&mpaCRC == 0, back: wanted(flags), out: wanted(b[16])}
}

// startup reads a startup frame.
func (w *wire) startup(key string) []byte {
	w.t.Helper()
	b := append([]byte(nil), w.take(20)...)
	require.Equal(w.t, key, string(b[:16]))
	b = append(b, w.take(int(binary.BigEndian.Uint16(b[18:])))...)
	w.tr.mpa("<-", w.name, b)
	return b
}

func (tr *transcript) mpa(dir, conn string, b []byte) {
	fmt.Fprintf(&tr.b, "\n%s %s %q M=%d C=%d R=%d S=%d Rev=%d PD_Length=%d\n", dir, conn, b[:16], bit(b[16], mpaMarkers), bit(b[16], mpaCRC),
		bit(b[16], mpaReject), bit(b[16], mpaEnhanced), b[17], binary.BigEndian.Uint16(b[18:]))
	tr.hex(0, b)
}

// segment writes a segment's transcript. ours: the STag and the offset are this peer's, not the other end's free choice.
func (tr *transcript) segment(dir, conn string, s *segment, statBase uint32) {
	q := *s
	fmt.Fprintf(&tr.b, "\n%s %s FPDU: %s L=%d", dir, conn, rdmapNames[s.op], bit(s.encode()[0], ddpLast))
	ours := dir == "<-" // what the other end uses to reach this peer's memory was chosen by this peer
	if s.tagged {
		if !ours {
			q.stag, q.to = uint32(tr.number("STag", uint64(s.stag))), 0
		}
		fmt.Fprintf(&tr.b, " STag=%08x TO=%d\n", q.stag, q.to)
		tr.hex(0, q.encode()[:14])
		tr.payload("payload", s.payload)
		return
	}
	fmt.Fprintf(&tr.b, " QN=%d MSN=%d MO=%d", s.qn, s.msn, s.mo)
	if s.op == rdmaSendInv || s.op == rdmaSendSEInv {
		if !ours {
			q.stag = uint32(tr.number("STag", uint64(s.stag)))
		}
		fmt.Fprintf(&tr.b, " Invalidate=%08x", q.stag)
	}
	tr.b.WriteByte('\n')
	tr.hex(0, q.encode()[:18])
	switch {
	case s.op == rdmaReadReq:
		p := append([]byte(nil), s.payload...)
		be := binary.BigEndian
		if dir == "<-" { // sink: the other end's; source: this peer's
			be.PutUint32(p, uint32(tr.number("STag", uint64(be.Uint32(p)))))
			be.PutUint64(p[4:], 0)
		} else {
			be.PutUint32(p[16:], uint32(tr.number("STag", uint64(be.Uint32(p[16:])))))
			be.PutUint64(p[20:], 0)
		}
		fmt.Fprintf(&tr.b, "    sink STag=%08x TO=%d, %d octets, source STag=%08x TO=%d\n", be.Uint32(p), be.Uint64(p[4:]), be.Uint32(p[12:]), be.Uint32(p[16:]), be.Uint64(p[20:]))
		tr.hex(0, p)
	case s.op == rdmaTerminate:
		fmt.Fprintf(&tr.b, "    Terminate: layer %d type %d code %02x\n", s.payload[0]>>4, s.payload[0]&0xf, s.payload[1])
		tr.hex(0, s.payload[:4])
	case len(s.payload) >= 28+48 && s.payload[0]>>4 == 1:
		h := s.payload[:28]
		fmt.Fprintf(&tr.b, "    iSER: control-type PDU WSV=%d RSV=%d\n", bit(h[0], 8), bit(h[0], 4))
		if h[0]&0xc != 0 && (dir == "<-") == (s.payload[28]&0x20 == 0) { // the program's STags and offsets
			h = append([]byte(nil), h...)
			for _, at := range []int{4, 16} {
				binary.BigEndian.PutUint32(h[at:], uint32(tr.number("STag", uint64(binary.BigEndian.Uint32(h[at:])))))
				binary.BigEndian.PutUint64(h[at+4:], 0)
			}
		}
		tr.hex(0, h)
		p := &pdu{data: s.payload[76:]}
		copy(p.bhs[:], s.payload[28:])
		tr.pdu(dir, conn, p, false, false, statBase)
	case len(s.payload) == 28 && s.payload[0]>>4 == 2:
		fmt.Fprintf(&tr.b, "    iSER: Hello MaxVer=%d MinVer=%d iSER-IRD=%d\n", s.payload[1]>>4, s.payload[1]&0xf, binary.BigEndian.Uint16(s.payload[2:]))
		tr.hex(0, s.payload)
	case len(s.payload) == 28 && s.payload[0]>>4 == 3:
		fmt.Fprintf(&tr.b, "    iSER: HelloReply REJ=%d MaxVer=%d CurVer=%d iSER-ORD=%d\n", s.payload[0]&1, s.payload[1]>>4, s.payload[1]&0xf, binary.BigEndian.Uint16(s.payload[2:]))
		tr.hex(0, s.payload)
	default:
		tr.payload("payload", s.payload)
	}
}

// frame numbers an untagged segment, records it and gives its FPDU.
func (s *stream) frame(g *segment) []byte {
	if !g.tagged {
		if g.mo == 0 {
			s.sent[g.qn]++
		}
		g.msn = s.sent[g.qn]
	}
	s.tr.segment("->", s.name, g, s.statBase)
	return s.out.fpdu(s.wire, g.encode())
}

// message is a Send of one segment.
func (s *stream) message(payload ...[]byte) *segment {
	g := &segment{op: rdmaSend, last: true}
	for _, p := range payload {
		g.payload = append(g.payload, p...)
	}
	return g
}

// control is the iSER message of a PDU (RFC 7145, section 9.2).
func (s *stream) control(header []byte, p *pdu) *segment {
	if p.op()&0x20 == 0 && s.expStatSN != 0 {
		p.set32(28, s.expStatSN)
	}
	b := p.encode(false, false)
	return s.message(header, b[:48+len(p.ahs)+len(p.data)])
}

// sendPDU sends a PDU that advertises no memory.
func (s *stream) sendPDU(p *pdu) {
	s.t.Helper()
	s.write(s.frame(s.control(iserHeader(0, 0, 0, 0), p)))
}

// sendWith sends a PDU that advertises memory.
func (s *stream) sendWith(header []byte, p *pdu) {
	s.t.Helper()
	s.write(s.frame(s.control(header, p)))
}

// next reads an FPDU and takes its segment apart.
func (s *stream) next() *segment {
	s.t.Helper()
	u, body, sum := s.back.take(s.wire)
	n := len(u)
	if !s.noCRC {
		require.Equal(s.t, crc32c(body), sum, "CRC of the FPDU, its Markers included")
	}
	require.GreaterOrEqual(s.t, n, 14)
	require.Equal(s.t, byte(ddpV1), u[0]&3, "DDP version")
	require.Equal(s.t, byte(rdmapV1), u[1]&0xc0, "RDMAP version")
	g := &segment{op: u[1] & 0xf, tagged: u[0]&ddpTagged != 0, last: u[0]&ddpLast != 0, stag: binary.BigEndian.Uint32(u[2:])}
	require.Less(s.t, int(g.op), len(rdmapNames))
	if g.tagged {
		g.to, g.payload = binary.BigEndian.Uint64(u[6:]), u[14:]
	} else {
		require.GreaterOrEqual(s.t, n, 18)
		g.qn, g.msn, g.mo, g.payload = binary.BigEndian.Uint32(u[6:]), binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:]), u[18:]
		require.Less(s.t, g.qn, uint32(3))
		if g.mo == 0 {
			s.got[g.qn]++
		}
		require.Equal(s.t, s.got[g.qn], g.msn, "MSN")
	}
	if !g.tagged && g.op != rdmaReadReq && g.op != rdmaTerminate && len(g.payload) >= 76 && g.payload[28]&0x20 != 0 && g.payload[0]>>4 == 1 {
		p := &pdu{}
		copy(p.bhs[:], g.payload[28:])
		s.numbers(p)
	}
	s.tr.segment("<-", s.name, g, s.statBase)
	return g
}

// pdu reads the Send that carries a PDU, and insists on its opcode. invalidates is the STag that it has to name, 0 for none: in the
// header, and in the Send if that invalidates.
func (s *stream) pdu(op byte) (*pdu, *segment) {
	s.t.Helper()
	g := s.next()
	require.Contains(s.t, []byte{rdmaSend, rdmaSendInv, rdmaSendSE, rdmaSendSEInv}, g.op)
	require.Zero(s.t, g.qn)
	require.True(s.t, g.last)
	require.GreaterOrEqual(s.t, len(g.payload), 76)
	require.Equal(s.t, byte(1), g.payload[0]>>4, "iSER opcode")
	p := &pdu{}
	copy(p.bhs[:], g.payload[28:])
	n := int(p.bhs[5])<<16 | int(p.bhs[6])<<8 | int(p.bhs[7])
	p.data = g.payload[76+4*int(p.bhs[4]):]
	require.GreaterOrEqual(s.t, len(p.data), n)
	p.data = p.data[:n]
	require.Equal(s.t, opNames[op], opNames[p.op()])
	return p, g
}

// response reads a SCSI Response with GOOD that tells the initiator to invalidate an STag, 0 for none: by Send with Invalidate, or in the
// header of a Send (RFC 7145, section 7.3.2).
func (s *stream) response(itt, stag uint32) *pdu {
	s.t.Helper()
	p, g := s.pdu(opSCSIResp)
	require.Equal(s.t, itt, p.itt())
	require.Equal(s.t, byte(0), p.bhs[3], "status, sense % x", p.data)
	if g.op == rdmaSendInv || g.op == rdmaSendSEInv {
		require.Equal(s.t, stag, g.stag, "Send with Invalidate names the task's STag")
		return p
	}
	named := uint32(0)
	for flag, at := range map[byte]int{0x08: 4, 0x04: 16} {
		if g.payload[0]&flag != 0 {
			require.Zero(s.t, named, "one STag")
			named = binary.BigEndian.Uint32(g.payload[at:])
		}
	}
	require.Equal(s.t, stag, named, "the header names the task's STag")
	return p
}

// written collects RDMA Writes into a buffer that this peer has advertised, until n octets are there.
func (s *stream) written(stag uint32, base uint64, n int) []byte {
	s.t.Helper()
	buf := make([]byte, n)
	for got := 0; got < n; {
		g := s.next()
		require.Equal(s.t, []any{byte(rdmaWrite), true, stag}, []any{g.op, g.tagged, g.stag})
		require.GreaterOrEqual(s.t, g.to, base)
		require.LessOrEqual(s.t, g.to-base+uint64(len(g.payload)), uint64(n), "an RDMA Write beyond the buffer")
		copy(buf[g.to-base:], g.payload)
		got += len(g.payload)
	}
	return buf
}

// read answers RDMA Read Requests for a buffer that this peer has advertised, until all n octets were read, in segments of seg octets.
func (s *stream) read(stag uint32, base uint64, data []byte, from, seg int) {
	s.t.Helper()
	for got := from; got < len(data); {
		g := s.next()
		require.Equal(s.t, []uint32{rdmaReadReq, 1}, []uint32{uint32(g.op), g.qn})
		require.Len(s.t, g.payload, 28)
		be := binary.BigEndian
		sink, sinkTO := be.Uint32(g.payload), be.Uint64(g.payload[4:])
		n, src, to := int(be.Uint32(g.payload[12:])), be.Uint32(g.payload[16:]), be.Uint64(g.payload[20:])
		require.Equal(s.t, stag, src)
		require.GreaterOrEqual(s.t, to, base)
		require.LessOrEqual(s.t, int(to-base)+n, len(data), "an RDMA Read beyond the buffer")
		part := data[to-base:][:n]
		for at := 0; at < n; at += seg {
			end := min(at+seg, n)
			s.write(s.frame(&segment{op: rdmaReadResp, tagged: true, last: end == n, stag: sink, to: sinkTO + uint64(at), payload: part[at:end]}))
		}
		got += n
	}
}
