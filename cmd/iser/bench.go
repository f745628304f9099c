package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
)

// benchOptions are the flags of bench, named as fio names its options.
type benchOptions struct {
	rw               string
	bs, offset, size cli.Size
	iodepth, numjobs int
	rwmixread        int
	runtime, ramp    seconds
	verify           bool
	randseed         uint64
	overwrite        bool
	json             bool
	compare          string
	rounds           int
	lasting          lastingOptions
}

const (
	benchMaxDepth  = 4096
	benchMaxJobs   = 64
	benchMaxRounds = 1000
	// benchRuntime is how long is measured if neither --runtime nor --size says; benchRound is a round of --compare.
	benchRuntime = 10 * time.Second
	benchRound   = 2 * time.Second
	// benchMemory bounds what all jobs' commands hold together, in octets.
	benchMemory = 1 << 30
)

// seconds is a time as fio takes it: a bare number is in seconds.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }
func (s *seconds) Type() string   { return "time" }

// Set reads a time.
func (s *seconds) Set(v string) error {
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		v = strconv.FormatUint(n, 10) + "s"
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is no time: want seconds, or 500ms, 10s, 2m", v)
	}
	*s = seconds(d)
	return nil
}

func benchCommand(o *connectOptions) *cobra.Command {
	b := &benchOptions{rw: "read", iodepth: 32, numjobs: 1, rwmixread: 50, rounds: 5}
	b.bs.N = 4096
	cmd := &cobra.Command{
		Use:   "bench URL",
		Short: "Measure a disk: commands and octets per second, latencies, CPU",
		Long: `bench keeps --iodepth commands under way in each of --numjobs sessions and tells how many ended per second, how long they took, and
what they cost this host's CPU. Its options have fio's names and meanings; where fio has an underscore, it may stand here as well.

  --rw        read, write, randread, randwrite, rw or randrw; rw and randrw read --rwmixread percent
  --size      the part of the disk that is used, from --offset on. Each job has its own share of it
  --runtime   how long to measure. With --size alone a run ends when as much was moved; with both, at whichever comes first

Whatever writes destroys what the disk holds, and needs --allow-overwrite. With --verify, blocks are written with contents that depend on
where they are and on --randseed, and all that were written are read back and compared when the run has ended; with --rw read or randread, what an
earlier run wrote with the same --randseed is checked as it is read.

A session that is lost is replaced within --replacement-timeout, and what was under way is sent again: the result counts both, and the time that it took is part
of the latencies. With --path each job uses the disk by several paths at once.

With --compare there are two URLs, A and B, for example the same disk over iSER and over TCP, or two versions of a target. Rounds of --runtime each
alternate (A B, B A, ...), so that what changes on the host meets both, and what is printed is B in relation to A: the
median of the rounds' ratios, and the smallest and largest of them. If 1 lies between these, there is no difference to speak of.

` + cli.SizeHelp,
		Example: `  iser bench iser://192.0.2.10/iqn.2026-11.com.example:store1/0 --rw randread --bs 4k --iodepth 32 --numjobs 2 --runtime 10s
  iser bench iser://192.0.2.10/iqn.2026-11.com.example:store1/0 --rw randwrite --size 1G --verify --allow-overwrite
  iser bench iser://192.0.2.10/iqn.2026-11.com.example:store1/0 --rw randrw --rwmixread 70 --runtime 30 --allow-overwrite --json
  iser bench --rw read --bs 1M --compare iser://192.0.2.10/iqn.2026-11.com.example:store1/0 iscsi://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := b.spec(cmd.Flags())
			if err != nil {
				return err
			}
			screen := newScreen(cmd.ErrOrStderr())
			if b.compare != "" {
				return o.compare(cmd.Context(), spec, &b.lasting, [2]string{b.compare, args[0]}, b.rounds, b.json, cmd.OutOrStdout(), screen)
			}
			return o.bench(cmd.Context(), spec, &b.lasting, args[0], b.json, cmd.OutOrStdout(), screen)
		},
	}
	f := cmd.Flags()
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	f.StringVar(&b.rw, "rw", b.rw, "`what` to do: "+strings.Join(workloadNames(), ", "))
	f.Var(&b.bs, "bs", "octets of a command")
	f.IntVar(&b.iodepth, "iodepth", b.iodepth, "commands under way in each job")
	f.IntVar(&b.numjobs, "numjobs", b.numjobs, "jobs, each with a session of its own")
	f.Var(&b.offset, "offset", "where the part that is used begins")
	f.Var(&b.size, "size", "how much of the disk is used (default all behind --offset)")
	f.Var(&b.runtime, "runtime", fmt.Sprintf("how long to measure (default %v if --size is not given; a round of --compare %v)", benchRuntime, benchRound))
	f.Lookup("runtime").DefValue = ""
	f.Var(&b.ramp, "ramp-time", "how long to run before measuring")
	f.Lookup("ramp-time").DefValue = ""
	f.IntVar(&b.rwmixread, "rwmixread", b.rwmixread, "`percent` of reads with rw and randrw")
	f.BoolVar(&b.verify, "verify", false, "check contents")
	f.Uint64Var(&b.randseed, "randseed", 0, "seed of offsets and of the contents to verify (default random)")
	f.BoolVar(&b.overwrite, "allow-overwrite", false, "yes, destroy what the disk holds")
	f.BoolVar(&b.json, "json", false, "print JSON, with fio's names")
	f.StringVar(&b.compare, "compare", "", "`URL` of the disk to compare with: A in the result, and the argument is B")
	f.IntVar(&b.rounds, "rounds", b.rounds, "rounds of --compare")
	b.lasting.flags(f)
	_ = cmd.RegisterFlagCompletionFunc("rw", cobra.FixedCompletions(workloadNames(), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return cmd
}

// spec checks the flags.
func (b *benchOptions) spec(f *pflag.FlagSet) (*benchSpec, error) {
	w, ok := workloads[b.rw]
	switch {
	case !ok:
		return nil, cli.Usagef("--rw %s: want %s", b.rw, strings.Join(workloadNames(), ", "))
	case b.bs.N == 0 || b.bs.N > 1<<30:
		return nil, cli.Usagef("--bs %d: want 512 octets to 1 GiB", b.bs.N)
	case b.iodepth < 1 || b.iodepth > benchMaxDepth:
		return nil, cli.Usagef("--iodepth %d: want 1 to %d", b.iodepth, benchMaxDepth)
	case b.numjobs < 1 || b.numjobs > benchMaxJobs:
		return nil, cli.Usagef("--numjobs %d: want 1 to %d", b.numjobs, benchMaxJobs)
	case b.rwmixread < 0 || b.rwmixread > 100:
		return nil, cli.Usagef("--rwmixread %d: want 0 to 100", b.rwmixread)
	case f.Changed("rwmixread") && !w.mixed:
		return nil, cli.Usagef("--rwmixread is for --rw rw and randrw")
	case f.Changed("size") && b.size.N == 0:
		return nil, cli.Usagef("--size 0: want 1 octet or more; leave it out for all")
	case f.Changed("runtime") && b.runtime == 0:
		return nil, cli.Usagef("--runtime 0: want a time above 0")
	case b.rounds < 1 || b.rounds > benchMaxRounds:
		return nil, cli.Usagef("--rounds %d: want 1 to %d", b.rounds, benchMaxRounds)
	case f.Changed("rounds") && b.compare == "":
		return nil, cli.Usagef("--rounds is for --compare")
	case b.compare != "" && b.verify:
		return nil, cli.Usagef("--compare and --verify exclude each other")
	case b.compare != "" && len(b.lasting.paths) > 0:
		return nil, cli.Usagef("--compare and --path exclude each other")
	}
	if err := b.lasting.check(); err != nil {
		return nil, err
	}
	s := &benchSpec{
		rw: b.rw, random: w.random, readPercent: w.reads, bs: int(b.bs.N), depth: b.iodepth, jobs: b.numjobs,
		offset: int64(b.offset.N), size: int64(b.size.N), runtime: time.Duration(b.runtime), ramp: time.Duration(b.ramp), verify: b.verify, seed: b.randseed,
	}
	if w.mixed {
		s.readPercent = b.rwmixread
	}
	switch {
	case s.writes() && !b.overwrite:
		return nil, cli.Usagef("--rw %s destroys what the disk holds: if that is what you want, add --allow-overwrite", b.rw)
	case s.verify && !s.writes() && !f.Changed("randseed"):
		return nil, cli.Usagef("--verify with --rw %s checks what an earlier run wrote: give its --randseed", b.rw)
	}
	if !f.Changed("randseed") {
		s.seed = rand.Uint64()
	}
	if b.compare != "" && s.runtime == 0 {
		s.runtime = benchRound
	}
	if s.runtime == 0 && s.size == 0 {
		s.runtime = benchRuntime
	}
	return s, nil
}

// bench measures one disk and prints the result. A run that was interrupted prints what it had.
func (o *connectOptions) bench(ctx context.Context, spec *benchSpec, l *lastingOptions, url string, asJSON bool, out io.Writer, scr *screen) (err error) {
	f, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := f.openBench(ctx, spec, l, url)
	if err != nil {
		return err
	}
	defer b.close()
	r, err := b.run(ctx, scr)
	if err != nil && (r == nil || ctx.Err() == nil) {
		return err
	}
	return errors.Join(r.print(out, asJSON), err)
}

// openBench opens the disk for each job.
func (f *fabric) openBench(ctx context.Context, spec *benchSpec, l *lastingOptions, url string) (*bench, error) {
	u, err := parseDisk(url)
	if err != nil {
		return nil, err
	}
	if err := f.domain.SetMemory(benchMemory, 0); err != nil {
		return nil, err
	}
	b := &bench{spec: spec, url: u}
	for i := range spec.jobs {
		if err = f.addJob(ctx, b, l, url, i); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func (f *fabric) addJob(ctx context.Context, b *bench, l *lastingOptions, url string, i int) error {
	d, err := f.openLasting(ctx, url, l, b.spec.lend(), func(c *initiator.DiskConfig) { c.Session.QueueDepth = b.spec.depth })
	if err != nil {
		return err
	}
	b.disks = append(b.disks, d.whole)
	if i == 0 {
		if err := b.spec.fit(ctx, d); err != nil {
			return err
		}
	}
	j, err := newBenchJob(b.spec, d, i)
	if errors.Is(err, iscsi.ErrNoMemory) {
		return fmt.Errorf("--iodepth %d of --bs %s in %s is more memory than there is for them (%s); take less of one of them",
			b.spec.depth, octets(int64(b.spec.bs)), plural(uint64(b.spec.jobs), "job", "jobs"), octets(benchMemory))
	}
	if err != nil {
		return err
	}
	b.jobs = append(b.jobs, j)
	return nil
}

// print writes the result for people, or as JSON.
func (r *benchResult) print(out io.Writer, asJSON bool) error {
	if !asJSON {
		_, err := io.WriteString(out, r.text())
		return err
	}
	return writeJSON(out, r)
}

// writeJSON writes v as indented JSON.
func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
