package iser_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// TestReassignedTaskHasNewSTags: a TASK REASSIGN advertises the task's memory on this connection, all of it, under the ITT of the task
// (RFC 7145, section 7.3.3).
func TestReassignedTaskHasNewSTags(t *testing.T) {
	for _, base := range []bool{false, true} {
		keys := params()
		keys.TaggedBufferForSolicitedDataOnly = base
		i, g, in, gn := pair(t, newWorld(t, setup{}), keys)
		reassign := func(itt uint32, tb *iscsi.TaskBuffers) {
			p := &iscsi.PDU{}
			h := iscsi.TaskMgmtRequest(p.BHS[:])
			h.Init()
			h.SetImmediate(true)
			h.SetFunction(iscsi.TaskReassign)
			h.SetITT(0x99)
			h.SetRTT(itt)
			require.NoError(t, i.SendControl(p, tb))
			require.Equal(t, iscsi.OpTaskMgmtReq, wait(t, gn.pdus).Opcode())
		}
		out, err := i.Alloc(8192)
		require.NoError(t, err)
		pattern(out.Bytes())
		reassign(7, &iscsi.TaskBuffers{Out: out, OutLen: 8192, Unsolicited: 4096})
		to, err := g.Alloc(8192)
		require.NoError(t, err)
		require.NoError(t, g.GetData(&iscsi.DataOut{ITT: 7, TTT: 1, Buf: to, Len: 8192, Tag: 7}))
		require.NoError(t, wait(t, gn.done))
		require.Equal(t, out.Bytes(), to.Bytes(), "what was sent unsolicited on the other connection as well")
		respond := func(itt uint32) {
			p := &iscsi.PDU{}
			h := iscsi.SCSIResponse(p.BHS[:])
			h.Init()
			h.SetITT(itt)
			require.NoError(t, g.SendControl(p, nil))
			require.Equal(t, iscsi.OpSCSIResponse, wait(t, in.pdus).Opcode())
		}
		respond(7)

		data, err := i.Alloc(4096)
		require.NoError(t, err)
		clear(data.Bytes())
		reassign(8, &iscsi.TaskBuffers{In: data, InLen: 4096})
		from, err := g.Alloc(4096)
		require.NoError(t, err)
		pattern(from.Bytes())
		want := append([]byte(nil), from.Bytes()...)
		require.NoError(t, g.PutData(&iscsi.DataIn{ITT: 8, TTT: iscsi.ReservedTag, Buf: from, Len: 4096, Final: true}))
		respond(8)
		require.Equal(t, want, data.Bytes())
		out.Release()
		to.Release()
		data.Release()
	}
}
