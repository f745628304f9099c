package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// monitorBacklog is how many events may wait to be printed; more are counted, and told as lost.
const monitorBacklog = 1024

// monitorOptions are the flags of monitor.
type monitorOptions struct {
	lastingOptions
	interval seconds
	count    uint64
	json     bool
}

func monitorCommand(c *connectOptions) *cobra.Command {
	o := &monitorOptions{interval: seconds(time.Second)}
	cmd := &cobra.Command{
		Use:   "monitor URL",
		Short: "Watch a disk: latency, paths, unit attentions, asynchronous messages, lost sessions",
		Long: `monitor stays logged in, by one path or with --path by several, and prints a line for whatever happens, until it is interrupted:

  up, down      a path's session began, or ended and why; it logs in again after DefaultTime2Wait, and then every --interval
  path          a path is used by commands now or no more, or has another access state (ALUA)
  ping          every --interval, by each path that is up: how long the target took to answer a NOP-Out, and the disk a TEST UNIT READY
  attention     a unit attention: the disk was reset, has another size, lost a reservation, ...
  async         an asynchronous message of the target: it wants a logout, drops the session, ...
  error         the disk is not ready, and why

With --json each line is a JSON object with "time" and "event". In the end there is a summary of the latencies, except with --json.`,
		Example: `  iser monitor iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser monitor iscsi://192.0.2.10/iqn.2026-11.com.example:store1/0 --interval 100ms --count 600 --json >> watch.jsonl
  iser monitor iser://192.0.2.10/iqn.2026-11.com.example:store1/0 --path iser://198.51.100.10/iqn.2026-11.com.example:store1/0`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			urls, err := o.urls(args[0])
			if err != nil {
				return err
			}
			if o.interval <= 0 {
				return cli.Usagef("--interval 0: want a time above 0")
			}
			f, err := c.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			m := newMonitor(f, urls, o, cmd.OutOrStdout())
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().Var(&o.interval, "interval", "time between two pings")
	cmd.Flags().StringArrayVar(&o.paths, "path", nil, "`URL` of another way to the same disk; may be repeated")
	cmd.Flags().Uint64Var(&o.count, "count", 0, "end after so many pings (default never)")
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON object per line")
	return cmd
}

// monitorEvent is a line of monitor.
type monitorEvent struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	// Path is the portal that an event belongs to, where there are several paths; the URL, if several lead to that portal.
	Path   string `json:"path,omitempty"`
	Detail string `json:"detail,omitempty"`
	// NOP and TestUnitReady are milliseconds.
	NOP           *float64 `json:"nop_ms,omitempty"`
	TestUnitReady *float64 `json:"test_unit_ready_ms,omitempty"`
	// Sense is of a unit attention, or of an asynchronous message.
	Key  string `json:"sense_key,omitempty"`
	Code string `json:"asc_ascq,omitempty"`
	Lost uint64 `json:"lost,omitempty"` // events before this one that were not printed
}

// monitor watches one logical unit.
type monitor struct {
	fabric *fabric
	urls   []initiator.URL // a path each
	up     []bool          // which of them were told to be; OnPath's
	opts   *monitorOptions
	out    io.Writer
	events chan monitorEvent // what hooks saw; they must not block
	lost   atomic.Uint64     // events that found no room there
	nop    tally
	tur    tally
}

func newMonitor(f *fabric, urls []initiator.URL, o *monitorOptions, out io.Writer) *monitor {
	return &monitor{fabric: f, urls: urls, up: make([]bool, len(urls)), opts: o, out: out, events: make(chan monitorEvent, monitorBacklog), nop: newTally(), tur: newTally()}
}

// note takes what hooks saw.
func (m *monitor) note(e monitorEvent) {
	e.Time = time.Now()
	select {
	case m.events <- e:
	default: // whoever reads standard output is slower than the disk
		m.lost.Add(1)
	}
}

// hooks note what a session sees.
func (m *monitor) hooks() initiator.Hooks {
	withSense := func(e monitorEvent, s scsi.Sense) monitorEvent {
		e.Key, e.Code = s.Key.String(), fmt.Sprintf("%02X/%02X", s.Code.ASC(), s.Code.ASCQ())
		return e
	}
	return initiator.Hooks{
		Attention: func(of uint64, s scsi.Sense) {
			if slices.ContainsFunc(m.urls, func(u initiator.URL) bool { return scsi.EncodeLUN(int(u.LUN)) == of }) {
				m.note(withSense(monitorEvent{Event: "attention", Detail: s.Code.String()}, s))
			}
		},
		Async: func(a *initiator.AsyncInfo) {
			e := monitorEvent{Event: "async", Detail: a.Event.String()}
			if a.HasSense {
				e = withSense(e, a.Sense)
				e.Detail += ": " + a.Sense.Code.String()
			}
			m.note(e)
		},
	}
}

// pathOf names a path in events, if there are others.
func (m *monitor) pathOf(i int) string {
	if len(m.urls) == 1 {
		return ""
	}
	for k, u := range m.urls {
		if k != i && u.Portal == m.urls[i].Portal { // its transport tells it from that one
			return m.urls[i].String()
		}
	}
	return m.urls[i].Portal.String()
}

// changed is the disk's OnPath.
func (m *monitor) changed(p initiator.PathEvent) {
	e := monitorEvent{Event: "path", Path: m.pathOf(p.Index), Detail: p.PathInfo.String()}
	switch {
	case p.Up && !m.up[p.Index]:
		e.Event, e.Detail = "up", m.urls[p.Index].String()
	case !p.Up && p.Err != nil:
		e.Event, e.Detail = "down", cli.OneLine(p.Err)
	}
	m.up[p.Index] = p.Up
	m.note(e)
}

// run watches until the context ends, or --count is reached.
func (m *monitor) run(ctx context.Context) error {
	wait := &lastingOptions{replacement: -1} // nothing but monitor's patience ends it
	d, err := m.fabric.openPaths(ctx, m.urls, wait, 0, func(c *initiator.DiskConfig) {
		c.Session.Hooks, c.OnPath = m.hooks(), m.changed
		c.RetryLast = time.Duration(m.opts.interval)
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err // a mistake, most likely, and nothing to wait for
	}
	err = m.watch(ctx, d)
	_ = d.Close() // nothing is under way
	return errors.Join(err, m.drain(), m.summary())
}

// watch pings until enough was seen. An error is one of printing.
func (m *monitor) watch(ctx context.Context, d *initiator.Disk) error {
	t := time.NewTicker(time.Duration(m.opts.interval))
	defer t.Stop()
	for rounds := uint64(0); ; {
		pinged, err := m.round(ctx, d)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if pinged {
			rounds++
		}
		if m.opts.count > 0 && rounds >= m.opts.count {
			return nil
		}
		for waiting := true; waiting; {
			select {
			case <-t.C:
				waiting = false
			case e := <-m.events:
				if err := m.print(e); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// round pings by each path that is up, and tells whether there was one that answered.
func (m *monitor) round(ctx context.Context, d *initiator.Disk) (pinged bool, err error) {
	for i, u := range m.urls {
		s := d.PathSession(i)
		if s == nil {
			continue
		}
		e, alive := m.ping(ctx, s, s.LUN(u.LUN))
		if err := m.drain(); err != nil {
			return pinged, err
		}
		if ctx.Err() != nil {
			return pinged, nil
		}
		if !alive {
			continue // changed tells why
		}
		pinged = true
		e.Path = m.pathOf(i)
		if err := m.print(e); err != nil {
			return pinged, err
		}
	}
	return pinged, nil
}

// ping measures the target and the disk once; a session that is lost is not alive.
func (m *monitor) ping(ctx context.Context, s *initiator.Session, lun *initiator.LUN) (e monitorEvent, alive bool) {
	e.Event = "ping"
	milli := func(d time.Duration) *float64 { v := float64(d.Microseconds()) / 1000; return &v }
	start := time.Now()
	if err := s.Ping(ctx); err != nil {
		return e, false
	}
	took := time.Since(start)
	m.nop.add(took)
	e.NOP = milli(took)
	start = time.Now()
	err := lun.TestUnitReady(ctx)
	switch {
	case err == nil:
		took = time.Since(start)
		m.tur.add(took)
		e.TestUnitReady = milli(took)
	case s.Err() != nil:
		return e, false
	default:
		e.Event, e.Detail = "error", cli.OneLine(err)
	}
	return e, true
}

// drain prints what hooks have seen.
func (m *monitor) drain() error {
	for {
		select {
		case e := <-m.events:
			if err := m.print(e); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (m *monitor) print(e monitorEvent) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Lost = m.lost.Swap(0)
	if m.opts.json {
		return json.NewEncoder(m.out).Encode(e)
	}
	line := e.Time.Format("15:04:05.000") + " " + e.Event
	if e.Path != "" {
		line += " " + e.Path
	}
	if e.NOP != nil {
		line += fmt.Sprintf(" nop %.3f ms", *e.NOP)
	}
	if e.TestUnitReady != nil {
		line += fmt.Sprintf(", test unit ready %.3f ms", *e.TestUnitReady)
	}
	if e.Detail != "" {
		line += " " + e.Detail
	}
	if e.Code != "" && !strings.Contains(e.Detail, e.Code) {
		line += " (" + e.Code + ")"
	}
	if e.Lost > 0 {
		line += fmt.Sprintf(" (%d events before this were lost)", e.Lost)
	}
	_, err := fmt.Fprintln(m.out, line)
	return err
}

// summary tells of all pings together.
func (m *monitor) summary() error {
	if m.opts.json || m.nop.ios == 0 {
		return nil
	}
	for _, of := range []struct {
		name string
		t    *tally
	}{{"nop", &m.nop}, {"test unit ready", &m.tur}} {
		if of.t.ios == 0 {
			continue
		}
		l := newLatency(of.t.hist)
		if _, err := fmt.Fprintf(m.out, "%s: %d, min %s, avg %s, 99%% %s, max %s\n", of.name, l.N,
			span(float64(l.Min)), span(l.Mean), span(float64(l.Percentile[percentileName(99)])), span(float64(l.Max))); err != nil {
			return err
		}
	}
	return nil
}
