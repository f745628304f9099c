package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

const (
	rpingPort = 7174
	// rpingMinSize leaves room for "rdma-ping-N: " and a zero, rpingMaxSize is what this server takes.
	rpingMinSize  = 24
	rpingMaxSize  = 1 << 16
	rpingDefault  = 64
	rpingControl  = 16 // octets of a control message
	rpingReceives = 2
	// rpingClients bounds the clients that a persistent server serves at once.
	rpingClients = 64
	farewell     = 2 * time.Second
)

// rpingOptions are the flags of rping.
type rpingOptions struct {
	common
	server, client bool
	persistent     bool
	verify         bool
	verbose        bool
	debug          bool
	addr           string
	port           int
	size           int
	count          int
	timeout        time.Duration
}

func rpingCommand() *cobra.Command {
	o := &rpingOptions{common: newCommon(), size: rpingDefault, port: rpingPort, timeout: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "rping {-s | -c} [-a ADDRESS] [-p PORT]",
		Short: "Check that two hosts can Send, Read and Write; speaks with librdmacm's rping",
		Long: `rping sends pings between two hosts, each made of every basic operation:

  1. the client Sends the address of a buffer; the server RDMA Reads it, and Sends "go on"
  2. the client Sends the address of another one; the server RDMA Writes the text there, and Sends "done"

It speaks with rping of librdmacm at either end and takes its flags. A server serves one client and ends,
or any number with -P. It prints "ready: ADDRESS" once clients may come.`,
		Example: `  iwarp rping -s -a 192.0.2.10 -P
  iwarp rping -c -a 192.0.2.10 -C 100 -S 4096 -V
  iwarp rping -c -a 192.0.2.10 -v --rnic verbs:siw0`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.server, "server", "s", false, "be the server")
	f.BoolVarP(&o.client, "client", "c", false, "be the client")
	f.StringVarP(&o.addr, "address", "a", "", "the `address` to connect to, or to listen on (the server's default: every one)")
	f.IntVarP(&o.port, "port", "p", o.port, "the port; a server with 0 picks a free one")
	f.IntVarP(&o.size, "size", "S", o.size, fmt.Sprintf("`octets` of a ping's text, %d to %d (client)", rpingMinSize, rpingMaxSize))
	f.IntVarP(&o.count, "count", "C", 0, "how many pings to send; 0 goes on until it is ended (client)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print each ping's text")
	f.BoolVarP(&o.verify, "verify", "V", false, "compare what comes back with what was sent (client)")
	f.BoolVarP(&o.persistent, "persistent", "P", false, "serve one client after another, and several at once (server)")
	f.BoolVarP(&o.debug, "debug", "d", false, "log each step, as --log-level debug does")
	f.DurationVar(&o.timeout, "timeout", o.timeout, "how long each step may take")
	o.flags(f)
	return cmd
}

func (o *rpingOptions) run(ctx context.Context, out, errs io.Writer) error {
	if o.debug {
		o.logLevel = "debug"
	}
	log, err := o.logger(errs)
	if err != nil {
		return err
	}
	switch {
	case o.server == o.client:
		return cli.Usagef("rping: be a server (-s) or a client (-c); see 'iwarp rping --help'")
	case o.client && o.addr == "":
		return cli.Usagef("rping: a client needs the server's address: -a ADDRESS")
	case o.client && o.persistent:
		return cli.Usagef("rping: -P is for a server")
	case o.port < 0 || o.port > 65535 || o.client && o.port == 0:
		return cli.Usagef("rping: -p %d is no port", o.port)
	case o.size < rpingMinSize || o.size > rpingMaxSize:
		return cli.Usagef("rping: -S %d: want %d to %d octets", o.size, rpingMinSize, rpingMaxSize)
	case o.count < 0:
		return cli.Usagef("rping: -C %d: want 0 or more pings", o.count)
	case o.timeout <= 0:
		return cli.Usagef("rping: --timeout %v: want more than 0", o.timeout)
	}
	dev, err := o.fabric.Open(log)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	if o.client {
		err = o.ping(ctx, dev, out, log)
	} else {
		err = o.serve(ctx, dev, out, log)
	}
	if err != nil {
		return fmt.Errorf("rping: %w", err)
	}
	return nil
}

func (o *rpingOptions) hostPort() string { return net.JoinHostPort(o.addr, strconv.Itoa(o.port)) }

// pinger is one side of a connection: its queue pair and the memory for control messages,
//
//	octet  0        16        32        48
//	       | recv 0 | recv 1  |  send   |
//
// and for the text: the client's source and sink, or the server's copy.
type pinger struct {
	*waiter
	log  *slog.Logger
	pd   rnic.PD
	qp   rnic.QP
	ctrl rnic.MR
	text []rnic.MR

	sends, arrived uint64 // completions not asked for yet
	slot           int    // of the message that comes next
}

// Work request IDs: receives have their slot.
const rpingOp = 100

// newPinger registers texts regions of size octets.
func newPinger(dev rnic.Device, log *slog.Logger, timeout time.Duration, texts, size int) (p *pinger, err error) {
	p = &pinger{log: log}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.pd, err = dev.AllocPD(); err != nil {
		return p, err
	}
	cq, err := dev.CreateCQ(rnic.CQConfig{Depth: 16})
	if err != nil {
		return p, err
	}
	p.waiter = newWaiter(cq, timeout)
	if p.ctrl, err = p.pd.AllocMR((rpingReceives+1)*rpingControl, rnic.LocalWrite); err != nil {
		return p, err
	}
	for range texts {
		mr, err := p.pd.AllocMR(size, rnic.LocalWrite|rnic.RemoteRead|rnic.RemoteWrite)
		if err != nil {
			return p, err
		}
		p.text = append(p.text, mr)
	}
	return p, nil
}

// prepare makes the queue pair and posts the receives: a peer may send as soon as it is accepted.
func (p *pinger) prepare(create func(rnic.QPConfig) (rnic.QP, error)) (err error) {
	p.qp, err = create(rnic.QPConfig{PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, SendDepth: 4, RecvDepth: rpingReceives, OnEvent: p.event})
	if err != nil {
		return err
	}
	for i := range rpingReceives {
		if err := p.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (p *pinger) postRecv(slot int) error {
	return p.qp.PostRecv(&rnic.RecvWR{ID: uint64(slot), SGE: []rnic.SGE{{MR: p.ctrl, Off: slot * rpingControl, Len: rpingControl}}})
}

// close frees everything, the connection first. What was never made is nil.
func (p *pinger) close() {
	if p.qp != nil {
		_ = p.qp.Close()
	}
	if p.ctrl != nil {
		_ = p.ctrl.Deregister()
	}
	for _, mr := range p.text {
		_ = mr.Deregister()
	}
	if p.waiter != nil {
		_ = p.cq.Close()
	}
	if p.pd != nil {
		_ = p.pd.Close()
	}
}

// leave ends the connection in order.
func (p *pinger) leave() {
	if p.qp.Disconnect() == nil {
		p.closed(min(farewell, p.timeout))
	}
}

// collect takes completions until counter is above 0 and takes one off it.
func (p *pinger) collect(ctx context.Context, counter *uint64, what string) error {
	for *counter == 0 {
		wc, err := p.next(ctx, what)
		switch {
		case err != nil:
			return err
		case wc.Op != rnic.OpRecv:
			p.sends++
		case wc.Len != rpingControl:
			return fmt.Errorf("the peer sent %d octets, where rping sends %d", wc.Len, rpingControl)
		default:
			p.arrived++
		}
	}
	*counter--
	p.log.Debug("done", "step", what)
	return nil
}

// do posts a work request and waits for its completion.
func (p *pinger) do(ctx context.Context, wr *rnic.SendWR, what string) error {
	wr.ID, wr.Flags = rpingOp, rnic.Signaled
	if err := p.qp.PostSend(wr); err != nil {
		if errors.Is(err, rnic.ErrClosed) {
			return p.cause(ctx, rnic.Completion{Status: rnic.StatusFlushed, Err: err}, what)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return p.collect(ctx, &p.sends, what)
}

// buffer is what a control message says: a region's Tagged Offset, STag and length, in network order.
type buffer struct {
	addr   uint64
	stag   rnic.STag
	length uint32
}

// send Sends a control message.
func (p *pinger) send(ctx context.Context, b buffer, what string) error {
	const off = rpingReceives * rpingControl
	m := p.ctrl.Bytes()[off:]
	binary.BigEndian.PutUint64(m, b.addr)
	binary.BigEndian.PutUint32(m[8:], uint32(b.stag))
	binary.BigEndian.PutUint32(m[12:], b.length)
	return p.do(ctx, &rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: p.ctrl, Off: off, Len: rpingControl}}}, what)
}

// receive waits for a control message and gives its buffer back to the queue.
func (p *pinger) receive(ctx context.Context, what string) (buffer, error) {
	if err := p.collect(ctx, &p.arrived, what); err != nil {
		return buffer{}, err
	}
	m := p.ctrl.Bytes()[p.slot*rpingControl:]
	b := buffer{binary.BigEndian.Uint64(m), rnic.STag(binary.BigEndian.Uint32(m[8:])), binary.BigEndian.Uint32(m[12:])}
	if err := p.postRecv(p.slot); err != nil && !errors.Is(err, rnic.ErrClosed) {
		return buffer{}, err // a connection that has ended says so at the next step
	}
	p.slot = (p.slot + 1) % rpingReceives
	return b, nil
}
