// Command interop proves the stack against Linux: it boots a Debian kernel with soft-iWARP (siw), its iSER initiator (ib_iser)
// and target (LIO, ib_isert) in QEMU, runs each leg of the proof in a guest of its own, and reads the captures with tshark.
//
// guest/make.sh makes the guest; legs/*.sh are what runs in it; docs/interop.md says what they prove.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.kernel, "kernel", "6.1", "Debian kernel `series` of the guest: 6.1 or 6.12")
	flag.BoolVar(&o.full, "full", false, "the whole matrix: each leg in every variant of siw and both MTUs as far as it cares, and the long legs")
	flag.StringVar(&o.legs, "legs", "", "run only these legs (`names`, with commas)")
	flag.StringVar(&o.siw, "siw", "", "run the legs that are made for this siw (`variant`: plain, crc, p2p or rev1) in it alone")
	flag.IntVar(&o.mtu, "mtu", 0, "run the legs that are made for this MTU, 1500 or 65535 `octets`, in it alone")
	flag.IntVar(&o.jobs, "jobs", 2, "how `many` legs run at a time")
	flag.StringVar(&o.cache, "cache", cacheFolder(), "where guests are kept")
	flag.StringVar(&o.keep, "keep", "", "keep each leg's `folder` (log, captures) there, passed or not")
	flag.Parse()
	passed, failed, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 || err != nil {
		os.Exit(1)
	}
}

type options struct {
	kernel string
	full   bool
	legs   string
	siw    string
	mtu    int
	jobs   int
	cache  string
	keep   string
}

// cacheFolder is outside of any checkout, so that a guest is made once for all of them.
func cacheFolder() string {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = os.TempDir()
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "goiwarp-interop")
}

// run makes the guest and the programs and runs the legs one after the other.
func (o *options) run(ctx context.Context) (passed, failed int, err error) {
	legs, err := o.choose()
	if err != nil {
		return 0, 0, err
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return 0, 0, err
	}
	guest, err := output(ctx, "guest/make.sh", o.kernel, o.cache)
	if err != nil {
		return 0, 0, fmt.Errorf("making the guest: %w", err)
	}
	programs, err := os.MkdirTemp("", "goiwarp-interop-programs.")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(programs)
	if err := build(ctx, legs, programs); err != nil {
		return 0, 0, err
	}
	return o.runLegs(ctx, legs, guest, programs)
}

// runLegs runs so many legs at a time, in their order, and prints each one's results as it ends. Most of a leg is waiting, so that
// two share two processors well.
func (o *options) runLegs(ctx context.Context, legs []leg, guest, programs string) (passed, failed int, err error) {
	var (
		mu   sync.Mutex // guards the results and what is printed
		all  sync.WaitGroup
		turn = make(chan struct{}, max(o.jobs, 1))
		ends = make([]ending, len(legs))
	)
	for i, l := range legs {
		turn <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-turn }()
			var report bytes.Buffer
			end, e := o.runLeg(ctx, l, guest, programs, &report)
			mu.Lock()
			defer mu.Unlock()
			ends[i] = end
			passed, failed = passed+end.passed, failed+end.failed
			fmt.Print(report.String())
			if e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", l, e))
			}
		})
	}
	all.Wait()
	if len(legs) > 1 {
		summarize(os.Stdout, o.kernel, legs, ends)
	}
	return passed, failed, errors.Join(err, context.Cause(ctx))
}

// runLeg boots a guest for one leg, judges what it left, and writes a report.
func (o *options) runLeg(ctx context.Context, l leg, guest, programs string, report io.Writer) (e ending, err error) {
	dir, err := os.MkdirTemp("", "goiwarp-interop."+l.name+".")
	if err != nil {
		return e, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = os.RemoveAll(dir)
		}
	}()
	if o.keep != "" {
		keep = true
		kept := filepath.Join(o.keep, strings.ReplaceAll(l.String(), " ", "_"))
		if err := os.RemoveAll(kept); err != nil {
			return e, err
		}
		if err := os.MkdirAll(o.keep, 0o755); err != nil {
			return e, err
		}
		if err := os.Rename(dir, kept); err != nil {
			return e, err
		}
		dir = kept
	}
	start := time.Now()
	fmt.Fprintf(report, "== %s\n", l)
	if err := l.prepare(dir, programs, o.full); err != nil {
		return e, err
	}
	cpu, ended := boot(ctx, l, guest, dir)
	checks, notes := results(dir)
	if ended != nil {
		checks = append(checks, check{ok: false, name: ended.Error()})
	}
	checks = append(checks, dissect(ctx, dir)...)
	for _, n := range notes {
		fmt.Fprintf(report, "   %s\n", n)
	}
	for _, c := range checks {
		if c.ok {
			e.passed++
			continue
		}
		e.failed++
		fmt.Fprintf(report, "   FAIL %s\n", c.name)
	}
	e.took, e.cpu = time.Since(start), cpu
	fmt.Fprintf(report, "   %d passed, %d failed in %v (the guest took %v of processor time)\n", e.passed, e.failed,
		e.took.Round(time.Second), e.cpu.Round(time.Second))
	if e.failed > 0 {
		keep = true
		fmt.Fprintf(report, "   log: %s\n", filepath.Join(dir, "console.log"))
	}
	return e, nil
}

// output runs a program whose standard output is its answer; what it says on standard error is for people.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}
