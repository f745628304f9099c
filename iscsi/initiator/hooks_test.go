package initiator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestHooksSeeEverything(t *testing.T) {
	var sent, received []iscsi.Opcode
	var commands []CommandInfo
	var attentions []scsi.Code
	var asyncs []AsyncInfo
	var states []error
	hooks := Hooks{
		PDU: func(out bool, p *iscsi.PDU) {
			if out {
				sent = append(sent, p.Opcode())
			} else {
				received = append(received, p.Opcode())
			}
		},
		Command:   func(c *CommandInfo) { commands = append(commands, *c) },
		Attention: func(_ uint64, s scsi.Sense) { attentions = append(attentions, s.Code) },
		Async:     func(a *AsyncInfo) { asyncs = append(asyncs, *a) },
		State:     func(_, _ string, err error) { states = append(states, err) },
	}
	f := newFake()
	told := false
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if !isCommand(p, scsi.OpTestUnitReady) || told {
			return false
		}
		told = true
		f.count(p)
		q := new(iscsi.PDU)
		a := iscsi.AsyncMessage(q.BHS[:])
		a.Init()
		a.SetEvent(iscsi.AsyncVendor)
		a.SetParameter2(7)
		f.up(q, true)
		f.sense(iscsi.SCSICommand(p.BHS[:]), scsi.KeyUnitAttention, scsi.CodeCapacityChanged)
		return true
	}
	c := testConfig()
	c.Hooks = hooks
	s, err := Login(context.Background(), f, c)
	require.NoError(t, err)
	require.NoError(t, s.LUN(3).TestUnitReady(t.Context()))
	cdb := scsi.Read(0, 2, 0)
	_, err = s.LUN(0).Do(t.Context(), cdb[:], make([]byte, 2*testBlock), nil)
	require.NoError(t, err)
	require.NoError(t, s.Logout(t.Context()))

	require.Contains(t, sent, iscsi.OpLoginReq)
	require.Contains(t, sent, iscsi.OpLogoutReq)
	require.Contains(t, received, iscsi.OpSCSIResponse)
	require.Len(t, commands, 3)
	require.Equal(t, scsi.StatusCheckCondition, commands[0].Status)
	require.Equal(t, scsi.EncodeLUN(3), commands[0].LUN)
	require.Equal(t, 2*testBlock, commands[2].In)
	require.Less(t, commands[2].Latency, time.Minute)
	require.Equal(t, []scsi.Code{scsi.CodeCapacityChanged}, attentions)
	require.Len(t, asyncs, 1)
	require.EqualValues(t, 7, asyncs[0].Params[1])
	require.Len(t, states, 2)
	require.NoError(t, states[0])
	require.ErrorIs(t, states[1], ErrClosed)
}
