package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

// Indexes of a client's text regions.
const (
	source = iota // the server Reads it
	sink          // the server Writes it
)

// ping is the client.
func (o *rpingOptions) ping(ctx context.Context, dev rnic.Device, out io.Writer, log *slog.Logger) error {
	p, err := newPinger(dev, log, o.timeout, 2, o.size)
	if err != nil {
		return err
	}
	defer p.close()
	if err := o.connect(ctx, dev, p); err != nil {
		return cli.Unreached(o.hostPort(), err)
	}
	start, n := time.Now(), 0
	for ; o.count == 0 || n < o.count; n++ {
		err = o.round(ctx, p, n, out)
		if err != nil {
			break
		}
	}
	took := time.Since(start)
	if errors.Is(err, context.Canceled) && o.count == 0 {
		err = nil // it was told to go on until it is ended
	}
	if err != nil {
		return fmt.Errorf("%s: ping %d: %w", o.hostPort(), n, err)
	}
	p.leave()
	outcome := "sent"
	if o.verify {
		outcome = "verified"
	}
	_, err = fmt.Fprintf(out, "%d pings of %d octets %s, %v each\n", n, o.size, outcome, (took / time.Duration(max(n, 1))).Round(time.Microsecond/10))
	return err
}

func (o *rpingOptions) connect(ctx context.Context, dev rnic.Device, p *pinger) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, &stalledError{"the server's answer", o.timeout})
	defer cancel()
	c, err := dev.Dial(ctx, o.hostPort(), o.fabric.Link())
	if err != nil {
		return causeOf(ctx, err)
	}
	if err := p.prepare(c.CreateQP); err != nil {
		return errors.Join(err, c.Close())
	}
	info, err := c.Connect(ctx, rnic.ConnParams{IRD: 1, ORD: 1})
	if err != nil {
		return errors.Join(causeOf(ctx, err), c.Close())
	}
	p.log.Debug("connected", "peer", info.RemoteAddr, "ird", info.IRD, "ord", info.ORD, "link", fmt.Sprint(info.Link))
	if info.IRD < 1 {
		return errors.New("the server cannot RDMA Read: connection setup left it no Read")
	}
	return nil
}

// round is one ping.
func (o *rpingOptions) round(ctx context.Context, p *pinger, n int, out io.Writer) error {
	from, to := p.text[source].Bytes(), p.text[sink].Bytes()
	pingText(from, n)
	clear(to)
	for _, step := range []struct {
		of        int
		tell, ask string
	}{
		{source, "telling the source", "the server's Read"},
		{sink, "telling the sink", "the server's Write"},
	} {
		mr := p.text[step.of]
		if err := p.send(ctx, buffer{mr.Addr(), mr.STag(), uint32(o.size)}, step.tell); err != nil {
			return err
		}
		if _, err := p.receive(ctx, step.ask); err != nil {
			return err
		}
	}
	if o.verify {
		if at := differ(from, to); at >= 0 {
			return fmt.Errorf("what came back differs at octet %d of %d: %#02x, want %#02x", at, len(from), to[at], from[at])
		}
	}
	if o.verbose {
		_, err := fmt.Fprintf(out, "ping data: %s\n", to[:textLen(to)])
		return err
	}
	return nil
}

// pingText fills b with ping n's text: its number, then letters that begin one further on with each
// ping, and a zero that ends it.
func pingText(b []byte, n int) {
	const first, last = 'A', 'z'
	k := copy(b, fmt.Appendf(nil, "rdma-ping-%d: ", n))
	for i := range b[k:] {
		b[k+i] = byte(first + (n+i)%(last-first+1))
	}
	b[len(b)-1] = 0
}

// textLen is the length of the zero-terminated text in b.
func textLen(b []byte) int {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return i
	}
	return len(b)
}

// differ is the first place where a and b, of one length, differ; -1 if nowhere.
func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
