package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"goiwarp/cmd/internal/rdma"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// maxHandshakes bounds the RDMA connections that are being set up; more wait, and then the device refuses them.
const maxHandshakes = 64

// fabric is what iSER connections are accepted with.
type fabric struct {
	dev    rnic.Device
	domain *iser.Domain
	shape  atomic.Pointer[shape] // of connections that come now
	pool   *tcp.Pool             // memory of connections over TCP
	server *target.Server
	log    *slog.Logger

	mu    sync.Mutex // guards what follows
	live  map[counted]struct{}
	ended rnic.Stats // of connections that are gone
}

// shape is what a connection gets when it comes, and keeps.
type shape struct {
	link   *rnic.LinkOptions
	memory int // octets of data of one connection over iSER
	share  int // octets of data of one connection over TCP
}

func shapeOf(c *config.Config) *shape {
	o := rdma.Options{CRC: c.RDMA.CRC, MaxFPDU: c.RDMA.MaxFPDU}
	return &shape{link: o.Link(), memory: int(min(c.Limits.SessionMemory, 16<<20)), share: int(c.Limits.SessionMemory)}
}

// counted is a connection that may move data by RDMA.
type counted interface{ Stats() rnic.Stats }

// upgrade makes an iSER connection of a TCP connection; nil where the device cannot.
func (f *fabric) upgrade() func(context.Context, net.Conn, []byte) (iscsi.Datamover, error) {
	up, ok := f.dev.(rnic.StreamUpgrader)
	if !ok || !f.dev.Attributes().Caps.Has(rnic.CapStreamUpgrade) {
		return nil
	}
	return func(ctx context.Context, conn net.Conn, read []byte) (iscsi.Datamover, error) {
		req, err := up.UpgradeRequest(ctx, conn, read, f.shape.Load().link)
		if err != nil {
			return nil, err
		}
		return f.accept(ctx, req)
	}
}

func (f *fabric) accept(ctx context.Context, req rnic.Request) (iscsi.Datamover, error) {
	return iser.Accept(ctx, req, iser.Config{Domain: f.domain, BufferMemory: f.shape.Load().memory, Log: f.log})
}

// serve runs a connection to its end, and counts what it did.
func (f *fabric) serve(dm iscsi.Datamover, portal target.PortalInfo) error {
	d, ok := dm.(counted)
	if !ok {
		return f.server.Serve(dm, portal)
	}
	f.mu.Lock()
	if f.live == nil {
		f.live = make(map[counted]struct{})
	}
	f.live[d] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.live, d)
		add(&f.ended, d.Stats())
		f.mu.Unlock()
	}()
	return f.server.Serve(dm, portal)
}

// stats sums up what all connections did.
func (f *fabric) stats() rnic.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.ended
	for d := range f.live {
		add(&sum, d.Stats())
	}
	return sum
}

func add(to *rnic.Stats, s rnic.Stats) {
	to.FPDUsSent += s.FPDUsSent
	to.FPDUsReceived += s.FPDUsReceived
	to.OctetsSent += s.OctetsSent
	to.OctetsReceived += s.OctetsReceived
	to.CRCsGenerated += s.CRCsGenerated
	to.CRCsChecked += s.CRCsChecked
	to.CRCErrors += s.CRCErrors
	to.SendsSent += s.SendsSent
	to.SendsReceived += s.SendsReceived
	to.WritesSent += s.WritesSent
	to.WritesReceived += s.WritesReceived
	to.ReadsSent += s.ReadsSent
	to.ReadsReceived += s.ReadsReceived
	to.AtomicsSent += s.AtomicsSent
	to.AtomicsReceived += s.AtomicsReceived
	to.InvalidatesSent += s.InvalidatesSent
	to.InvalidatesRecv += s.InvalidatesRecv
}

// listen opens a listener of the device itself.
func (f *fabric) listen(ctx context.Context, addr string, link *rnic.LinkOptions) (rnic.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("%q: want ADDRESS:PORT, with an IPv6 address in brackets", addr)
	}
	ln, err := f.dev.Listen(ctx, addr, link)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return ln, nil
}

// run accepts iSER connections from ln until ctx ends or ln fails, and returns after the last of them.
func (f *fabric) run(ctx context.Context, ln rnic.Listener, portal func() target.PortalInfo) error {
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
			if err := f.serve(dm, portal()); err != nil {
				log.Info("connection ended", "err", err)
			}
		})
	}
}
