//go:build !unix

package main

// hangups tells of nothing: this system has no SIGHUP.
func hangups() (c <-chan struct{}, release func()) { return nil, func() {} }
