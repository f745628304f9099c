package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"goiwarp/tests/driver"
)

// rule is a line of skips.txt or faults.txt.
type rule struct {
	profiles []string // nil: all
	test     string   // a pattern of path.Match
	reason   string
}

// readRules reads lines of profiles (with commas, or *), test and reason; # begins a comment.
func readRules(file string) ([]*rule, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rules []*rule
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.SplitN(line, " ", 3)
		if len(f) < 3 || strings.TrimSpace(f[2]) == "" {
			return nil, fmt.Errorf("%s:%d: want a profile, a test and a reason", file, n)
		}
		r := &rule{test: f[1], reason: strings.TrimSpace(f[2])}
		if f[0] != "*" {
			r.profiles = strings.Split(f[0], ",")
		}
		for _, p := range r.profiles {
			if !slices.ContainsFunc(profiles, func(have profile) bool { return have.name == p }) {
				return nil, fmt.Errorf("%s:%d: no profile %q", file, n, p)
			}
		}
		if _, err := path.Match(r.test, ""); err != nil {
			return nil, fmt.Errorf("%s:%d: %q: %w", file, n, r.test, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// find gives the first rule for an outcome.
func find(rules []*rule, o outcome) *rule {
	for _, r := range rules {
		match, _ := path.Match(r.test, o.test)
		if match && (r.profiles == nil || slices.Contains(r.profiles, o.profile)) {
			return r
		}
	}
	return nil
}

// count is a line of the table.
type count struct{ passed, failed, skipped, excepted int }

func (c *count) add(o count) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
	c.excepted += o.excepted
}

// report is a whole run.
type report struct {
	count
	peer   string
	suites []string // Family.Suite in the suite's order
	by     map[string]*count
	notes  []string
}

// judge counts, and notes what is wrong: for iserd, a failure that is no known fault of the suite, and a skip without a reason.
func judge(outcomes []outcome, skips, faults []*rule, peer string) *report {
	r := &report{peer: peer, by: map[string]*count{}}
	for _, o := range outcomes {
		suite := o.test[:strings.LastIndexByte(o.test, '.')]
		c := r.by[suite]
		if c == nil {
			c = new(count)
			r.by[suite] = c
			r.suites = append(r.suites, suite)
		}
		at := o.profile + ": " + o.test
		switch o.verdict {
		case passed:
			c.passed++
		case skipped:
			c.skipped++
			if peer == "iserd" && find(skips, o) == nil {
				c.skipped--
				c.failed++
				r.notes = append(r.notes, fmt.Sprintf("%s: skipped without a reason in skips.txt: %s", at, strings.Join(o.why, "; ")))
			}
		case failed:
			if f := find(faults, o); f != nil && peer == "iserd" {
				c.excepted++
				r.notes = append(r.notes, fmt.Sprintf("%s: a fault of the suite: %s", at, f.reason))
				break
			}
			c.failed++
			r.notes = append(r.notes, fmt.Sprintf("%s: failed: %s", at, strings.Join(o.why, "; ")))
		}
	}
	// Profiles ran side by side; the suites are told in one order.
	slices.SortStableFunc(r.suites, func(a, b string) int {
		return slices.Index(families, strings.Split(a, ".")[0]) - slices.Index(families, strings.Split(b, ".")[0])
	})
	for _, c := range r.by {
		r.count.add(*c)
	}
	return r
}

func (r *report) print(w io.Writer) {
	for _, n := range r.notes {
		fmt.Fprintln(w, n)
	}
	fmt.Fprintf(w, "\n%-8s %-24s %7s %7s %7s\n", "family", "suite", "passed", "failed", "skipped")
	for _, s := range r.suites {
		family, suite, _ := strings.Cut(s, ".")
		c := r.by[s]
		fmt.Fprintf(w, "%-8s %-24s %7d %7d %7d\n", family, suite, c.passed, c.failed, c.skipped)
	}
	fmt.Fprintln(w)
	if r.excepted > 0 {
		fmt.Fprintf(w, "%d excepted as faults of the suite (faults.txt)\n", r.excepted)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

// store keeps a run's counts in results, and writes the table of both targets into the document.
func store(peer string, r *report) error {
	var b bytes.Buffer
	for _, s := range r.suites {
		c := r.by[s]
		fmt.Fprintf(&b, "%s %d %d %d %d\n", s, c.passed, c.failed, c.skipped, c.excepted)
	}
	if err := os.WriteFile(filepath.Join(folder, "results", peer+".txt"), b.Bytes(), 0o644); err != nil {
		return err
	}
	ours, order, err := stored("iserd")
	if err != nil {
		return err
	}
	theirs, _, err := stored("tgt")
	if err != nil {
		return err
	}
	return document(order, ours, theirs)
}

// stored reads the counts of an earlier run.
func stored(peer string) (map[string]count, []string, error) {
	b, err := os.ReadFile(filepath.Join(folder, "results", peer+".txt"))
	if os.IsNotExist(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	found, order := map[string]count{}, []string(nil)
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		var s string
		var c count
		if _, err := fmt.Sscan(lines.Text(), &s, &c.passed, &c.failed, &c.skipped, &c.excepted); err != nil {
			return nil, nil, fmt.Errorf("results of %s: %q: %w", peer, lines.Text(), err)
		}
		found[s] = c
		order = append(order, s)
	}
	return found, order, nil
}

// The generated part of the document is between these.
const (
	docFile  = "docs/conformance/scsi.md"
	docBegin = "<!-- make suites writes from here -->"
	docEnd   = "<!-- to here -->"
)

func document(order []string, ours, theirs map[string]count) error {
	var t strings.Builder
	t.WriteString("```text\n")
	fmt.Fprintf(&t, "%-33s %29s   %24s\n", "", "iserd", "tgt 1.0.85")
	fmt.Fprintf(&t, "%-8s %-24s %7s %7s %7s %5s   %7s %7s %7s\n", "family", "suite", "passed", "failed", "skipped", "fault", "passed", "failed", "skipped")
	var sum, sumTheirs count
	for _, s := range order {
		family, suite, _ := strings.Cut(s, ".")
		c, o := ours[s], theirs[s]
		sum.add(c)
		sumTheirs.add(o)
		fmt.Fprintf(&t, "%-8s %-24s %7d %7d %7d %5d   %7d %7d %7d\n", family, suite, c.passed, c.failed, c.skipped, c.excepted, o.passed, o.failed, o.skipped)
	}
	fmt.Fprintf(&t, "%-33s %7d %7d %7d %5d   %7d %7d %7d\n", "all", sum.passed, sum.failed, sum.skipped, sum.excepted, sumTheirs.passed, sumTheirs.failed, sumTheirs.skipped)
	t.WriteString("```\n\n")
	for _, l := range []struct{ title, file string }{
		{"What is skipped, and why:", "skips.txt"},
		{"What the suite itself gets wrong:", "faults.txt"},
	} {
		rules, err := readRules(filepath.Join(folder, l.file))
		if err != nil {
			return err
		}
		if len(rules) == 0 {
			continue
		}
		t.WriteString(l.title + "\n\n")
		for _, r := range rules {
			on := "on all units"
			if r.profiles != nil {
				on = "on " + strings.Join(r.profiles, ", ") + " units"
			}
			fmt.Fprintf(&t, "- `%s` %s: %s\n", r.test, on, r.reason)
		}
		t.WriteString("\n")
	}
	return driver.Replace(docFile, docBegin, docEnd, t.String())
}
