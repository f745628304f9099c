package initiator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// TestCommandsOutliveNoDeadline plays targets that never answer a command, and confirm one step or another of what follows.
func TestCommandsOutliveNoDeadline(t *testing.T) {
	const timeout = 8 * time.Second
	for name, tc := range map[string]struct {
		confirms iscsi.TaskFunction // 0: nothing
		refuses  bool               // ABORT TASK is refused instead of not answered
		after    time.Duration      // at most, beyond one tick
		lost     bool
	}{
		"abort":                 {iscsi.AbortTask, false, timeout, false},
		"reset":                 {iscsi.LogicalUnitReset, false, timeout + DefaultAbortTimeout, false},
		"reset after a refusal": {iscsi.LogicalUnitReset, true, timeout, false},
		"nothing":               {0, false, timeout + 2*DefaultAbortTimeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				var asked []iscsi.TaskFunction
				f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
					switch {
					case isCommand(p, scsi.OpRead10):
						f.count(p)
						return true
					case p.Opcode() == iscsi.OpTaskMgmtReq:
						h := iscsi.TaskMgmtRequest(p.BHS[:])
						asked = append(asked, h.Function())
						switch {
						case h.Function() == tc.confirms:
							f.answerTask(h.ITT(), iscsi.TaskComplete)
						case tc.refuses:
							f.answerTask(h.ITT(), iscsi.TaskFunctionRejected)
						}
						return true
					}
					return false
				}
				s, err := Login(context.Background(), f, func() Config {
					c := testConfig()
					c.CommandTimeout = timeout
					return c
				}())
				require.NoError(t, err)
				defer s.Close()
				begun := time.Now()
				cdb := scsi.Read(0, 1, 0)
				_, err = s.LUN(2).Do(context.Background(), cdb[:], make([]byte, testBlock), nil)
				took := time.Since(begun)
				require.GreaterOrEqual(t, took, timeout)
				require.LessOrEqual(t, took, tc.after+2*timeout/sweeps)
				if tc.lost {
					require.ErrorIs(t, err, ErrAbortUnanswered)
					require.Equal(t, []iscsi.TaskFunction{iscsi.AbortTask, iscsi.LogicalUnitReset}, asked)
					return
				}
				var te *TimeoutError
				require.ErrorAs(t, err, &te)
				require.ErrorIs(t, err, ErrTimeout)
				require.ErrorIs(t, err, ErrAborted)
				require.True(t, te.Timeout())
				require.NoError(t, s.LUN(2).TestUnitReady(context.Background()), "the session lives")
				require.Equal(t, tc.confirms, asked[len(asked)-1])
			})
		})
	}
}
