package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	interval seconds
	count    uint64
	json     bool
}

func monitorCommand(c *connectOptions) *cobra.Command {
	o := &monitorOptions{interval: seconds(time.Second)}
	cmd := &cobra.Command{
		Use:   "monitor URL",
		Short: "Watch a disk: latency, unit attentions, asynchronous messages, lost sessions",
		Long: `monitor stays logged in and prints a line for whatever happens, until it is interrupted:

  up, down      a session began, or ended and why; it logs in again after --interval
  ping          every --interval: how long the target took to answer a NOP-Out, and the disk a TEST UNIT READY
  attention     a unit attention: the disk was reset, has another size, lost a reservation, ...
  async         an asynchronous message of the target: it wants a logout, drops the session, ...
  error         the disk is not ready, and why

With --json each line is a JSON object with "time" and "event". In the end there is a summary of the latencies, except with --json.`,
		Example: `  iser monitor iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser monitor iscsi://192.0.2.10/iqn.2026-11.com.example:store1/0 --interval 100ms --count 600 --json >> watch.jsonl`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			u, err := parseDisk(args[0])
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
			m := newMonitor(f, u, o, cmd.OutOrStdout())
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().Var(&o.interval, "interval", "time between two pings")
	cmd.Flags().Uint64Var(&o.count, "count", 0, "end after so many pings (default never)")
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON object per line")
	return cmd
}

// monitorEvent is a line of monitor.
type monitorEvent struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	Detail string    `json:"detail,omitempty"`
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
	url    initiator.URL
	opts   *monitorOptions
	out    io.Writer
	events chan monitorEvent // what hooks saw; they must not block
	lost   atomic.Uint64     // events that found no room there
	nop    tally
	tur    tally
}

func newMonitor(f *fabric, u initiator.URL, o *monitorOptions, out io.Writer) *monitor {
	return &monitor{fabric: f, url: u, opts: o, out: out, events: make(chan monitorEvent, monitorBacklog), nop: newTally(), tur: newTally()}
}

// hooks note what a session sees.
func (m *monitor) hooks(lun uint64) initiator.Hooks {
	note := func(e monitorEvent) {
		e.Time = time.Now()
		select {
		case m.events <- e:
		default: // whoever reads standard output is slower than the disk
			m.lost.Add(1)
		}
	}
	withSense := func(e monitorEvent, s scsi.Sense) monitorEvent {
		e.Key, e.Code = s.Key.String(), fmt.Sprintf("%02X/%02X", s.Code.ASC(), s.Code.ASCQ())
		return e
	}
	return initiator.Hooks{
		Attention: func(of uint64, s scsi.Sense) {
			if of == lun {
				note(withSense(monitorEvent{Event: "attention", Detail: s.Code.String()}, s))
			}
		},
		Async: func(a *initiator.AsyncInfo) {
			e := monitorEvent{Event: "async", Detail: a.Event.String()}
			if a.HasSense {
				e = withSense(e, a.Sense)
				e.Detail += ": " + a.Sense.Code.String()
			}
			note(e)
		},
	}
}

// run watches until the context ends, or --count is reached.
func (m *monitor) run(ctx context.Context) error {
	var pings uint64
	first := true
	for ctx.Err() == nil {
		s, err := m.login(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && first:
			return err // a mistake, most likely, and nothing to wait for
		case err != nil:
			err = m.print(monitorEvent{Event: "down", Detail: cli.OneLine(err)})
			m.pause(ctx)
		default:
			var more bool
			more, err = m.watch(ctx, s, &pings)
			logout(s)
			if err == nil && !more {
				return m.summary()
			}
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		first = false
	}
	return m.summary()
}

func (m *monitor) login(ctx context.Context) (*initiator.Session, error) {
	s, err := m.fabric.loginWith(ctx, m.url, func(c *initiator.Config) {
		c.Hooks = m.hooks(scsi.EncodeLUN(int(m.url.LUN)))
		c.CommandTimeout = initiator.DefaultCommandTimeout
	})
	if err != nil {
		return nil, err
	}
	return s, m.print(monitorEvent{Event: "up", Detail: m.url.String()})
}

// pause waits for the next turn.
func (m *monitor) pause(ctx context.Context) {
	t := time.NewTimer(time.Duration(m.opts.interval))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// watch pings in one session until it is lost (more), or enough was seen. An error is one of printing.
func (m *monitor) watch(ctx context.Context, s *initiator.Session, pings *uint64) (more bool, err error) {
	lun := s.LUN(m.url.LUN)
	t := time.NewTicker(time.Duration(m.opts.interval))
	defer t.Stop()
	for {
		e, alive := m.ping(ctx, s, lun)
		if err := m.drain(); err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, nil
		}
		if err := m.print(e); err != nil {
			return false, err
		}
		if !alive {
			m.pause(ctx)
			return true, nil
		}
		if *pings++; m.opts.count > 0 && *pings >= m.opts.count {
			return false, nil
		}
	wait:
		for {
			select {
			case <-t.C:
				break wait
			case e := <-m.events:
				if err := m.print(e); err != nil {
					return false, err
				}
			case <-s.Done():
				err := errors.Join(m.drain(), m.print(monitorEvent{Event: "down", Detail: cli.OneLine(s.Err())}))
				m.pause(ctx)
				return true, err
			case <-ctx.Done():
				return false, m.drain()
			}
		}
	}
}

// ping measures the target and the disk once; a session that is lost is not alive.
func (m *monitor) ping(ctx context.Context, s *initiator.Session, lun *initiator.LUN) (e monitorEvent, alive bool) {
	e.Event = "ping"
	milli := func(d time.Duration) *float64 { v := float64(d.Microseconds()) / 1000; return &v }
	start := time.Now()
	if err := s.Ping(ctx); err != nil {
		return monitorEvent{Event: "down", Detail: cli.OneLine(err)}, false
	}
	took := time.Since(start)
	m.nop.add(took)
	e.NOP = milli(took)
	start = time.Now()
	err := lun.TestUnitReady(ctx)
	var status *scsi.Error
	switch {
	case err == nil:
		took = time.Since(start)
		m.tur.add(took)
		e.TestUnitReady = milli(took)
	case errors.As(err, &status):
		e.Event, e.Detail = "error", cli.OneLine(err)
	case s.Err() != nil:
		return monitorEvent{Event: "down", Detail: cli.OneLine(err)}, false
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
	if e.NOP != nil {
		line += fmt.Sprintf(" nop %.3f ms", *e.NOP)
	}
	if e.TestUnitReady != nil {
		line += fmt.Sprintf(", test unit ready %.3f ms", *e.TestUnitReady)
	}
	if e.Detail != "" {
		line += " " + e.Detail
	}
	if e.Code != "" {
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
