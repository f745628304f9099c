// Command peers runs our initiator, as a library and as iser, against targets in user space: iserd over TCP and over iSER, Debian's
// tgt, and Debian's istgt. Each check either passes, fails, or finds that the target does not offer what it is about, which has to be
// known of that target (absent.go) with a reason. LIO is in the kernel, and so in the guest of tests/interop.
//
//	go run ./tests/peers -bin bin                   all of them; -install lets it install what is missing
//	go run ./tests/peers -bin bin -peers tgt -v     one, and what each check said
//	go run ./tests/peers -bin bin -write            and put the table into docs/interop.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"goiwarp/tests/driver"
)

type options struct {
	bin     string
	peers   string
	checks  string
	install bool
	write   bool
	verbose bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` with the built iserd and iser")
	flag.StringVar(&o.peers, "peers", "", "run against these alone (`names`, with commas: iserd, iserd-iser, tgt, istgt)")
	flag.StringVar(&o.checks, "checks", "", "run the checks alone whose `name` begins so")
	flag.BoolVar(&o.install, "install", false, "install Debian packages that are missing (root)")
	flag.BoolVar(&o.write, "write", false, "put the table into docs/interop.md")
	flag.BoolVar(&o.verbose, "v", false, "tell of every check as it ends")
	flag.Parse()
	ok, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// checkBound is a guard against hanging: how long one check may take on a busy machine.
const checkBound = 2 * time.Minute

func (o *options) run(ctx context.Context) (ok bool, err error) {
	if o.write && (o.peers != "" || o.checks != "") {
		return false, errors.New("-write needs a whole run: leave -peers and -checks out")
	}
	chosen := kinds
	if o.peers != "" {
		want := strings.Split(o.peers, ",")
		chosen = slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !slices.Contains(want, k.name) })
		if len(chosen) != len(want) {
			return false, fmt.Errorf("-peers %s: there are iserd, iserd-iser, tgt and istgt", o.peers)
		}
	}
	dir, err := os.MkdirTemp("", "peers.")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	lib, err := openLibrary()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, lib.close()) }()
	r := &report{}
	for _, k := range chosen {
		if err := o.need(ctx, k.program, k.pkg); err != nil {
			return false, err
		}
		at := filepath.Join(dir, k.name)
		if err := os.Mkdir(at, 0o755); err != nil {
			return false, err
		}
		if err := o.runPeer(ctx, k, at, lib, r); err != nil {
			return false, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	r.print(os.Stdout)
	if o.write && r.failed == 0 {
		if err := r.document(); err != nil {
			return false, err
		}
	}
	return r.failed == 0, nil
}

// runPeer starts a target and puts it to every check.
func (o *options) runPeer(ctx context.Context, k kind, dir string, lib *library, r *report) (err error) {
	p, err := k.start(ctx, o.bin, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	r.peers = append(r.peers, k.name)
	for _, c := range checks {
		if !strings.HasPrefix(c.name, o.checks) {
			continue
		}
		bound, cancel := context.WithTimeoutCause(ctx, checkBound, fmt.Errorf("no end within %v", checkBound))
		err := c.run(&run{ctx: bound, peer: p, library: lib, iser: filepath.Join(o.bin, "iser"), dir: dir})
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line := r.add(k, c.name, err)
		if o.verbose {
			fmt.Println(line)
		}
	}
	return nil
}

// need looks for a program, and installs its package if that is allowed.
func (o *options) need(ctx context.Context, program, pkg string) error {
	if pkg == "" {
		if _, err := os.Stat(filepath.Join(o.bin, program)); err != nil {
			return fmt.Errorf("%w (make build builds it)", err)
		}
		return nil
	}
	return driver.Need(ctx, program, pkg, o.install)
}
