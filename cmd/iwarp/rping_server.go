package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

// serve is the server.
func (o *rpingOptions) serve(ctx context.Context, dev rnic.Device, out io.Writer, log *slog.Logger) error {
	ln, err := dev.Listen(ctx, o.hostPort(), o.fabric.Link())
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	w := &lockedWriter{w: out}
	if _, err := fmt.Fprintf(w, "ready: %s\n", ln.Addr()); err != nil {
		return err
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	free := make(chan struct{}, rpingClients)
	for {
		req, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // a server is ended, that is no mistake
		case err != nil:
			return err
		case !o.persistent:
			return o.answer(ctx, dev, req, w, log)
		}
		free <- struct{}{}
		clients.Go(func() {
			defer func() { <-free }()
			if err := o.answer(ctx, dev, req, w, log); err != nil {
				_, _ = fmt.Fprintln(w, cli.OneLine(err))
			}
		})
	}
}

// answer serves one client.
func (o *rpingOptions) answer(ctx context.Context, dev rnic.Device, req rnic.Request, out io.Writer, log *slog.Logger) error {
	peer := req.Info().RemoteAddr
	p, err := o.accept(ctx, dev, req, log.With("peer", peer))
	if err != nil {
		return fmt.Errorf("client %v: %w", peer, err)
	}
	defer p.close()
	for n := 0; ; n++ {
		b, err := p.receive(ctx, "a ping")
		switch {
		case errors.Is(err, errPeerDone):
			_, err = fmt.Fprintf(out, "client %v: %d pings served\n", peer, n)
			return err
		case ctx.Err() != nil:
			p.leave()
			return nil
		case err == nil:
			err = o.echo(ctx, p, b, out)
		}
		if err != nil {
			return fmt.Errorf("client %v: ping %d: %w", peer, n, err)
		}
	}
}

func (o *rpingOptions) accept(ctx context.Context, dev rnic.Device, req rnic.Request, log *slog.Logger) (*pinger, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, &stalledError{"the client's connection", o.timeout})
	defer cancel()
	p, err := newPinger(dev, log, o.timeout, 1, rpingMaxSize)
	if err == nil {
		if err = p.prepare(req.CreateQP); err == nil {
			// Only what the client offered: it may be one that reads nothing.
			info := req.Info()
			err = causeOf(ctx, req.Accept(ctx, rnic.ConnParams{IRD: min(1, info.PeerORD), ORD: min(1, info.PeerIRD)}))
		}
		if err != nil {
			p.close()
		}
	}
	if err != nil {
		_ = req.Reject(nil) // it may have been answered; then this does nothing
		return nil, err
	}
	log.Debug("connected", "ird", p.qp.Info().IRD, "ord", p.qp.Info().ORD, "link", fmt.Sprint(p.qp.Info().Link))
	return p, nil
}

// echo is the server's side of a ping: it Reads the client's text from b and Writes it back to where
// the client says next.
func (o *rpingOptions) echo(ctx context.Context, p *pinger, b buffer, out io.Writer) error {
	if b.length == 0 || b.length > rpingMaxSize {
		return fmt.Errorf("the client's text has %d octets, limit %d", b.length, rpingMaxSize)
	}
	mr := p.text[0]
	text := []rnic.SGE{{MR: mr, Len: int(b.length)}}
	if err := p.do(ctx, &rnic.SendWR{Op: rnic.OpRead, SGE: text, RemoteSTag: b.stag, RemoteAddr: b.addr}, "the Read"); err != nil {
		return inMidPing(err)
	}
	n := textLen(mr.Bytes()[:b.length])
	if o.verbose {
		if _, err := fmt.Fprintf(out, "server ping data: %s\n", mr.Bytes()[:n]); err != nil {
			return err
		}
	}
	if err := p.send(ctx, buffer{}, "saying that the text was read"); err != nil {
		return inMidPing(err)
	}
	to, err := p.receive(ctx, "the client's sink")
	if err != nil {
		return inMidPing(err)
	}
	text[0].Len = min(n+1, int(b.length), int(to.length))
	if err := p.do(ctx, &rnic.SendWR{Op: rnic.OpWrite, SGE: text, RemoteSTag: to.stag, RemoteAddr: to.addr}, "the Write"); err != nil {
		return inMidPing(err)
	}
	return inMidPing(p.send(ctx, buffer{}, "saying that the text was written"))
}

// inMidPing makes of a peer's orderly end a mistake: it came too early.
func inMidPing(err error) error {
	if errors.Is(err, errPeerDone) {
		return errors.New("the client ended the connection in the middle of it")
	}
	return err
}

// lockedWriter lets several clients print whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
