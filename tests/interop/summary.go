package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// ending is what came of a leg. The zero value is that of a leg that was not run.
type ending struct {
	passed, failed int
	took, cpu      time.Duration // wall clock, and the guest's processor time
}

func (e ending) verdict() string {
	switch {
	case e.took == 0:
		return "not run"
	case e.failed > 0:
		return "failed"
	}
	return "passed"
}

// summarize prints a line for each leg, in the table's order, whatever the order in which they ended.
func summarize(w io.Writer, kernel string, legs []leg, ends []ending) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "kernel %s\tsiw\tMTU\t\tpassed\tfailed\ttime\tprocessor\n", kernel)
	for i, l := range legs {
		e := ends[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%v\t%v\n", l.name, l.siw, l.mtu, e.verdict(), e.passed, e.failed,
			e.took.Round(time.Second), e.cpu.Round(time.Second))
	}
	_ = t.Flush()
}
