//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// hangups tells of each SIGHUP until release is called.
func hangups() (c <-chan struct{}, release func()) {
	in, out, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(in, syscall.SIGHUP)
	go func() {
		defer close(done)
		for range in {
			out <- struct{}{}
		}
	}()
	return out, func() {
		signal.Stop(in)
		close(in)
		for {
			select {
			case <-out: // one that came at the last moment
			case <-done:
				return
			}
		}
	}
}
