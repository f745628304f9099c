package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
)

func readCommand(o *connectOptions) *cobra.Command {
	var offset, length cli.Size
	var l lastingOptions
	cmd := &cobra.Command{
		Use:   "read URL [FILE]",
		Short: "Read a disk, or a part of it, to a file or standard output",
		Example: `  iser read iser://192.0.2.10/iqn.2026-11.com.example:store1/0 disk.img
  iser read iscsi://192.0.2.10/iqn.2026-11.com.example:store1/0 --offset 1MiB --length 512 | hexdump -C`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length.N == 0 && cmd.Flags().Changed("length") {
				return cli.Usagef("--length 0: want 1 octet or more; leave it out for all")
			}
			return o.withLasting(cmd.Context(), args[0], &l, func(ctx context.Context, d *disk) (err error) {
				n, err := extent(d, offset, length)
				if err != nil {
					return err
				}
				out := cmd.OutOrStdout()
				if len(args) == 2 && args[1] != "-" {
					f, err := os.Create(args[1])
					if err != nil {
						return err
					}
					defer func() { err = errors.Join(err, f.Close()) }()
					out = f
				}
				return stream(ctx, d, int64(offset.N), n, func(b []byte) error {
					_, err := out.Write(b)
					return err
				})
			})
		},
	}
	cmd.Flags().Var(&offset, "offset", "where to begin, in octets (or with K, MiB, GB, …)")
	cmd.Flags().Var(&length, "length", "how much to read; to the end if not given")
	l.flags(cmd.Flags())
	return cmd
}

// extent is how many octets an operation at offset is for, at most length if that is given.
func extent(d *disk, offset, length cli.Size) (int64, error) {
	left := d.Size() - int64(offset.N)
	if left < 0 || int64(length.N) > left {
		return 0, fmt.Errorf("beyond the end of %s, which has %d octets", d, d.Size())
	}
	if length.N > 0 {
		return int64(length.N), nil
	}
	return left, nil
}

// stream reads n octets from off on, in order and a few pieces ahead, and gives them to f.
func stream(ctx context.Context, d *disk, off, n int64, f func([]byte) error) error {
	type piece struct {
		m    memory
		n    int
		off  int64
		done chan error
	}
	ctx, cancel := context.WithCancel(ctx)
	ahead := make([]*piece, 0, pieces)
	defer func() {
		cancel()
		for _, p := range ahead {
			if p.done != nil {
				<-p.done
			}
			p.m.Release()
		}
	}()
	start := func(p *piece) {
		p.n, p.off = int(min(pieceSize, n)), off
		off, n = off+int64(p.n), n-int64(p.n)
		done := make(chan error, 1)
		p.done = done
		go func() { done <- d.Read(ctx, p.m, p.n, p.off) }()
	}
	for range pieces {
		if n == 0 {
			break
		}
		m, err := d.Alloc(pieceSize)
		if err != nil {
			return err
		}
		ahead = append(ahead, &piece{m: m})
		start(ahead[len(ahead)-1])
	}
	for i := 0; len(ahead) > 0; i = (i + 1) % len(ahead) {
		p := ahead[i]
		if p.done == nil {
			return nil // everything was read
		}
		err := <-p.done
		p.done = nil
		if err == nil {
			err = f(p.m.Bytes()[:p.n])
		}
		if err != nil {
			return err
		}
		if n > 0 {
			start(p)
		}
	}
	return nil
}

func writeCommand(o *connectOptions) *cobra.Command {
	var offset, length cli.Size
	var l lastingOptions
	cmd := &cobra.Command{
		Use:   "write URL [FILE]",
		Short: "Write a file or standard input to a disk",
		Long: `write stores a file, or standard input up to its end, on a disk from --offset on, and flushes the disk's cache. Blocks of which
only a part is written keep the rest.`,
		Example: `  iser write iser://192.0.2.10/iqn.2026-11.com.example:store1/0 disk.img
  zcat disk.img.gz | iser write iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  printf hello | iser write iscsi://192.0.2.10/iqn.2026-11.com.example:store1/0 --offset 1MiB`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length.N == 0 && cmd.Flags().Changed("length") {
				return cli.Usagef("--length 0: want 1 octet or more; leave it out for all")
			}
			return o.withLasting(cmd.Context(), args[0], &l, func(ctx context.Context, d *disk) error {
				room, err := extent(d, offset, length)
				if err != nil {
					return err
				}
				in := cmd.InOrStdin()
				if len(args) == 2 && args[1] != "-" {
					f, err := os.Open(args[1])
					if err != nil {
						return err
					}
					defer f.Close()
					in = f
				}
				if length.N > 0 {
					in = io.LimitReader(in, room)
				}
				return storeFrom(ctx, d, int64(offset.N), room, in)
			})
		},
	}
	cmd.Flags().Var(&offset, "offset", "where to begin, in octets (or with K, MiB, GB, …)")
	cmd.Flags().Var(&length, "length", "how much to write at most; to the end of the input if not given")
	l.flags(cmd.Flags())
	return cmd
}

// storeFrom writes what in holds from off on; more than room octets are an error. The next piece is read from in
// while the last ones are written.
func storeFrom(ctx context.Context, d *disk, off, room int64, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	free := make(chan memory, pieces)
	done := make(chan error, pieces)
	lent, busy := 0, 0
	var failed error
	defer func() {
		cancel()
		for ; busy > 0; busy-- {
			<-done
		}
		for ; lent > 0; lent-- {
			(<-free).Release()
		}
	}()
	reap := func() {
		busy--
		if err := <-done; err != nil && failed == nil {
			failed = err
		}
	}
	for eof := false; !eof && failed == nil; {
		if len(free) == 0 && lent < pieces {
			m, err := d.Alloc(pieceSize)
			if err != nil {
				return err
			}
			lent++
			free <- m
		}
		for busy >= lent {
			reap()
		}
		m := <-free
		n, err := io.ReadFull(in, m.Bytes())
		eof = err != nil
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		if err == nil && int64(n) > room {
			err = fmt.Errorf("the input is larger than the room left on %s", d)
		}
		if err != nil || n == 0 {
			free <- m
			if err != nil {
				return err
			}
			break
		}
		busy++
		at := off
		off, room = off+int64(n), room-int64(n)
		go func() {
			err := d.Write(ctx, m, n, at)
			free <- m
			done <- err
		}()
	}
	for busy > 0 {
		reap()
	}
	if failed != nil {
		return failed
	}
	return d.Flush(ctx)
}

func copyCommand(o *connectOptions) *cobra.Command {
	c := copyOptions{sparse: true}
	every := cli.Size{N: 256 << 20}
	var facts bool
	var l lastingOptions
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy between disks and files",
		Long: `cp copies a file or a disk to a file or a disk; either side may be a URL or a path. It moves several pieces at a time, flushes the
destination, and prints how fast it went. A file at the destination is replaced.

What the source says is unmapped and reads as zeros (GET LBA STATUS; holes of a file) is not read, and not sent: the destination is asked to hold
zeros there, unless it says that it does. Files get holes. With --unmap the room of all zeros is given back at the destination, those that
were read as well. --sparse=false reads and writes everything.

A connection that is lost is made again, and what was under way is sent again; cp says so in the end. It fails when that takes longer than
--replacement-timeout.

With --resume FILE a copy that was interrupted goes on where it was: FILE notes how much of it is durable at the destination, every --checkpoint octets, and
which source and destination it is about; if these are not the same any more, cp refuses to go on. FILE is removed when all is copied.

With --verify it reads the destination back and compares it with what was copied.

` + cli.SizeHelp,
		Example: `  iser cp vm.raw iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser cp --verify iser://192.0.2.10/iqn.2026-11.com.example:store1/0 iscsi://192.0.2.11/iqn.2026-11.com.example:store2/0
  iser cp --resume backup.state iser://192.0.2.10/iqn.2026-11.com.example:store1/0 backup.raw
  iser cp --replacement-timeout 30m iser://192.0.2.10/iqn.2026-11.com.example:store1/0 backup.raw
  iser cp --unmap --facts golden.raw iser://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch "-" {
			case args[0]:
				return cli.Usagef("cp cannot read standard input, whose size is unknown: use 'iser write'")
			case args[1]:
				return cli.Usagef("cp writes at several places at a time, and standard output has one: use 'iser read'")
			}
			if every.N == 0 {
				return cli.Usagef("--checkpoint 0: want 1 octet or more")
			}
			if err := l.check(); err != nil {
				return err
			}
			c.every = int64(every.N)
			f, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			return copyBetween(cmd.Context(), f, args[0], args[1], c, &l, facts, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&c.verify, "verify", false, "read the destination back and compare it")
	f.BoolVar(&c.sparse, "sparse", c.sparse, "do not read what the source says is zeros")
	f.BoolVar(&c.unmap, "unmap", false, "give the room of zeros back at the destination")
	f.StringVar(&c.state, "resume", "", "`file` that progress is kept in, to go on after an interruption")
	f.Var(&every, "checkpoint", "how often progress is kept")
	l.waitFlag(f)
	f.BoolVar(&facts, "facts", false, "print what each layer agreed on and did")
	return cmd
}

func copyBetween(ctx context.Context, f *fabric, from, to string, o copyOptions, l *lastingOptions, facts bool, out io.Writer) (err error) {
	var disks []*disk
	defer func() {
		for _, d := range disks {
			d.end()
		}
	}()
	if sameDisk(from, to) {
		return fmt.Errorf("%s and %s are the same disk", from, to)
	}
	var src, dst endpoint
	if initiator.IsURL(from) {
		d, err := f.openLasting(ctx, from, l, 0, func(*initiator.DiskConfig) {})
		if err != nil {
			return err
		}
		disks = append(disks, d)
		src = d
	} else if src, err = openSource(from); err != nil {
		return err
	}
	defer src.Close()
	if initiator.IsURL(to) {
		d, err := f.openLasting(ctx, to, l, 0, func(*initiator.DiskConfig) {})
		if err != nil {
			return err
		}
		disks = append(disks, d)
		if src.Size() > d.Size() {
			return fmt.Errorf("%s is larger (%d octets) than %s (%d octets)", src, src.Size(), d, d.Size())
		}
		dst = d
	} else if sameFile(from, to) {
		return fmt.Errorf("%s and %s are the same file", from, to)
	} else if dst, err = openDestination(to, src.Size()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()

	c := &copier{copyOptions: o, src: src, dst: dst, size: src.Size()}
	if o.state != "" {
		if err := c.resume(ctx); err != nil {
			return err
		}
	}
	took, err := c.timed("copying", func() error { return c.run(ctx) })
	if err != nil {
		if o.state != "" {
			err = fmt.Errorf("%w; the same command goes on where it was", err)
		}
		return err
	}
	line := speed("copied", c.size-c.from, took)
	if n := c.zeros.Load(); n > 0 {
		line += fmt.Sprintf("; %s of it zeros that were not moved", octets(n))
	}
	if c.from > 0 {
		line += fmt.Sprintf("; %s had been copied before", octets(c.from))
	}
	fmt.Fprintln(out, line)
	if o.verify {
		if took, err = c.timed("verifying", func() error { return c.check(ctx) }); err != nil {
			return err
		}
		fmt.Fprintln(out, speed("verified", c.size, took))
	}
	if o.state != "" {
		if err := os.Remove(o.state); err != nil {
			return err
		}
	}
	for _, d := range disks {
		if s := d.recoveries(); s != "" {
			fmt.Fprintln(out, s)
		}
	}
	if facts {
		for _, d := range disks {
			info, ok := d.facts()
			if !ok {
				continue // it is down just now
			}
			t := newTable(out)
			t.title(d.url.String())
			printFacts(t, info)
			if err := t.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameDisk tells that two arguments name one logical unit, over whichever transport. What is told apart by no more than its portal may be one
// as well, or two targets of one name: to copy a disk to itself harms nothing.
func sameDisk(a, b string) bool {
	u, err := initiator.ParseURL(a)
	if err != nil {
		return false
	}
	v, err := initiator.ParseURL(b)
	v.Transport = u.Transport
	return err == nil && u == v
}

// timed runs f under a progress bar, which is shown on a terminal only.
func (c *copier) timed(what string, f func() error) (time.Duration, error) {
	c.progress = func(int) {}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		bar := progressbar.NewOptions64(c.size,
			progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		c.progress = func(n int) { _ = bar.Add(n) }
		defer func() { _ = bar.Finish() }()
	}
	start := time.Now()
	err := f()
	return time.Since(start), err
}

func speed(what string, n int64, took time.Duration) string {
	rate := float64(n) / max(took.Seconds(), 1e-9)
	return fmt.Sprintf("%s %s in %.2f s, %s/s", what, humanize.IBytes(uint64(n)), took.Seconds(), humanize.IBytes(uint64(rate)))
}
