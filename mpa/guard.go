package mpa

import (
	"time"

	"goiwarp/internal/sock"
)

// Guard is asked for the memory that Append referred to, around each attempt to write it.
type Guard = sock.Guard

// GuardWrites makes g the Guard of all later writes, so that payload memory can be withdrawn without
// waiting for the peer. It belongs to the writing half; g's methods may call Sent.
func (c *Conn) GuardWrites(g Guard) {
	if s, ok := c.sock.(sock.Guarded); ok {
		s.SetGuard(g)
	}
}

// Drain reads and drops whatever the peer still sends, until it ends its half of the connection or
// the deadline; it returns what ended it, io.EOF if that was the peer's FIN. It is for the end of a connection: closing a socket with unread octets makes TCP
// reset it, and a Terminate Message on its way to the peer may be lost then. It belongs to the reading
// half, which is of no use afterwards.
func (c *Conn) Drain(deadline time.Time) error {
	if err := c.sock.SetReadDeadline(deadline); err != nil {
		return err
	}
	in := &c.in
	if in.err == nil {
		in.err = &Error{Code: CodeLost, Detail: "drained"}
	}
	c.shut(in.err)
	for {
		in.r, in.w = 0, 0
		in.win.buffer(in.buf)
		if _, err := c.sock.Read(&in.win); err != nil {
			return err
		}
	}
}

// SetWriteDeadline bounds the waiting in Flush.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.sock.SetWriteDeadline(t) }

// FlushSome is Flush that waits only until the socket has taken at least one octet, so that the
// caller can queue more behind the rest. done reports that nothing is pending any more.
func (c *Conn) FlushSome() (done bool, err error) {
	o := &c.out
	if o.queued == o.sent {
		return o.err == nil, o.err
	}
	<-c.gate
	if err := c.refused(); err != nil && o.err == nil {
		o.wrote(0, err)
	}
	if o.err == nil {
		o.wrote(c.sock.Write(o.next()))
	}
	return o.queued == o.sent && o.err == nil, o.err
}
