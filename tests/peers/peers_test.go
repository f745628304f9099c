package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReport: a check counts by what it found and by what is known of the peer.
func TestReport(t *testing.T) {
	tgt := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == "tgt" })]
	istgt := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == "istgt" })]
	var r report
	r.add(tgt, "login", nil)
	require.Equal(t, [2]int{1, 0}, [2]int{r.passed, r.failed})
	r.add(tgt, "COMPARE AND WRITE", absentf("no such command"))
	r.add(istgt, "sense data", errors.New("none"))
	require.Equal(t, [2]int{1, 0}, [2]int{r.passed, r.failed}, "what is known neither passes nor fails")
	require.Equal(t, "no", r.cells["COMPARE AND WRITE"]["tgt"])
	require.Equal(t, "fault", r.cells["sense data"]["istgt"])
	r.add(tgt, "login", errors.New("refused"))
	r.add(tgt, "VERIFY", absentf("no such command"))
	r.add(tgt, "COMPARE AND WRITE", nil)
	r.add(tgt, "COMPARE AND WRITE", errors.New("something else"))
	require.Equal(t, [2]int{1, 4}, [2]int{r.passed, r.failed})
	require.Len(t, r.notes, 4)
}

// TestExceptions: each is about a check and a peer that there is, and says why.
func TestExceptions(t *testing.T) {
	for peer, list := range exceptions {
		require.True(t, slices.ContainsFunc(kinds, func(k kind) bool { return k.name == peer }), peer)
		for name, e := range list {
			require.True(t, slices.ContainsFunc(checks, func(c check) bool { return c.name == name }), name)
			require.NotEmpty(t, e.why)
		}
	}
}

// TestDocument: docs/interop.md has a row for each check, and no other.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../" + docFile)
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), docBegin)
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, docEnd)
	require.True(t, ok)
	rows := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| ") {
			rows++
		}
	}
	require.Equal(t, len(checks)+2, rows, "make peers WRITE=1 writes the table")
	for _, c := range checks {
		require.Contains(t, table, "| "+c.name+" | "+c.what+" |")
	}
}
