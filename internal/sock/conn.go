package sock

import (
	"errors"
	"net"
	"time"
)

// Conn is a Socket as a net.Conn, for those who know no more. NewSocket gives the Socket back.
type Conn struct{ s Socket }

var _ net.Conn = (*Conn)(nil)

// NewConn makes a Conn of s, which it owns from then on.
func NewConn(s Socket) *Conn { return &Conn{s} }

// Socket is the Socket itself.
func (c *Conn) Socket() Socket { return c.s }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return c.s.Read(&SliceScatter{B: b})
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	total := 0
	for total < len(b) {
		n, err := c.s.Write([][]byte{b[total:]})
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// CloseWrite ends the writing half.
func (c *Conn) CloseWrite() error { return c.s.CloseWrite() }

// SetLinger is that of net.TCPConn, where there is such a connection below.
func (c *Conn) SetLinger(sec int) error { return setLinger(c.s, sec) }

func setLinger(c any, sec int) error {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		return l.SetLinger(sec)
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *Conn) Close() error { return c.s.Close() }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.s.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.s.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.s.SetReadDeadline(t); err != nil {
		return err
	}
	return c.s.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.s.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.s.SetWriteDeadline(t) }
