package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"goiwarp/tests/driver"
)

// report is a run's outcome.
type report struct {
	passed, failed int
	peers          []string
	cells          map[string]map[string]string // by check and peer: yes, no, fault, FAILED
	notes          []string
}

// add judges what a check said, and tells it in a line.
func (r *report) add(k kind, check string, err error) string {
	except, known := exceptions[k.name][check]
	var missing *absentError
	cell := "yes"
	switch {
	case known && except.fault && err != nil:
		cell = "fault"
	case known && errors.As(err, &missing):
		cell = "no"
	case err != nil:
		cell = "FAILED"
		r.notes = append(r.notes, fmt.Sprintf("%s: %s: %v", k.name, check, err))
	case known:
		cell = "FAILED"
		r.notes = append(r.notes, fmt.Sprintf("%s: %s: passes, and is among the exceptions: %s", k.name, check, except.why))
	}
	switch cell {
	case "yes":
		r.passed++
	case "FAILED":
		r.failed++
	}
	if r.cells == nil {
		r.cells = map[string]map[string]string{}
	}
	if r.cells[check] == nil {
		r.cells[check] = map[string]string{}
	}
	r.cells[check][k.name] = cell
	line := fmt.Sprintf("%-10s %-32s %s", k.name, check, cell)
	if err != nil {
		line += " (" + err.Error() + ")"
	}
	return line
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%-36s", "check")
	for _, p := range r.peers {
		fmt.Fprintf(w, " %-10s", p)
	}
	fmt.Fprintln(w)
	for _, c := range checks {
		if r.cells[c.name] == nil {
			continue
		}
		fmt.Fprintf(w, "%-36s", c.name)
		for _, p := range r.peers {
			fmt.Fprintf(w, " %-10s", r.cells[c.name][p])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	for _, n := range r.notes {
		fmt.Fprintln(w, "FAIL", n)
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", r.passed, r.failed)
}

// The generated part of the document is between these; it is written from the module's root.
const (
	docFile  = "docs/interop.md"
	docBegin = "<!-- make peers writes from here -->"
	docEnd   = "<!-- to here -->"
)

// document writes the table.
func (r *report) document() error {
	return driver.Replace(docFile, docBegin, docEnd, r.table())
}

func (r *report) table() string {
	var t strings.Builder
	t.WriteString("| check | what passes |")
	for _, p := range r.peers {
		t.WriteString(" " + p + " |")
	}
	t.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(r.peers)) + "\n")
	for _, c := range checks {
		fmt.Fprintf(&t, "| %s | %s |", c.name, c.what)
		for _, p := range r.peers {
			t.WriteString(" " + r.cells[c.name][p] + " |")
		}
		t.WriteString("\n")
	}
	t.WriteString("\n*no*: the target does not offer it; *fault*: it does it wrong.\n\n")
	for _, p := range r.peers {
		for _, c := range checks {
			if e, ok := exceptions[p][c.name]; ok {
				fmt.Fprintf(&t, "- %s, %s: %s\n", p, c.name, e.why)
			}
		}
	}
	t.WriteString("\n")
	return t.String()
}
