package target

import (
	"context"
	"log/slog"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// sequenceTimeout is how long unsolicited data that was announced may be silent before the rest of it is asked for by R2T
// (RFC 7143, section 7.1.4.1), at ErrorRecoveryLevel > 0.
const sequenceTimeout = 5 * time.Second

var _ iscsi.RecoveryNotifier = (*conn)(nil)

// RejectNotify implements iscsi.RecoveryNotifier.
func (c *conn) RejectNotify(r *iscsi.Rejection) {
	c.upcall()
	if c.state == stateFull {
		c.rejectLost(r)
		h := iscsi.BHS(r.BHS[:])
		if h.Opcode() == iscsi.OpDataOut && h.TTT() == iscsi.ReservedTag {
			c.unsolicitedLost(iscsi.DataOutPDU(r.BHS[:]))
		}
		if t := c.tasks[h.ITT()]; r.Unrecoverable && t != nil && t.conn == c {
			t.failLost(scsi.CodeSNACKRejected)
		}
	}
	c.unlock()
	c.runInline()
}

// rejectLost rejects a PDU that the Datamover has discarded. Its number, if it has one, counts as not received (RFC 7143, section 7.3).
func (c *conn) rejectLost(r *iscsi.Rejection) {
	c.counters.Rejects++
	level := slog.LevelWarn
	if c.counters.Rejects > loudRejects {
		level = slog.LevelDebug
	}
	h := iscsi.BHS(r.BHS[:])
	c.log.Log(context.Background(), level, "rejected", "pdu", h.Opcode(), "itt", h.ITT(), "reason", r.Reason, "why", r.Detail)
	p := c.pdus.get()
	j := iscsi.Reject(p.BHS[:])
	j.Init()
	j.SetReason(r.Reason)
	j.SetDataSN(r.DataSN)
	p.Data = append(p.Room[:0], r.BHS[:]...)
	c.respond(p)
}

// inSequence tells whether unsolicited data of a task is the next to come. If it is not, data before it was lost: the rest of the
// sequence is passed over, and asked for at its end. c.mu is held.
func (c *conn) inSequence(t *task, h iscsi.DataOutPDU) bool {
	o := &t.out
	switch {
	case iscsi.SN(h.DataSN()).Less(iscsi.SN(o.dataSN)): // a second time
		return false
	case !t.rec.outLost && h.DataSN() == o.dataSN && int64(h.Offset()) == o.received:
		return true
	}
	c.unsolicitedLost(h)
	return false
}

// unsolicitedLost notes that a PDU of a task's unsolicited data is not to be had. c.mu is held.
func (c *conn) unsolicitedLost(h iscsi.DataOutPDU) {
	t := c.tasks[h.ITT()]
	if t == nil || t.conn != c || !t.out.open {
		return
	}
	t.rec.outLost = true
	t.out.dataSN = h.DataSN() + 1
	if h.Final() {
		t.out.open = false
		c.unsolicitedMoved(t)
	}
}

// mayAskAgain counts the times that data of a task was asked for again, up to a bound.
func (t *task) mayAskAgain() bool {
	if t.rec.asks++; t.rec.asks <= maxAsks {
		return true
	}
	t.failLost(scsi.CodeProtocolServiceCRC)
	return false
}

// watchUnsolicited has unsolicited data that stops coming asked for. c.mu is held.
func (c *conn) watchUnsolicited() {
	if c.seqTimer == nil {
		c.seqTimer = time.AfterFunc(sequenceTimeout, c.sequenceAlarm)
	}
}

func (c *conn) sequenceAlarm() {
	c.mu.Lock()
	defer c.unlock()
	c.seqTimer = nil
	if c.state != stateFull {
		return
	}
	again := false
	for _, t := range c.tasks {
		o := &t.out
		if t.conn != c || !o.open {
			continue
		}
		if now := uint64(o.dataSN)<<32 | uint64(uint32(o.received)) + 1; t.rec.seen != now {
			t.rec.seen, again = now, true
			continue
		}
		t.rec.outLost, o.open = true, false
		c.unsolicitedMoved(t)
	}
	if again {
		c.watchUnsolicited()
	}
}
