package target

import (
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
)

// shared is what the connections of a session have in common: the command numbering, the tasks, and the lock that guards them and the
// connections (RFC 7143, sections 4.2.2.1 and 4.2.5.1). A connection that logs in has one of its own, until it is added to a session.
type shared struct {
	srv  *Server
	room int // commands in progress: Limits.Window when the session began

	mu      sync.Mutex
	changed sync.Cond // with mu: a task ended, a transfer of a closing one did, or a connection

	node      *node
	sess      *session // nil before the end of the leading login
	discovery bool
	conns     []*conn // those of the session: in full feature phase, ending, or kept for recovery
	closed    []*conn // those in stateClosed that may have come to their end
	joining   int     // logins that wait for the connection whose place they take
	ending    bool    // the session ends: nothing is kept, no connection is added
	// keepNothing: it was asked to end, so that what a connection was doing is not kept when it is dropped.
	keepNothing bool
	told        bool // its end

	expCmdSN, maxCmdSN iscsi.SN
	held               map[iscsi.SN]heldPDU
	inFlight           int // non-immediate commands in progress

	tasks   map[uint32]*task
	taskSeq uint32
	manage  map[uint32]struct{}
	meter   *Meter // nil: nothing is measured

	fencing   bool        // TaskReporting=ResponseFence or FastAbort
	fast      bool        // TaskReporting=FastAbort
	fence     *fence      // under way; nil: none
	fenceNext bool        // the next response needs one: another session has aborted tasks of this one
	swept     []*function // those that older commands may come behind

	draining   bool  // what ends the session waits for the last task: no new commands
	drainCause error // why
	counters   Counters
}

func newShared(s *Server) *shared {
	set := s.live.Load()
	h := &shared{srv: s, room: set.Window, tasks: make(map[uint32]*task), manage: make(map[uint32]struct{})}
	h.changed.L = &h.mu
	if set.Meter {
		h.meter = new(Meter)
	}
	return h
}

// sessionLock is the mutex of the session that a connection belongs to, whichever that is when the lock is taken: it changes once, when a
// login joins a session, under both locks.
type sessionLock struct{ at atomic.Pointer[shared] }

// Lock implements sync.Locker.
func (l *sessionLock) Lock() {
	for {
		h := l.at.Load()
		h.mu.Lock()
		if l.at.Load() == h {
			return
		}
		h.mu.Unlock()
	}
}

// Unlock implements sync.Locker.
func (l *sessionLock) Unlock() { l.at.Load().mu.Unlock() }

// share makes h the connection's part in a session. Both locks are held, or nobody knows the connection yet.
func (c *conn) share(h *shared) {
	c.shared = h
	c.mu.at.Store(h)
}

// takeOver are the connections that are closed and have no tasks any more, to be told of once. The session's lock is held.
func (h *shared) takeOver() (over []*conn) {
	keep := h.closed[:0]
	for _, o := range h.closed {
		if o.active > 0 || o.rec.retained || o.gone {
			if !o.gone {
				keep = append(keep, o)
			}
			continue
		}
		o.gone = true
		over = append(over, o)
		h.leave(o)
		o.last = h.over()
	}
	clear(h.closed[len(keep):])
	h.closed = keep
	return over
}

// leave takes a connection out of the session.
func (h *shared) leave(c *conn) {
	for i, o := range h.conns {
		if o == c {
			h.conns = append(h.conns[:i:i], h.conns[i+1:]...)
			break
		}
	}
	h.ending = h.ending || h.empty()
	h.changed.Broadcast()
}

// empty tells that the session has no connection any more, and none is about to take the place of one.
func (h *shared) empty() bool { return len(h.conns) == 0 && h.joining == 0 }

// over tells once that the session has come to its end.
func (h *shared) over() bool {
	if h.told || !h.empty() {
		return false
	}
	h.ending, h.told = true, true
	return true
}

// live counts the connections in full feature phase.
func (h *shared) live() (n int) {
	for _, o := range h.conns {
		if o.state == stateFull {
			n++
		}
	}
	return n
}

// depth is how many commands are accepted and not answered.
func (h *shared) depth() int {
	n := h.inFlight
	for _, o := range h.conns {
		n += o.immediate
	}
	return n
}

// byCID finds the connection with a connection ID; one that was logged out for recovery has given its ID up.
func (h *shared) byCID(cid uint16) *conn {
	for _, o := range h.conns {
		if o.params.CID == cid && !o.rec.loggedOut {
			return o
		}
	}
	return nil
}

// loseSession ends all connections for a reason, and keeps nothing. The session's lock is held.
func (h *shared) loseSession(cause error) {
	h.ending = true
	for _, o := range h.conns {
		o.expire()
		o.lose(cause)
	}
}

// dropSession ends the session in order, telling the initiator on each connection. The session's lock is held.
func (h *shared) dropSession(cause error) {
	h.letGo(nil)
	h.ending = true
	for _, o := range h.conns {
		o.expire()
		o.drop(cause)
	}
}

// lock takes the lock of the task's session, which never changes, and tells which connection the task has now.
func (t *task) lock() *conn {
	t.shared.mu.Lock()
	return t.conn
}

// each does something with all connections of a session that are there now, each under the lock.
func (ss *session) each(f func(c *conn)) {
	ss.shared.mu.Lock()
	all := append([]*conn(nil), ss.shared.conns...)
	ss.shared.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

// lose ends the session at once.
func (ss *session) lose(cause error) {
	c := ss.conn
	c.mu.Lock()
	ss.shared.loseSession(cause)
	c.unlock()
}

// current is the connection to show people: the oldest that lives, or the leading one.
func (ss *session) current() *conn {
	ss.shared.mu.Lock()
	defer ss.shared.mu.Unlock()
	for _, c := range ss.shared.conns {
		if c.state == stateFull {
			return c
		}
	}
	return ss.conn
}
