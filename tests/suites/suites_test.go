package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	got := parse(`    [SKIPPED] PERSISTENT RESERVE IN is not implemented.

Suite: CompareAndWrite
  Test: Simple ...passed
  Test: DpoFua ...    [SKIPPED] ORWRITE is not implemented.
    [SKIPPED] ORWRITE is not implemented.
passed    [SKIPPED] PERSISTENT RESERVE IN is not implemented.

Suite: Sanitize
  Test: Control-SWP ...    SWP is not changeable
passed    [SKIPPED] PERSISTENT RESERVE IN is not implemented.

  Test: Reset ...    [FAILED] READ16 successful but should have failed
FAILED
    1. test_sanitize_reset.c:97  - CU_ASSERT_EQUAL(_r,0)
  Test: Half ...    [SKIPPED] one part is not implemented
    [FAILED] another part failed
FAILED
    1. test_half.c:1  - CU_ASSERT_EQUAL(_r,0)
  Test: Crash ...    about to
`)
	want := map[string]outcome{
		"Simple":      {test: "Simple", verdict: passed},
		"DpoFua":      {test: "DpoFua", verdict: skipped, why: []string{"ORWRITE is not implemented.", "ORWRITE is not implemented."}},
		"Control-SWP": {test: "Control-SWP", verdict: passed},
		"Reset":       {test: "Reset", verdict: failed, why: []string{"READ16 successful but should have failed", "test_sanitize_reset.c:97  - CU_ASSERT_EQUAL(_r,0)"}},
		"Half":        {test: "Half", verdict: failed, why: []string{"another part failed", "test_half.c:1  - CU_ASSERT_EQUAL(_r,0)"}},
		"Crash":       {test: "Crash", verdict: failed, why: []string{"ended without a verdict"}},
	}
	assert.Equal(t, want, got)
}

func TestJudge(t *testing.T) {
	skips := []*rule{{profiles: []string{"full"}, test: "SCSI.Unmap.*", reason: "not thin"}}
	faults := []*rule{{test: "SCSI.Odd.Test", reason: "clause"}}
	outcomes := []outcome{
		{profile: "thin", test: "SCSI.Unmap.Simple", verdict: passed},
		{profile: "full", test: "SCSI.Unmap.Simple", verdict: skipped},
		{profile: "thin", test: "SCSI.Unmap.VPD", verdict: skipped, why: []string{"no reason"}},
		{profile: "thin", test: "SCSI.Odd.Test", verdict: failed},
		{profile: "thin", test: "SCSI.Odd.Other", verdict: failed, why: []string{"really"}},
	}
	r := judge(outcomes, skips, faults, "iserd")
	assert.Equal(t, count{passed: 1, failed: 2, skipped: 1, excepted: 1}, r.count)
	assert.Equal(t, count{passed: 1, failed: 1, skipped: 1}, *r.by["SCSI.Unmap"])
	require.Len(t, r.notes, 3)
	assert.Equal(t, "thin: SCSI.Unmap.VPD: skipped without a reason in skips.txt: no reason", r.notes[0])
	// Another target has no list: its skips are skips, and the suite's faults count.
	r = judge(outcomes, skips, faults, "tgt")
	assert.Equal(t, count{passed: 1, failed: 2, skipped: 2}, r.count)
}

// The lists that are checked in can be read.
func TestLists(t *testing.T) {
	for _, file := range []string{"skips.txt", "faults.txt"} {
		rules, err := readRules(file)
		require.NoError(t, err)
		assert.NotEmpty(t, rules)
	}
}

func TestReadOnlyRunsWhatDoesNotWrite(t *testing.T) {
	for test, runs := range map[string]bool{
		"SCSI.ReadOnly.ReadOnlySBC": true, "SCSI.Read10.Simple": true, "iSCSI.iSCSIResiduals.Read10Residuals": true,
		"SCSI.Write10.Simple": false, "LINUX.WriteSame16.Check": false, "iSCSI.iSCSIResiduals.Write10Residuals": false,
	} {
		assert.Equal(t, runs, readsOnly(test), test)
	}
}
