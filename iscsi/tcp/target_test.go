package tcp

import (
	"bytes"
	"encoding/hex"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

// TestDataInOnTheWire holds a Data-In with both digests to its octets (RFC 7143, sections 11.2 and 11.7). The
// digests were computed apart from this code.
func TestDataInOnTheWire(t *testing.T) {
	p := params()
	p.HeaderDigest, p.DataDigest = true, true
	play(t, true, 1<<20, p, func(s *script) {
		b := s.alloc(9)
		copy(b.Bytes(), "123456789")
		require.NoError(t, s.d.PutData(&iscsi.DataIn{ITT: 0x11, TTT: iscsi.ReservedTag, DataSN: 2, Offset: 0x400, Buf: b, Len: 9, Final: true}))
		synctest.Wait()
		s.read()
		require.Len(t, s.in, 48+4+12+4)
		require.Equal(t, "25800000"+"00000009"+"0000000000000000"+"00000011"+"ffffffff"+
			"00000000"+"00000001"+"00000040"+"00000002"+"00000400"+"00000000", hex.EncodeToString(s.in[:48]))
		require.Equal(t, "313233343536373839000000", hex.EncodeToString(s.in[52:64]))
		require.Equal(t, bitwiseCRC(s.in[:48]), s.in[48:52])
		require.Equal(t, bitwiseCRC(s.in[52:64]), s.in[64:])
		s.in = nil
	})
}

// bitwiseCRC is CRC32C from its definition: polynomial 0x11EDC6F41, reflected.
func bitwiseCRC(b []byte) []byte {
	r := ^uint32(0)
	for _, c := range b {
		r ^= uint32(c)
		for range 8 {
			r = r>>1 ^ 0x82f63b78&-(r&1)
		}
	}
	r = ^r
	return []byte{byte(r), byte(r >> 8), byte(r >> 16), byte(r >> 24)}
}

// TestDigestExample is the example of RFC 7143, appendix A.4, for the test's own CRC.
func TestDigestExample(t *testing.T) {
	require.Equal(t, "aa36918a", hex.EncodeToString(bitwiseCRC(make([]byte, 32))))
}

// TestStatusFoldsIntoLastDataIn: RFC 7143, section 11.7.3.
func TestStatusFoldsIntoLastDataIn(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(in *iscsi.DataIn, rsp *iscsi.PDU)
		folds  bool
	}{
		{"good", func(*iscsi.DataIn, *iscsi.PDU) {}, true},
		{"underflow", func(_ *iscsi.DataIn, p *iscsi.PDU) {
			iscsi.SCSIResponse(p.BHS[:]).SetUnderflow(true)
			iscsi.SCSIResponse(p.BHS[:]).SetResidual(512)
		}, true},
		{"overflow", func(_ *iscsi.DataIn, p *iscsi.PDU) {
			iscsi.SCSIResponse(p.BHS[:]).SetOverflow(true)
			iscsi.SCSIResponse(p.BHS[:]).SetResidual(9)
		}, true},
		{"nothing promised", func(in *iscsi.DataIn, _ *iscsi.PDU) { in.More = false }, false},
		{"not the last data", func(in *iscsi.DataIn, _ *iscsi.PDU) { in.Final = false }, false},
		{"another task", func(_ *iscsi.DataIn, p *iscsi.PDU) { iscsi.SCSIResponse(p.BHS[:]).SetITT(6) }, false},
		{"bad status", func(_ *iscsi.DataIn, p *iscsi.PDU) { iscsi.SCSIResponse(p.BHS[:]).SetStatus(2) }, false},
		{"target failure", func(_ *iscsi.DataIn, p *iscsi.PDU) { iscsi.SCSIResponse(p.BHS[:]).SetResponse(1) }, false},
		{"sense", func(_ *iscsi.DataIn, p *iscsi.PDU) { p.Data = []byte{0, 0} }, false},
		{"R2Ts were sent too", func(_ *iscsi.DataIn, p *iscsi.PDU) { iscsi.SCSIResponse(p.BHS[:]).SetExpDataSN(2) }, false},
		{"residual of data-out", func(_ *iscsi.DataIn, p *iscsi.PDU) { iscsi.SCSIResponse(p.BHS[:]).SetBidiUnderflow(true) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, true, 1<<20, params(), func(s *script) {
				in := &iscsi.DataIn{ITT: 5, TTT: iscsi.ReservedTag, Buf: s.alloc(100), Len: 100, Final: true, More: true}
				rsp := responsePDU(5, 11, 1)
				c.change(in, rsp)
				require.NoError(t, s.d.PutData(in))
				if in.More {
					s.silent()
				}
				require.NoError(t, s.d.SendControl(rsp, nil))
				h := iscsi.DataInPDU(s.receive().BHS[:])
				require.Equal(t, c.folds, h.HasStatus())
				r := iscsi.SCSIResponse(rsp.BHS[:])
				if !c.folds {
					iscsi.BHS(rsp.BHS[:]).SetDataLen(len(rsp.Data))
					require.Equal(t, rsp.BHS, s.receive().BHS)
					s.silent()
					return
				}
				require.Equal(t, []any{r.StatSN(), r.Status(), r.Residual(), r.Underflow(), r.Overflow(), iscsi.SN(7), iscsi.SN(70)},
					[]any{h.StatSN(), h.Status(), h.Residual(), h.Underflow(), h.Overflow(), h.ExpCmdSN(), h.MaxCmdSN()})
				s.silent()
				require.Equal(t, uint64(1), s.d.stats.folded.Load())
			})
		})
	}
}

// TestAnswersLeaveInOneFlush: what upcalls send leaves in one write when all that was read
// together has been handled.
func TestAnswersLeaveInOneFlush(t *testing.T) {
	play(t, true, 1<<20, params(), func(s *script) {
		s.onPDU = func(p *iscsi.PDU) {
			h := iscsi.BHS(p.BHS[:])
			require.NoError(t, s.d.PutData(&iscsi.DataIn{ITT: h.ITT(), TTT: iscsi.ReservedTag, Buf: s.alloc(512), Len: 512, Final: true}))
			require.NoError(t, s.d.SendControl(responsePDU(h.ITT(), 11, 5), nil))
			require.Zero(t, s.peer.Readable(), "sent within the upcall")
		}
		before := s.d.stats.writes.Load()
		var ps []*iscsi.PDU
		for k := range uint32(20) {
			ps = append(ps, commandPDU(k, 0x40))
		}
		s.send(ps...)
		require.Equal(t, before+1, s.d.stats.writes.Load(), "writes for 40 PDUs")
		for range 40 {
			s.receive()
		}
	})
}

// TestR2TCarriesNumbers: an R2T has the next StatSN, which it does not use up, and the window
// (RFC 7143, section 11.8).
func TestR2TCarriesNumbers(t *testing.T) {
	play(t, true, 1<<20, params(), func(s *script) {
		get := func(ttt uint32) iscsi.R2T {
			require.NoError(t, s.d.GetData(&iscsi.DataOut{LUN: testLUN, ITT: 5, TTT: ttt, R2TSN: 3, Offset: 512, Buf: s.alloc(8192), Len: 8192}))
			return s.receive().BHS[:]
		}
		h := get(9)
		require.Equal(t, []any{iscsi.OpR2T, uint64(testLUN), uint32(5), uint32(9), uint32(3), uint32(512), uint32(8192)},
			[]any{iscsi.BHS(h).Opcode(), h.LUN(), h.ITT(), h.TTT(), h.R2TSN(), h.Offset(), h.DesiredLen()})
		require.True(t, iscsi.BHS(h).Final())
		require.Equal(t, []iscsi.SN{11, 1, 64}, []iscsi.SN{h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN()}, "after the Login Response with StatSN 10")
		require.NoError(t, s.d.SendControl(responsePDU(1, 11, 0), nil))
		s.receive()
		h = get(10)
		require.Equal(t, []iscsi.SN{12, 7, 70}, []iscsi.SN{h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN()})
		ping := nopInPDU(iscsi.ReservedTag)
		iscsi.NOPIn(ping.BHS[:]).SetStatSN(12)
		require.NoError(t, s.d.SendControl(ping, nil))
		s.receive()
		require.Equal(t, iscsi.SN(12), get(11).StatSN(), "a ping of the target's own uses up no StatSN")
		s.d.DeallocateTaskResources(5)
	})
}

// TestDataOutInPiecesOfAnySize: sizes that are no multiple of a block, or of 4, do not matter.
func TestDataOutInPiecesOfAnySize(t *testing.T) {
	for _, sizes := range [][]int{{9216}, {2848, 6368}, {1, 9215}, {4096, 4096, 1024}, {3, 5, 7, 9201}, {0, 9216}} {
		p := params()
		p.DataDigest = true
		play(t, true, 1<<20, p, func(s *script) {
			want := octets(1, 9216)
			b := s.alloc(9216)
			require.NoError(t, s.d.GetData(&iscsi.DataOut{ITT: 5, TTT: 9, Offset: 100, Buf: b, Len: 9216, Tag: 77}))
			s.receive()
			off := 0
			for k, n := range sizes {
				s.quiet()
				s.send(dataOutPDU(5, 9, uint32(k), 100+off, want[off:off+n], k == len(sizes)-1))
				off += n
			}
			require.Equal(t, event{itt: 5, tag: 77}, s.event())
			require.Equal(t, want, b.Bytes())
			b.Release()
		})
	}
}

// TestDataOutThatBreaksTheRules: a target refuses it with a Reject that holds the header, closes,
// and names what was wrong.
func TestDataOutThatBreaksTheRules(t *testing.T) {
	good := func() *iscsi.PDU { return dataOutPDU(5, 9, 0, 100, octets(1, 4096), false) }
	last := func(sn uint32) *iscsi.PDU { return dataOutPDU(5, 9, sn, 100+4096, octets(1, 4096), true) }
	for _, c := range []struct {
		name string
		kind Kind
		pdus []*iscsi.PDU
	}{
		{"DataSN starts at 1", Sequence, []*iscsi.PDU{dataOutPDU(5, 9, 1, 100, octets(1, 4096), false)}},
		{"DataSN starts at -1", Sequence, []*iscsi.PDU{dataOutPDU(5, 9, 0xffffffff, 100, octets(1, 4096), false)}},
		{"DataSN repeated", Sequence, []*iscsi.PDU{good(), last(0)}},
		{"DataSN skipped", Sequence, []*iscsi.PDU{good(), last(2)}},
		{"F left out", Sequence, []*iscsi.PDU{good(), dataOutPDU(5, 9, 1, 100+4096, octets(1, 4096), false)}},
		{"F too early", Sequence, []*iscsi.PDU{dataOutPDU(5, 9, 0, 100, octets(1, 4096), true)}},
		{"offset of the command instead of the R2T", Sequence, []*iscsi.PDU{dataOutPDU(5, 9, 0, 0, octets(1, 4096), false)}},
		{"offset beyond", Sequence, []*iscsi.PDU{dataOutPDU(5, 9, 0, 1<<31, octets(1, 4096), false)}},
		{"offset repeated", Sequence, []*iscsi.PDU{good(), dataOutPDU(5, 9, 1, 100, octets(1, 4096), true)}},
		{"more than asked for", Overrun, []*iscsi.PDU{dataOutPDU(5, 9, 0, 100, octets(1, 8193), true)}},
		{"more than asked for, later", Overrun, []*iscsi.PDU{good(), dataOutPDU(5, 9, 1, 100+4096, octets(1, 4097), true)}},
		{"TTT of nothing", Overrun, []*iscsi.PDU{dataOutPDU(5, 8, 0, 100, octets(1, 4096), false)}},
		{"ITT of another task", Overrun, []*iscsi.PDU{dataOutPDU(6, 9, 0, 100, octets(1, 4096), false)}},
		{"data segment longer than declared", Format, []*iscsi.PDU{dataOutPDU(5, 9, 0, 100, octets(1, 32<<10+1), false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, true, 1<<20, params(), func(s *script) {
				b := s.alloc(8192 + 64)
				require.NoError(t, s.d.GetData(&iscsi.DataOut{ITT: 5, TTT: 9, Offset: 100, Buf: b, To: 32, Len: 8192}))
				s.receive()
				s.send(c.pdus...)
				p := s.receive()
				require.Equal(t, iscsi.OpReject, p.Opcode())
				require.Equal(t, iscsi.RejectReason(4), iscsi.Reject(p.BHS[:]).Reason(), "protocol error")
				bad := c.pdus[len(c.pdus)-1]
				require.Equal(t, bad.BHS[:], p.Data)
				s.end()
				e := s.broken(c.kind)
				require.Equal(t, iscsi.OpDataOut, e.Opcode)
				require.Equal(t, make([]byte, 32), b.Bytes()[:32], "before the place")
				require.Equal(t, make([]byte, 32), b.Bytes()[32+8192:], "behind the place")
				b.Release()
			})
		})
	}
}

// TestDataSNRunsOn: the second R2T's Data-Out count from 0 again; a peer that counts on is refused.
func TestDataSNRunsOn(t *testing.T) {
	for _, on := range []bool{false, true} {
		play(t, true, 1<<20, params(), func(s *script) {
			b := s.alloc(8192)
			for k := range uint32(2) {
				require.NoError(t, s.d.GetData(&iscsi.DataOut{ITT: 5, TTT: 9 + k, R2TSN: k, Offset: int(k) * 4096, Buf: b, To: int(k) * 4096, Len: 4096, Tag: uint64(k)}))
				s.receive()
			}
			sn := uint32(0)
			if on {
				sn = 2
			}
			s.send(dataOutPDU(5, 9, 0, 0, octets(1, 2048), false), dataOutPDU(5, 9, 1, 2048, octets(2, 2048), true),
				dataOutPDU(5, 10, sn, 4096, octets(3, 4096), true))
			require.Equal(t, event{itt: 5, tag: 0}, s.event())
			if on {
				s.receive()
				s.broken(Sequence)
			} else {
				require.Equal(t, event{itt: 5, tag: 1}, s.event())
			}
			b.Release()
		})
	}
}

// TestLateDataOutIsThrownAway: data of a task that was aborted meanwhile is no error, and goes nowhere.
func TestLateDataOutIsThrownAway(t *testing.T) {
	play(t, true, 1<<20, params(), func(s *script) {
		b := s.alloc(8192)
		require.NoError(t, s.d.GetData(&iscsi.DataOut{ITT: 5, TTT: 9, Buf: b, Len: 8192}))
		s.receive()
		s.send(dataOutPDU(5, 9, 0, 0, octets(1, 4096), false))
		whole := s.frame(dataOutPDU(5, 9, 1, 4096, octets(1, 4096), true))
		s.write(whole[:1000]) // the reader is in the middle of it
		s.d.DeallocateTaskResources(5)
		require.Zero(t, s.d.Lent(), "the Datamover releases what it was still to fill")
		b = s.alloc(8192) // the same memory
		s.write(whole[1000:])
		s.send(nopOutPDU(1, []byte("alive")))
		require.Equal(t, []byte("alive"), s.event().pdu.Data)
		s.quiet()
		require.Equal(t, make([]byte, 8192), b.Bytes())
		b.Release()
	})
}

// TestHeaderDigestError: whatever bit is wrong, in the header, its AHS or the digest, nothing of the PDU is acted
// on and the connection ends.
func TestHeaderDigestError(t *testing.T) {
	p := params()
	p.HeaderDigest = true
	pdu := nopOutPDU(1, []byte("data"))
	pdu.AHS = []byte{0, 1, 0x3f, 0}
	for bit := 0; bit < (48+4+4)*8; bit += 5 {
		if at := bit / 8; at >= 4 && at < 8 {
			continue // lengths: the digest is looked for elsewhere, which TestTruncated and the fuzzers cover
		}
		play(t, true, 1<<20, p, func(s *script) {
			b := s.frame(pdu)
			b[bit/8] ^= 1 << (bit % 8)
			s.write(b)
			s.broken(HeaderDigest)
		})
	}
}

// TestDataDigestError: the target says so with a Reject, reason 02 (RFC 7143, section 7.7), and at
// ErrorRecoveryLevel 0 closes.
func TestDataDigestError(t *testing.T) {
	p := params()
	p.DataDigest = true
	for _, c := range []struct {
		name string
		pdu  *iscsi.PDU
	}{
		{"control", nopOutPDU(1, []byte("hello"))},
		{"data", dataOutPDU(5, 9, 0, 0, octets(1, 5), true)},
	} {
		for at := 48; at < 48+8+4; at++ { // data, padding, digest
			t.Run(c.name, func(t *testing.T) {
				play(t, true, 1<<20, p, func(s *script) {
					b := s.alloc(5)
					require.NoError(t, s.d.GetData(&iscsi.DataOut{ITT: 5, TTT: 9, Buf: b, Len: 5}))
					s.receive()
					f := s.frame(c.pdu)
					f[at] ^= 0x10
					s.write(f)
					r := s.receive()
					require.Equal(t, iscsi.OpReject, r.Opcode())
					require.Equal(t, iscsi.RejectReason(2), iscsi.Reject(r.BHS[:]).Reason())
					require.Equal(t, f[:48], r.Data)
					s.end()
					s.broken(DataDigest)
					b.Release()
				})
			})
		}
	}
}

// TestTruncated: only an end between two PDUs is graceful.
func TestTruncated(t *testing.T) {
	p := params()
	p.HeaderDigest, p.DataDigest = true, true
	pdu := nopOutPDU(1, []byte("hello"))
	pdu.AHS = []byte{0, 1, 0x3f, 0}
	for n := range 48 + 4 + 4 + 8 + 4 + 1 {
		play(t, true, 1<<20, p, func(s *script) {
			f := s.frame(pdu)
			s.write(f[:n])
			if n == 0 || n == len(f) {
				require.NoError(t, s.peer.CloseWrite())
				<-s.d.Done()
				if n > 0 {
					require.Equal(t, pdu.AHS, s.event().pdu.AHS)
				}
				require.Equal(t, event{last: true}, s.event())
				return
			}
			s.broken(Truncated)
		})
	}
}

// TestOctetsAlreadyRead: whoever looked at what a connection speaks hands its octets in.
func TestOctetsAlreadyRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 16, 48, 49, 48 + 8192, 48 + 20000, 2*48 + 20000} {
			login := nopOutPDU(1, octets(3, 20000))
			f, err := iscsi.AppendPDU(nil, login, false, false)
			require.NoError(t, err)
			stream := append(f, f[:48]...)
			ours, peer := sock.MemPipe(1 << 20)
			s := &script{t: t, peer: peer, d: newOnSocket(ours, Config{}, true, stream[:n])}
			s.d.Start(s)
			s.write(stream[n:])
			require.Equal(t, login.Data, s.event().pdu.Data, "%d octets", n)
			s.broken(Truncated)
		}
	})
}

// TestSilentPeer: a graceful end waits for a peer that neither reads nor closes, but not for ever.
func TestSilentPeer(t *testing.T) {
	play(t, true, 1000, params(), func(s *script) {
		for k := range uint32(50) {
			require.NoError(t, s.d.SendControl(nopInPDU(k), nil))
		}
		s.d.ConnectionTerminate(true)
		synctest.Wait()
		select {
		case <-s.d.Done():
			t.Error("PDUs were dropped")
		default:
		}
		<-s.d.Done() // virtual time: fails as a deadlock if nothing bounds it
		s.quiet()
	})
}

// TestPeerThatDoesNotRead: one that goes on asking loses its connection before the answers fill the memory.
func TestPeerThatDoesNotRead(t *testing.T) {
	play(t, true, 4096, params(), func(s *script) {
		s.onPDU = func(p *iscsi.PDU) {
			_ = s.d.SendControl(nopInPDU(iscsi.BHS(p.BHS[:]).ITT()), nil)
			s.events = nil
		}
		flood := bytes.Repeat(s.frame(nopOutPDU(1, nil)), 2*maxQueuedPDUs)
		for len(flood) > 0 {
			n, err := s.peer.Write([][]byte{flood})
			if err != nil {
				break
			}
			flood = flood[n:]
		}
		require.NotEmpty(t, flood, "all of it was taken")
		<-s.d.Done()
		s.events = s.events[len(s.events)-1:]
		s.broken(Backlog)
	})
}

// TestMisuse: the layer above is told, and the connection goes on.
func TestMisuse(t *testing.T) {
	play(t, true, 1<<20, params(), func(s *script) {
		b := &heap{make([]byte, 8192)}
		put := func(x iscsi.DataIn) error { x.Buf, x.Notify = b, true; return s.d.PutData(&x) }
		get := func(x iscsi.DataOut) error { x.Buf = b; return s.d.GetData(&x) }
		require.Error(t, put(iscsi.DataIn{Len: 4097}), "above the peer's MaxRecvDataSegmentLength")
		require.Error(t, put(iscsi.DataIn{From: 8000, Len: 193}))
		require.Error(t, put(iscsi.DataIn{From: -1, Len: 1}))
		require.Error(t, get(iscsi.DataOut{TTT: 1, Len: 8193}))
		require.Error(t, get(iscsi.DataOut{TTT: 1, Len: 0}))
		require.Error(t, get(iscsi.DataOut{TTT: iscsi.ReservedTag, Len: 1}))
		require.NoError(t, get(iscsi.DataOut{TTT: 1, Len: 1}))
		require.Error(t, get(iscsi.DataOut{TTT: 1, Len: 1}), "TTT in use")
		require.Error(t, s.d.SendControl(r2tPDU(1, 1, 0, 0, 1), nil))
		require.Error(t, s.d.SendControl(dataInPDU(1, 0, 0, nil, true), nil))
		require.Error(t, s.d.SendControl(nopOutPDU(1, make([]byte, 4097)), nil))
		require.Error(t, s.d.SendControl(&iscsi.PDU{AHS: []byte{1}}, nil))
		require.Error(t, s.d.EnableDatamover(&iscsi.PDU{}), "twice")
		require.Equal(t, iscsi.OpR2T, s.receive().Opcode())
		s.silent()
	})
}

// TestAbortedDataInIsNotNotified: once its task is forgotten a PutData with Notify, sent or not, ends without
// a word and its buffer is released here.
func TestAbortedDataInIsNotNotified(t *testing.T) {
	play(t, true, 6000, params(), func(s *script) {
		bufs := map[uint64]iscsi.Buffer{}
		for k := range uint64(6) { // the second does not fit in the stream any more
			bufs[k] = s.alloc(4096)
			require.NoError(t, s.d.PutData(&iscsi.DataIn{
				ITT: 5 + uint32(k%2), TTT: iscsi.ReservedTag, DataSN: uint32(k / 2), Buf: bufs[k], Len: 4096, Notify: true, Tag: k,
			}))
			synctest.Wait() // the first leaves alone
		}
		require.Equal(t, event{itt: 5, tag: 0}, s.event(), "sent before its task was forgotten")
		bufs[0].Release()
		s.d.DeallocateTaskResources(5)
		for range 6 {
			require.Len(t, s.receive().Data, 4096)
		}
		for _, k := range []uint64{1, 3, 5} {
			require.Equal(t, event{itt: 6, tag: k}, s.event())
		}
		s.quiet()
		require.Equal(t, 3, s.d.Lent(), "2 and 4 are released, 1, 3 and 5 are ours")
		for _, k := range []uint64{1, 3, 5} {
			bufs[k].Release()
		}
	})
}

// TestUnsentDataInIsReleased: a connection that ends gives back what it took over.
func TestUnsentDataInIsReleased(t *testing.T) {
	for _, peerGoes := range []bool{false, true} {
		play(t, true, 1000, params(), func(s *script) {
			for k := range uint32(5) {
				require.NoError(t, s.d.PutData(&iscsi.DataIn{ITT: k, TTT: iscsi.ReservedTag, Buf: s.alloc(4096), Len: 4096, More: k == 4}))
			}
			synctest.Wait()
			require.Equal(t, 5, s.d.Lent())
			if peerGoes {
				require.NoError(t, s.peer.Close())
			} else {
				s.d.ConnectionTerminate(false)
			}
			<-s.d.Done()
			require.Zero(t, s.d.Lent())
		})
	}
}

// TestPromiseOfMoreIsNotKept: a graceful end sends what was held back.
func TestPromiseOfMoreIsNotKept(t *testing.T) {
	play(t, true, 1<<20, params(), func(s *script) {
		require.NoError(t, s.d.PutData(&iscsi.DataIn{ITT: 5, TTT: iscsi.ReservedTag, Buf: s.alloc(100), Len: 100, More: true}))
		s.silent()
		s.d.ConnectionTerminate(true)
		require.Len(t, s.receive().Data, 100)
		s.end()
	})
}
