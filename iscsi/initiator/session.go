package initiator

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
)

// Session is a session with a target, of one connection or, with Settings.MaxConnections, of several: what Login returns. Its methods may be called by many goroutines at once.
type Session struct {
	dm   iscsi.Datamover
	cfg  Config
	log  *slog.Logger
	info iscsi.DatamoverInfo
	pdus pduPool

	// up is closed when the login has succeeded, done when the session has ended and all commands have.
	up, done chan struct{}

	// mu guards all below. It is held while Datamover methods are called, so that CmdSN order is sending order, and never while
	// a request's Done runs.
	mu        sync.Mutex
	state     sessionState
	cause     error // why it ends
	login     *iscsi.InitiatorLogin
	allocated bool         // connection resources
	handover  iscsi.Switch // between changeOver and awaitHandover
	params    *iscsi.Params
	maxData   int // octets of data segment that the target takes

	cmdSN, expCmdSN, maxCmdSN iscsi.SN
	expStatSN                 iscsi.SN

	slots    []slot
	free     []uint16 // slots for commands
	ctlFree  []uint16 // slots for other requests
	queue    requestList
	inFlight int
	ended    requestList // to be completed when mu is released
	answered *control    // likewise, after those
	leaving  error       // why it was logged out, from when the target's answer is due
	luns     map[uint64]*LUN
	drained  chan struct{} // closed when a logout may go out: no command queued or in flight
	strays   int
	alive    alive
	branches []*branch
	deadline deadline
	rec      recovery

	width     atomic.Int32 // connections
	recovered atomic.Uint64
	lender    atomic.Pointer[iscsi.Datamover] // the leading connection's

	// wg counts the goroutines that see a command or a logout to its end.
	wg sync.WaitGroup

	// abortTurn is held while an ABORT TASK waits for its answer.
	abortTurn chan struct{}
	// textTurn is held for the length of a text exchange, of which a connection has one at a time.
	textTurn chan struct{}
}

type sessionState uint8

const (
	sessionLogin  sessionState = iota
	sessionUp                  // full feature phase
	sessionLogout              // takes no more commands
	sessionEnding              // the connection is being terminated
	sessionDown
)

// slot is an Initiator Task Tag in use. The tag is the slot's index below and its generation above, so that an answer to
// a task that has gone finds nobody.
type slot struct {
	index uint16
	gen   uint16
	req   *Request
	ctl   *control
}

func newSession(dm iscsi.Datamover, cfg Config) *Session {
	s := &Session{
		dm: dm, cfg: cfg, log: cfg.Log, info: dm.Info(),
		up: make(chan struct{}), done: make(chan struct{}),
		slots: make([]slot, cfg.QueueDepth+controlSlots), luns: make(map[uint64]*LUN), abortTurn: make(chan struct{}, 1), textTurn: make(chan struct{}, 1),
	}
	for i := len(s.slots) - 1; i >= 0; i-- {
		s.slots[i].index = uint16(i)
		if i < cfg.QueueDepth {
			s.free = append(s.free, uint16(i))
		} else {
			s.ctlFree = append(s.ctlFree, uint16(i))
		}
	}
	s.lend(dm)
	return s
}

// lend makes a Datamover the one that Alloc and Info ask.
func (s *Session) lend(dm iscsi.Datamover) { s.lender.Store(&dm) }

// tag is the ITT of a slot, of a new generation.
func (s *Session) tag(i uint16) uint32 {
	sl := &s.slots[i]
	sl.gen++
	if sl.gen == 0xffff { // keeps clear of ReservedTag
		sl.gen = 0
	}
	return uint32(sl.gen)<<16 | uint32(i)
}

// lookup finds the slot of a tag, nil if it is not in use.
func (s *Session) lookup(itt uint32) *slot {
	i := int(itt & 0xffff)
	if i >= len(s.slots) || s.slots[i].gen != uint16(itt>>16) {
		return nil
	}
	return &s.slots[i]
}

// Params are what was agreed at login.
func (s *Session) Params() *iscsi.Params { return s.params }

// Info describes the connection, of several the leading one.
func (s *Session) Info() iscsi.DatamoverInfo { return (*s.lender.Load()).Info() }

// Alloc lends memory for command data, registered with the Datamover, so that data moves without a copy. It never waits:
// iscsi.ErrNoMemory when the connection's share is used up. While a lost connection is recovered it is ordinary memory.
func (s *Session) Alloc(n int) (iscsi.Buffer, error) {
	b, err := (*s.lender.Load()).Alloc(n)
	if err != nil && errors.Is(err, iscsi.ErrConnection) && s.recovering() {
		return &memory{make([]byte, n)}, nil
	}
	return b, err
}

// Done is closed when the session has ended and all its commands have.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session ended, a *SessionError; nil while it lives.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		return nil
	}
	return s.errLocked()
}

// errLocked is what a command fails with now.
func (s *Session) errLocked() error {
	name := s.cfg.TargetName
	if name == "" {
		name = s.cfg.Addr
	}
	cause := s.cause
	if cause == nil {
		cause = ErrClosed
	}
	return &SessionError{Target: name, Cause: cause}
}

// Close ends the session at once, without a logout, and returns when all commands, hooks and goroutines of the session have ended.
func (s *Session) Close() {
	s.fail(ErrClosed)
	<-s.done
	s.wg.Wait()
}

// fail ends the session because of err.
func (s *Session) fail(err error) {
	s.mu.Lock()
	s.failLocked(err)
	s.unlock()
}

// failLocked ends the session because of err. What it leaves undone finish does, since buffers are the callers' again only
// when the Datamover is done.
func (s *Session) failLocked(err error) {
	if s.ending() {
		return
	}
	if s.state == sessionLogin && s.allocated {
		s.dm.DeallocateConnectionResources()
	}
	s.terminate(false)
	s.endLocked(err)
}

// terminate ends all connections.
func (s *Session) terminate(graceful bool) {
	s.dm.ConnectionTerminate(graceful)
	for _, b := range s.branches {
		b.dm.ConnectionTerminate(graceful)
	}
}

func (s *Session) ending() bool { return s.state >= sessionEnding }

// endLocked leaves the session to finish once the connection goes down.
func (s *Session) endLocked(err error) {
	told := s.state == sessionLogin || errors.Is(err, ErrClosed) || errors.Is(err, ErrLogoutRequested) // to the caller of Login or Close
	s.state, s.cause = sessionEnding, err
	s.unwatch()
	s.unwatchCommands()
	if s.rec.quit != nil {
		s.rec.quit()
	}
	if !told {
		s.log.Warn("iscsi session ends", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "cause", err)
	}
	go s.finish()
}

// finish waits for the Datamover and ends all commands. It is the session's only goroutine, and its last act.
func (s *Session) finish() {
	<-s.dm.Done()
	s.mu.Lock()
	branches := append(s.branches[:len(s.branches):len(s.branches)], s.rec.lost...) // no more come
	s.unlock()
	for _, b := range branches {
		<-b.dm.Done()
	}
	s.mu.Lock()
	s.state = sessionDown
	err := s.errLocked()
	for r := s.queue.head; r != nil; r = s.queue.head {
		s.queue.remove(r)
		s.endRequest(r, err)
	}
	for i := range s.slots {
		sl := &s.slots[i]
		switch {
		case sl.req != nil:
			r := sl.req
			s.freeSlot(sl)
			s.endRequest(r, err)
		case sl.ctl != nil:
			c := sl.ctl
			s.freeSlot(sl)
			s.endControl(c, err)
		}
	}
	s.checkDrained()
	s.unlock()
	if s.params != nil {
		s.stateChanged(err)
	}
	close(s.done)
}

// unlock releases mu and then completes the requests that ended under it.
func (s *Session) unlock() {
	list, controls := s.ended, s.answered
	s.ended, s.answered = requestList{}, nil
	s.mu.Unlock()
	for r := list.head; r != nil; r = list.head {
		list.remove(r) // r is its owner's again
		if s.cfg.Hooks.Command != nil {
			s.commandEnded(r)
		}
		if r.relay != nil {
			r.relay.ended(r)
		} else {
			r.finish()
		}
	}
	for c := controls; c != nil; c = c.next {
		close(c.wake)
	}
}

// endRequest lets r end with err when mu is released. Ended requests keep their order.
func (s *Session) endRequest(r *Request, err error) {
	if err != nil {
		r.Err = err
	}
	r.state, r.bufs = requestEnded, iscsi.TaskBuffers{}
	s.ended.push(r)
}

// freeSlot takes a slot out of use.
func (s *Session) freeSlot(sl *slot) {
	if sl.req != nil {
		s.free = append(s.free, sl.index)
		s.inFlight--
		if b := sl.req.via; b != nil {
			b.load--
		}
		sl.req.todo = nothing
	} else {
		s.ctlFree = append(s.ctlFree, sl.index)
	}
	sl.req, sl.ctl = nil, nil
}

// ConnectionTerminateNotify implements iscsi.Notifier.
func (s *Session) ConnectionTerminateNotify(err error) {
	s.mu.Lock()
	if !s.rec.gone {
		s.downLocked(err)
	}
	s.unlock()
}

// downLocked is the end of the leading connection, by the other side or a failure.
func (s *Session) downLocked(err error) {
	if err == nil && s.leaving == nil {
		err = errClosedByTarget
	}
	if !s.ending() && s.recovers() {
		s.lose(nil, err)
		return
	}
	if !s.ending() {
		switch {
		case s.leaving != nil: // after a logout either side may be the first to close
			err = s.leaving
		}
		for _, b := range s.branches {
			b.dm.ConnectionTerminate(false)
		}
		s.endLocked(err)
	}
}

// DataCompletionNotify implements iscsi.Notifier; it is for targets.
func (s *Session) DataCompletionNotify(uint32, uint64, error) {}

// DataACKNotify implements iscsi.Notifier; it is for targets.
func (s *Session) DataACKNotify(uint32, uint32) {}
