package target

import (
	"context"
	"errors"
	"sync"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// errAborted is what a command's Transfer and context say once the task has been aborted.
var errAborted = errors.New("target: task aborted")

// phase is where a task stands on its way:
//
//	waitUnit --> waitMemory --> collect --> ready --> running --> (ended)
//	    |            |             |          |          |
//	    +------------+-------------+----------+          +-- aborted: a zombie until its store lets go
//	    aborted: ended at once
type phase uint8

const (
	waitUnit   phase = iota // not admitted by the logical unit: a barrier or a fence stands before it
	waitMemory              // in the connection's queue for buffers
	collect                 // data-out is under way
	ready                   // waiting for a worker
	running                 // in scsi.Device.Execute
)

// task is one SCSI command, from its PDU to its SCSI Response. Tasks are recycled, so nothing holds one beyond its end.
// Unless noted, the connection's mutex guards it.
type task struct {
	conn   *conn   // the connection that it is allegiant to; another one after a reassignment
	shared *shared // its session's
	unit   *unit
	seq    uint32 // counts the connection's tasks: tells a task from an earlier one with the same ITT

	itt       uint32
	lun       uint64
	cmdSN     iscsi.SN
	attr      iscsi.TaskAttr
	read      bool
	write     bool
	immediate bool
	plan      scsi.Plan
	cdbRoom   [iscsi.CDBLen]byte
	cdb       []byte
	inLen     int64 // Expected Data Transfer Length, per direction
	outLen    int64

	began   time.Duration // by now(): when its PDU was taken, if its unit is metered
	counted bool          // in Server.commands
	phase   phase
	aborted bool
	closing bool // a task management function waits for its data-out: nothing new is asked for, nothing executes
	told    bool // was answered with TASK ABORTED
	inline  bool // ran on the reader's goroutine
	fail    *scsi.Result
	ctx     taskContext
	cond    sync.Cond // with conn.mu: what a running task waits for has happened

	in  inData
	out outData
	rec taskRecovery

	views     []*view // idle ones
	dataInSN  uint32
	r2tSN     uint32
	sentIn    int64
	nextQueue *task // in exactly one taskQueue at a time, or none

	// The logical unit's mutex guards these.
	prev, next *task  // in unit.tasks
	turn       *turn  // whose turn it waits for, while it is queued
	round      uint64 // when it passes the limiter: see unit.stamp
	queuePrev  *task
	queueNext  *task
	queued     bool
	working    bool // a worker has taken it and not yet looked at it
	entered    bool // in unit.tasks
	admitted   bool
	zombie     bool
	fences     bool // what it does to the medium must end before others touch it
}

// reset makes a recycled task new. What has been allocated for it stays.
func (t *task) reset() {
	t.ctx.reset()
	in, out := t.in.pool(), t.out.pool()
	*t = task{conn: t.conn, shared: t.shared, views: t.views, ctx: t.ctx, in: in, out: out}
	t.cond.L = &t.shared.mu
}

// taskContext is the context of a task's execution. It makes its channel only if somebody asks for
// it, so that commands which never wait cost nothing.
type taskContext struct {
	s *contextState
}

type contextState struct {
	mu   sync.Mutex
	done chan struct{}
	err  error
}

var _ context.Context = (*taskContext)(nil)

// Deadline implements context.Context: there is none.
func (*taskContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context: there are none.
func (*taskContext) Value(any) any { return nil }

// Done implements context.Context.
func (c *taskContext) Done() <-chan struct{} {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.done == nil {
		c.s.done = make(chan struct{})
		if c.s.err != nil {
			close(c.s.done)
		}
	}
	return c.s.done
}

// Err implements context.Context.
func (c *taskContext) Err() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.err
}

func (c *taskContext) cancel() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.err == nil {
		c.s.err = context.Canceled
		if c.s.done != nil {
			close(c.s.done)
		}
	}
}

// reset prepares for the next command. A context that was cancelled is left to those who may still look at it.
func (c *taskContext) reset() {
	if c.s == nil || c.Err() != nil {
		c.s = new(contextState)
	}
}

// taskQueue is a first-in-first-out list of tasks through their nextQueue.
type taskQueue struct{ head, tail *task }

func (q *taskQueue) empty() bool { return q.head == nil }

func (q *taskQueue) push(t *task) {
	t.nextQueue = nil
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.nextQueue = t
	}
	q.tail = t
}

func (q *taskQueue) pop() *task {
	t := q.head
	if t == nil {
		return nil
	}
	if q.head = t.nextQueue; q.head == nil {
		q.tail = nil
	}
	t.nextQueue = nil
	return t
}

// remove takes t out wherever it stands.
func (q *taskQueue) remove(t *task) {
	var before *task
	for at := q.head; at != nil; before, at = at, at.nextQueue {
		if at != t {
			continue
		}
		if before == nil {
			q.head = t.nextQueue
		} else {
			before.nextQueue = t.nextQueue
		}
		if q.tail == t {
			q.tail = before
		}
		t.nextQueue = nil
		return
	}
}

// newTask takes a task from the connection's idle ones. c.mu is held.
func (c *conn) newTask() *task {
	t := c.idle.pop()
	if t == nil {
		t = &task{conn: c, shared: c.shared}
		t.cond.L = &c.shared.mu
		t.ctx.reset()
	}
	c.taskSeq++
	t.seq = c.taskSeq
	return t
}

// tag names a transfer of a task to the Datamover: which task of all that ever had the ITT, and the offset.
func (t *task) tag(off int64) uint64 { return uint64(t.seq)<<32 | uint64(uint32(off)) }

// proceed moves a task that its logical unit has admitted on: memory first, then data-out, then execution.
// c.mu is held.
func (c *conn) proceed(t *task) {
	if t.rec.parked {
		t.phase, t.rec.ready = collect, true // once it has a connection
		return
	}
	if t.fail != nil && !t.out.open {
		c.fail(t)
		return
	}
	if t.needsMemory() && (!c.memory.empty() || !t.reserve()) {
		t.phase = waitMemory
		c.memory.push(t)
		c.watchMemory()
		return
	}
	c.reserved(t)
}

// reserved goes on with a task that has its memory.
func (c *conn) reserved(t *task) {
	t.phase = collect
	c.advance(t)
}

// advance looks whether a task that collects data-out can execute, and asks for what is missing.
func (c *conn) advance(t *task) {
	if t.phase != collect || t.closing || t.rec.parked {
		return
	}
	t.fill()
	switch {
	case t.out.open:
		return // the rest of the unsolicited data will come by itself
	case t.fail != nil:
		if t.out.asked == 0 {
			c.fail(t)
		}
		return
	}
	c.solicit(t)
	if !t.out.complete() {
		return
	}
	if c.inUpcall && !t.plan.Blocks && !t.streams() {
		t.phase = running
		t.inline = true
		c.inlineTasks.push(t)
		return
	}
	t.phase = ready
	t.unit.queue(t)
}

// work is a worker's turn with a task that its logical unit's queue held.
func (t *task) work() {
	c := t.lock()
	t.unit.looked(t)
	if t.aborted {
		c.end(t)
		c.unlock()
		return
	}
	switch t.phase {
	case waitUnit:
		c.proceed(t)
		c.unlock()
	case ready:
		if t.closing {
			t.phase = collect // whoever closes it ends it
			c.unlock()
			return
		}
		t.phase = running
		c.unlock()
		t.execute()
	default:
		c.unlock()
	}
}

// execute runs the command and answers it. No lock is held.
func (t *task) execute() {
	if t.unit.retired.Load() {
		t.failRetired()
		return
	}
	r := t.shared.node.Device.Execute(&t.ctx, t.shared.sess.nexus, t.lun, t.cdb, t)
	t.lock()
	for !t.aborted && !t.rec.parked && t.in.lent > 0 {
		t.wait() // what was sent from reused buffers must be out before the task can be forgotten
	}
	c := t.conn
	switch {
	case t.aborted:
	case t.rec.lost:
		t.again()
		c.unlock()
		return
	default:
		if t.fail != nil {
			r = *t.fail
		}
		c.answer(t, &r)
	}
	c.end(t)
	c.unlock()
}

// fail ends a task that does not execute. c.mu is held.
func (c *conn) fail(t *task) {
	c.answer(t, t.fail)
	c.end(t)
}

// wait lets a running task wait for its peer or for memory; its worker's place is free meanwhile. c.mu is held.
func (t *task) wait() {
	t.unit.leaveWorker()
	t.cond.Wait()
	t.unit.rejoinWorker()
}

// abort ends a task without an answer. A running one stays with its store as a zombie; every other is gone when
// abort returns. c.mu is held.
func (c *conn) abort(t *task) {
	if t.aborted {
		return
	}
	c = t.conn // any connection of the session may ask
	t.aborted = true
	c.counters.Aborted++
	delete(c.tasks, t.itt)
	if !t.told {
		c.uncount(t)
	}
	if c.state != stateClosed {
		t.orphan()
		c.dm.DeallocateTaskResources(t.itt)
	}
	t.ctx.cancel()
	switch t.phase {
	case running:
		t.unit.zombify(t)
		t.cond.Broadcast()
		return
	case waitMemory:
		c.memory.remove(t)
	}
	if t.unit.withdraw(t) {
		c.end(t)
	}
}

// end forgets a task. c.mu is held.
func (c *conn) end(t *task) {
	if !t.aborted {
		delete(c.tasks, t.itt)
	}
	t.releaseData()
	t.unit.leave(t)
	c.active--
	t.reset()
	c.idle.push(t)
	c.kickMemory()
	c.changed.Broadcast()
	if c.draining && len(c.tasks) == 0 {
		c.finishDrain()
	}
}

// uncount gives a task's place in the command window, or among the immediate commands, back.
func (c *conn) uncount(t *task) {
	if t.counted {
		t.counted = false
		c.srv.commands.Add(-1)
	}
	if t.immediate {
		c.immediate--
	} else {
		c.inFlight--
	}
}
