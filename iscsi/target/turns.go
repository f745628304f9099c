package target

// turns are the runnable tasks of a unit. Connections take turns, one task each, so that one with a deep queue delays others by one
// command per turn, however many it has sent; within a connection the order of arrival stays. SIMPLE tasks may run in any order
// (SAM-5, section 8.6.1), and those that may not are not admitted before their time.
//
//	turns --> turn A: 1 2 3 4     taken: 1 5 6 2 7 3 4
//	            |
//	          turn B: 5
//	            |
//	          turn C: 6 7
//
// The unit's mutex guards all of it.
type turns struct{ now *turn }

// turn is a connection's place in the ring. It is in the ring while it has tasks.
type turn struct {
	first, last *task  // through queueNext
	prev, next  *turn  // the ring
	round       uint64 // of its last limited task: see unit.stamp
}

// push appends a task to its connection's.
func (q *turns) push(t *task) {
	w := t.turn
	t.queued = true
	t.queuePrev, t.queueNext = w.last, nil
	if w.last != nil {
		w.last.queueNext = t
		w.last = t
		return
	}
	w.first, w.last = t, t
	if q.now == nil {
		q.now, w.prev, w.next = w, w, w
		return
	}
	w.prev, w.next = q.now.prev, q.now // the last to have a turn
	w.prev.next, w.next.prev = w, w
}

// next is the task whose turn it is; nil if there is none.
func (q *turns) next() *task {
	if q.now == nil {
		return nil
	}
	return q.now.first
}

// take takes the task out whose turn it is, and passes the turn on.
func (q *turns) take() *task {
	t := q.next()
	if t != nil {
		q.now = q.now.next
		q.drop(t)
	}
	return t
}

// drop takes a task out wherever it stands.
func (q *turns) drop(t *task) {
	w := t.turn
	t.queued = false
	if t.queuePrev == nil {
		w.first = t.queueNext
	} else {
		t.queuePrev.queueNext = t.queueNext
	}
	if t.queueNext == nil {
		w.last = t.queuePrev
	} else {
		t.queueNext.queuePrev = t.queuePrev
	}
	t.queuePrev, t.queueNext = nil, nil
	if w.first != nil {
		return
	}
	if w.next == w {
		q.now = nil
	} else {
		w.prev.next, w.next.prev = w.next, w.prev
		if q.now == w {
			q.now = w.next
		}
	}
	w.prev, w.next = nil, nil
}

// turnAt is the connection's place in a unit's queue. c.mu is held.
func (c *conn) turnAt(u *unit) *turn {
	w := c.turns[u]
	if w == nil {
		if len(c.turns) >= maxTurns { // of units that were removed, most likely; those that are in use stay with their tasks
			clear(c.turns)
		}
		w = new(turn)
		c.turns[u] = w
	}
	return w
}

// maxTurns bounds the units that a connection remembers a place at.
const maxTurns = 1024
