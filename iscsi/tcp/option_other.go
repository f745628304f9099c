//go:build !linux

package tcp

import (
	"net"
	"time"
)

// setUserTimeout does nothing where the system has no such option; keepalive covers idle
// connections.
func setUserTimeout(*net.TCPConn, time.Duration) {}
