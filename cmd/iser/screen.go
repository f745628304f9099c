package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"
)

// screenEvery is how often a progress line is renewed.
const screenEvery = 250 * time.Millisecond

// screen shows one line of progress on a terminal; elsewhere it shows nothing.
type screen struct{ w io.Writer }

// newScreen is a screen on w, if that is a terminal.
func newScreen(w io.Writer) *screen {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &screen{w}
	}
	return &screen{}
}

// follow shows what line says, again and again, until the returned function is called, which waits for the end and wipes the line out.
func (s *screen) follow(line func() string) (stop func()) {
	if s.w == nil {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(screenEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(s.w, "\r\x1b[K")
				return
			case <-t.C:
				fmt.Fprintf(s.w, "\r%s\x1b[K", line())
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// octets is n for people.
func octets(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// perSecond is a rate for people.
func perSecond(n float64) string { return humanize.IBytes(uint64(max(n, 0))) + "/s" }

// thousands writes a count for people: 950, 12.3k, 1.20M.
func thousands(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.2fM", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.1fk", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}
