//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// rescanOnHangup has the disks look at their sizes again on every SIGHUP until ctx ends.
func (d *disks) rescanOnHangup(ctx context.Context) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-hangup:
				d.rescan()
			case <-ctx.Done():
				return
			}
		}
	}()
}
