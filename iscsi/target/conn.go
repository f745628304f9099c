package target

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"goiwarp/iscsi"
)

// state is a connection's (RFC 7143, section 8.1.2, as far as a target needs to tell them apart; what becomes of a closed one with
// ErrorRecoveryLevel 2 is in recover.go):
//
//	stateLogin --final response--> stateFull --logout, drop--> stateEnding --Done--> stateClosed
//	    |                              |                            ^
//	    +--refused, timeout------------+----------------------------+
type state uint8

const (
	stateLogin  state = iota
	stateFull         // full feature phase
	stateEnding       // terminated on our side: nothing is taken or sent any more
	stateClosed       // Done
)

// conn is a connection. It is the Datamover's Notifier.
type conn struct {
	srv    *Server
	dm     iscsi.Datamover
	portal PortalInfo
	log    *slog.Logger
	set    *Settings // as they were when it came

	// events wakes Serve's goroutine, which does what an upcall may not wait for.
	events chan func()

	mu       sessionLock // guards what follows, and the tasks; one lock for all connections of a session
	*shared              // the session's part
	state    state
	inUpcall bool // the holder of mu is the Datamover's goroutine
	cause    error

	login  loginState
	params *iscsi.Params

	// Numbering (RFC 7143, section 4.2.2).
	statSN      iscsi.SN // of the next response
	ackedStatSN iscsi.SN // the initiator's ExpStatSN
	immediate   int      // immediate commands in progress
	unexpected  []iscsi.SN

	// Tasks.
	turns       map[*unit]*turn // its places in the units' queues
	active      int             // tasks not ended, zombies included
	idle        taskQueue
	inlineTasks taskQueue // to be executed by the upcall once it has let mu go
	nextTTT     uint32
	dataIn      iscsi.DataIn // arguments, reused
	dataOut     iscsi.DataOut

	// Memory.
	maxPutData    int
	memory        taskQueue // tasks waiting for their reserve
	starved       taskQueue // running tasks waiting for a buffer
	holders       int       // tasks that have reserved memory
	kicking       bool
	memoryWatched bool
	memoryTimer   *time.Timer
	orphans       []orphan
	orphanAt      int

	pdus       pduPool
	maxData    int // data segment octets of a PDU that the peer is sure to take
	received   uint64
	ping       pingState
	text       textState
	logout     bool        // a logout is under way: nothing more is taken
	closeTimer *time.Timer // closes the connection after a logout, if the initiator does not
	seqTimer   *time.Timer // looks for unsolicited data that does not come (ErrorRecoveryLevel > 0)
	rec        recovery
	down       chan struct{} // closed when it is stateClosed
	gone       bool          // its end has been told
	last       bool          // it was the session's last
	over       chan struct{} // closed then
}

func newConn(s *Server, dm iscsi.Datamover, portal PortalInfo) *conn {
	c := &conn{
		srv: s, dm: dm, portal: portal, log: s.log, set: s.live.Load(),
		events: make(chan func(), 4),
		turns:  make(map[*unit]*turn),
		down:   make(chan struct{}), over: make(chan struct{}),
	}
	c.share(newShared(s))
	if a := dm.Info().RemoteAddr; a != nil {
		c.log = c.log.With("peer", a.String())
	}
	return c
}

// unlock lets c.mu go and does what may not be done under it.
func (c *conn) unlock() {
	c.inUpcall = false
	var over []*conn
	if len(c.closed) > 0 {
		over = c.takeOver()
	}
	c.mu.Unlock()
	for _, o := range over {
		o.srv.ended(o)
	}
}

// upcall is how each of the Notifier's methods begins; it ends with unlock and runInline.
func (c *conn) upcall() {
	c.mu.Lock()
	c.inUpcall = true
}

// runInline executes the commands that the upcall made ready.
func (c *conn) runInline() {
	for t := c.inlineTasks.pop(); t != nil; t = c.inlineTasks.pop() {
		t.execute()
	}
}

// ControlNotify implements iscsi.Notifier.
func (c *conn) ControlNotify(p *iscsi.PDU) {
	c.upcall()
	c.received++
	switch c.state {
	case stateLogin:
		c.loginPDU(p)
	case stateFull:
		c.request(p)
	default:
		p.Release()
	}
	c.unlock()
	c.runInline()
}

// DataCompletionNotify implements iscsi.Notifier.
func (c *conn) DataCompletionNotify(itt uint32, tag uint64, err error) {
	c.upcall()
	c.received++
	t := c.tasks[itt]
	switch {
	case t == nil || t.conn != c || t.seq != uint32(tag>>32):
		c.claim(itt, tag)
	case t.sentOut(tag):
		if err != nil {
			c.log.Debug("data-in failed", "itt", itt, "err", err)
		}
	default:
		c.arrived(t, tag, err)
	}
	c.unlock()
	c.runInline()
}

// ConnectionTerminateNotify implements iscsi.Notifier.
func (c *conn) ConnectionTerminateNotify(err error) {
	c.mu.Lock()
	if c.cause == nil && c.closeTimer == nil {
		c.cause = err // after a logout, however the initiator closes is fine
	}
	c.state = max(c.state, stateEnding)
	c.unlock()
}

// lose terminates the connection for a reason. c.mu is held.
func (c *conn) lose(cause error) { c.terminate(cause, false) }

// terminate ends the connection from this side; with graceful what has been sent still goes out. c.mu is held.
func (c *conn) terminate(cause error, graceful bool) {
	if c.state >= stateEnding {
		return
	}
	c.cause = cause
	c.state = stateEnding
	c.dm.ConnectionTerminate(graceful)
}

// finish is the connection's end: it aborts every task that is not kept for another connection. What is still in a store
// ends by itself.
func (c *conn) finish() {
	c.mu.Lock()
	c.state = stateClosed
	for _, t := range []*time.Timer{c.memoryTimer, c.closeTimer, c.seqTimer} {
		if t != nil {
			t.Stop()
		}
	}
	c.discardHeld()
	c.closedFence()
	c.endTasks()
	c.text = textState{}
	c.shared.closed = append(c.shared.closed, c)
	c.changed.Broadcast()
	close(c.down)
	c.unlock()
}

// post has f run on Serve's goroutine, if it is there to do it.
func (c *conn) post(f func()) {
	select {
	case c.events <- f:
	default:
		// Only one login is ever posted, and pings are not; the channel has room for more.
		c.log.Error("event lost")
	}
}

// pduPool recycles the PDUs that a connection sends.
type pduPool struct {
	mu   sync.Mutex
	idle []*iscsi.PDU
}

// poolRoom is the data room of a recycled PDU: sense data, or a header that is rejected.
const poolRoom = 128

// loudRejects is how many rejected PDUs, or task management functions, of a connection are worth a line each.
const loudRejects = 16

// poolMax is how many PDUs stay with a connection.
const poolMax = 64

// ReleasePDU implements iscsi.PDUOwner.
func (l *pduPool) ReleasePDU(p *iscsi.PDU) {
	p.AHS, p.Data = nil, nil
	l.mu.Lock()
	if len(l.idle) < poolMax {
		l.idle = append(l.idle, p)
	}
	l.mu.Unlock()
}

func (l *pduPool) get() *iscsi.PDU {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle); n > 0 {
		p := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return p
	}
	return &iscsi.PDU{Owner: l, Room: make([]byte, 0, poolRoom)}
}

// respond sends a PDU that carries a status: it gets the next StatSN, and the window as it is. c.mu is held.
func (c *conn) respond(p *iscsi.PDU) {
	c.stamp(p)
	c.statSN++
	c.transmit(p)
}

// stamp writes StatSN, ExpCmdSN and MaxCmdSN.
func (c *conn) stamp(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	h.SetStatSN(c.statSN)
	h.SetWindow(c.expCmdSN, c.window())
}

func (c *conn) transmit(p *iscsi.PDU) {
	if c.state >= stateEnding {
		p.Release()
		return
	}
	if err := c.dm.SendControl(p, nil); err != nil {
		c.lose(fmt.Errorf("sending: %w", err))
	}
}

// protocolError rejects a PDU and ends the connection: the two sides do not agree on where they are
// (RFC 7143, section 7.13 and, for sequence errors at ErrorRecoveryLevel 0, 7.9). It takes p over. c.mu is held.
func (c *conn) protocolError(p *iscsi.PDU, why string) {
	op := p.Opcode()
	c.reject(p, iscsi.RejectProtocolError, why)
	c.terminate(fmt.Errorf("%w: %v: %s", ErrProtocol, op, why), true)
}

// reject answers a PDU with a Reject and releases it. c.mu is held.
func (c *conn) reject(p *iscsi.PDU, reason iscsi.RejectReason, why string) {
	level := slog.LevelWarn
	if c.counters.Rejects >= loudRejects {
		level = slog.LevelDebug // a peer does not fill the log
	}
	c.log.Log(context.Background(), level, "rejected", "pdu", p.Opcode(), "itt", iscsi.BHS(p.BHS[:]).ITT(), "reason", reason, "why", why)
	if c.allowUnexpected(false) {
		r := c.pdus.get()
		h := iscsi.Reject(r.BHS[:])
		h.Init()
		h.SetReason(reason)
		r.Data = append(r.Room[:0], p.BHS[:]...)
		c.counters.Rejects++
		c.countUnexpected()
		c.respond(r)
	}
	p.Release()
}

// allowUnexpected tells whether the initiator is ready for one more PDU that answers nothing
// (RFC 7145, section 8.1.1: Reject, Async, NOP-In). The last place is kept for a ping. c.mu is held.
func (c *conn) allowUnexpected(ping bool) bool {
	limit := int(min(c.params.MaxOutstandingUnexpectedPDUs, 1<<16))
	if !c.params.RDMAExtensions || limit == 0 {
		return true
	}
	keep := 0
	for _, sn := range c.unexpected {
		if c.ackedStatSN.LessEqual(sn) { // not acknowledged
			c.unexpected[keep] = sn
			keep++
		}
	}
	c.unexpected = c.unexpected[:keep]
	if !ping {
		limit--
	}
	return len(c.unexpected) < limit
}

// retirePing takes an answered ping off: it has used up no StatSN, so that no acknowledgement may do so for long (RFC 7145, section 8.1.2, c).
func (c *conn) retirePing() {
	if i := slices.Index(c.unexpected, c.ping.sn); i >= 0 {
		c.unexpected = slices.Delete(c.unexpected, i, i+1)
	}
}

// countUnexpected notes that a PDU of that kind is about to be sent.
func (c *conn) countUnexpected() {
	if c.params.RDMAExtensions && c.params.MaxOutstandingUnexpectedPDUs > 0 {
		c.unexpected = append(c.unexpected, c.statSN)
	}
}
