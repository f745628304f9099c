package tcp

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

// begin starts a task with these buffers at the initiator.
func (s *script) begin(itt uint32, in, out []byte) {
	s.t.Helper()
	t := &iscsi.TaskBuffers{InLen: len(in), OutLen: len(out)}
	if in != nil {
		t.In = &heap{in}
	}
	if out != nil {
		t.Out = &heap{out}
	}
	p := commandPDU(itt, 0)
	iscsi.SCSICommand(p.BHS[:]).SetExpStatSN(iscsi.SN(itt))
	require.NoError(s.t, s.d.SendControl(p, t))
	require.Equal(s.t, iscsi.OpSCSICommand, s.receive().Opcode())
}

// TestDataInBecomesResponse: a Data-In with status is delivered as the SCSI Response that it stands
// for, after its data.
func TestDataInBecomesResponse(t *testing.T) {
	for _, digests := range []bool{false, true} {
		p := params()
		p.HeaderDigest, p.DataDigest = digests, digests
		play(t, false, 1<<20, p, func(s *script) {
			in := make([]byte, 9000)
			s.begin(5, in, nil)
			want := octets(1, 8001)
			last := dataInPDU(5, 2, 5001, want[5001:], true)
			h := iscsi.DataInPDU(last.BHS[:])
			h.SetHasStatus(true)
			h.SetUnderflow(true)
			h.SetResidual(999)
			h.SetStatSN(11)
			h.SetExpCmdSN(7)
			h.SetMaxCmdSN(70)
			s.send(dataInPDU(5, 0, 0, want[:1], false), dataInPDU(5, 1, 1, want[1:5001], true))
			s.quiet()
			s.send(last)
			rsp := responsePDU(5, 11, 3)
			iscsi.SCSIResponse(rsp.BHS[:]).SetUnderflow(true)
			iscsi.SCSIResponse(rsp.BHS[:]).SetResidual(999)
			require.Equal(t, rsp.BHS, s.event().pdu.BHS)
			require.Equal(t, append(want, make([]byte, 999)...), in)
			s.quiet()
		})
	}
}

// TestStrayDataIn: data of an unknown task goes nowhere, but a status in it is the layer's above to see, since it
// uses up a StatSN.
func TestStrayDataIn(t *testing.T) {
	play(t, false, 1<<20, params(), func(s *script) {
		s.send(dataInPDU(77, 5, 512, octets(1, 20000), false))
		s.quiet()
		p := dataInPDU(77, 6, 20512, octets(1, 512), true)
		iscsi.DataInPDU(p.BHS[:]).SetHasStatus(true)
		iscsi.DataInPDU(p.BHS[:]).SetStatSN(11)
		s.send(p, nopInPDU(1))
		r := iscsi.SCSIResponse(s.event().pdu.BHS[:])
		require.Equal(t, uint32(77), r.ITT())
		require.Equal(t, iscsi.SN(11), r.StatSN())
		require.Equal(t, iscsi.OpNOPIn, s.event().pdu.Opcode())
		s.send(r2tPDU(77, 1, 0, 0, 512), responsePDU(77, 12, 0))
		require.Equal(t, iscsi.OpSCSIResponse, s.event().pdu.Opcode())
		s.silent()
	})
}

// residual sets an underflow on a SCSI Response.
func residual(p *iscsi.PDU, n uint32) *iscsi.PDU {
	h := iscsi.SCSIResponse(p.BHS[:])
	h.SetUnderflow(true)
	h.SetResidual(n)
	return p
}

// withStatus makes a Data-In carry a good status.
func withStatus(p *iscsi.PDU) *iscsi.PDU {
	iscsi.DataInPDU(p.BHS[:]).SetHasStatus(true)
	return p
}

// TestTargetThatBreaksTheRules: the initiator closes with an error that names what was wrong, and
// nothing outside the task's buffer is touched.
func TestTargetThatBreaksTheRules(t *testing.T) {
	first := dataInPDU(5, 0, 0, octets(1, 1000), false)
	for _, c := range []struct {
		name string
		kind Kind
		pdus []*iscsi.PDU
	}{
		{"data beyond the buffer", Overrun, []*iscsi.PDU{dataInPDU(5, 0, 0, octets(1, 4097), true)}},
		{"data across its end", Overrun, []*iscsi.PDU{first, dataInPDU(5, 1, 1000, octets(1, 3097), true)}},
		{"offset far out", Overrun, []*iscsi.PDU{dataInPDU(5, 0, 1<<32-512, octets(1, 512), true)}},
		{"data of a command without data-in", Overrun, []*iscsi.PDU{dataInPDU(6, 0, 0, octets(1, 1), true)}},
		{"DataSN repeated", Sequence, []*iscsi.PDU{first, dataInPDU(5, 0, 1000, octets(1, 1000), true)}},
		{"DataSN skipped", Sequence, []*iscsi.PDU{dataInPDU(5, 1, 0, octets(1, 1000), true)}},
		{"a hole", Sequence, []*iscsi.PDU{first, dataInPDU(5, 1, 1001, octets(1, 1000), true)}},
		{"data again", Sequence, []*iscsi.PDU{first, dataInPDU(5, 1, 0, octets(1, 1000), true)}},
		{"segment longer than declared", Format, []*iscsi.PDU{dataInPDU(5, 0, 0, octets(1, 32<<10+1), true)}},
		{"good status without the data", Underrun, []*iscsi.PDU{responsePDU(5, 11, 0)}},
		{"good status with a part of the data", Underrun, []*iscsi.PDU{first, responsePDU(5, 11, 1)}},
		{"residual smaller than what is missing", Underrun, []*iscsi.PDU{first, residual(responsePDU(5, 11, 1), 3095)}},
		{"good status in a Data-In that is not the last", Underrun, []*iscsi.PDU{withStatus(dataInPDU(5, 0, 0, octets(1, 1000), true))}},
		{"R2T beyond the data", Overrun, []*iscsi.PDU{r2tPDU(6, 1, 0, 4000, 97)}},
		{"R2T far out", Overrun, []*iscsi.PDU{r2tPDU(6, 1, 0, 1<<32-1, 1<<32-1)}},
		{"R2T of a read", Overrun, []*iscsi.PDU{r2tPDU(5, 1, 0, 0, 1)}},
		{"R2T for nothing", Format, []*iscsi.PDU{r2tPDU(6, 1, 0, 0, 0)}},
		{"R2T without tag", Format, []*iscsi.PDU{r2tPDU(6, iscsi.ReservedTag, 0, 0, 1)}},
		{"R2TSN wrong", Sequence, []*iscsi.PDU{r2tPDU(6, 1, 1, 0, 1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, false, 1<<20, params(), func(s *script) {
				room := make([]byte, 4096+64)
				s.begin(5, room[32:][:4096], nil)
				s.begin(6, nil, octets(9, 4096))
				s.send(c.pdus...)
				s.broken(c.kind)
				require.Equal(t, make([]byte, 32), room[:32])
				require.Equal(t, make([]byte, 32), room[32+4096:])
			})
		})
	}
}

// TestR2TsAreBounded: a target may not ask again and again for what it got, nor have more R2Ts
// open than was negotiated.
func TestR2TsAreBounded(t *testing.T) {
	play(t, false, 1000, params(), func(s *script) {
		s.begin(6, nil, octets(9, 16<<10))
		s.send(r2tPDU(6, 1, 0, 0, 4096), r2tPDU(6, 2, 1, 0, 4096))
		for s.read() {
		}
		s.in = nil
		s.broken(Sequence)
	})
	play(t, false, 1000, params(), func(s *script) {
		s.begin(6, nil, octets(9, 16<<10))
		for k := range uint32(5) { // a stream that nobody reads: the first may be on its way
			s.send(r2tPDU(6, k, k, int(k)*2048, 2048))
		}
		s.send(r2tPDU(6, 5, 5, 5*2048, 2048))
		for s.read() {
		}
		s.in = nil
		s.broken(Overrun)
	})
}

// TestDataOutAnswersR2T: DataSN from 0 for each R2T, F on the last, the R2T's tag and LUN, segments as the target
// declared.
func TestDataOutAnswersR2T(t *testing.T) {
	p := params()
	p.HeaderDigest, p.DataDigest = true, true
	play(t, false, 1<<20, p, func(s *script) {
		out := octets(2, 64<<10-13)
		s.begin(6, nil, out)
		const burst = 8192
		got := make([]byte, 0, len(out))
		for k := uint32(0); len(got) < len(out); k++ {
			off := len(got)
			s.send(r2tPDU(6, 90+k, k, off, min(burst, len(out)-off)))
			for sn := uint32(0); ; sn++ {
				p := s.receive()
				h := iscsi.DataOutPDU(p.BHS[:])
				require.Equal(t, []any{iscsi.OpDataOut, uint64(testLUN), uint32(6), 90 + k, sn, uint32(len(got)), iscsi.SN(6)},
					[]any{p.Opcode(), h.LUN(), h.ITT(), h.TTT(), h.DataSN(), h.Offset(), h.ExpStatSN()})
				require.LessOrEqual(t, len(p.Data), 4096)
				got = append(got, p.Data...)
				last := len(got) == min(off+burst, len(out))
				require.Equal(t, last, h.Final())
				if last {
					break
				}
			}
			s.silent()
		}
		require.Equal(t, out, got)
	})
}

// TestTaskEndsWhileItsDataOutIsSent: once the task is forgotten, or its response delivered, its
// memory may hold something else. What was begun goes on from what it held before, the rest is not
// sent, and the stream stays in step.
func TestTaskEndsWhileItsDataOutIsSent(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *script)
	}{
		{"deallocated", func(s *script) { s.d.DeallocateTaskResources(6) }},
		{"answered", func(s *script) {
			s.send(responsePDU(6, 11, 1))
			require.Equal(s.t, iscsi.OpSCSIResponse, s.event().pdu.Opcode())
		}},
		{"answered by Data-In", func(s *script) {
			p := dataInPDU(6, 1, 0, nil, true)
			iscsi.DataInPDU(p.BHS[:]).SetHasStatus(true)
			s.send(p)
			require.Equal(s.t, iscsi.OpSCSIResponse, s.event().pdu.Opcode())
		}},
	} {
		for _, room := range []int{1, 48, 60, 4096 + 52, 5000} {
			t.Run(c.name, func(t *testing.T) {
				p := params()
				p.HeaderDigest, p.DataDigest = true, true
				play(t, false, room, p, func(s *script) {
					want := octets(2, 64<<10)
					out := bytes.Clone(want)
					s.begin(6, nil, out)
					s.send(r2tPDU(6, 9, 0, 0, len(out)))
					own := dataOutPDU(6, iscsi.ReservedTag, 0, 0, out[:4096], true) // the layer's above, of the same memory
					require.NoError(t, s.d.SendControl(own, nil))
					other := dataOutPDU(7, iscsi.ReservedTag, 0, 0, octets(3, 100), true)
					require.NoError(t, s.d.SendControl(other, nil))
					synctest.Wait()
					c.end(s)
					clear(out)
					got := 0
					for { // digests are right, or receive fails
						p := s.receive()
						h := iscsi.DataOutPDU(p.BHS[:])
						if h.ITT() == 7 {
							break
						}
						require.Equal(t, uint32(9), h.TTT(), "a PDU of the dead task that was not begun")
						require.Equal(t, want[got:][:len(p.Data)], p.Data)
						got += len(p.Data)
					}
					require.LessOrEqual(t, got, room+scratchMax+2*4096)
					s.silent()
				})
			})
		}
	}
}

// TestStopDataOut: what was begun goes on, nothing else of the task's data is sent, R2Ts have no answer, and the task ends as any other.
func TestStopDataOut(t *testing.T) { // RFC 7143, section 4.2.3.4
	for _, room := range []int{1, 60, 5000, 1 << 20} {
		p := params()
		p.MaxOutstandingR2T = 2
		play(t, false, room, p, func(s *script) {
			out := octets(2, 64<<10)
			s.begin(6, nil, out)
			s.send(r2tPDU(6, 9, 0, 0, 16<<10), r2tPDU(6, 10, 1, 16<<10, 16<<10))
			synctest.Wait()
			s.d.StopDataOut(6)
			s.d.StopDataOut(7) // of no task
			for k := uint32(2); k < 6; k++ {
				s.send(r2tPDU(6, 9+k, k, int(k)*4096+(24<<10), 4096))
			}
			other := dataOutPDU(7, iscsi.ReservedTag, 0, 0, octets(3, 100), true)
			require.NoError(t, s.d.SendControl(other, nil))
			got := 0
			for {
				p := s.receive()
				h := iscsi.DataOutPDU(p.BHS[:])
				if h.ITT() == 7 {
					break
				}
				require.Less(t, h.TTT(), uint32(11), "asked for after the end")
				require.Equal(t, out[h.Offset():][:len(p.Data)], p.Data)
				got += len(p.Data)
			}
			if room < 1<<20 {
				require.Less(t, got, 32<<10)
			}
			s.silent()
			s.send(responsePDU(6, 11, 6))
			require.Equal(t, iscsi.OpSCSIResponse, s.event().pdu.Opcode())
			s.quiet()
		})
	}
}

// TestAbortBeforeTheCommandIsSent: the command keeps its place in CmdSN order and its immediate data.
func TestAbortBeforeTheCommandIsSent(t *testing.T) {
	play(t, false, 100, params(), func(s *script) {
		require.NoError(t, s.d.SendControl(nopOutPDU(1, octets(1, 4000)), nil))
		out := octets(2, 2000)
		p := commandPDU(6, 0x20)
		p.Data = out[:1000]
		require.NoError(t, s.d.SendControl(p, &iscsi.TaskBuffers{Out: &heap{out}, OutLen: 2000, Unsolicited: 1000}))
		synctest.Wait()
		s.d.DeallocateTaskResources(6)
		clear(out)
		require.Equal(t, iscsi.OpNOPOut, s.receive().Opcode())
		require.Equal(t, octets(2, 1000), s.receive().Data)
	})
}

// TestDigestsBeginAfterTheFinalResponse: a target may send at once what comes after its final Login
// Response, with digests; the initiator waits until its layer above has switched.
func TestDigestsBeginAfterTheFinalResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, peer := sock.MemPipe(1 << 20)
		s := &script{t: t, peer: peer, d: newOnSocket(ours, Config{}, false, nil)}
		defer s.close()
		s.d.Start(s)
		final := &iscsi.PDU{Data: []byte("a=b\x00")}
		iscsi.LoginResponse(final.BHS[:]).Init()
		final.BHS[1] = 0x80 | 1<<2 | 3
		b := s.frame(final)
		s.headerDigest, s.dataDigest = true, true
		ping := nopInPDU(3)
		ping.Data = []byte("ping")
		s.write(append(b, s.frame(ping)...))
		require.Equal(t, final.Data, s.event().pdu.Data)
		s.quiet()
		p := params()
		p.HeaderDigest, p.DataDigest = true, true
		s.d.NoticeKeyValues(p)
		require.NoError(t, s.d.EnableDatamover(nil))
		require.Equal(t, ping.Data, s.event().pdu.Data)
		require.NoError(t, s.d.SendControl(nopOutPDU(1, []byte("pong")), nil))
		require.Equal(t, []byte("pong"), s.receive().Data, "sent with digests")
	})
}

// TestEndWhileTheLoginWaits: a layer that does not like the final Login Response can leave.
func TestEndWhileTheLoginWaits(t *testing.T) {
	for _, graceful := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours, peer := sock.MemPipe(1 << 20)
			s := &script{t: t, peer: peer, d: newOnSocket(ours, Config{}, false, nil)}
			defer s.close()
			s.d.Start(s)
			final := &iscsi.PDU{}
			iscsi.LoginResponse(final.BHS[:]).Init()
			final.BHS[1] = 0x80 | 1<<2 | 3
			s.send(final, nopInPDU(1))
			s.event()
			s.d.ConnectionTerminate(graceful)
			s.end()
			require.NoError(t, s.peer.Close())
			<-s.d.Done()
			s.quiet()
		})
	}
}

// TestTagsInUse: two tasks with one ITT cannot be told apart.
func TestTagsInUse(t *testing.T) {
	play(t, false, 1<<20, params(), func(s *script) {
		in := make([]byte, 100)
		s.begin(5, in, nil)
		b := &iscsi.TaskBuffers{In: &heap{in}, InLen: 100}
		require.Error(t, s.d.SendControl(commandPDU(5, 0x40), b))
		b.InLen = 101
		require.Error(t, s.d.SendControl(commandPDU(6, 0x40), b), "longer than its buffer")
		require.Error(t, s.d.SendControl(dataOutPDU(5, 1, 0, 0, nil, true), nil), "solicited data is the Datamover's")
		require.Error(t, s.d.PutData(&iscsi.DataIn{Buf: &heap{in}, Notify: true}))
		require.Error(t, s.d.GetData(&iscsi.DataOut{Buf: &heap{in}, Len: 1}))
		s.send(residual(responsePDU(5, 11, 0), 100))
		s.begin(5, in, nil)
	})
}
