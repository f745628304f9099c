package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/cmd/iserd/internal/ctl"
	"goiwarp/cmd/iserd/internal/metrics"
)

// What iserd serves beside the targets.
const (
	figures  = iota // for a monitoring system
	controls        // the socket of 'iserd ctl'
	numAsides
)

// aside is one of them, open.
type aside struct {
	ln   net.Listener
	stop context.CancelFunc // nil until it is served
	done chan struct{}      // closed when it is not any more
}

// asideAddr is where one of them is to be; empty: nowhere.
func asideAddr(c *config.Config, which int) string {
	switch {
	case c == nil:
		return ""
	case which == figures:
		return c.Metrics.Listen
	}
	return c.Control
}

// prepareAside opens what is to be somewhere else.
func (p *plan) prepareAside(which int) {
	addr := asideAddr(p.next, which)
	if addr == "" || addr == asideAddr(p.d.cfg, which) && p.d.asides[which] != nil {
		return
	}
	var ln net.Listener
	var err error
	at := config.Pos{}
	if which == figures {
		at = p.next.Metrics.Pos
		ln, err = p.listenFigures(addr)
	} else {
		ln, err = ctl.Listen(addr)
	}
	if err != nil {
		p.fail(&config.Error{Pos: at, Text: err.Error()})
		return
	}
	p.asides[which] = &aside{ln: ln}
}

// listenFigures opens the listener for figures. To have the same port on another address the old one has to leave it first; returnFigures
// opens it again if that was for nothing.
func (p *plan) listenFigures(addr string) (net.Listener, error) {
	ln, err := metrics.Listen(addr)
	old := p.d.asides[figures]
	if old == nil || !errors.Is(err, syscall.EADDRINUSE) || !samePort(old.ln.Addr().String(), addr) {
		return ln, err
	}
	p.vacated = old.ln.Addr().String()
	p.d.endAside(figures)
	return metrics.Listen(addr)
}

// returnFigures goes back to the address that listenFigures has left.
func (p *plan) returnFigures() {
	if p.vacated == "" {
		return
	}
	ln, err := metrics.Listen(p.vacated)
	if err == nil {
		err = p.d.serveAside(figures, &aside{ln: ln})
	}
	if err != nil {
		p.fail(err)
	}
}

func samePort(a, b string) bool {
	_, x, _ := net.SplitHostPort(a)
	_, y, _ := net.SplitHostPort(b)
	return x == y
}

// commitAsides opens, moves and closes them. Requests to the control socket that are in progress, such as the one for this, have their answers.
func (p *plan) commitAsides(first bool, r *report) error {
	d := p.d
	var errs []error
	for i, a := range p.asides {
		name := [numAsides]string{"metrics.listen", "control"}[i]
		switch {
		case a != nil:
			d.endAside(i)
			errs = append(errs, d.serveAside(i, a))
			if !first {
				r.changef("%s is %s", name, a.ln.Addr())
			} else if i == figures {
				_, err := fmt.Fprintf(d.out, "metrics: http://%s/metrics\n", a.ln.Addr())
				errs = append(errs, err)
			}
		case d.asides[i] != nil && asideAddr(p.next, i) == "":
			d.endAside(i)
			r.changef("%s is closed", name)
		}
	}
	return errors.Join(errs...)
}

// endAside closes one of them.
func (d *daemon) endAside(which int) {
	a := d.asides[which]
	if a == nil {
		return
	}
	if which == figures {
		a.stop()
		<-a.done
	} else {
		_ = a.ln.Close() // who asks for this by it has the answer yet
	}
	d.locked(func() { d.asides[which] = nil })
}

// serveAside serves one of them until it is ended, or the daemon is.
func (d *daemon) serveAside(which int, a *aside) error {
	ctx, stop := context.WithCancel(d.ctx)
	a.stop, a.done = stop, make(chan struct{})
	var serve func()
	if which == figures {
		h, err := d.figures()
		if err != nil {
			stop()
			return errors.Join(err, a.ln.Close())
		}
		serve = func() {
			if err := metrics.Serve(ctx, a.ln, h); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				d.log.Error("metrics are not served any more", "err", err)
			}
		}
	} else {
		serve = func() { ctl.Serve(ctx, a.ln, ctl.Service{Handle: d.attend, Long: long, Log: d.log}) }
	}
	d.locked(func() { d.asides[which] = a })
	d.work.Go(func() {
		defer close(a.done)
		defer stop()
		serve()
	})
	return nil
}

// figures answers a monitoring system.
func (d *daemon) figures() (http.Handler, error) {
	return metrics.Handler(metrics.Source{
		Target: d.server.Metrics, RDMA: d.fabric.stats, Memory: d.memory, Healthy: d.healthy, Ready: d.isReady, Version: cli.Version(),
		Sessions: func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.cfg != nil && d.cfg.Metrics.Sessions
		},
	})
}
