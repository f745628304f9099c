package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// suiteBound is how long a suite may take: a guard against hanging. The longest waits for a minute by design.
const suiteBound = 5 * time.Minute

// runProfiles runs every profile at once, each on a target of its own, and gives all outcomes in the profiles' and the
// suite's order.
func (o *options) runProfiles(ctx context.Context, names []string) ([]outcome, error) {
	chosen := slices.Clone(profiles)
	if o.profiles != "" {
		want := strings.Split(o.profiles, ",")
		chosen = slices.DeleteFunc(chosen, func(p profile) bool { return !slices.Contains(want, p.name) })
		if len(chosen) != len(want) {
			return nil, fmt.Errorf("-profiles %s: there are thin, full, read-only, removable, two-portal and slow", o.profiles)
		}
	}
	var wg sync.WaitGroup
	outcomes, errs := make([][]outcome, len(chosen)), make([]error, len(chosen))
	for i, p := range chosen {
		wg.Go(func() {
			outcomes[i], errs[i] = o.runProfile(ctx, p, names)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", p.name, errs[i])
			}
		})
	}
	wg.Wait()
	return slices.Concat(outcomes...), errors.Join(errs...)
}

func (o *options) runProfile(ctx context.Context, p profile, names []string) (outcomes []outcome, err error) {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !p.runs(n) || !strings.HasPrefix(n, o.tests) })
	if len(names) == 0 {
		return nil, nil
	}
	var t target
	if o.peer == "tgt" {
		t, err = startTgt(ctx, p)
	} else {
		t, err = startIserd(filepath.Join(o.bin, "iserd"), p)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	for len(names) > 0 {
		// All tests of a suite in one run of the program, unless the profile leaves some out.
		suite := names[0][:strings.LastIndexByte(names[0], '.')]
		n := 1
		for n < len(names) && strings.HasPrefix(names[n], suite+".") {
			n++
		}
		pattern := suite
		if o.tests != "" || !p.runs(suite+".") || strings.HasSuffix(suite, ".Sanitize") || p.name == "read-only" {
			n, pattern = 1, names[0]
		}
		found, err := o.runSuite(ctx, p, t, pattern)
		if err != nil {
			return outcomes, err
		}
		for _, name := range names[:n] {
			got, ok := found[name[len(suite)+1:]]
			if !ok {
				got = outcome{verdict: failed, why: []string{"did not run"}}
			}
			got.profile, got.test = p.name, name
			outcomes = append(outcomes, got)
		}
		names = names[n:]
	}
	return outcomes, nil
}

// runSuite runs the tests of a pattern.
func (o *options) runSuite(ctx context.Context, p profile, t target, pattern string) (map[string]outcome, error) {
	bound, cancel := context.WithTimeout(ctx, suiteBound)
	defer cancel()
	args := []string{"-d", "-S", "-t", pattern}
	cmd := exec.CommandContext(bound, "iscsi-test-cu", append(args, t.urls()...)...)
	// It says of failed tests by its exit status too, which says no more than its output.
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("iscsi-test-cu: %w", err)
	}
	if o.keep != "" {
		if err := os.MkdirAll(o.keep, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(o.keep, o.peer+"-"+p.name+"-"+pattern+".txt"), out, 0o644); err != nil {
			return nil, err
		}
	}
	return parse(string(out)), nil
}
