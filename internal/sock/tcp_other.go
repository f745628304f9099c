//go:build !linux && !freebsd && !darwin

package sock

import "net"

// MaxIovec bounds the list of one vectored write.
const MaxIovec = 1024

// NewTCPSocket returns a Socket on c and turns Nagle's algorithm off, so that segments begin with
// FPDUs (RFC 5044, section 5.1). The Socket owns c from then on.
func NewTCPSocket(c *net.TCPConn) Socket {
	_ = c.SetNoDelay(true)
	return NewConnSocket(c)
}

func newUnixSocket(c *net.UnixConn) Socket { return NewConnSocket(c) }
