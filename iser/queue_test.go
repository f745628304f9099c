package iser

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// flagsQP notes how many work requests were posted, and which of them ask for a completion.
type flagsQP struct {
	rnic.QP
	signaled []bool
}

func (q *flagsQP) PostSend(wr *rnic.SendWR) error {
	for ; wr != nil; wr = wr.Next {
		q.signaled = append(q.signaled, wr.Flags&rnic.Signaled != 0)
	}
	return nil
}

// TestPDUsAskForFewCompletions: of a PDU that lies in its work request nobody has to hear, until the send queue is half full; what holds
// memory, or is waited for, asks at once.
func TestPDUsAskForFewCompletions(t *testing.T) {
	q := &flagsQP{}
	d := &Datamover{qp: q, cfg: Config{SendDepth: 8}}
	for range 6 {
		d.enqueue(d.newOp(opControl), false)
	}
	require.Equal(t, []bool{false, false, false, false, true, true}, q.signaled)

	q.signaled = nil
	d.up.Lock()
	d.completed(&rnic.Completion{ID: uint64(d.posted.tail.id), Status: rnic.StatusOK})
	d.up.Unlock()
	require.Zero(t, d.nPosted, "one completion is for all before it")
	o := d.newOp(opControl)
	o.buf = new(buffer)
	d.enqueue(d.newOp(opControl), true)
	d.enqueue(o, false)
	require.Equal(t, []bool{false, true}, q.signaled)

	q.signaled = nil
	o = d.newOp(opWrite)
	o.notify = true
	d.enqueue(o, false)
	d.phase = phaseDraining
	d.disconnected = true
	d.enqueue(d.newOp(opControl), false)
	require.Equal(t, []bool{true, true}, q.signaled)
}
