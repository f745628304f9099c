//go:build !unix

package ctl

import "net"

// listenPrivate makes the socket; who may open it follows from its directory.
func listenPrivate(path string) (net.Listener, error) { return net.Listen("unix", path) }
