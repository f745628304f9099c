package rdmap

// link is what a Stream needs of an mpa.Conn.
type link interface{ MULPDU() int }

// Stream is one RDMAP stream over an MPA connection. All its methods but Run may be called by many
// goroutines at once.
type Stream struct {
	c   link
	cfg Config
}

// NewStream makes a stream over c, which it owns from then on. Operations may be posted at once; they
// leave when Run has been called and this side may send.
func NewStream(c link, cfg Config) *Stream { return &Stream{c: c, cfg: cfg} }

// Post appends the chain of operations that starts at first (linked by Next) to the send queue, as
// a whole or not at all. It does not wait: it sends what the socket takes now, unless somebody else is
// sending or the reader is in the middle of a batch, and leaves the rest to the stream. The operations are
// the stream's until Handler.Done; on an error they stay the caller's.
// Errors: ErrQueueFull, ErrClosed, ErrBadOp, ErrNoORD and those of ddp.CheckSegs.
func (s *Stream) Post(first *Op) error { return ErrClosed }

// Run reads the connection until it ends; the Handler is called on its goroutine. It returns after
// Handler.Closed, when nothing of the stream runs any more.
func (s *Stream) Run() {}

// Disconnect ends the stream gracefully: what was posted before is sent first. It does not wait;
// Handler.Closed tells the end.
func (s *Stream) Disconnect() {}

// Abort ends the stream at once and without a Terminate Message; what is outstanding is flushed with err. It does not
// wait and may be called at any time, also within a Handler callback.
func (s *Stream) Abort(err error) {}

// Terminate ends the stream with a Terminate Message made from err (an *mpa.Error, *ddp.Error or *Error; anything
// else is a local catastrophic error).
func (s *Stream) Terminate(err error) {}

// Stats reads the counters.
func (s *Stream) Stats() Stats { return Stats{} }
