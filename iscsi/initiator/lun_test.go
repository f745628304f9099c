package initiator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestReadAtAndWriteAtAreAFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		f.disk = make([]byte, rapid.IntRange(1, 64).Draw(t, "blocks")*testBlock)
		f.script = func(f *fake, p *iscsi.PDU, b *iscsi.TaskBuffers) bool {
			if !isCommand(p, scsi.OpInquiry) {
				return false
			}
			f.count(p)
			page := make([]byte, 64) // block limits: four blocks a command
			page[1], page[3], page[11] = scsi.PageBlockLimits, 60, 4
			f.good(iscsi.SCSICommand(p.BHS[:]), b.InLen-copy(b.In.Bytes()[:b.InLen], page))
			return true
		}
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		defer s.Close()
		l := s.LUN(0)
		size := len(f.disk)
		model := make([]byte, size)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				off := rapid.IntRange(0, size).Draw(t, "off")
				p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "b")}, rapid.IntRange(0, size-off).Draw(t, "n"))
				n, err := l.WriteAt(p, int64(off))
				require.NoError(t, err)
				require.Equal(t, len(p), n)
				copy(model[off:], p)
			},
			"read": func(t *rapid.T) {
				off := rapid.IntRange(0, size+2).Draw(t, "off")
				p := make([]byte, rapid.IntRange(0, size+10).Draw(t, "n"))
				n, err := l.ReadAt(p, int64(off))
				want := bytes.NewReader(model)
				q := make([]byte, len(p))
				m, werr := want.ReadAt(q, int64(off))
				require.Equal(t, m, n)
				require.Equal(t, q[:m], p[:n])
				require.Equal(t, werr, err)
			},
			"beyond": func(t *rapid.T) {
				_, err := l.WriteAt(make([]byte, size+1), 0)
				require.ErrorIs(t, err, io.ErrShortWrite)
				_, err = l.WriteAt([]byte{1}, -1)
				require.Error(t, err)
				_, err = l.ReadAt([]byte{1}, -1)
				require.Error(t, err)
			},
		})
		require.Equal(t, model, f.disk)
	})
}

func TestLargeTransfersOverlapAndKeepTheirOrder(t *testing.T) {
	f := newFake()
	f.disk = make([]byte, 8<<20)
	s := start(t, f)
	p := make([]byte, 7<<20+300)
	for i := range p {
		p[i] = byte(i * 31 >> 8)
	}
	n, err := s.LUN(0).WriteAt(p, 1<<19+77)
	require.NoError(t, err)
	require.Equal(t, len(p), n)
	require.Equal(t, p, f.disk[1<<19+77:][:len(p)])
	q := make([]byte, len(p))
	_, err = s.LUN(0).ReadAt(q, 1<<19+77)
	require.NoError(t, err)
	require.Equal(t, p, q)
}

func TestFailureInTheMiddleOfATransfer(t *testing.T) {
	f := newFake()
	f.disk = make([]byte, 16<<20)
	reads := 0
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if !isCommand(p, scsi.OpRead10) {
			return false
		}
		if reads++; reads != 4 {
			return false
		}
		f.count(p)
		f.sense(iscsi.SCSICommand(p.BHS[:]), scsi.KeyMediumError, 0x1100)
		return true
	}
	s := start(t, f)
	n, err := s.LUN(0).ReadAt(make([]byte, len(f.disk)), 0)
	require.ErrorIs(t, err, scsi.KeyMediumError.Err())
	require.Equal(t, 3*maxTransfer, n)
	require.NoError(t, s.LUN(0).TestUnitReady(t.Context()))
	require.Zero(t, s.inFlight)
}

func TestUnitAttentionsAreRetriedWithinBounds(t *testing.T) {
	f := newFake()
	left := 3
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() != iscsi.OpSCSICommand || left == 0 {
			return false
		}
		left--
		f.count(p)
		f.sense(iscsi.SCSICommand(p.BHS[:]), scsi.KeyUnitAttention, 0x2900)
		return true
	}
	s := start(t, f)
	l := s.LUN(0)
	_, err := l.ReadAt(make([]byte, 100), 0)
	require.NoError(t, err)
	left = 2
	buf, err := s.Alloc(testBlock)
	require.NoError(t, err)
	defer buf.Release()
	require.NoError(t, l.ReadBuf(t.Context(), 0, 1, buf))
	left = 1
	cdb := scsi.TestUnitReady()
	_, err = l.Do(t.Context(), cdb[:], nil, nil)
	require.ErrorIs(t, err, scsi.KeyUnitAttention.Err(), "Do shows what came")
	left = 1 << 30
	require.ErrorIs(t, l.TestUnitReady(t.Context()), scsi.KeyUnitAttention.Err())
	require.Equal(t, 1<<30-1-maxAttentions, left)
}

func TestBusyIsRetriedWithGrowingPauses(t *testing.T) {
	for _, st := range []scsi.Status{scsi.StatusBusy, scsi.StatusTaskSetFull} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			var at []time.Duration
			begun := time.Now()
			until := 1 << 30
			f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
				if !isCommand(p, scsi.OpTestUnitReady) {
					return false
				}
				if at = append(at, time.Since(begun)); len(at) > until {
					return false
				}
				f.count(p)
				f.status(iscsi.SCSICommand(p.BHS[:]), st)
				return true
			}
			s, err := Login(context.Background(), f, testConfig())
			require.NoError(t, err)
			defer s.Close()
			var e *scsi.Error
			require.ErrorAs(t, s.LUN(0).TestUnitReady(context.Background()), &e)
			require.Equal(t, st, e.Status)
			require.Len(t, at, 1+maxBusy, "bounded")
			require.Equal(t, 10*time.Millisecond, at[1]-at[0])
			require.Equal(t, 20*time.Millisecond, at[2]-at[1])
			require.Equal(t, time.Second, at[maxBusy]-at[maxBusy-1])

			at, until = nil, 3
			require.NoError(t, s.LUN(0).TestUnitReady(context.Background()))

			at, until = nil, 1<<30
			ctx, cancel := context.WithTimeout(context.Background(), 25*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.LUN(0).TestUnitReady(ctx), context.DeadlineExceeded)
			require.Len(t, at, 2)
		})
	}
}

// abortScript holds TEST UNIT READY back and answers ABORT TASK by answer.
func abortScript(f *fake, answer func(f *fake, h *held, req iscsi.TaskMgmtRequest)) *held {
	h := hold(f)
	commands := f.script
	f.script = func(f *fake, p *iscsi.PDU, t *iscsi.TaskBuffers) bool {
		if p.Opcode() == iscsi.OpTaskMgmtReq {
			answer(f, h, bytes.Clone(p.BHS[:]))
			return true
		}
		return commands(f, p, t)
	}
	return h
}

func TestContextEndAbortsTheTask(t *testing.T) { // RFC 7143, section 11.5
	for name, tc := range map[string]struct {
		answer func(f *fake, h *held, req iscsi.TaskMgmtRequest)
		want   error // nil: the command itself
		lost   bool
	}{
		"aborted": {func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			c := h.take()[0]
			if !req.Immediate() || req.Function() != iscsi.AbortTask || req.RTT() != c.ITT() || req.RefCmdSN() != c.CmdSN() || req.LUN() != c.LUN() || req.CmdSN() != c.CmdSN()+1 {
				panic(req.String())
			}
			f.answerTask(req.ITT(), iscsi.TaskComplete)
			f.good(c, 0) // too late: nobody must be confused by it
		}, context.DeadlineExceeded, false},
		"ended just before": {func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			f.good(h.take()[0], 0)
			f.answerTask(req.ITT(), iscsi.TaskNoTask)
		}, nil, false},
		"unknown to the target": {func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			h.take()
			f.answerTask(req.ITT(), iscsi.TaskNoTask)
		}, context.DeadlineExceeded, false},
		"refused": {func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			f.answerTask(req.ITT(), iscsi.TaskFunctionRejected)
		}, iscsi.ErrConnection, true},
		"rejected": {func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			q := new(iscsi.PDU)
			r := iscsi.Reject(q.BHS[:])
			r.Init()
			r.SetReason(iscsi.RejectNotSupported)
			q.Data = req
			f.up(q, true)
		}, iscsi.ErrConnection, true},
		"not answered": {func(*fake, *held, iscsi.TaskMgmtRequest) {}, ErrAbortUnanswered, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				abortScript(f, tc.answer)
				s, err := Login(context.Background(), f, testConfig())
				require.NoError(t, err)
				defer s.Close()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				begun := time.Now()
				err = s.LUN(3).TestUnitReady(ctx)
				if tc.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, tc.want)
				}
				if tc.lost {
					<-s.Done()
					require.LessOrEqual(t, time.Since(begun), time.Second+2*DefaultAbortTimeout)
					return
				}
				require.NoError(t, s.Ping(context.Background()), "the session lives")
				if tc.want != nil {
					require.Len(t, f.dead, 1, "the Datamover was told")
				}
			})
		})
	}
}

func TestCancelOfASubmittedCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.window, f.tgt.Window = 1, 1
		h := abortScript(f, func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
			f.answerTask(req.ITT(), iscsi.TaskComplete)
		})
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		defer s.Close()
		f.window = 0
		var ended []string
		l := s.LUN(0)
		mk := func(name string) *Request {
			return &Request{CDB: scsi.TestUnitReady(), Context: name, Done: func(r *Request) {
				require.ErrorIs(t, r.Err, ErrAborted)
				ended = append(ended, r.Context.(string))
			}}
		}
		sent, queued := mk("sent"), mk("queued")
		require.NoError(t, l.Submit(sent, queued))
		synctest.Wait()
		require.Len(t, h.take(), 1)
		l.Cancel(queued)
		require.Equal(t, []string{"queued"}, ended)
		l.Cancel(sent)
		require.Equal(t, []string{"queued", "sent"}, ended, "Done was called before Cancel returned")
		l.Cancel(sent) // has ended: nothing to do
		require.Error(t, l.Submit(&Request{}), "no Done")
	})
}

func TestResetEndsTheTasksOfItsScope(t *testing.T) { // RFC 7143, section 4.2.3.3
	for _, tc := range []struct {
		fn   iscsi.TaskFunction
		code iscsi.TaskResponse
		want []bool // ended: LUN 0, LUN 1
	}{
		{iscsi.LogicalUnitReset, iscsi.TaskComplete, []bool{false, true}},
		{iscsi.AbortTaskSet, iscsi.TaskComplete, []bool{false, true}},
		{iscsi.ClearTaskSet, iscsi.TaskComplete, []bool{false, true}},
		{iscsi.TargetWarmReset, iscsi.TaskComplete, []bool{true, true}},
		{iscsi.QueryTaskSet, iscsi.TaskSucceeded, []bool{false, false}},
		{iscsi.ClearACA, iscsi.TaskComplete, []bool{false, false}},
		{iscsi.LogicalUnitReset, iscsi.TaskNotAuthorized, []bool{false, false}},
		{iscsi.QueryAsyncEvent, iscsi.TaskNotSupported, []bool{false, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.tgt.Window = 4
			abortScript(f, func(f *fake, h *held, req iscsi.TaskMgmtRequest) {
				require.Equal(t, tc.fn, req.Function())
				require.Equal(t, iscsi.ReservedTag, req.RTT())
				f.answerTask(req.ITT(), tc.code)
			})
			s, err := Login(context.Background(), f, testConfig())
			require.NoError(t, err)
			defer s.Close()
			ended := make([]bool, 2)
			for i := range ended {
				require.NoError(t, s.LUN(uint16(i)).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { ended[i] = errors.Is(r.Err, ErrAborted) }}))
			}
			code, err := s.TaskManagement(context.Background(), tc.fn, scsi.EncodeLUN(1))
			require.NoError(t, err)
			require.Equal(t, tc.code, code)
			synctest.Wait()
			require.Equal(t, tc.want, ended, "%v", tc.fn)
		})
	}
}

func TestLogoutWaitsForCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		ended := false
		require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { ended = r.Err == nil }}))
		out := make(chan error, 1)
		go func() { out <- s.Logout(context.Background()) }()
		synctest.Wait()
		require.Empty(t, out)
		cmds := h.take()
		f.do(func() { f.good(cmds[0], 0) })
		require.NoError(t, <-out)
		require.True(t, ended)
	})
}

func TestLogoutGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		hold(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		var ended error
		require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { ended = r.Err }}))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Logout(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, ended, ErrClosed)
	})
}

func TestManyCallersShareASession(t *testing.T) {
	f := newFake()
	f.window, f.tgt.Window = 3, 3
	s := start(t, f)
	l := s.LUN(0)
	errs := make(chan error)
	for i := range 16 {
		go func() {
			p, q := bytes.Repeat([]byte{byte(i + 1)}, 3*testBlock), make([]byte, 3*testBlock)
			for range 20 {
				if _, err := l.WriteAt(p, int64(i*4*testBlock)); err != nil {
					errs <- err
					return
				}
				if _, err := l.ReadAt(q, int64(i*4*testBlock)); err != nil || !bytes.Equal(p, q) {
					errs <- errors.Join(err, errors.New("read back"))
					return
				}
			}
			errs <- nil
		}()
	}
	for range 16 {
		require.NoError(t, <-errs)
	}
}

func TestCommandsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFake()
	s := start(t, f)
	l := s.LUN(0)
	buf, err := s.Alloc(8 * testBlock)
	require.NoError(t, err)
	defer buf.Release()
	ctx := t.Context()
	require.NoError(t, l.WriteBuf(ctx, 0, 8, buf))
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if l.ReadBuf(ctx, 8, 8, buf) != nil || l.WriteBuf(ctx, 8, 8, buf) != nil {
			panic("failed")
		}
	}))

	done := make(chan struct{}, 8)
	reqs := make([]*Request, 8)
	for i := range reqs {
		reqs[i] = &Request{Done: func(*Request) { done <- struct{}{} }}
	}
	require.Zero(t, testing.AllocsPerRun(200, func() {
		for i, r := range reqs {
			l.PrepareRead(r, uint64(i), 1, testBlock, buf)
		}
		if l.Submit(reqs...) != nil {
			panic("failed")
		}
		for range reqs {
			<-done
		}
	}))
}

func BenchmarkReadBuf(b *testing.B) {
	f := newFake()
	s := start(b, f)
	l := s.LUN(0)
	buf, err := s.Alloc(8 * testBlock)
	require.NoError(b, err)
	defer buf.Release()
	ctx := b.Context()
	require.NoError(b, l.ReadBuf(ctx, 0, 8, buf))
	b.ReportAllocs()
	b.SetBytes(8 * testBlock)
	for b.Loop() {
		if err := l.ReadBuf(ctx, 0, 8, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func TestManyAbortsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.window, f.tgt.Window = 64, 64
		open := 0
		abortScript(f, func(f *fake, _ *held, req iscsi.TaskMgmtRequest) {
			if open++; open > 1 {
				panic("a second task management request before the first was answered")
			}
			f.do(func() {
				open--
				f.answerTask(req.ITT(), iscsi.TaskComplete)
			})
		})
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		defer s.Close()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 100)
		for range 100 { // some of them still wait for the window
			go func() { ended <- s.LUN(0).TestUnitReady(ctx) }()
		}
		synctest.Wait()
		cancel()
		for range 100 {
			require.ErrorIs(t, <-ended, context.Canceled)
		}
		require.NoError(t, s.Ping(context.Background()), "the session lives")
		require.Zero(t, s.inFlight)
	})
}
