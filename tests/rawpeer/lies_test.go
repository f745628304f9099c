package rawpeer

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// isRead tells whether a command is a READ of the disk.
func isRead(p *pdu) bool { return p.bhs[32] == 0x28 || p.bhs[32] == 0x88 }

// TestLyingData plays targets that answer iser's read with data or numbers that do not fit. iser must not hand out any of it, and must end
// with one line.
func TestLyingData(t *testing.T) {
	for _, c := range []struct {
		name, title string
		digests     bool
		// atOnce: iser to close the connection at once (RFC 7143, section 7.7).
		atOnce bool
		answer func(g *target, p *pdu)
	}{
		{"BeyondEDTL", "RFC 7143, 11.7.6: Data-In beyond the Expected Data Transfer Length", false, false, func(g *target, p *pdu) {
			g.send(g.number(dataIn(p.itt(), 0, 0, false, g.disk[:1024]), false), g.number(dataIn(p.itt(), 1, 1024, true, g.disk[1024:1536]), false))
		}},
		{"FarOffset", "RFC 7143, 11.7.6: Data-In with an offset of 4 GiB less 1", false, false, func(g *target, p *pdu) {
			g.send(g.number(dataIn(p.itt(), 0, 0xffffffff, true, g.disk[:1024]), false))
		}},
		{"OtherTask", "RFC 7143, 11.7: Data-In for a task that does not exist", false, false, func(g *target, p *pdu) {
			g.send(g.number(dataIn(p.itt()+0x1234, 0, 0, true, g.disk[:1024]), false))
			g.close() // an initiator may wait: it could have forgotten that task
		}},
		{"Hole", "RFC 7143, 7.9: Data-In with a number missing, and GOOD", false, false, func(g *target, p *pdu) {
			g.send(g.number(dataIn(p.itt(), 0, 0, false, g.disk[:512]), false), g.number(dataIn(p.itt(), 2, 512, true, g.disk[512:1024]), false))
			g.status(p, nil, 0, 1024, nil)
		}},
		{"Short", "RFC 7143, 11.4.5: GOOD without residual, though half of the data is missing", false, false, func(g *target, p *pdu) {
			g.send(g.number(dataIn(p.itt(), 0, 0, true, g.disk[:512]), false))
			q := &pdu{}
			q.bhs[0], q.bhs[1] = opSCSIResp, 0x80
			q.set32(16, p.itt())
			q.set32(36, 1)
			g.send(g.number(q, true))
		}},
		{"R2TForRead", "RFC 7143, 11.8: an R2T for a read", false, false, func(g *target, p *pdu) {
			q := &pdu{}
			q.bhs[0], q.bhs[1] = opR2T, 0x80
			q.set32(16, p.itt())
			q.set32(20, 0x41)
			g.number(q, false)
			q.set32(44, 512)
			g.send(q)
		}},
		// Section 7.7 calls this a format error, which has all connections of the session closed at once. iser ends the command with an
		// error and logs out: the task is over either way, and other tasks of the session do not suffer from a device without autosense.
		{"NoSense", "RFC 7143, 7.7, known deviation: CHECK CONDITION without sense data ends the command, not the session", false, false, func(g *target, p *pdu) {
			g.status(p, nil, 2, 0, nil)
		}},
		{"PingOfBoth", "RFC 7143, 7.7: a NOP-In with both tags is a format error", false, true, func(g *target, p *pdu) {
			q := &pdu{}
			q.bhs[0], q.bhs[1] = opNopIn, 0x80
			q.set32(16, 0x55)
			q.set32(20, 0x41)
			g.send(g.number(q, true))
		}},
		{"RequestOpcode", "RFC 7143, 11.2.1.2: a target sends an initiator's opcode", false, false, func(g *target, p *pdu) {
			q := testUnitReady(1, 1)
			g.send(q)
		}},
		{"HeaderDigest", "RFC 7143, 7.8: Data-In with a wrong header digest", true, false, func(g *target, p *pdu) {
			q := g.number(dataIn(p.itt(), 0, 0, true, g.disk[:1024]), false)
			q.damage = damageHeader
			g.send(q)
		}},
		{"DataDigest", "RFC 7143, 7.8: Data-In with a wrong data digest, ErrorRecoveryLevel 0", true, false, func(g *target, p *pdu) {
			q := g.number(dataIn(p.itt(), 0, 0, true, g.disk[:1024]), false)
			q.damage = damageData
			g.send(q)
			g.status(p, nil, 0, 1024, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{}
			if c.digests {
				args = append(args, "--digests")
			}
			lied(t, c.title, args, func(g *target) {
				g.digests = c.digests
				g.send(g.login())
				g.hd, g.dd = c.digests, c.digests
				g.untilRead(func(p *pdu, _ []byte) { c.answer(g, p) })
				if c.atOnce {
					g.ended()
					return
				}
				g.bye()
			})
		})
	}
}

// untilRead serves the initiator until its first READ, which answer gets.
func (g *target) untilRead(answer func(p *pdu, header []byte)) {
	g.t.Helper()
	for {
		p, header := g.request()
		if p.bhs[0]&0x40 == 0 {
			g.expCmdSN++
		}
		require.Equal(g.t, opNames[opSCSICmd], opNames[p.op()])
		if isRead(p) {
			g.lied = true
			answer(p, header)
			return
		}
		g.command(p, header)
	}
}

// TestLyingRDMA is the same in iSER: RDMA Writes and Reads that miss the buffer, messages that do not fit.
func TestLyingRDMA(t *testing.T) {
	be := binary.BigEndian
	for _, c := range []struct {
		name, title string
		answer      func(g *target, p *pdu, stag uint32, base uint64)
	}{
		{"WriteBeyond", "RFC 5041, 7.1: an RDMA Write that ends one octet behind the buffer", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base + 1, payload: g.disk[:1024]}))
		}},
		{"WriteBefore", "RFC 5041, 7.1: an RDMA Write that begins before the buffer", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base - 1, payload: g.disk[:512]}))
		}},
		{"WriteWraps", "RFC 5041, 7.1: an RDMA Write whose Tagged Offset wraps around", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: 0xffff_ffff_ffff_ff00, payload: g.disk[:1024]}))
		}},
		{"ForeignSTag", "RFC 5041, 7.1: an RDMA Write to an STag that does not exist", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag ^ 0xffffff00, to: base, payload: g.disk[:512]}))
		}},
		{"StaleSTag", "RFC 5041, 7.1: an RDMA Write to the STag of a task that is over", func(g *target, p *pdu, stag uint32, base uint64) {
			require.NotZero(g.t, g.past.stag, "a read before this one")
			require.NotEqual(g.t, g.past.stag, stag, "each task has an STag of its own")
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: g.past.stag, to: g.past.base, payload: g.disk[:8]}))
		}},
		{"NoData", "RFC 7145, 7.3.5: a good status without the data that it claims", func(g *target, p *pdu, stag uint32, base uint64) {
			g.status(p, nil, 0, 1024, nil)
		}},
		{"HalfTheData", "RFC 7145, 7.3.5: a good status with half of the data that it claims", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base, payload: g.disk[:512]}))
			g.status(p, nil, 0, 1024, nil)
		}},
		{"ReadOfRead", "RFC 7145, 7.3.6: an RDMA Read of the buffer of a read", func(g *target, p *pdu, stag uint32, base uint64) {
			b := be.AppendUint32(nil, 0x0d0d0d02)
			b = be.AppendUint64(b, 0)
			b = be.AppendUint32(b, 512)
			b = be.AppendUint32(b, stag)
			b = be.AppendUint64(b, base)
			g.write(g.s.frame(&segment{op: rdmaReadReq, last: true, qn: 1, payload: b}))
		}},
		{"OtherTask", "RFC 7145, 7.3.2: a response for a task that does not exist", func(g *target, p *pdu, stag uint32, base uint64) {
			q := *p
			q.set32(16, p.itt()+0x1234)
			g.status(&q, nil, 0, 1024, nil)
			g.close() // an initiator may wait: it could have forgotten that task
		}},
		{"ForeignInvalidate", "RFC 5040, 5.3: a Send with Invalidate of an STag that does not exist", func(g *target, p *pdu, stag uint32, base uint64) {
			q := &pdu{}
			q.bhs[0], q.bhs[1] = opSCSIResp, 0x80
			q.set32(16, p.itt())
			m := g.s.control(iserHeader(0, 0, 0, 0), g.number(q, true))
			m.op, m.stag = rdmaSendInv, stag^0xffffff00
			g.write(g.s.frame(m))
		}},
		{"ForeignHeaderSTag", "RFC 7145, 7.3.2: a response whose header names an STag that the task did not advertise", func(g *target, p *pdu, stag uint32, base uint64) {
			g.status(p, iserHeader(0, 0, stag^0xffffff00, 0), 0, 1024, nil)
		}},
		{"OtherHalf", "RFC 7145, 7.3.2: a response that names the Read STag as the Write STag", func(g *target, p *pdu, stag uint32, base uint64) {
			g.status(p, iserHeader(stag, 0, 0, 0), 0, 1024, nil)
		}},
		{"DataInPDU", "RFC 7145, 7.1: a Data-In PDU, which iSER does not carry", func(g *target, p *pdu, stag uint32, base uint64) {
			g.respond(g.number(dataIn(p.itt(), 0, 0, true, g.disk[:512]), false), nil)
		}},
		{"UnknownOpcode", "RFC 7145, 10.1.3.3: an iSER header with an unassigned opcode", func(g *target, p *pdu, stag uint32, base uint64) {
			h := iserHeader(0, 0, 0, 0)
			h[0] = 0x70
			g.write(g.s.frame(g.s.message(h)))
		}},
		{"Truncated", "RFC 7145, 10.1.3.3: a Send of 30 octets, too short for a PDU", func(g *target, p *pdu, stag uint32, base uint64) {
			g.write(g.s.frame(g.s.message(iserHeader(0, 0, 0, 0), []byte{0x21, 0x80})))
		}},
		{"TooLong", "RFC 5041, 7.2: a Send longer than the initiator declared", func(g *target, p *pdu, stag uint32, base uint64) {
			for at := 0; at < len(g.disk); at += 8192 {
				g.write(g.s.frame(&segment{op: rdmaSend, last: at+8192 == len(g.disk), mo: uint32(at), payload: g.disk[at:][:8192]}))
			}
		}},
		{"CRC", "RFC 5044, 8: an FPDU with a wrong CRC", func(g *target, p *pdu, stag uint32, base uint64) {
			b := g.s.frame(&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base, payload: g.disk[:1024]})
			b[100] ^= 1
			g.tr.note("one bit of its payload is flipped on the way")
			g.write(b)
		}},
		{"Version", "RFC 5041, 7.1: a segment of DDP version 2", func(g *target, p *pdu, stag uint32, base uint64) {
			u := (&segment{op: rdmaWrite, tagged: true, last: true, stag: stag, to: base, payload: g.disk[:512]}).encode()
			u[0] = u[0]&^3 | 2
			g.tr.note("an RDMA Write whose DDP version is 2")
			g.write(fpdu(u))
		}},
		{"MSN", "RFC 5041, 7.2: a Send with a message sequence number that is not the next", func(g *target, p *pdu, stag uint32, base uint64) {
			g.s.sent[0] += 5
			g.status(p, nil, 0, 1024, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lied(t, c.title, handover, func(g *target) {
				g.send(g.login())
				g.startMPA()
				g.lie = func(_ *pdu, header []byte) bool {
					if header[0]&0x04 != 0 {
						g.past.stag, g.past.base = be.Uint32(header[16:]), be.Uint64(header[20:])
					}
					return false
				}
				g.untilRead(func(p *pdu, header []byte) {
					require.NotZero(g.t, header[0]&0x04)
					c.answer(g, p, be.Uint32(header[16:]), be.Uint64(header[20:]))
				})
				g.bye()
			})
		})
	}
}
