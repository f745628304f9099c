package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"goiwarp/cmd/internal/portal"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi"
	"goiwarp/iscsi/target"
	"goiwarp/rnic"
)

// listener is an open portal.
type listener struct {
	cfg  config.Portal
	info atomic.Pointer[target.PortalInfo]
	tcp  net.Listener  // one of the two
	rdma rnic.Listener // the device's own
	stop context.CancelFunc
	done chan struct{} // closed when its last connection has ended
}

// portalKeys tell portals apart: two that ask for any free port are two.
func portalKeys(portals []config.Portal) []string {
	keys := make([]string, len(portals))
	seen := make(map[string]int)
	for i, p := range portals {
		k := p.Listen
		if p.RDMA {
			k = "rdma " + k
		}
		if seen[k]++; seen[k] > 1 {
			k = fmt.Sprint(k, "#", seen[k])
		}
		keys[i] = k
	}
	return keys
}

// tell says what connections through the portal are told of it.
func (l *listener) tell(p config.Portal) {
	l.cfg = p
	l.info.Store(&target.PortalInfo{Advertise: p.Advertise, Tag: uint16(p.Group)})
}

func (l *listener) addr() net.Addr {
	if l.rdma != nil {
		return l.rdma.Addr()
	}
	return l.tcp.Addr()
}

// close ends the listener. Connections that it has accepted stay.
func (l *listener) close() {
	if l.stop != nil {
		l.stop()
	}
	if l.rdma != nil {
		_ = l.rdma.Close()
	} else {
		_ = l.tcp.Close()
	}
}

// openPortal opens what p names; several listeners if systemd has passed several sockets of that name.
func (d *daemon) openPortal(ctx context.Context, p config.Portal, link *rnic.LinkOptions) ([]*listener, error) {
	fail := func(err error) error { return &config.Error{Pos: p.Pos, Text: err.Error()} }
	var lns []*listener
	switch name, fromSystemd := strings.CutPrefix(p.Listen, config.Systemd); {
	case fromSystemd:
		sockets, err := d.sockets.take(name)
		if err != nil {
			return nil, fail(err)
		}
		for _, s := range sockets {
			lns = append(lns, &listener{tcp: s})
		}
	case p.RDMA:
		ln, err := d.fabric.listen(ctx, p.Listen, link)
		if err != nil {
			return nil, fail(err)
		}
		lns = append(lns, &listener{rdma: ln})
	default:
		ln, err := listen(p.Listen)
		if err != nil {
			return nil, fail(err)
		}
		lns = append(lns, &listener{tcp: ln})
	}
	for _, l := range lns {
		l.tell(p)
	}
	return lns, nil
}

// start has a listener accept connections.
func (d *daemon) start(l *listener) {
	ctx, stop := context.WithCancel(d.ctx)
	l.stop, l.done = stop, make(chan struct{})
	portalInfo := func() target.PortalInfo { return *l.info.Load() }
	d.work.Go(func() {
		defer close(l.done)
		defer stop()
		var err error
		if l.rdma != nil {
			err = d.fabric.run(ctx, l.rdma, portalInfo)
		} else {
			err = portal.Serve(ctx, l.tcp, portal.Config{
				ISCSI: d.fabric.login,
				ISER:  d.fabric.upgrade(),
				Serve: func(dm iscsi.Datamover) error { return d.fabric.serve(dm, portalInfo()) },
				Log:   d.log,
			})
		}
		if err != nil && ctx.Err() == nil {
			d.fail(err)
		}
	})
}

// listen opens a TCP listener; its errors say what to do.
func listen(addr string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("%q: want ADDRESS:PORT, with an IPv6 address in brackets", addr)
	}
	ln, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: the port is in use by another program; choose another one, or 0 for any", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: no interface of this host has that address", addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: not permitted; ports below 1024 need privileges", addr)
	}
	return nil, fmt.Errorf("%s: %w", addr, err)
}

// firstGroup is the lowest tag of the portal groups that a target is reached through; without any, all count.
func firstGroup(portals []config.Portal, groups []int) uint16 {
	first := 0
	for _, p := range portals {
		if g := max(p.Group, 1); (first == 0 || g < first) && (len(groups) == 0 || slices.Contains(groups, g)) {
			first = g
		}
	}
	return uint16(max(first, 1))
}

// portalGroups is what discovery tells: nothing in particular unless a portal has a group.
func portalGroups(portals []config.Portal, open map[string][]*listener) []target.PortalGroup {
	grouped := false
	for _, p := range portals {
		grouped = grouped || p.Group != 0
	}
	if !grouped {
		return nil
	}
	var groups []target.PortalGroup
	keys := portalKeys(portals)
	for k, p := range portals {
		tag := uint16(max(p.Group, 1))
		i := 0
		for i < len(groups) && groups[i].Tag != tag {
			i++
		}
		if i == len(groups) {
			groups = append(groups, target.PortalGroup{Tag: tag})
		}
		if p.Advertise != "" {
			groups[i].Portals = append(groups[i].Portals, p.Advertise)
			continue
		}
		for _, l := range open[keys[k]] {
			groups[i].Portals = append(groups[i].Portals, l.addr().String())
		}
	}
	return groups
}
