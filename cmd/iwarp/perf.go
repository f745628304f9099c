package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

const (
	perfPort     = 18515
	perfMaxSize  = 64 << 20
	perfMaxDepth = 4096
	perfMaxCount = 100_000_000
	perfClients  = 64
)

// perfOptions are the flags of perf.
type perfOptions struct {
	common
	size    cli.Size
	all     bool
	count   int
	depth   int
	both    bool
	latency bool
	json    bool
	address string
	timeout time.Duration
}

func perfCommand() *cobra.Command {
	o := &perfOptions{common: newCommon(), timeout: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "Measure bandwidth and latency; prints perftest's columns",
		Long: `perf measures RDMA operations between two hosts, or between two connections' ends in one process.

Bandwidth is measured with many operations under way, from the first post until the peer has said that
it has everything. Its peak is the best tenth of the run. Latency (--lat) is measured one operation at a time: for write and send half of the
way there and back (a Write is followed by an empty Send, that announces it), for read and atomic the whole way.`,
		Example: `  iwarp perf write                                  # both ends in this process
  iwarp perf serve --listen 192.0.2.10:18515
  iwarp perf write 192.0.2.10 --size 1MiB --bidirectional
  iwarp perf send 192.0.2.10 --lat --iterations 10000 --json`,
		Args: cli.Args(cobra.ArbitraryArgs),
		RunE: help,
	}
	f := cmd.PersistentFlags()
	f.DurationVar(&o.timeout, "timeout", o.timeout, "how long a test may make no progress")
	o.flags(f)
	for _, op := range []struct {
		code  rnic.Opcode
		name  string
		short string
	}{
		{rnic.OpWrite, "write", "RDMA Writes"},
		{rnic.OpRead, "read", "RDMA Reads"},
		{rnic.OpSend, "send", "Sends"},
		{rnic.OpFetchAdd, "atomic", "atomic additions, of 8 octets (RFC 7306)"},
	} {
		cmd.AddCommand(o.testCommand(op.code, op.name, op.short))
	}
	cmd.AddCommand(o.serveCommand())
	return cmd
}

func (o *perfOptions) testCommand(code rnic.Opcode, name, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " [HOST[:PORT]]",
		Short: "Measure " + short,
		Long: "Measure " + short + ` towards a host that runs 'iwarp perf serve', or within this process if no host is
named.`,
		Example: fmt.Sprintf("  iwarp perf %s\n  iwarp perf %[1]s 192.0.2.10 --lat", name),
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := ""
			if len(args) > 0 {
				host = args[0]
			}
			return o.measure(cmd.Context(), code, host, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	if code != rnic.OpFetchAdd {
		f.Var(&o.size, "size", "octets of an operation (default 64 KiB; with --lat 2)")
		f.BoolVar(&o.all, "all", false, "all sizes from 2 octets to 8 MiB")
	}
	f.IntVarP(&o.count, "iterations", "n", 1000, "how many operations")
	f.IntVar(&o.depth, "depth", 64, "how many operations are under way at once (bandwidth)")
	f.BoolVar(&o.both, "bidirectional", false, "let both ends work, and add up what they move (bandwidth)")
	f.BoolVar(&o.latency, "lat", false, "measure latency")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.address, "address", "127.0.0.1:0", "`address:port` where the two ends meet if no host is named")
	return cmd
}

func (o *perfOptions) serveCommand() *cobra.Command {
	listen := ":" + strconv.Itoa(perfPort)
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Be the other end of tests, until ended",
		Long:    `serve is the other end of whatever test a client asks for. It prints "ready: ADDRESS" once clients may come.`,
		Example: "  iwarp perf serve --listen 192.0.2.10:18515 --rnic verbs:siw0",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.serve(cmd.Context(), listen, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "`address:port` to listen on; port 0 picks a free one")
	return cmd
}

// tests are the tests that the flags ask for: one for each size.
func (o *perfOptions) tests(code rnic.Opcode) ([]perfTest, error) {
	t := perfTest{op: code, latency: o.latency, both: o.both, depth: o.depth, count: o.count, size: int(o.size.N)}
	switch {
	case o.all && o.size.N > 0:
		return nil, cli.Usagef("perf: --all and --size exclude each other")
	case o.latency && o.both:
		return nil, cli.Usagef("perf: --lat goes one way and back; it is never --bidirectional")
	case code == rnic.OpFetchAdd:
		t.size = 8
	case t.size == 0 && o.latency:
		t.size = 2
	case t.size == 0:
		t.size = 64 << 10
	}
	if t.latency {
		t.depth = 1
	}
	if !o.all {
		if err := t.check(); err != nil {
			return nil, cli.Usagef("perf: %v", err)
		}
		return []perfTest{t}, nil
	}
	var ts []perfTest
	for t.size = 2; t.size <= 8<<20; t.size *= 2 {
		if err := t.check(); err != nil {
			return nil, cli.Usagef("perf: %v", err)
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// measure is the client.
func (o *perfOptions) measure(ctx context.Context, code rnic.Opcode, host string, out, errs io.Writer) error {
	log, err := o.logger(errs)
	if err != nil {
		return err
	}
	tests, err := o.tests(code)
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return cli.Usagef("perf: --timeout %v: want more than 0", o.timeout)
	}
	dev, err := o.fabric.Open(log)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	addr := host
	if host == "" {
		s, err := o.listen(ctx, dev, o.address, io.Discard)
		if err != nil {
			return err
		}
		defer s.close()
		addr = s.ln.Addr().String()
	} else if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(host, strconv.Itoa(perfPort))
	}
	r := newReport(out, o.json, dev.Attributes(), addr, tests[0])
	for _, t := range tests {
		runtime.GC() // not in the middle of the next one
		result, err := o.client(ctx, dev, addr, t)
		if err != nil {
			return fmt.Errorf("perf: %s: %s of %s: %w", addr, t.name(), humanize.IBytes(uint64(t.size)), err)
		}
		if err := r.add(result); err != nil {
			return err
		}
	}
	return r.end()
}

// serve is the server.
func (o *perfOptions) serve(ctx context.Context, listen string, out, errs io.Writer) error {
	log, err := o.logger(errs)
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return cli.Usagef("perf: --timeout %v: want more than 0", o.timeout)
	}
	dev, err := o.fabric.Open(log)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	s, err := o.listen(ctx, dev, listen, out)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := fmt.Fprintf(s.out, "ready: %s\n", s.ln.Addr()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}
