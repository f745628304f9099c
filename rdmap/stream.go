package rdmap

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// state is how far the end of a stream has come.
//
//	open --Disconnect, peer's FIN--> closing --all sent--> finished --peer's FIN, Linger--> dead
//	  \--error, Terminate()--------> failing --Terminate sent--^
//	   \--Terminate received, connection lost, Abort--------------------------------------> dead
type state uint8

const (
	open     state = iota
	closing        // no more posts; what was posted is sent
	failing        // a Terminate Message is the next and last thing to send
	finished       // our half of the connection is closed
	dead           // nothing is sent or placed any more
)

// Stream is one RDMAP stream over an MPA connection. All its methods but Run may be called by many
// goroutines at once.
type Stream struct {
	c     *mpa.Conn
	cfg   Config
	h     Handler
	log   *slog.Logger
	id    ddp.StreamID
	crc   bool
	ended chan struct{} // closed when our half has been closed, or will never be

	// cb serialises the Handler: who calls it holds cb, and has set batch.
	cb     sync.Mutex
	called bool // a callback ran since the last BatchEnd; guarded by cb

	// mu guards everything up to the next blank line. It is never held during a callback, a write or
	// an invalidation.
	mu       sync.Mutex
	idle     sync.Cond // writing became false
	state    state
	err      error // why the stream ended; the first reason stays
	writeErr error // why our half ended, if nobody knows better
	started  bool  // Run was called
	canSend  bool  // RFC 5044, section 7.1.2, rule 4
	batch    bool  // somebody holds cb and will send what is posted
	writing  bool  // somebody owns the writing half
	handoff  bool  // … namely the writer, which has to be woken
	sent     uint64
	q        sendQueue
	r        responder
	term     Terminate // to be sent in state failing
	nudge    bool      // a zero-length Write is due
	linger   *time.Timer
	timer    *time.Timer // nudge or first FPDU

	kick chan struct{} // wakes the writer
	quit chan struct{} // ends it
	done chan struct{} // it has ended

	tx sender // owned by who has set writing
	rx inbound
	// stopped tells the reader and the sender, between two segments, that the state is failing or worse.
	stopped atomic.Bool
	heard   atomic.Bool // a valid FPDU came
	// progress is how far the socket had come at the last write, for the watch over a slow end.
	progress atomic.Uint64
	watched  uint64 // progress when the watch looked last; guarded by mu
	stats    counters
}

// NewStream makes a stream over c, which it owns from then on. Operations may be posted at once; they
// leave when Run has been called and this side may send. Run must be called, even to get rid of a stream.
func NewStream(c *mpa.Conn, cfg Config) *Stream {
	if cfg.Depth <= 0 {
		cfg.Depth = DefaultDepth
	}
	if cfg.NudgeDelay == 0 {
		cfg.NudgeDelay = DefaultNudgeDelay
	}
	if cfg.Linger <= 0 {
		cfg.Linger = DefaultLinger
	}
	if cfg.RTRTimeout <= 0 {
		cfg.RTRTimeout = DefaultRTRTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stream{
		c: c, cfg: cfg, h: cfg.Handler, log: cfg.Log,
		id: cfg.Domain.Join(), crc: c.Params().CRC,
		ended: make(chan struct{}),
		kick:  make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	s.idle.L = &s.mu
	s.canSend = cfg.Role == Initiator
	s.r.ird = cfg.IRD
	s.rx.init(s)
	s.tx.init(s)
	c.GuardWrites(&s.tx.refs)
	if cfg.Role == Initiator {
		s.q.prependRTR(cfg.RTR)
	} else if cfg.RTR == RTRRead {
		s.r.ird = max(s.r.ird, 1) // the Ready-To-Receive message is a Read
	}
	return s
}

// ID names the stream in its domain: regions may be bound to it (ddp.Domain.Register, ddp.Region.Bind).
func (s *Stream) ID() ddp.StreamID { return s.id }

// Post appends the chain of operations that starts at first (linked by Next) to the send queue, as
// a whole or not at all. It does not wait: it sends what the socket takes now, unless somebody else is
// sending or the reader is in the middle of a batch, and leaves the rest to the stream. The operations are
// the stream's until Handler.Done; on an error they stay the caller's.
// Errors: ErrQueueFull, ErrClosed, ErrBadOp, ErrNoORD and those of ddp.CheckSegs.
func (s *Stream) Post(first *Op) error {
	n := 0
	for op := first; op != nil; op = op.Next {
		if err := s.prepare(op); err != nil {
			return err
		}
		n++
	}
	s.mu.Lock()
	switch {
	case s.state != open:
		s.mu.Unlock()
		return ErrClosed
	case s.q.n+n > s.cfg.Depth:
		overdue := s.completeLocked()
		s.mu.Unlock()
		if overdue {
			s.wake()
		}
		return ErrQueueFull
	}
	for op := first; op != nil; {
		next := op.Next
		s.q.push(op)
		op = next
	}
	if s.batch || !s.claimLocked() {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.pump()
	s.mu.Lock()
	owed := s.completeLocked() && (s.q.signaled > 0 || s.q.n > s.cfg.Depth/2)
	s.mu.Unlock()
	if owed {
		s.wake()
	}
	return nil
}

// claimLocked takes the writing half if there is something to send and nobody has it.
func (s *Stream) claimLocked() bool {
	if s.writing || !s.sendableLocked() {
		return false
	}
	s.writing = true
	return true
}

// completeLocked says whether the oldest operation is complete and not yet given back.
func (s *Stream) completeLocked() bool { return s.q.head != nil && s.q.head.complete(s.sent) }

// wake makes the writer look for work: to send, or completions to deliver.
func (s *Stream) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Disconnect ends the stream gracefully: what was posted before is sent first. It does not wait;
// Handler.Closed tells the end.
func (s *Stream) Disconnect() {
	s.mu.Lock()
	if s.state == open {
		s.state = closing
		s.watchLocked()
	}
	s.mu.Unlock()
	s.wake()
}

// Terminate ends the stream with a Terminate Message made from err (an *mpa.Error, *ddp.Error or *Error; anything
// else is a local catastrophic error). It does not wait.
func (s *Stream) Terminate(err error) {
	l, t, c := codeOf(err)
	s.fail(err, Terminate{Layer: l, Type: t, Code: c})
}

// Abort ends the stream at once and without a Terminate Message; what is outstanding is flushed with err. It does not
// wait and may be called at any time, also within a Handler callback.
func (s *Stream) Abort(err error) {
	s.mu.Lock()
	s.dieLocked(err)
	s.mu.Unlock()
	s.wake()
}

// Stats reads the counters.
func (s *Stream) Stats() Stats { return s.stats.read() }
