package tcp

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// recovers are parameters of ErrorRecoveryLevel 1 with data digests.
func recovers() *iscsi.Params {
	p := params()
	p.ErrorRecoveryLevel, p.DataDigest, p.MaxOutstandingR2T = 1, true, 1
	return p
}

// spoil sends a PDU whose data segment does not fit its digest.
func (s *script) spoil(p *iscsi.PDU) {
	b := s.frame(p)
	b[len(b)-1] ^= 0x40
	s.write(b)
}

func snackPDU(kind iscsi.SNACKType, itt, ttt uint32, first, n, expStatSN uint32) *iscsi.PDU {
	p := &iscsi.PDU{}
	h := iscsi.SNACKRequest(p.BHS[:])
	h.Init()
	h.SetType(kind)
	h.SetITT(itt)
	h.SetTTT(ttt)
	h.SetBegRun(first)
	h.SetRunLength(n)
	h.SetExpStatSN(iscsi.SN(expStatSN))
	return p
}

func (s *script) get(itt, ttt, sn uint32, off, n int, buf iscsi.Buffer) {
	s.t.Helper()
	require.NoError(s.t, s.d.GetData(&iscsi.DataOut{
		LUN: testLUN, ITT: itt, TTT: ttt, R2TSN: sn, Offset: off, Buf: buf, To: off, Len: n, Tag: uint64(ttt),
	}))
	h := iscsi.R2T(s.receive().BHS[:])
	require.Equal(s.t, sn, h.R2TSN())
	require.EqualValues(s.t, off, h.Offset())
	require.EqualValues(s.t, n, h.DesiredLen())
}

// partial takes the upcall of a GetData that has ended with a part of its data.
func (s *script) partial(ttt uint32, got int) {
	s.t.Helper()
	e := s.event()
	require.EqualValues(s.t, ttt, e.tag)
	var short *iscsi.PartialDataError
	require.ErrorAs(s.t, e.err, &short)
	require.Equal(s.t, got, short.Got)
}

func (s *script) rejected(reason iscsi.RejectReason) *iscsi.Rejection {
	s.t.Helper()
	e := s.event()
	require.NotNil(s.t, e.rejected, "%+v", e)
	require.Equal(s.t, reason, e.rejected.Reason, e.rejected.Detail)
	return e.rejected
}

// TestSpoiltDataOutIsAskedForAgain: RFC 7143, section 7.8: Reject, and a Recovery R2T for what was lost. Nothing behind the loss is placed.
func TestSpoiltDataOutIsAskedForAgain(t *testing.T) {
	for _, bad := range []int{0, 1, 2} {
		play(t, true, 64<<10, recovers(), func(s *script) {
			buf := s.alloc(3000)
			data := octets(1, 3000)
			s.get(7, 1, 0, 0, 3000, buf)
			for k := range 3 {
				p := dataOutPDU(7, 1, uint32(k), k*1000, data[k*1000:][:1000], k == 2)
				if k == bad {
					s.spoil(p)
					require.EqualValues(t, iscsi.OpDataOut, s.rejected(iscsi.RejectDataDigest).BHS[0]&0x3f)
				} else {
					s.send(p)
				}
			}
			s.partial(1, bad*1000)
			s.get(7, 2, 1, bad*1000, 3000-bad*1000, buf)
			s.send(dataOutPDU(7, 2, 0, bad*1000, data[bad*1000:], true))
			e := s.event()
			require.EqualValues(t, 2, e.tag)
			require.NoError(t, e.err)
			require.Equal(t, data, buf.Bytes())
			s.send(dataOutPDU(7, 1, 2, 2000, octets(9, 1000), true)) // late, of the sequence that was given up
			s.quiet()
			require.Equal(t, data, buf.Bytes())
			buf.Release()
		})
	}
}

// TestLostDataOut: a DataSN that is passed over, and a sequence that does not end (RFC 7143, section 7.1.4.1).
func TestLostDataOut(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		buf := s.alloc(3000)
		data := octets(1, 3000)
		s.get(7, 1, 0, 0, 3000, buf)
		s.send(dataOutPDU(7, 1, 0, 0, data[:1000], false), dataOutPDU(7, 1, 2, 2000, data[2000:], true))
		s.partial(1, 1000)
		s.get(7, 2, 1, 1000, 2000, buf)
		s.send(dataOutPDU(7, 2, 0, 1000, data[1000:2000], false))
		s.send(dataOutPDU(7, 2, 0, 1000, octets(3, 1000), false)) // a second time: dropped
		s.quiet()
		time.Sleep(DefaultSequenceTimeout + time.Second)
		s.partial(2, 1000)
		s.get(7, 3, 2, 2000, 1000, buf)
		s.send(dataOutPDU(7, 3, 0, 2000, data[2000:], true))
		require.NoError(t, s.event().err)
		require.Equal(t, data, buf.Bytes())
		buf.Release()
		time.Sleep(time.Hour)
		s.quiet()
	})
}

// TestSpoiltPDUIsDiscarded: a PDU for the layer above is rejected and not delivered.
func TestSpoiltPDUIsDiscarded(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		c := commandPDU(5, 0x20)
		c.Data = octets(1, 100)
		s.spoil(c)
		require.Equal(t, c.BHS, s.rejected(iscsi.RejectDataDigest).BHS)
		s.send(c)
		require.Equal(t, c.Data, s.event().pdu.Data)
		s.quiet()
	})
}

// read sends n Data-In PDUs of 1000 octets.
func (s *script) put(itt uint32, from, n int, data []byte, ack bool) {
	for k := from; k < from+n; k++ {
		buf := s.alloc(1000)
		copy(buf.Bytes(), data[k*1000:])
		last := k == from+n-1
		x := &iscsi.DataIn{LUN: testLUN, ITT: itt, TTT: iscsi.ReservedTag, DataSN: uint32(k), Offset: k * 1000, Buf: buf, Len: 1000, Final: last}
		if last && ack {
			x.Ack, x.TTT = true, 0x100+uint32(k)
		}
		require.NoError(s.t, s.d.PutData(x))
	}
}

func (s *script) dataIn(sn uint32, data []byte) iscsi.DataInPDU {
	s.t.Helper()
	p := s.receive()
	h := iscsi.DataInPDU(p.BHS[:])
	require.Equal(s.t, iscsi.OpDataIn, p.Opcode())
	require.Equal(s.t, sn, h.DataSN())
	require.Equal(s.t, data[h.Offset():][:len(p.Data)], p.Data)
	return h
}

// TestSNACKData: Data-In PDUs are sent again as they were until they are acknowledged (RFC 7143, section 11.16), by DataACK or by the status.
func TestSNACKData(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		data := octets(2, 4000)
		s.put(7, 0, 4, data, true)
		for k := range uint32(4) {
			s.dataIn(k, data)
		}
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 1, 2, 11))
		require.EqualValues(t, 1000, s.dataIn(1, data).Offset())
		s.dataIn(2, data)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 0, 0, 11))
		for k := range uint32(4) {
			h := s.dataIn(k, data)
			require.Equal(t, k == 3, h.Final())
			require.Equal(t, k == 3, h.Ack())
		}
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 3, 2, 11))
		require.EqualValues(t, 4, s.rejected(iscsi.RejectProtocolError).DataSN)
		s.send(snackPDU(iscsi.SNACKDataR2T, 8, iscsi.ReservedTag, 0, 1, 11))
		s.rejected(iscsi.RejectProtocolError)
		s.send(snackPDU(iscsi.SNACKDataACK, iscsi.ReservedTag, 0x999, 4, 0, 11))
		s.rejected(iscsi.RejectInvalidDataACK)
		s.send(snackPDU(iscsi.SNACKDataACK, iscsi.ReservedTag, 0x103, 2, 0, 11))
		e := s.event()
		require.EqualValues(t, 7, e.itt)
		require.EqualValues(t, 2, e.acked)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 1, 1, 11))
		s.rejected(iscsi.RejectProtocolError)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 0, 0, 11)) // all that is not acknowledged
		s.dataIn(2, data)
		s.dataIn(3, data)
		require.NoError(t, s.d.SendControl(responsePDU(7, 11, 4), nil))
		require.Equal(t, iscsi.OpSCSIResponse, s.receive().Opcode())
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 3, 1, 11))
		s.dataIn(3, data)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 3, 1, 12)) // acknowledges the status by itself
		s.rejected(iscsi.RejectProtocolError)
		s.quiet()
		s.silent()
	})
}

// TestSNACKStatus: responses are sent again, with the window as it is now.
func TestSNACKStatus(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		for k := range uint32(3) {
			p := responsePDU(20+k, 11+k, 0)
			iscsi.SCSIResponse(p.BHS[:]).SetExpCmdSN(iscsi.SN(7 + k))
			p.Data = octets(int(k), 20)
			require.NoError(t, s.d.SendControl(p, nil))
			s.receive()
		}
		s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 11, 2, 11))
		for k := range uint32(2) {
			p := s.receive()
			h := iscsi.SCSIResponse(p.BHS[:])
			require.EqualValues(t, 11+k, h.StatSN())
			require.EqualValues(t, 9, h.ExpCmdSN(), "the current window")
			require.Equal(t, octets(int(k), 20), p.Data)
		}
		s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 0, 0, 12)) // all that is not acknowledged
		require.EqualValues(t, 12, iscsi.BHS(s.receive().BHS[:]).StatSN())
		require.EqualValues(t, 13, iscsi.BHS(s.receive().BHS[:]).StatSN())
		for _, run := range [][2]uint32{{11, 1}, {14, 1}, {13, 2}, {14, 0}} {
			s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, run[0], run[1], 12))
			s.rejected(iscsi.RejectProtocolError)
		}
		s.send(snackPDU(iscsi.SNACKStatus, 5, iscsi.ReservedTag, 12, 1, 12)) // an ITT has no place there
		s.rejected(iscsi.RejectInvalidField)
		s.silent()
	})
}

// TestSuccessorRecovers: a Datamover that takes over behind a login elsewhere is enabled before it is started, and mends all the same.
func TestSuccessorRecovers(t *testing.T) {
	playFrom(t, true, true, 64<<10, recovers(), func(s *script) {
		require.NoError(t, s.d.SendControl(responsePDU(20, 11, 0), nil))
		s.receive()
		s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 11, 1, 11))
		require.EqualValues(t, 11, iscsi.BHS(s.receive().BHS[:]).StatSN())
		s.silent()
	})
}

// TestSNACKR2T: an R2T that was not answered is sent again, with the StatSN as it is now.
func TestSNACKR2T(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		buf := s.alloc(1000)
		s.get(7, 1, 0, 0, 1000, buf)
		require.NoError(t, s.d.SendControl(responsePDU(20, 11, 0), nil))
		s.receive()
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 0, 1, 12))
		h := iscsi.R2T(s.receive().BHS[:])
		require.EqualValues(t, 1, h.TTT())
		require.EqualValues(t, 1000, h.DesiredLen())
		require.EqualValues(t, 12, h.StatSN())
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 1, 1, 12))
		require.EqualValues(t, 1, s.rejected(iscsi.RejectProtocolError).DataSN)
		s.d.DeallocateTaskResources(7)
		s.silent()
	})
}

// TestRDataSNACK: RFC 7143, section 11.16.3: data laid out anew for the length taken now, and a response with the SNACK Tag and the same StatSN.
func TestRDataSNACK(t *testing.T) {
	for _, over := range []bool{true, false} {
		play(t, true, 64<<10, recovers(), func(s *script) {
			data := octets(2, 4000)
			s.put(7, 0, 3, data, false)
			for k := range uint32(3) {
				s.dataIn(k, data)
			}
			rest := func() {
				for k := range 2 {
					buf := s.alloc(500)
					copy(buf.Bytes(), data[3000+k*500:])
					require.NoError(t, s.d.PutData(&iscsi.DataIn{
						ITT: 7, TTT: iscsi.ReservedTag, DataSN: uint32(3 + k), Offset: 3000 + k*500, Buf: buf, Len: 500, Final: k == 1,
					}))
				}
				require.NoError(t, s.d.SendControl(responsePDU(7, 11, 5), nil))
			}
			if over {
				rest()
				s.dataIn(3, data)
				s.dataIn(4, data)
				require.Zero(t, iscsi.SCSIResponse(s.receive().BHS[:]).SNACKTag())
			}
			p := recovers()
			p.MaxSendDataSegment = 600
			s.d.NoticeKeyValues(p)
			s.send(snackPDU(iscsi.SNACKRData, 7, 0x77, 0, 0, 11))
			if !over {
				s.silent() // until the command has come to its end
				rest()
			}
			for k := range uint32(8) {
				h := s.dataIn(k, data)
				want := int(k/2)*1000 + int(k%2)*600
				if k == 7 {
					want = 3500
				}
				require.EqualValues(t, want, h.Offset())
			}
			r := iscsi.SCSIResponse(s.receive().BHS[:])
			require.EqualValues(t, 0x77, r.SNACKTag())
			require.EqualValues(t, 11, r.StatSN())
			require.EqualValues(t, 8, r.ExpDataSN())
			s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 11, 1, 11))
			require.EqualValues(t, 0x77, iscsi.SCSIResponse(s.receive().BHS[:]).SNACKTag())
			s.silent()
		})
	}
}

// TestNumbersAfterRDataSNACK: when the connection is gone it can be told how data-in was numbered last, as long as that was not acknowledged.
func TestNumbersAfterRDataSNACK(t *testing.T) {
	for name, c := range map[string]struct {
		asked, ended bool
		ack          uint32 // DataACK of the new numbers
		want         *iscsi.DataLayout
	}{
		"not asked for":        {ended: true},
		"not at its end":       {asked: true, want: &iscsi.DataLayout{First: 0}},
		"anew":                 {asked: true, ended: true, want: &iscsi.DataLayout{Offsets: []uint32{0, 600, 1000, 1600, 2000, 2600, 3000, 3500}, End: 4000}},
		"acknowledged in part": {asked: true, ended: true, ack: 6, want: &iscsi.DataLayout{First: 6, Skip: 3000, Offsets: []uint32{3000, 3500}, End: 4000}},
		"acknowledged":         {asked: true, ended: true, ack: 8, want: &iscsi.DataLayout{First: 8, Skip: 4000, Offsets: []uint32{}, End: 4000}},
	} {
		t.Run(name, func(t *testing.T) {
			var d *Datamover
			play(t, true, 64<<10, recovers(), func(s *script) {
				d = s.d
				data := octets(2, 4000)
				s.put(7, 0, 3, data, false)
				for k := range uint32(3) {
					s.dataIn(k, data)
				}
				if c.asked {
					p := recovers()
					p.MaxSendDataSegment = 600
					s.d.NoticeKeyValues(p)
					s.send(snackPDU(iscsi.SNACKRData, 7, 0x77, 0, 0, 11))
					s.silent()
				}
				if !c.ended {
					return
				}
				for k := range 2 {
					buf := s.alloc(500)
					copy(buf.Bytes(), data[3000+k*500:])
					require.NoError(t, s.d.PutData(&iscsi.DataIn{
						ITT: 7, TTT: 0x55, Ack: k == 1, DataSN: uint32(3 + k), Offset: 3000 + k*500, Buf: buf, Len: 500, Final: k == 1,
					}))
				}
				require.NoError(t, s.d.SendControl(responsePDU(7, 11, 5), nil))
				sn, end := uint32(3), uint32(5)
				if c.asked {
					sn, end = 0, 8
				}
				for ; sn < end; sn++ {
					s.dataIn(sn, data)
				}
				s.receive()
				if c.ack > 0 {
					s.send(snackPDU(iscsi.SNACKDataACK, iscsi.ReservedTag, 0x55, c.ack, 0, 11))
					s.silent()
				}
			})
			l, ok := d.Renumbered(7)
			require.Equal(t, c.want != nil, ok)
			if ok {
				require.Equal(t, *c.want, l)
			}
		})
	}
}

// TestKeepIsBounded: data beyond the bound is given up, oldest first, and asking for it fails the command.
func TestKeepIsBounded(t *testing.T) {
	play(t, true, 64<<10, recovers(), func(s *script) {
		s.d.keep.limit = 2500
		data := octets(2, 4000)
		s.put(7, 0, 4, data, false)
		for k := range uint32(4) {
			s.dataIn(k, data)
		}
		require.LessOrEqual(t, s.d.keep.octets, 2500)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 2, 2, 11))
		s.dataIn(2, data)
		s.dataIn(3, data)
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 1, 1, 11))
		require.True(t, s.rejected(iscsi.RejectSNACK).Unrecoverable)
		require.NoError(t, s.d.SendControl(responsePDU(7, 11, 4), nil))
		s.receive()
		s.send(snackPDU(iscsi.SNACKDataR2T, 7, iscsi.ReservedTag, 1, 1, 11))
		require.False(t, s.rejected(iscsi.RejectSNACK).Unrecoverable, "the status was sent")
	})
}

// TestSNACKAtLevelZero is handed up: the layer above rejects it.
func TestSNACKAtLevelZero(t *testing.T) {
	play(t, true, 64<<10, params(), func(s *script) {
		s.send(snackPDU(iscsi.SNACKStatus, iscsi.ReservedTag, iscsi.ReservedTag, 10, 1, 10))
		require.Equal(t, iscsi.OpSNACK, s.event().pdu.Opcode())
	})
}

// The initiator.

func (s *script) command(itt uint32, in, out []byte) *iscsi.TaskBuffers {
	s.t.Helper()
	b := &iscsi.TaskBuffers{}
	flags := byte(0)
	if in != nil {
		b.In, b.InLen = &heap{in}, len(in)
		flags |= 0x40
	}
	if out != nil {
		b.Out, b.OutLen = &heap{out}, len(out)
		flags |= 0x20
	}
	require.NoError(s.t, s.d.SendControl(commandPDU(itt, flags), b))
	require.Equal(s.t, iscsi.OpSCSICommand, s.receive().Opcode())
	return b
}

func (s *script) snack(kind iscsi.SNACKType, itt uint32, first, n uint32) iscsi.SNACKRequest {
	s.t.Helper()
	p := s.receive()
	require.Equal(s.t, iscsi.OpSNACK, p.Opcode())
	h := iscsi.SNACKRequest(p.BHS[:])
	require.Equal(s.t, kind, h.Type())
	require.Equal(s.t, itt, h.ITT())
	require.Equal(s.t, first, h.BegRun())
	require.Equal(s.t, n, h.RunLength())
	require.NoError(s.t, iscsi.Validate(p, true))
	return h
}

// TestInitiatorAsksForData: spoilt and passed over Data-In are asked for, the status waits for them and is not acknowledged before
// (RFC 7143, sections 7.8 and 7.9).
func TestInitiatorAsksForData(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		data, in := octets(4, 4000), make([]byte, 4000)
		s.command(7, in, nil)
		pdu := func(k int) *iscsi.PDU { return dataInPDU(7, uint32(k), k*1000, data[k*1000:][:1000], k == 3) }
		s.spoil(pdu(0))
		s.snack(iscsi.SNACKDataR2T, 7, 0, 1)
		s.send(pdu(2)) // 1 is lost
		s.snack(iscsi.SNACKDataR2T, 7, 1, 1)
		s.send(responsePDU(7, 11, 4)) // and so is 3
		require.EqualValues(t, 11, s.snack(iscsi.SNACKDataR2T, 7, 3, 1).ExpStatSN())
		s.send(responsePDU(9, 12, 0)) // another command's waits behind it
		s.quiet()
		s.send(pdu(1), pdu(1), pdu(3))
		s.spoil(pdu(0))
		s.snack(iscsi.SNACKDataR2T, 7, 0, 1)
		s.quiet()
		s.send(pdu(0))
		require.EqualValues(t, 7, iscsi.BHS(s.event().pdu.BHS[:]).ITT())
		require.EqualValues(t, 9, iscsi.BHS(s.event().pdu.BHS[:]).ITT())
		require.Equal(t, data, in)
		s.quiet()
		s.silent()
	})
}

// TestInitiatorAsksForStatus: lost responses are asked for, once, and delivered in their order.
func TestInitiatorAsksForStatus(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		s.send(responsePDU(1, 11, 0), responsePDU(4, 14, 0), responsePDU(5, 15, 0))
		s.snack(iscsi.SNACKStatus, iscsi.ReservedTag, 12, 2)
		require.EqualValues(t, 1, iscsi.BHS(s.event().pdu.BHS[:]).ITT())
		s.quiet()
		bad := responsePDU(3, 13, 0)
		bad.Data = octets(0, 20)
		s.send(responsePDU(2, 12, 0))
		s.spoil(bad)
		require.EqualValues(t, 2, iscsi.BHS(s.event().pdu.BHS[:]).ITT())
		s.quiet()
		ping := nopInPDU(iscsi.ReservedTag) // tells that 16 was lost, too
		binary.BigEndian.PutUint32(ping.BHS[24:], 17)
		s.send(ping)
		s.snack(iscsi.SNACKStatus, iscsi.ReservedTag, 16, 1)
		require.Equal(t, iscsi.OpNOPIn, s.event().pdu.Opcode())
		s.send(bad, responsePDU(6, 16, 0), responsePDU(6, 16, 0))
		for k := range uint32(4) {
			require.EqualValues(t, 3+k, iscsi.BHS(s.event().pdu.BHS[:]).ITT())
		}
		s.quiet()
		s.silent()
	})
}

// TestInitiatorAcknowledgesData: the DataACK waits until nothing before it is missing (RFC 7143, section 11.16.2).
func TestInitiatorAcknowledgesData(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		data, in := octets(4, 4000), make([]byte, 4000)
		b := s.command(7, in, nil)
		pdu := func(k int) *iscsi.PDU {
			p := dataInPDU(7, uint32(k), k*1000, data[k*1000:][:1000], k%2 == 1)
			if h := iscsi.DataInPDU(p.BHS[:]); k%2 == 1 {
				h.SetAck(true)
				h.SetTTT(uint32(0x50 + k))
				h.SetLUN(testLUN)
			}
			return p
		}
		s.send(pdu(1))
		s.snack(iscsi.SNACKDataR2T, 7, 0, 1)
		s.silent()
		s.send(pdu(0))
		h := s.snack(iscsi.SNACKDataACK, iscsi.ReservedTag, 2, 0)
		require.EqualValues(t, 0x51, h.TTT())
		require.EqualValues(t, testLUN, h.LUN())
		require.Equal(t, 2000, b.Acked)
		require.EqualValues(t, 2, b.AckedSN)
		s.send(pdu(2), pdu(3))
		s.snack(iscsi.SNACKDataACK, iscsi.ReservedTag, 4, 0)
		s.send(responsePDU(7, 11, 4))
		require.NotNil(t, s.event().pdu)
		require.Equal(t, data, in)
	})
}

// TestInitiatorIsRefusedData: the status that waits becomes CHECK CONDITION, "Protocol Service CRC error" (RFC 7143, section 7.8, a.2).
func TestInitiatorIsRefusedData(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		in := make([]byte, 1000)
		s.command(7, in, nil)
		s.spoil(dataInPDU(7, 0, 0, octets(1, 1000), true))
		h := s.snack(iscsi.SNACKDataR2T, 7, 0, 1)
		s.send(responsePDU(7, 11, 1))
		s.quiet()
		p := &iscsi.PDU{Data: append([]byte(nil), h...)}
		r := iscsi.Reject(p.BHS[:])
		r.Init()
		r.SetReason(iscsi.RejectSNACK)
		r.SetStatSN(12)
		s.send(p)
		e := s.event()
		require.EqualValues(t, statusCheckCondition, iscsi.SCSIResponse(e.pdu.BHS[:]).Status())
		sense := iscsi.SenseData(e.pdu.Data)
		require.Equal(t, []byte{0x0b, 0x47, 0x05}, []byte{sense[2], sense[12], sense[13]})
		require.Equal(t, iscsi.OpReject, s.event().pdu.Opcode())
	})
}

// TestInitiatorAnswersRecoveryR2T: one goes back in what was asked for before; an R2T that was lost is asked for, a second copy is not answered.
func TestInitiatorAnswersRecoveryR2T(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		out := octets(4, 4000)
		s.command(7, nil, out)
		answer := func(ttt uint32, off, n int) {
			t.Helper()
			p := s.receive()
			h := iscsi.DataOutPDU(p.BHS[:])
			require.Equal(t, ttt, h.TTT())
			require.EqualValues(t, off, h.Offset())
			require.Equal(t, out[off:][:n], p.Data)
		}
		s.send(r2tPDU(7, 1, 0, 0, 2000))
		answer(1, 0, 2000)
		s.send(r2tPDU(7, 2, 1, 1000, 1000), r2tPDU(7, 2, 1, 1000, 1000))
		answer(2, 1000, 1000)
		s.send(r2tPDU(7, 4, 3, 3000, 1000))
		answered := s.receive()
		if answered.Opcode() == iscsi.OpSNACK {
			require.EqualValues(t, 2, iscsi.SNACKRequest(answered.BHS[:]).BegRun())
			answer(4, 3000, 1000)
		}
		s.send(r2tPDU(7, 3, 2, 2000, 1000))
		answer(3, 2000, 1000)
		s.send(responsePDU(7, 11, 0))
		require.NotNil(t, s.event().pdu)
		s.silent()
	})
}

// TestReassignedTaskGoesOn: data that was acknowledged on an earlier connection is not expected again.
func TestReassignedTaskGoesOn(t *testing.T) {
	play(t, false, 64<<10, recovers(), func(s *script) {
		data, in := octets(4, 2000), octets(4, 1000)
		in = append(in, make([]byte, 1000)...)
		b := &iscsi.TaskBuffers{In: &heap{in}, InLen: 2000, Acked: 1000, AckedSN: 3}
		p := &iscsi.PDU{}
		h := iscsi.TaskMgmtRequest(p.BHS[:])
		h.Init()
		h.SetFunction(iscsi.TaskReassign)
		h.SetITT(50)
		h.SetRTT(7)
		require.NoError(t, s.d.SendControl(p, b))
		s.receive()
		s.send(dataInPDU(7, 3, 1000, data[1000:], true), responsePDU(7, 11, 4))
		require.EqualValues(t, 0, iscsi.SCSIResponse(s.event().pdu.BHS[:]).Status())
		require.Equal(t, data, in)
	})
}

// TestHeaderDigestEndsTheConnection at every level: its lengths cannot be believed (RFC 7143, section 7.8).
func TestHeaderDigestEndsTheConnection(t *testing.T) {
	p := recovers()
	p.HeaderDigest = true
	play(t, true, 64<<10, p, func(s *script) {
		b := s.frame(nopOutPDU(3, nil))
		b[49] ^= 1
		s.write(b)
		s.broken(HeaderDigest)
	})
}
