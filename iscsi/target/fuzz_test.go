package target

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// pdus takes a fuzzer's octets apart: each PDU is a BHS, an octet for its AHS in words and two for its data segment.
func pdus(b []byte) []*iscsi.PDU {
	var all []*iscsi.PDU
	for len(b) >= iscsi.BHSLen+3 && len(all) < 64 {
		p := &iscsi.PDU{}
		copy(p.BHS[:], b)
		ahs, data := int(b[iscsi.BHSLen])%8*4, int(binary.BigEndian.Uint16(b[iscsi.BHSLen+1:]))
		b = b[iscsi.BHSLen+3:]
		if ahs = min(ahs, len(b)&^3); ahs > 0 {
			p.AHS = append([]byte(nil), b[:ahs]...)
			b = b[ahs:]
		}
		data = min(data, len(b))
		p.Data = append([]byte(nil), b[:data]...)
		b = b[data:]
		all = append(all, p)
	}
	return all
}

// seed is what pdus takes apart.
func seed(all ...*iscsi.PDU) []byte {
	var b []byte
	for _, p := range all {
		b = append(b, p.BHS[:]...)
		b = append(b, byte(len(p.AHS)/4))
		b = binary.BigEndian.AppendUint16(b, uint16(len(p.Data)))
		b = append(append(b, p.AHS...), p.Data...)
	}
	return b
}

// fuzzed is a server with a small memory disk and its first connection, whose upcalls the test makes.
func fuzzed(t *testing.T) (*Server, *peer) {
	s := newServer(t, func(c *Config) { c.Limits.Window = 16; c.Limits.Chunk = 64 << 10 }, memory(t, 1<<20), memory(t, 1<<20))
	p := connect(t, s, func(p *peer) { p.manual, p.limit = true, 1<<20 })
	<-p.begun
	return s, p
}

// finish ends the connection and checks that nothing of it is left.
func (p *peer) finish(s *Server) {
	d := direct{peer: p}
	p.pump()
	p.mu.Lock()
	terminated := p.term
	p.mu.Unlock()
	if terminated {
		close(p.done)
		<-p.serve
	} else {
		d.close()
	}
	require.NoError(p.t, s.Shutdown(context.Background()))
	require.Empty(p.t, s.Status().Sessions)
	p.noLeak()
}

// FuzzLogin throws arbitrary PDUs at a connection that is not logged in.
func FuzzLogin(f *testing.F) {
	p := &peer{cmdSN: 1}
	f.Add(seed(p.loginRequest(normalKeys()...)))
	f.Add(seed(p.loginRequest("InitiatorName", initiatorName, "SessionType", "Discovery")))
	half := p.loginRequest(normalKeys("MaxBurstLength", "512")...)
	iscsi.LoginRequest(half.BHS[:]).SetTransit(false)
	iscsi.LoginRequest(half.BHS[:]).SetNSG(0)
	f.Add(seed(half, p.loginRequest("HeaderDigest", "CRC32C,None")))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, p := fuzzed(t)
		for _, pdu := range pdus(b) {
			p.n.ControlNotify(pdu)
			p.pump()
		}
		p.finish(s)
	})
}

// FuzzFullFeature throws arbitrary PDUs at a session. Most carry the number that is expected, so that they are not
// passed over; data-out arrives as it is asked for, or not at all.
func FuzzFullFeature(f *testing.F) {
	p := &peer{fake: newFake(f), cmdSN: 1}
	data := pattern(4096, 1)
	f.Add(seed(p.request(cmd{cdb: read10(0, 8), read: 4096}), p.request(cmd{cdb: write10(0, 8), write: data, immediate: 100})), true)
	more := p.request(cmd{itt: 9, cdb: write10(0, 8), write: data, immediate: 100, more: true})
	out := &iscsi.PDU{Data: data[100:]}
	h := iscsi.DataOutPDU(out.BHS[:])
	h.Init()
	h.SetITT(9)
	h.SetTTT(iscsi.ReservedTag)
	h.SetOffset(100)
	h.SetFinal(true)
	abort := &iscsi.PDU{}
	a := iscsi.TaskMgmtRequest(abort.BHS[:])
	a.Init()
	a.SetImmediate(true)
	a.SetFunction(iscsi.AbortTask)
	a.SetRTT(9)
	f.Add(seed(more, abort, out), true)
	f.Add(seed(more, out, p.request(cmd{cdb: make([]byte, 6), attr: iscsi.AttrOrdered})), false)
	f.Add(seed(p.textRequest(iscsi.ReservedTag, true, false, loginText("SendTargets", ""))), false)
	ext := p.request(cmd{cdb: []byte{0x7f}, read: 512})
	ext.AHS = iscsi.AppendExtendedCDB(nil, make([]byte, 32))
	f.Add(seed(ext), false)
	f.Fuzz(func(t *testing.T, b []byte, gets bool) {
		s, p := fuzzed(t)
		p.inject(p.loginRequest(normalKeys("InitialR2T", "No", "MaxBurstLength", "8192", "FirstBurstLength", "4096", "iSCSIProtocolLevel", "2")...))
		p.pump()
		p.pdu(iscsi.OpLoginRsp)
		p.quiet, p.holdGets = true, !gets
		for _, pdu := range pdus(b) {
			h := iscsi.BHS(pdu.BHS[:])
			if !h.Immediate() && pdu.BHS[47]&3 != 3 {
				p.number(h, nil)
			}
			p.n.ControlNotify(pdu)
			p.pump()
			p.mu.Lock()
			over := p.term
			p.mu.Unlock()
			if over {
				break
			}
		}
		p.finish(s)
	})
}
