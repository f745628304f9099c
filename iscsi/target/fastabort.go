package target

import (
	"slices"

	"goiwarp/iscsi"
)

// terminations are the connections, and the LUNs as their initiators have them, that tasks were aborted of which belong to sessions with
// TaskReporting=FastAbort. Their initiators stop sending data for these tasks when they are told by Asynchronous Messages (RFC 7143, section
// 4.2.3.4, target step d), and acknowledge that. What still comes of the data until then is accepted and thrown away: transfers that are under
// way outlive their task with their buffer (RDMA Read), or without one (R2T), so that nothing has to be held for the acknowledgement.
type terminations []termination

type termination struct {
	conn *conn
	lun  uint64
}

// note notes a task that is about to be aborted, unless issuing is its connection.
func (e *terminations) note(t *task, issuing *conn) {
	x := termination{t.conn, t.lun}
	if t.conn.fast && t.conn != issuing && t.conn.state == stateFull && !slices.Contains(*e, x) {
		*e = append(*e, x)
	}
}

// tell sends a message for each. Over RDMA an initiator that is not ready for one more such PDU gets none (RFC 7145, section 8.1.2): later it
// would be taken for news of tasks that are newer. The session's lock is held.
func (e terminations) tell() {
	for _, x := range e {
		c := x.conn
		if !c.allowUnexpected(false) {
			c.log.Debug("initiator is not ready to be told of a task termination", "lun", x.lun>>48)
			continue
		}
		p := c.pdus.get()
		h := iscsi.AsyncMessage(p.BHS[:])
		h.Init()
		h.SetEvent(iscsi.AsyncTaskTerminated)
		h.SetLUN(x.lun)
		c.countUnexpected()
		c.respond(p)
	}
}
