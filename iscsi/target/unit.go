package target

import (
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// idleWorkers is how many workers of a logical unit stay for the next command, for workerIdle at most.
const (
	idleWorkers = 2
	workerIdle  = 10 * time.Second
)

// unit is one logical unit's task set (SAM-5, section 8) over all sessions, and the workers that
// run its commands.
//
//	tasks:  oldest [S] [S] [O] [S] [H] newest      S simple, O ordered, H head of queue
//	admitted:       x   x   -   -   x
//
// A task is admitted once nothing stands before it: for ORDERED tasks anything older is in the way,
// for all but HEAD OF QUEUE an older ORDERED one is. While zombies write, whatever touches the
// medium waits, too, and so do commands that the logical unit's limiter holds back. Only admitted tasks acquire memory, so those who wait hold nothing that others need.
type unit struct {
	retired atomic.Bool // the logical unit was removed: what has not begun to execute does not begin
	meter   Meter       // without effect unless Config.Meter
	limiter *scsi.Limiter

	mu       sync.Mutex // guards what follows and the unit's fields of tasks
	head     *task
	tail     *task
	ordered  int         // ORDERED tasks in the set
	waiting  int         // tasks not admitted
	timer    *time.Timer // admits what the limiter holds back; nil until it does
	timing   bool        // timer runs
	round    uint64      // of the limited task that was admitted last: see stamp
	zombies  int         // aborted tasks that may still change the medium
	quiet    chan struct{}
	drained  []chan struct{} // to be closed when the set is empty
	count    int             // tasks in the set
	turns    turns           // runnable tasks
	limit    int             // of workers
	workers  int             // goroutines that do not wait for a peer
	idle     int
	closed   bool
	wake     chan struct{}
	finished sync.WaitGroup
}

func newUnit(limit int) *unit {
	return &unit{limit: limit, wake: make(chan struct{}, maxWorkers)}
}

// enter adds a task as the newest and tells whether it is admitted; if not, it is queued for a
// worker once it is.
func (u *unit) enter(t *task) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	t.entered = true
	t.prev, t.next = u.tail, nil
	if u.tail == nil {
		u.head = t
	} else {
		u.tail.next = t
	}
	u.tail = t
	u.count++
	if t.plan.Limited {
		u.stamp(t)
	}
	// Who comes last waits behind those whom the limiter holds back.
	t.admitted = u.admits(t, t.prev != nil, u.ordered > 0) &&
		(!t.plan.Limited || (u.waiting == 0 || t.attr == iscsi.AttrHeadOfQueue) && u.passes(t))
	if t.attr == iscsi.AttrOrdered {
		u.ordered++
	}
	if !t.admitted {
		u.waiting++
	}
	return t.admitted
}

// admits applies the rule to a task, given whether older tasks, and older ORDERED ones, are in the set.
func (u *unit) admits(t *task, older, olderOrdered bool) bool {
	switch {
	case u.zombies > 0 && (t.plan.Blocks || t.plan.DataOut > 0):
		return false
	case t.attr == iscsi.AttrHeadOfQueue:
		return true
	case t.attr == iscsi.AttrOrdered:
		return !older
	}
	return !olderOrdered
}

// leave takes a task out of the set and admits those that it stood before.
func (u *unit) leave(t *task) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.remove(t)
}

func (u *unit) remove(t *task) {
	if !t.entered {
		return
	}
	t.entered = false
	if t.prev == nil {
		u.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		u.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	u.count--
	if u.head == nil {
		for _, empty := range u.drained {
			close(empty)
		}
		u.drained = nil
	}
	if t.attr == iscsi.AttrOrdered {
		u.ordered--
	}
	if !t.admitted {
		u.waiting--
		if t.plan.Limited {
			t.turn.round-- // it has had nothing of its round
		}
	}
	if t.zombie && t.fences {
		u.zombies--
		if u.zombies == 0 && u.quiet != nil {
			close(u.quiet)
			u.quiet = nil
		}
	}
	if u.waiting > 0 {
		u.admitWaiting()
	}
}

// stamp gives a limited task its round. A connection has one task in each round, so that those who share a logical unit whose rate is
// bounded get as much of it each, however many commands they have sent: start-time fair queueing with commands as the cost.
//
//	rounds     1 2 3 4 5        admitted: A1 B1 C1 A2 C2 A3 ...
//	turn A     x x x x x
//	turn B     x
//	turn C     x x
func (u *unit) stamp(t *task) {
	w := t.turn
	w.round = max(w.round+1, u.round)
	t.round = w.round
}

func (u *unit) admitWaiting() {
	for {
		var first *task // of those that the limiter has to let pass
		older, ordered := false, false
		for t := u.head; t != nil; t = t.next {
			switch {
			case t.admitted || !u.admits(t, older, ordered):
			case !t.plan.Limited:
				u.admit(t)
			case first == nil, t.attr == iscsi.AttrHeadOfQueue && first.attr != iscsi.AttrHeadOfQueue,
				t.round < first.round && (first.attr != iscsi.AttrHeadOfQueue || t.attr == iscsi.AttrHeadOfQueue):
				first = t
			}
			older = true
			ordered = ordered || t.attr == iscsi.AttrOrdered
		}
		if first == nil || !u.passes(first) {
			return
		}
		u.admit(first)
	}
}

// admit lets a task that waited run.
func (u *unit) admit(t *task) {
	t.admitted = true
	u.waiting--
	u.push(t)
}

// passes asks the logical unit's limiter to let a task pass; if it does not, the unit looks again when it may.
func (u *unit) passes(t *task) bool {
	if u.limiter == nil || u.closed {
		return true
	}
	wait := u.limiter.Take(t.plan.DataIn + t.plan.DataOut)
	switch {
	case wait == 0:
		u.round = max(u.round, t.round)
		return true
	case u.timing:
		return false
	case u.timer == nil:
		u.timer = time.AfterFunc(wait, u.timeUp)
	default:
		u.timer.Reset(wait)
	}
	u.timing = true
	return false
}

// timeUp is the limiter's time for another command.
func (u *unit) timeUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timing = false
	u.admitWaiting()
}

// zombify notes that an aborted task is still running.
func (u *unit) zombify(t *task) {
	u.mu.Lock()
	defer u.mu.Unlock()
	t.zombie = true
	if t.fences {
		u.zombies++
	}
}

// settled is closed when no aborted task can change the medium any more; nil if that is so now.
func (u *unit) settled() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.zombies == 0 {
		return nil
	}
	if u.quiet == nil {
		u.quiet = make(chan struct{})
	}
	return u.quiet
}

// queue hands a task to the workers.
func (u *unit) queue(t *task) {
	u.mu.Lock()
	u.push(t)
	u.mu.Unlock()
}

func (u *unit) push(t *task) {
	u.turns.push(t)
	u.start()
}

// start sees to it that somebody takes the oldest runnable task, unless all workers are busy.
func (u *unit) start() {
	switch {
	case u.idle > 0:
		u.idle--
		u.wake <- struct{}{} // has room for every worker
	case u.workers < u.limit:
		u.workers++
		u.finished.Add(1)
		go u.work()
	}
}

// withdraw takes an aborted task that does not run out of queue and set. If a worker has just taken it,
// it does nothing and says so: that worker ends the task.
func (u *unit) withdraw(t *task) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.working {
		return false
	}
	if t.queued {
		u.turns.drop(t)
	}
	u.remove(t)
	return true
}

// looked notes that the worker which took t holds its connection's mutex now.
func (u *unit) looked(t *task) {
	u.mu.Lock()
	t.working = false
	u.mu.Unlock()
}

// work is a worker: it takes tasks until there have been none for a while.
func (u *unit) work() {
	defer u.finished.Done()
	var timer *time.Timer
	for {
		u.mu.Lock()
		if t := u.turns.next(); t != nil && u.workers <= u.limit {
			u.turns.take()
			t.working = true
			u.mu.Unlock()
			t.work()
			continue
		}
		if u.closed || u.workers > u.limit || u.idle >= idleWorkers {
			u.workers--
			u.mu.Unlock()
			return
		}
		u.idle++
		u.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(workerIdle)
			defer timer.Stop()
		} else {
			timer.Reset(workerIdle)
		}
		select {
		case <-u.wake:
		case <-timer.C:
			u.mu.Lock()
			if u.idle > 0 {
				u.idle--
				u.workers--
				u.mu.Unlock()
				return
			}
			u.mu.Unlock()
			<-u.wake // somebody has counted on this worker
		}
	}
}

// leaveWorker frees the place of a worker that is going to wait for a peer, so that
// peers who answer slowly take none from others. How many wait so is bounded by the command windows.
func (u *unit) leaveWorker() {
	u.mu.Lock()
	u.workers--
	if u.turns.next() != nil {
		u.start()
	}
	u.mu.Unlock()
}

// rejoinWorker takes the place again, in excess of the limit for a while if it is given away.
func (u *unit) rejoinWorker() {
	u.mu.Lock()
	u.workers++
	u.mu.Unlock()
}

// close ends idle workers; the set is empty, or what is left of it will end by itself.
func (u *unit) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	if u.timer != nil {
		u.timer.Stop()
	}
	for ; u.idle > 0; u.idle-- {
		u.wake <- struct{}{}
	}
}
