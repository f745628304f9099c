package target

import (
	"errors"
	"sync"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// refusals count logins that came to nothing, by reason.
type refusals struct {
	mu     sync.Mutex // guards counts
	counts map[string]uint64
}

// countRefusal counts a login that came to nothing.
func (s *Server) countRefusal(reason string) {
	r := &s.refused
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]uint64)
	}
	r.counts[reason]++
}

// refusalReason names the kind of err: one of the login statuses, so that there are few.
func refusalReason(err error) string {
	var e *iscsi.LoginError
	if errors.As(err, &e) {
		return e.Status().Name()
	}
	return "protocol error"
}

// begin notes that a command has been taken: when, and whether there are too many in all. c.mu is held.
func (c *conn) begin(t *task) {
	t.turn = c.turnAt(t.unit)
	if c.meter != nil {
		t.began = now()
	}
	limit := int64(c.srv.live.Load().Commands)
	if limit == 0 {
		return
	}
	t.counted = true
	if c.srv.commands.Add(1) > limit && t.fail == nil {
		t.fail = &scsi.Result{Status: scsi.StatusTaskSetFull}
	}
}
