//go:build unix

package ctl

import (
	"net"
	"syscall"
)

// listenPrivate makes the socket with mode 0600 from its first moment on.
func listenPrivate(path string) (net.Listener, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.Listen("unix", path)
}
