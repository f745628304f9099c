// Command suites runs libiscsi's test suite, iscsi-test-cu, against iserd, or against tgt for comparison: every family of tests on
// every kind of logical unit that profiles.go names. What the suite skips has to be in skips.txt with a reason, and what it gets wrong
// itself in faults.txt with the standard's clause; anything else that does not pass fails the run.
//
//	go run ./tests/suites -bin bin                  against bin/iserd
//	go run ./tests/suites -peer tgt                 against Debian's tgt
//	go run ./tests/suites -bin bin -write           and put the results into docs/conformance/scsi.md
//	go run ./tests/suites -bin bin -profiles thin -tests SCSI.Unmap
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"goiwarp/tests/driver"
)

type options struct {
	peer     string // iserd or tgt
	bin      string // folder with iserd
	profiles string // names with commas; empty is all
	tests    string // prefix of names; empty is all
	keep     string // folder for the suite's output
	install  bool
	write    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.peer, "peer", "iserd", "`target` to test: iserd or tgt")
	flag.StringVar(&o.bin, "bin", "bin", "`folder` with the built iserd")
	flag.StringVar(&o.profiles, "profiles", "", "run on these kinds of logical units alone (`names`, with commas)")
	flag.StringVar(&o.tests, "tests", "", "run tests alone whose `name`, such as SCSI.Unmap.Simple, begins so")
	flag.StringVar(&o.keep, "keep", "", "keep the suite's output in this `folder`")
	flag.BoolVar(&o.install, "install", false, "install Debian packages that are missing (root)")
	flag.BoolVar(&o.write, "write", false, "store the results and write the table of docs/conformance/scsi.md")
	flag.Parse()
	ok, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// folder is where this program's lists and results are, from the module's root.
const folder = "tests/suites"

func (o *options) run(ctx context.Context) (ok bool, err error) {
	if _, err := os.Stat(folder); err != nil {
		return false, errors.New("run it in the module's root folder, as make suites does")
	}
	if o.write && (o.profiles != "" || o.tests != "") {
		return false, errors.New("-write needs a whole run: leave -profiles and -tests out")
	}
	skips, err := readRules(filepath.Join(folder, "skips.txt"))
	if err != nil {
		return false, err
	}
	faults, err := readRules(filepath.Join(folder, "faults.txt"))
	if err != nil {
		return false, err
	}
	if err := driver.Need(ctx, "iscsi-test-cu", "libiscsi-bin", o.install); err != nil {
		return false, err
	}
	if o.peer == "tgt" {
		if err := driver.Need(ctx, "tgtd", "tgt", o.install); err != nil {
			return false, err
		}
	}
	names, err := listTests(ctx)
	if err != nil {
		return false, err
	}
	outcomes, err := o.runProfiles(ctx, names)
	if err != nil {
		return false, err
	}
	r := judge(outcomes, skips, faults, o.peer)
	r.print(os.Stdout)
	if o.write {
		if err := store(o.peer, r); err != nil {
			return false, err
		}
	}
	return r.failed == 0 || o.peer != "iserd", nil
}
