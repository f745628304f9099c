package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// verdict is how a test ended.
type verdict int

const (
	passed verdict = iota
	failed
	skipped
)

func (v verdict) String() string { return [...]string{"passed", "failed", "skipped"}[v] }

// outcome is one test on one profile.
type outcome struct {
	profile string
	test    string // Family.Suite.Test
	verdict verdict
	why     []string // what the suite said: why it skipped, or what failed
}

var (
	testHead    = regexp.MustCompile(`(?m)^  Test: (\S+) \.\.\.`)
	testEnd     = regexp.MustCompile(`(?m)^(passed|FAILED)`)
	skippedLine = regexp.MustCompile(`(?m)^\s*\[SKIPPED\] *(.*)$`)
	failedLine  = regexp.MustCompile(`(?m)^\s*(?:\[FAILED\] *(.*)|\d+\. (\S+:\d+ .*))$`)
)

// parse reads the output of one suite. The suite counts a test that it skipped as passed: the word is in the lines before
// the verdict. Lines behind it belong to the preparation of the next test. A test without a verdict has failed, as when the program
// crashed.
//
//	Test: Simple ...    [SKIPPED] ORWRITE is not implemented.
//	passed
//	Test: Reset ...FAILED
//	    1. test_sanitize_reset.c:97  - CU_ASSERT_EQUAL(_r,0)
func parse(out string) map[string]outcome {
	found := map[string]outcome{}
	heads := testHead.FindAllStringSubmatchIndex(out, -1)
	for i, h := range heads {
		body := out[h[1]:]
		if i+1 < len(heads) {
			body = out[h[1]:heads[i+1][0]]
		}
		o := outcome{test: out[h[2]:h[3]], verdict: failed}
		end := testEnd.FindStringSubmatchIndex(body)
		if end == nil {
			o.why = append(o.why, "ended without a verdict")
			found[o.test] = o
			continue
		}
		switch skips := skippedLine.FindAllStringSubmatch(body[:end[0]], -1); {
		case body[end[2]:end[3]] == "FAILED":
			for _, m := range failedLine.FindAllStringSubmatch(body, 8) {
				o.why = append(o.why, strings.TrimSpace(m[1]+m[2]))
			}
		case len(skips) > 0:
			o.verdict = skipped
			for _, m := range skips {
				o.why = append(o.why, strings.TrimSpace(m[1]))
			}
		default:
			o.verdict = passed
		}
		found[o.test] = o
	}
	return found
}

// families are those of iscsi-test-cu --list, but ALL, which is SCSI and iSCSI together.
var families = []string{"SCSI", "iSCSI", "LINUX"}

// listTests asks the suite for its tests, as Family.Suite.Test, in its order.
func listTests(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "iscsi-test-cu", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("iscsi-test-cu --list: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		if parts := strings.Split(name, "."); len(parts) == 3 && parts[0] != "ALL" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("iscsi-test-cu --list names no test")
	}
	return names, nil
}
