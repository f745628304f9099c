package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

// perfResult is what a test measured.
type perfResult struct {
	test   perfTest
	took   time.Duration
	stamps []time.Duration // in the order of completion
}

// client runs one test towards addr.
func (o *perfOptions) client(ctx context.Context, dev rnic.Device, addr string, t perfTest) (perfResult, error) {
	e, err := newPerfEnd(dev, t, true)
	if err != nil {
		return perfResult{}, err
	}
	defer e.close()
	if err := o.connect(ctx, dev, addr, e); err != nil {
		return perfResult{}, err
	}
	if err := e.mark(e.qp); err != nil {
		return perfResult{}, err
	}
	if err := e.wait(ctx, o.timeout); err != nil {
		return perfResult{}, err
	}
	e.leave(min(farewell, o.timeout))
	return perfResult{t, e.took, e.stamps}, nil
}

func (o *perfOptions) connect(ctx context.Context, dev rnic.Device, addr string, e *perfEnd) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, &stalledError{"the server's answer", o.timeout})
	defer cancel()
	c, err := dev.Dial(ctx, addr, o.fabric.Link())
	if err != nil {
		return cli.Unreached(addr, causeOf(ctx, err))
	}
	if err := e.prepare(c.CreateQP); err != nil {
		return errors.Join(err, c.Close())
	}
	info, err := c.Connect(ctx, e.params(nil, e.test.request(e.region())))
	if err != nil {
		var r *rnic.RejectedError
		if errors.As(err, &r) {
			if why := refused(r.PrivateData); why != "" {
				err = fmt.Errorf("refused: %s", why)
			}
		}
		return errors.Join(causeOf(ctx, err), c.Close())
	}
	e.peer, err = parseAnswer(info.PrivateData)
	return err
}

// leave ends the connection in order, and waits a moment for that: what was posted last is for the peer.
func (e *perfEnd) leave(limit time.Duration) {
	if e.qp.Disconnect() != nil {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-e.gone:
	case <-t.C:
	}
}

// region is this end's, for the peer.
func (e *perfEnd) region() remote { return remote{e.mr.STag(), e.mr.Addr()} }

// perfServer is the other end of any number of tests.
type perfServer struct {
	o      *perfOptions
	dev    rnic.Device
	ln     rnic.Listener
	out    io.Writer
	failed chan error
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// listen starts a server; it prints a line for each test.
func (o *perfOptions) listen(ctx context.Context, dev rnic.Device, addr string, out io.Writer) (*perfServer, error) {
	ln, err := dev.Listen(ctx, addr, o.fabric.Link())
	if err != nil {
		return nil, fmt.Errorf("perf: %w", err)
	}
	s := &perfServer{o: o, dev: dev, ln: ln, out: &lockedWriter{w: out}, failed: make(chan error, 1)}
	ctx, s.stop = context.WithCancel(ctx)
	s.wg.Go(func() { s.run(ctx) })
	return s, nil
}

// close ends the server with its tests.
func (s *perfServer) close() {
	s.stop()
	_ = s.ln.Close()
	s.wg.Wait()
}

func (s *perfServer) run(ctx context.Context) {
	free := make(chan struct{}, perfClients)
	for {
		req, err := s.ln.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.failed <- err
			}
			return
		}
		free <- struct{}{}
		s.wg.Go(func() {
			defer func() { <-free }()
			t, err := s.answer(ctx, req)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				_, _ = fmt.Fprintf(s.out, "client %v: %s\n", req.Info().RemoteAddr, cli.OneLine(err))
			default:
				_, _ = fmt.Fprintf(s.out, "client %v: %s of %d octets, %d times\n", req.Info().RemoteAddr, t.name(), t.size, t.count)
			}
		})
	}
}

// answer serves one test.
func (s *perfServer) answer(ctx context.Context, req rnic.Request) (perfTest, error) {
	info := req.Info()
	t, peer, err := parseRequest(info.PrivateData)
	if err != nil {
		_ = req.Reject(refusal(err))
		return t, err
	}
	e, err := newPerfEnd(s.dev, t, false)
	if err != nil {
		_ = req.Reject(refusal(err))
		return t, err
	}
	defer e.close()
	e.peer = peer
	limited, cancel := context.WithTimeoutCause(ctx, s.o.timeout, &stalledError{"the client's connection", s.o.timeout})
	defer cancel()
	if err := e.prepare(req.CreateQP); err != nil {
		_ = req.Reject(refusal(err))
		return t, err
	}
	if err := req.Accept(limited, e.params(&info, e.region().answer())); err != nil {
		_ = req.Reject(nil) // unless it was answered
		return t, causeOf(limited, err)
	}
	return t, e.wait(ctx, s.o.timeout)
}
