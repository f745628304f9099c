// Package portaltest has the accept loops of a portal for tests: what arrives becomes a Datamover, and each is served on a goroutine of its own.
// It knows no target, so that the target's own tests can use it as well.
package portaltest

import (
	"context"
	"net"
	"sync"

	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// Streams serves the connections of ln, as mover makes Datamovers of them, until ln is closed. wait returns when that has happened and each
// serve has returned.
func Streams(ln net.Listener, mover func(net.Conn) iscsi.Datamover, serve func(iscsi.Datamover)) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(mover(c)) })
		}
	})
	return wg.Wait
}

// Requests serves the connection requests of ln over iSER, those that cannot be accepted apart, until ln is closed or ctx is done. wait is that of
// Streams.
func Requests(ctx context.Context, ln rnic.Listener, cfg iser.Config, serve func(iscsi.Datamover)) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				if dm, err := iser.Accept(ctx, req, cfg); err == nil {
					serve(dm)
				}
			})
		}
	})
	return wg.Wait
}
