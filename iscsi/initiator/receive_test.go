package initiator

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestTargetPing(t *testing.T) { // RFC 7143, sections 11.18 and 11.19
	f := newFake()
	got := make(chan iscsi.PDU, 1)
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() == iscsi.OpNOPOut && iscsi.NOPOut(p.BHS[:]).ITT() == iscsi.ReservedTag {
			got <- iscsi.PDU{BHS: p.BHS, Data: p.Data}
		}
		return false
	}
	s := start(t, f)
	ping := func(ttt uint32) {
		f.do(func() {
			p := new(iscsi.PDU)
			n := iscsi.NOPIn(p.BHS[:])
			n.Init()
			n.SetTTT(ttt)
			n.SetLUN(0x0005000000000000)
			f.up(p, false)
		})
	}
	ping(0x02e40001)
	p := <-got
	n := iscsi.NOPOut(p.BHS[:])
	require.True(t, n.Immediate())
	require.EqualValues(t, 0x02e40001, n.TTT())
	require.EqualValues(t, 0x0005000000000000, n.LUN())
	require.EqualValues(t, 1, n.CmdSN(), "the next command's number, not used up")
	require.EqualValues(t, f.stat, n.ExpStatSN())
	require.Empty(t, p.Data)
	require.NoError(t, s.LUN(0).TestUnitReady(t.Context()), "the same StatSN is accepted")
	require.NoError(t, s.LUN(0).TestUnitReady(t.Context()))

	ping(iscsi.ReservedTag)
	require.NoError(t, s.Ping(t.Context()))
	require.Empty(t, got, "nothing is owed to the reserved tag")
}

func TestStatSNOutOfOrderEndsTheSession(t *testing.T) { // RFC 7143, section 7.1: ErrorRecoveryLevel 0
	for _, by := range []iscsi.SN{^iscsi.SN(0), 1, 1 << 31} {
		f := newFake()
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if isCommand(p, scsi.OpTestUnitReady) {
				f.stat += by
			}
			return false
		}
		s := start(t, f)
		err := s.LUN(0).TestUnitReady(t.Context())
		require.ErrorIs(t, err, iscsi.ErrConnection)
		var pe *iscsi.ProtocolError
		require.ErrorAs(t, err, &pe)
		require.Contains(t, err.Error(), "StatSN")
		<-s.Done()
	}
}

func TestStrayAnswersAreIgnoredAndLogged(t *testing.T) {
	var log bytes.Buffer
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if isCommand(p, scsi.OpTestUnitReady) {
			c := iscsi.SCSICommand(p.BHS[:])
			for _, itt := range []uint32{c.ITT() + 1<<16, c.ITT() + 1, 0x0000fff0, 0xfffe0000} {
				f.response(itt)
				f.up(&f.rsp, true)
			}
			f.answerTask(0x77, iscsi.TaskComplete)
		}
		return false
	}
	s := start(t, f, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	require.NoError(t, s.LUN(0).TestUnitReady(t.Context()))
	require.NoError(t, s.LUN(0).TestUnitReady(t.Context()), "the session goes on")
	s.Close()
	require.Equal(t, 10, strings.Count(log.String(), "iscsi answer to no task"))
}

func TestResidualsAreCheckedAndReported(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(iscsi.SCSIResponse)
		err    string
		result Result
	}{
		"exact":                   {func(iscsi.SCSIResponse) {}, "", Result{In: 8}},
		"underflow":               {func(r iscsi.SCSIResponse) { r.SetUnderflow(true); r.SetResidual(3) }, "", Result{In: 5, Residual: 3}},
		"all of it":               {func(r iscsi.SCSIResponse) { r.SetUnderflow(true); r.SetResidual(8) }, "", Result{Residual: 8}},
		"overflow":                {func(r iscsi.SCSIResponse) { r.SetOverflow(true); r.SetResidual(24) }, "", Result{In: 8, Overflow: true, Residual: 24}},
		"more than there was":     {func(r iscsi.SCSIResponse) { r.SetUnderflow(true); r.SetResidual(9) }, "residual of 9, expected 8 octets", Result{}},
		"far more than there was": {func(r iscsi.SCSIResponse) { r.SetUnderflow(true); r.SetResidual(1<<32 - 1) }, "residual of 4294967295", Result{}},
		"no status":               {func(r iscsi.SCSIResponse) { r.SetResponse(iscsi.ResponseTargetFailure) }, "target failure", Result{}},
		"vendor's response":       {func(r iscsi.SCSIResponse) { r.SetResponse(0x80) }, "iSCSI response 0x80", Result{}},
		"without flag":            {func(r iscsi.SCSIResponse) { r.SetResidual(5) }, "", Result{In: 8}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
				if !isCommand(p, scsi.OpReadCapacity10) {
					return false
				}
				f.count(p)
				tc.set(f.response(iscsi.BHS(p.BHS[:]).ITT()))
				f.up(&f.rsp, true)
				return true
			}
			s := start(t, f)
			cdb := scsi.ReadCapacity10()
			res, err := s.LUN(0).Do(t.Context(), cdb[:], make([]byte, 8), nil)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tc.result, res)
			if strings.Contains(tc.err, "residual") { // what lies about lengths is not asked again
				<-s.Done()
				var pe *iscsi.ProtocolError
				require.ErrorAs(t, s.Err(), &pe)
				return
			}
			require.NoError(t, s.LUN(0).TestUnitReady(t.Context()))
		})
	}
}

func TestShortReadIsNoRead(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if !isCommand(p, scsi.OpRead10) {
			return false
		}
		f.count(p)
		f.good(iscsi.SCSICommand(p.BHS[:]), 512)
		return true
	}
	s := start(t, f)
	b := make([]byte, 1024)
	n, err := s.LUN(0).ReadAt(b, 0)
	require.Zero(t, n)
	require.ErrorIs(t, err, ErrShort)
	buf, err := s.Alloc(1024)
	require.NoError(t, err)
	defer buf.Release()
	require.ErrorIs(t, s.LUN(0).ReadBuf(t.Context(), 0, 2, buf), ErrShort)
}

func TestUnexpectedPDUsEndTheSession(t *testing.T) {
	for _, op := range []iscsi.Opcode{iscsi.OpLoginRsp, iscsi.OpDataIn, iscsi.OpR2T, iscsi.OpSCSICommand, 0x3c, 0x2a} {
		f := newFake()
		s := start(t, f)
		f.do(func() {
			p := new(iscsi.PDU)
			p.BHS[0], p.BHS[1], p.BHS[47] = byte(op), 0x80, 1
			f.up(p, false)
		})
		<-s.Done()
		var pe *iscsi.ProtocolError
		require.ErrorAs(t, s.Err(), &pe, "%v", op)
		require.Equal(t, op, pe.Opcode)
	}
}

func TestReject(t *testing.T) { // RFC 7143, sections 7.3 and 11.17
	for _, counted := range []bool{false, true} {
		f := newFake()
		var plugged []iscsi.SN
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			h := iscsi.BHS(p.BHS[:])
			if p.Opcode() == iscsi.OpNOPOut && !h.Immediate() {
				plugged = append(plugged, h.CmdSN())
			}
			if !isCommand(p, scsi.OpTestUnitReady) || h.CmdSN() != 1 {
				return false
			}
			if counted {
				f.count(p)
			}
			q := new(iscsi.PDU)
			r := iscsi.Reject(q.BHS[:])
			r.Init()
			r.SetReason(iscsi.RejectInvalidField)
			q.Data = bytes.Clone(p.BHS[:])
			f.up(q, true)
			return true
		}
		s := start(t, f)
		err := s.LUN(0).TestUnitReady(t.Context())
		var re *RejectError
		require.ErrorAs(t, err, &re)
		require.Equal(t, RejectError{iscsi.OpSCSICommand, iscsi.RejectInvalidField}, *re)
		for range 40 { // more than the window: its left end moves on
			require.NoError(t, s.LUN(0).TestUnitReady(t.Context()))
		}
		s.Close()
		require.Len(t, f.dead, 1)
		if counted {
			require.Empty(t, plugged)
		} else {
			require.Equal(t, []iscsi.SN{1}, plugged)
		}
	}
}

func TestRejectOfNothingKnown(t *testing.T) {
	f := newFake()
	s := start(t, f)
	f.do(func() {
		for _, data := range [][]byte{nil, {1}, make([]byte, 48), bytes.Repeat([]byte{0xff}, 48)} {
			q := new(iscsi.PDU)
			r := iscsi.Reject(q.BHS[:])
			r.Init()
			r.SetReason(iscsi.RejectProtocolError)
			q.Data = data
			f.up(q, true)
		}
	})
	require.NoError(t, s.Ping(t.Context()))
}

func async(f *fake, e iscsi.AsyncEvent) {
	p := new(iscsi.PDU)
	a := iscsi.AsyncMessage(p.BHS[:])
	a.Init()
	a.SetEvent(e)
	a.SetParameter3(5)
	f.up(p, true)
}

func TestTargetAsksForALogout(t *testing.T) { // RFC 7143, section 11.9.1
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		var ended error
		pending := true
		require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { ended, pending = r.Err, false }}))
		synctest.Wait()
		f.do(func() { async(f, iscsi.AsyncLogout) })
		f.do(func() { async(f, iscsi.AsyncLogout) })
		synctest.Wait()
		require.True(t, pending, "what is under way may end")
		require.Error(t, s.LUN(0).TestUnitReady(context.Background()), "nothing new is taken")
		cmds := h.take()
		f.do(func() { f.good(cmds[0], 0) })
		<-s.Done()
		require.NoError(t, ended)
		require.ErrorIs(t, s.Err(), ErrLogoutRequested)
		require.True(t, f.graceful)
	})
}

func TestTargetDropsTheSession(t *testing.T) {
	for _, e := range []iscsi.AsyncEvent{iscsi.AsyncDropConnection, iscsi.AsyncDropSession} {
		f := newFake()
		s := start(t, f)
		f.do(func() { async(f, e) })
		<-s.Done()
		require.ErrorIs(t, s.Err(), ErrDropped)
	}
	f := newFake()
	s := start(t, f)
	f.do(func() {
		for _, e := range []iscsi.AsyncEvent{iscsi.AsyncSense, iscsi.AsyncNegotiate, iscsi.AsyncTaskTerminated, iscsi.AsyncVendor, 77} {
			async(f, e)
		}
	})
	require.NoError(t, s.Ping(t.Context()), "other events change nothing")
}

func FuzzSession(f *testing.F) {
	f.Add([]byte{0x21, 0x80}, []byte{0x20, 0x80}, []byte{0, 2, 1, 2})
	f.Add([]byte{0x3f, 0x80}, []byte{0x32, 0x80}, bytes.Repeat([]byte{0}, 48))
	f.Add([]byte{0x22, 0x80}, []byte{0x24, 0x80}, []byte("A=b\x00"))
	f.Fuzz(func(t *testing.T, one, two, data []byte) {
		k := newFake()
		h := hold(k)
		s, err := Login(context.Background(), k, testConfig())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ended := make(chan struct{}, 2)
		for range 2 {
			_ = s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(*Request) { ended <- struct{}{} }})
		}
		gone := make(chan struct{})
		k.do(func() {
			for _, in := range [][]byte{one, two} {
				p := new(iscsi.PDU)
				copy(p.BHS[:], in)
				p.Data = data
				k.n.ControlNotify(p)
			}
			close(gone)
		})
		select {
		case <-gone:
		case <-s.Done():
		}
		s.Close()
		<-ended
		<-ended
		_ = h
	})
}

func TestAnswerOfAnotherKindEndsTheSession(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() != iscsi.OpNOPOut {
			return false
		}
		f.answerTask(iscsi.BHS(p.BHS[:]).ITT(), iscsi.TaskComplete)
		return true
	}
	s := start(t, f)
	err := s.Ping(t.Context())
	var pe *iscsi.ProtocolError
	require.ErrorAs(t, err, &pe)
	require.ErrorIs(t, err, iscsi.ErrConnection)
}
