package target

import (
	"time"

	"goiwarp/iscsi"
)

// memoryRetry is how soon a connection whose tasks wait for memory tries again when nothing of its own has
// been released: others share the memory, and what PutData took over comes back unannounced.
const memoryRetry = 2 * time.Millisecond

// maxOrphans bounds the transfers of forgotten tasks that a connection remembers: those that had ended when their task was
// forgotten are still told of, and their buffers are ours. That can be few at a time, but which ones is
// not known, so all that were under way are remembered, the oldest given up first.
const maxOrphans = 4096

// orphan is a transfer whose task has been forgotten.
type orphan struct {
	itt uint32
	tag uint64
	buf iscsi.Buffer
}

// needsMemory tells whether the task moves data that is not used where it has arrived.
func (t *task) needsMemory() bool { return t.in.total > 0 || t.out.need > 0 && !t.out.whole }

// reserve acquires the memory that a task lives on until it ends: all or nothing. c.mu is held.
//
// A task at the head of the queue makes do with less when the connection holds nothing: then
// waiting would not help.
func (t *task) reserve() bool {
	if t.in.reserve(t) && t.out.reserve(t) {
		if len(t.in.free) > 0 || len(t.out.pieces) > 0 {
			t.conn.holders++
			t.in.holder = true
		}
		return true
	}
	t.in.release()
	t.out.releasePieces()
	return false
}

// kickMemory lets tasks that wait for memory try again, in their order. c.mu is held.
func (c *conn) kickMemory() {
	if c.kicking {
		return // a task that ended below
	}
	c.kicking = true
	for c.state == stateFull && !c.memory.empty() {
		t := c.memory.head
		if !t.reserve() {
			c.watchMemory()
			break
		}
		c.memory.pop()
		c.reserved(t)
	}
	c.kicking = false
	for t := c.starved.pop(); t != nil; t = c.starved.pop() {
		t.cond.Broadcast()
	}
}

// watchMemory has kickMemory called again soon. c.mu is held.
func (c *conn) watchMemory() {
	if c.memoryWatched || c.state == stateClosed {
		return
	}
	c.memoryWatched = true
	if c.memoryTimer == nil {
		c.memoryTimer = time.AfterFunc(memoryRetry, func() {
			c.mu.Lock()
			c.memoryWatched = false
			c.kickMemory()
			c.unlock()
		})
		return
	}
	c.memoryTimer.Reset(memoryRetry)
}

// adopt remembers a transfer of a task that is about to be forgotten. c.mu is held.
func (c *conn) adopt(itt uint32, tag uint64, buf iscsi.Buffer) {
	if len(c.orphans) < maxOrphans {
		c.orphans = append(c.orphans, orphan{itt, tag, buf})
		return
	}
	c.orphans[c.orphanAt%maxOrphans] = orphan{itt, tag, buf}
	c.orphanAt++
}

// claim releases the buffer of a transfer that ended after its task was forgotten. c.mu is held.
func (c *conn) claim(itt uint32, tag uint64) {
	for i := range c.orphans {
		if o := &c.orphans[i]; o.buf != nil && o.itt == itt && o.tag == tag {
			o.buf.Release()
			*o = orphan{}
			return
		}
	}
}
