package initiator

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

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
