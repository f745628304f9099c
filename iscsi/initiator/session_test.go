package initiator

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestSessionLife(t *testing.T) {
	f := newFake()
	s := start(t, f)
	require.True(t, f.enabled)
	require.Equal(t, iscsi.ConnectionResources{Window: DefaultQueueDepth, RecvDataSegment: 262144}, f.allocated)
	require.EqualValues(t, 9, s.Params().TSIH)
	l := s.LUN(0)
	c, err := l.Capacity(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 256, c.Blocks)
	require.NoError(t, l.TestUnitReady(t.Context()))
	require.NoError(t, l.Flush(t.Context()))
	require.NoError(t, s.Ping(t.Context()))
	luns, err := s.ReportLUNs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uint64{0}, luns)
	_, err = l.Inquiry(t.Context())
	require.ErrorIs(t, err, scsi.CodeInvalidOpcode.Err())
	require.NoError(t, s.Logout(t.Context()))
	require.True(t, f.graceful)
	require.ErrorIs(t, s.Err(), ErrClosed)
	require.ErrorIs(t, s.Err(), iscsi.ErrConnection)
	require.ErrorIs(t, l.TestUnitReady(t.Context()), iscsi.ErrConnection)
	require.Error(t, s.Logout(t.Context()))
	require.Error(t, s.Ping(t.Context()))
}

func TestLoginOverRDMAAllocatesItsReceives(t *testing.T) {
	f := newFake()
	f.info.RDMA = true
	s := start(t, f)
	require.Equal(t, 8192, f.allocated.RecvDataSegment)
	require.True(t, s.Params().RDMAExtensions)
	require.True(t, s.Params().InitialR2T && s.Params().ImmediateData)
	require.Equal(t, 8192, s.maxData)
}

func TestLoginRefused(t *testing.T) {
	f := newFake()
	f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
		return iscsi.Grant{}, iscsi.NewLoginError(iscsi.LoginNotFound, "")
	}
	_, err := Login(t.Context(), f, testConfig())
	require.EqualError(t, err, "iscsi: login refused by the target: 0203 (target not found)")
	require.True(t, f.freed, "resources allocated for nothing are given back")
	<-f.done
}

func TestLoginFollowsATargetThatMoved(t *testing.T) {
	var asked []string
	d := dialer(func(addr string) (iscsi.Datamover, error) {
		asked = append(asked, addr)
		f := newFake()
		f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
			if len(asked) < 3 {
				return iscsi.Grant{}, &iscsi.LoginError{Class: 1, Detail: 1, Address: fmt.Sprintf("10.0.0.%d", len(asked)+1)}
			}
			return iscsi.Grant{}, nil
		}
		return f, nil
	})
	s, err := Login(t.Context(), d, testConfig())
	require.NoError(t, err)
	s.Close()
	require.Equal(t, []string{"10.0.0.1:3260", "10.0.0.2:3260", "10.0.0.3:3260"}, asked)

	asked = nil
	d = func(addr string) (iscsi.Datamover, error) {
		asked = append(asked, addr)
		f := newFake()
		f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
			return iscsi.Grant{}, &iscsi.LoginError{Class: 1, Detail: 2, Address: "10.0.0.1"}
		}
		return f, nil
	}
	_, err = Login(t.Context(), d, testConfig())
	require.ErrorContains(t, err, "more than 4 redirections")
	require.Len(t, asked, 5)
}

type dialer func(addr string) (iscsi.Datamover, error)

func (d dialer) Dial(_ context.Context, addr string) (iscsi.Datamover, error) { return d(addr) }

func TestLoginEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = func(*fake, *iscsi.PDU, *iscsi.TaskBuffers) bool { return true } // says nothing
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := Login(ctx, f, testConfig())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begun))
		<-f.done
	})
}

func TestLoginWithoutEnd(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		h := iscsi.LoginRequest(p.BHS[:])
		q := new(iscsi.PDU)
		r := iscsi.LoginResponse(q.BHS[:])
		r.Init()
		r.SetCSG(h.CSG())
		r.SetISID(h.ISID())
		r.SetITT(h.ITT())
		f.n.ControlNotify(q)
		return true
	}
	_, err := Login(t.Context(), f, testConfig())
	require.ErrorContains(t, err, "no end after")
}

func TestLoginWhenTheConnectionIsLost(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		f.hangUp(errors.New("reset"))
		return true
	}
	_, err := Login(t.Context(), f, testConfig())
	require.ErrorIs(t, err, iscsi.ErrConnection)
	require.EqualError(t, err, "initiator: session with iqn.2026-11.com.example:disk ended: reset")
}

func TestBadConfig(t *testing.T) {
	c := testConfig()
	c.TargetName = ""
	_, err := Login(t.Context(), newFake(), c)
	require.Error(t, err)
	c.TargetName = "disk"
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorIs(t, err, iscsi.ErrName)
	c = testConfig()
	c.InitiatorName = "me"
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorIs(t, err, iscsi.ErrName)
	n, err := iscsi.NormalizeName(DefaultName())
	require.NoError(t, err)
	require.Equal(t, DefaultName(), n)
	require.NotEqual(t, RandomISID(), RandomISID())
	require.EqualValues(t, 0x80, RandomISID()[0])
}

// sent collects the commands that wait at the target.
type held struct {
	mu   sync.Mutex
	cmds []iscsi.SCSICommand
}

func (h *held) add(p *iscsi.PDU) {
	h.mu.Lock()
	h.cmds = append(h.cmds, iscsi.SCSICommand(bytes.Clone(p.BHS[:])))
	h.mu.Unlock()
}

func (h *held) take() []iscsi.SCSICommand {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.cmds
	h.cmds = nil
	return c
}

// hold makes f keep TEST UNIT READY commands back.
func hold(f *fake) *held {
	h := new(held)
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if !isCommand(p, scsi.OpTestUnitReady) {
			return false
		}
		f.count(p)
		h.add(p)
		return true
	}
	return h
}

func TestCommandsWaitForTheWindow(t *testing.T) { // RFC 7143, section 4.2.2.1
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.window, f.tgt.Window = 2, 2
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		defer s.Close()
		var order []iscsi.SN
		reqs := make([]*Request, 5)
		for i := range reqs {
			reqs[i] = &Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { order = append(order, r.cmdSN) }}
		}
		// The target counts commands but keeps its window shut: MaxCmdSN stays at 2.
		script := f.script
		f.script = func(f *fake, p *iscsi.PDU, t *iscsi.TaskBuffers) bool {
			if isCommand(p, scsi.OpTestUnitReady) {
				f.window--
			}
			return script(f, p, t)
		}
		require.NoError(t, s.LUN(0).Submit(reqs...))
		synctest.Wait()
		first := h.take()
		require.Len(t, first, 2, "no command beyond the window")
		require.Equal(t, []iscsi.SN{1, 2}, []iscsi.SN{first[0].CmdSN(), first[1].CmdSN()})

		// A command that waits is given up without a trace.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		require.ErrorIs(t, s.LUN(0).TestUnitReady(ctx), context.DeadlineExceeded)
		cancel()
		require.Empty(t, h.take())

		// News of the window, which neither asks for an answer nor uses a StatSN.
		f.do(func() {
			f.window = 1
			n := new(iscsi.PDU)
			iscsi.NOPIn(n.BHS[:]).Init()
			f.up(n, false)
		})
		synctest.Wait()
		third := h.take()
		require.Len(t, third, 1)
		require.EqualValues(t, 3, third[0].CmdSN())

		// Answers open it further.
		f.do(func() {
			f.window = 32
			for _, c := range append(first, third...) {
				f.good(c, 0)
			}
		})
		synctest.Wait()
		rest := h.take()
		require.Len(t, rest, 2)
		f.do(func() {
			f.good(rest[1], 0)
			f.good(rest[0], 0)
		})
		synctest.Wait()
		require.Equal(t, []iscsi.SN{1, 2, 3, 5, 4}, order)
	})
}

func TestOldWindowsAreIgnored(t *testing.T) {
	s := &Session{expCmdSN: 10, maxCmdSN: 20}
	for _, w := range [][2]iscsi.SN{{10, 8}, {9, 19}, {0xfffffff0, 5}} {
		s.window(w[0], w[1])
		require.EqualValues(t, 10, s.expCmdSN)
		require.EqualValues(t, 20, s.maxCmdSN)
	}
	s.window(12, 30)
	require.EqualValues(t, 12, s.expCmdSN)
	require.EqualValues(t, 30, s.maxCmdSN)
}

func TestQueueDepthBoundsCommandsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := hold(f)
		c := testConfig()
		c.QueueDepth = 3
		s, err := Login(context.Background(), f, c)
		require.NoError(t, err)
		defer s.Close()
		n := 0
		reqs := make([]*Request, 10)
		for i := range reqs {
			reqs[i] = &Request{CDB: scsi.TestUnitReady(), Done: func(*Request) { n++ }}
		}
		require.NoError(t, s.LUN(0).Submit(reqs...))
		for n < 10 {
			synctest.Wait()
			cmds := h.take()
			require.LessOrEqual(t, len(cmds), 3)
			require.NotEmpty(t, cmds)
			f.do(func() {
				for _, c := range cmds {
					f.good(c, 0)
				}
			})
			synctest.Wait()
		}
	})
}

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

// What leaves with a write, for every combination of the keys that decide it.
func TestUnsolicitedData(t *testing.T) { // RFC 7143, sections 4.2.5.2, 11.3 and 11.7
	for _, tc := range []struct {
		imm, r2t          bool
		first, segment, n int
		want              string // Immediate:F, then offset+length:F of each Data-Out
	}{
		{true, true, 65536, 8192, 4096, "4096:F"},
		{true, true, 65536, 8192, 16384, "8192:F"},
		{true, true, 1024, 8192, 16384, "1024:F"},
		{false, true, 65536, 8192, 4096, "0:F"},
		{true, false, 65536, 8192, 4096, "4096:F"},
		{true, false, 65536, 8192, 20480, "8192 8192+8192 16384+4096:F"},
		{true, false, 16384, 8192, 65536, "8192 8192+8192:F"},
		{true, false, 4096, 8192, 65536, "4096:F"},
		{false, false, 65536, 8192, 9216, "0 0+8192 8192+1024:F"},
		{false, false, 8192, 8192, 65536, "0 0+8192:F"},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			f := newFake()
			f.disk = make([]byte, 1<<20)
			f.tgt.Settings = iscsi.Settings{NoImmediateData: !tc.imm, UnsolicitedData: !tc.r2t, FirstBurstLength: tc.first, MaxRecvDataSegment: tc.segment}
			var got []string
			var sn uint32
			want := make([]byte, tc.n)
			for i := range want {
				want[i] = byte(i * 7)
			}
			mark := func(final bool) string {
				if final {
					return ":F"
				}
				return ""
			}
			var cmd iscsi.SCSICommand
			var bufs *iscsi.TaskBuffers
			f.script = func(f *fake, p *iscsi.PDU, b *iscsi.TaskBuffers) bool {
				switch {
				case isCommand(p, scsi.OpWrite10):
					f.count(p)
					cmd, bufs = bytes.Clone(p.BHS[:]), b
					got = append(got, fmt.Sprintf("%d%s", len(p.Data), mark(cmd.Final())))
					if !bytes.Equal(p.Data, want[:len(p.Data)]) {
						panic("immediate data")
					}
					if cmd.Final() {
						f.command(cmd, bufs)
					}
					return true
				case p.Opcode() == iscsi.OpDataOut:
					d := iscsi.DataOutPDU(p.BHS[:])
					got = append(got, fmt.Sprintf("%d+%d%s", d.Offset(), len(p.Data), mark(d.Final())))
					if d.DataSN() != sn || d.ITT() != cmd.ITT() || d.TTT() != iscsi.ReservedTag || !bytes.Equal(p.Data, want[d.Offset():][:len(p.Data)]) {
						panic(d.String())
					}
					sn++
					if d.Final() {
						f.command(cmd, bufs)
					}
					return true
				}
				return false
			}
			s := start(t, f, func(c *Config) { c.Settings.UnsolicitedData, c.Settings.FirstBurstLength = true, 1<<20 })
			n, err := s.LUN(0).WriteAt(want, 0)
			require.NoError(t, err)
			require.Equal(t, tc.n, n)
			require.Equal(t, tc.want, strings.Join(got, " "))
			require.Equal(t, want, f.disk[:tc.n])
		})
	}
}

func TestBidirectionalAndLongCommands(t *testing.T) { // RFC 7143, section 11.2.2
	f := newFake()
	got := make(chan string, 1)
	f.script = func(f *fake, p *iscsi.PDU, b *iscsi.TaskBuffers) bool {
		if !isCommand(p, 0x7f) {
			return false
		}
		f.count(p)
		c := iscsi.SCSICommand(p.BHS[:])
		if !c.Read() || !c.Write() || c.EDTL() != 512 || b.InLen != 64 || b.OutLen != 512 {
			panic(c.String())
		}
		got <- hex.EncodeToString(p.AHS)
		r := f.response(c.ITT())
		r.SetBidiUnderflow(true)
		r.SetBidiResidual(4)
		r.SetUnderflow(true)
		r.SetResidual(12)
		f.up(&f.rsp, true)
		return true
	}
	s := start(t, f)
	cdb := make([]byte, 20)
	copy(cdb, []byte{0x7f, 19: 0xaa})
	res, err := s.LUN(0).Do(t.Context(), cdb, make([]byte, 64), make([]byte, 512))
	require.NoError(t, err)
	require.Equal(t, "00050100"+"000000aa"+"00050200"+"00000040", <-got)
	require.Equal(t, Result{In: 60, Out: 500, Residual: 12}, res)
}

func TestLostConnectionEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.window, f.tgt.Window = 4, 4
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		var ended []error
		for range 8 {
			r := &Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) {
				select {
				case <-f.done:
				default:
					panic("ended before the Datamover was done with the buffers")
				}
				ended = append(ended, r.Err)
			}}
			require.NoError(t, s.LUN(0).Submit(r))
		}
		synctest.Wait()
		require.NotEmpty(t, h.take())
		f.do(func() { f.hangUp(errors.New("reset by peer")) })
		<-s.Done()
		require.Len(t, ended, 8)
		for _, err := range ended {
			require.ErrorIs(t, err, iscsi.ErrConnection)
			require.ErrorContains(t, err, "reset by peer")
		}
		s.Close()
	})
}

func TestDatamoverOutOfMemoryDelaysCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		defer s.Close()
		n, done := 0, 0
		f.refuse = func() error {
			if n >= 2 {
				return fmt.Errorf("windows: %w", iscsi.ErrNoMemory)
			}
			n++
			return nil
		}
		for range 5 {
			require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) {
				if r.Err == nil {
					done++
				}
			}}))
		}
		var sns []iscsi.SN
		for done < 5 {
			synctest.Wait()
			cmds := h.take()
			require.NotEmpty(t, cmds)
			for _, c := range cmds {
				sns = append(sns, c.CmdSN())
				f.do(func() {
					s.mu.Lock()
					n--
					s.mu.Unlock()
					f.good(c, 0)
				})
			}
			synctest.Wait()
		}
		require.Equal(t, []iscsi.SN{1, 2, 3, 4, 5}, sns, "no number is lost")

		f.refuse = func() error { return fmt.Errorf("windows: %w", iscsi.ErrNoMemory) }
		require.ErrorIs(t, s.LUN(0).TestUnitReady(context.Background()), iscsi.ErrNoMemory, "nothing else could end first")
		f.refuse = nil
		require.NoError(t, s.Ping(context.Background()))
	})
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

func TestDiscover(t *testing.T) { // RFC 7143, appendix C
	f := newFake()
	answer := "TargetName=IQN.2026-11.com.example:A\x00TargetAddress=10.0.0.1:3260,1\x00TargetAddress=[2001:db8::1]:3260,1\x00TargetName=iqn.2026-11.com.example:b\x00"
	round := 0
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() != iscsi.OpTextReq {
			return false
		}
		h := iscsi.TextRequest(p.BHS[:])
		wantTTT, wantData := iscsi.ReservedTag, "SendTargets=All\x00"
		if round > 0 {
			wantTTT, wantData = uint32(round), ""
		}
		if h.TTT() != wantTTT || string(p.Data) != wantData || !h.Final() {
			panic(h.String())
		}
		round++
		q := new(iscsi.PDU)
		r := iscsi.TextResponse(q.BHS[:])
		r.Init()
		r.SetITT(h.ITT())
		from, to := (round-1)*40, min(round*40, len(answer))
		q.Data = []byte(answer[from:to])
		if to < len(answer) {
			r.SetContinue(true)
			r.SetTTT(uint32(round))
		} else {
			r.SetFinal(true)
		}
		f.up(q, true)
		return true
	}
	c := testConfig()
	got, err := Discover(t.Context(), f, c)
	require.NoError(t, err)
	require.Equal(t, []iscsi.TargetInfo{
		{Name: "iqn.2026-11.com.example:a", Portals: []iscsi.Portal{{Addr: "10.0.0.1:3260", Group: 1, HasGroup: true}, {Addr: "[2001:db8::1]:3260", Group: 1, HasGroup: true}}},
		{Name: "iqn.2026-11.com.example:b", Portals: []iscsi.Portal{{Addr: "10.0.0.1:3260"}}},
	}, got)
	require.True(t, f.allocated.Discovery)
	require.True(t, f.graceful)
}

func TestTextWithoutEnd(t *testing.T) {
	for _, data := range []string{"", "A=b\x00"} {
		f := newFake()
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if p.Opcode() != iscsi.OpTextReq {
				return false
			}
			q := new(iscsi.PDU)
			r := iscsi.TextResponse(q.BHS[:])
			r.Init()
			r.SetITT(iscsi.BHS(p.BHS[:]).ITT())
			r.SetTTT(1)
			q.Data = []byte(data)
			f.up(q, true)
			return true
		}
		_, err := Discover(t.Context(), f, testConfig())
		require.Error(t, err)
	}
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
