package target

import (
	"context"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// maxRetired bounds the removed logical units that a target remembers. One is asked for only by a command that was taken in the same
// instant as the unit was removed, so that few are needed.
const maxRetired = 64

// ReleaseLU waits until no command of a logical unit is under way that was removed from its target's Device. Then its store can be closed,
// and its number given to another: a command that was sent to the old one never reaches the new one, since what has not begun to
// execute does not begin any more. When ctx ends before, the error is ctx's, and store and number must be left as they are.
func (s *Server) ReleaseLU(ctx context.Context, target string, lu *scsi.LU) error {
	name, err := iscsi.NormalizeName(target)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	n := s.node(name)
	if n == nil {
		return nil // its sessions have ended, or it never was
	}
	u := n.retire(lu)
	select {
	case <-u.retire():
		u.close()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("target: commands of a removed logical unit did not end: %w", ctx.Err())
	}
}

// retire keeps the task set of a removed logical unit for those that are just about to enter it.
func (n *node) retire(lu *scsi.LU) *unit {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := n.units[lu]
	if u == nil {
		u = newUnit(n.limit)
		n.units[lu] = u
	}
	old := 0
	for l, o := range n.units {
		if o != u && o.retired.Load() && o.empty() {
			if old++; old >= maxRetired {
				delete(n.units, l)
			}
		}
	}
	u.retired.Store(true)
	return u
}

// retire has every task that has not begun to execute fail from now on. The channel is closed once the set is empty.
func (u *unit) retire() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired.Store(true)
	empty := make(chan struct{})
	if u.head == nil {
		close(empty)
	} else {
		u.drained = append(u.drained, empty)
	}
	return empty
}

// empty tells that no task is in the set.
func (u *unit) empty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.head == nil
}

// failRetired answers a task whose logical unit was removed before it came to execute. No lock is held.
func (t *task) failRetired() {
	c := t.lock()
	if !t.aborted {
		r := scsi.Check(scsi.KeyIllegalRequest, scsi.CodeLUNotSupported)
		c.answer(t, &r)
	}
	c.end(t)
	c.unlock()
}
