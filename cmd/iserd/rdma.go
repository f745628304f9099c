package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"goiwarp/iscsi"
	"goiwarp/iscsi/target"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// maxHandshakes bounds the RDMA connections that are being set up; more wait, and then the device refuses them.
const maxHandshakes = 64

// fabric is what iSER connections are accepted with.
type fabric struct {
	dev    rnic.Device
	domain *iser.Domain
	link   *rnic.LinkOptions
	server *target.Server
	portal target.PortalInfo
	log    *slog.Logger
}

// upgrade makes an iSER connection of a TCP connection; nil where the device cannot.
func (f *fabric) upgrade() func(context.Context, net.Conn, []byte) (iscsi.Datamover, error) {
	up, ok := f.dev.(rnic.StreamUpgrader)
	if !ok || !f.dev.Attributes().Caps.Has(rnic.CapStreamUpgrade) {
		return nil
	}
	return func(ctx context.Context, conn net.Conn, read []byte) (iscsi.Datamover, error) {
		req, err := up.UpgradeRequest(ctx, conn, read, f.link)
		if err != nil {
			return nil, err
		}
		return f.accept(ctx, req)
	}
}

func (f *fabric) accept(ctx context.Context, req rnic.Request) (iscsi.Datamover, error) {
	return iser.Accept(ctx, req, iser.Config{Domain: f.domain, Log: f.log})
}

// serve runs a connection to its end.
func (f *fabric) serve(dm iscsi.Datamover) error { return f.server.Serve(dm, f.portal) }

// listen opens a listener of the device itself.
func (f *fabric) listen(ctx context.Context, addr string) (rnic.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("--listen-rdma %q: want ADDRESS:PORT, with an IPv6 address in brackets", addr)
	}
	ln, err := f.dev.Listen(ctx, addr, f.link)
	if err != nil {
		return nil, fmt.Errorf("--listen-rdma %s: %w", addr, err)
	}
	return ln, nil
}

// run accepts iSER connections from ln until ctx ends or ln fails, and returns after the last of them.
func (f *fabric) run(ctx context.Context, ln rnic.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	defer func() { _ = ln.Close() }()
	setup := make(chan struct{}, maxHandshakes)
	for {
		select {
		case setup <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		req, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("accepting connections on %s: %w", ln.Addr(), err)
		}
		conns.Go(func() {
			log := f.log.With("peer", req.Info().RemoteAddr.String())
			dm, err := f.accept(ctx, req)
			<-setup
			if err != nil {
				log.Info("connection refused", "err", err)
				return
			}
			if err := f.serve(dm); err != nil {
				log.Info("connection ended", "err", err)
			}
		})
	}
}
