package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"goiwarp/iscsi/initiator"
)

// benchDrain is how long commands that are under way may take to end once a run was interrupted.
const benchDrain = 5 * time.Second

// bench is a disk that is measured, with sessions for each job. It can be run again and again.
type bench struct {
	spec  *benchSpec
	url   initiator.URL
	disks []*initiator.Disk // one per job
	jobs  []*benchJob
	base  initiator.DiskStats // as it was when measuring began
}

// close ends the sessions, and gives back the memory that their commands used.
func (b *bench) close() {
	b.closeDisks()
	for _, j := range b.jobs {
		j.release()
	}
}

func (b *bench) closeDisks() {
	var wg sync.WaitGroup
	for _, d := range b.disks {
		wg.Go(func() { _ = d.Close() }) // what matters has been answered already
	}
	wg.Wait()
}

// stats add up what happened to the disks.
func (b *bench) stats() (sum initiator.DiskStats) {
	for _, d := range b.disks {
		s := d.Stats()
		sum.Lost, sum.Resent = sum.Lost+s.Lost, sum.Resent+s.Resent
	}
	return sum
}

// run measures once, and reads back what it has written if that is to be verified. After an interruption there are an error and a result.
func (b *bench) run(ctx context.Context, scr *screen) (*benchResult, error) {
	limit := int64(-1)
	if b.spec.limited {
		limit = b.jobs[0].slots
	}
	began := time.Now()
	hide := scr.follow(b.progress(began))
	defer hide()
	user, system, cpu := cpuTime()
	b.base = b.stats()
	for _, j := range b.jobs {
		j.record(b.spec.ramp == 0)
	}
	run := b.start(ctx, limit, false)
	if b.spec.ramp > 0 && !run.await(b.spec.ramp) && run.ctx.Err() == nil {
		began = time.Now()
		user, system, cpu = cpuTime()
		b.base = b.stats()
		for _, j := range b.jobs {
			j.record(true)
		}
	}
	ended := run.await(b.spec.runtime)
	until := time.Now()
	for _, j := range b.jobs {
		j.stopRecording()
		j.halt(nil)
	}
	if ended {
		until = b.last(until)
	}
	r := newBenchResult(b, until.Sub(began))
	if user2, system2, ok := cpuTime(); ok && cpu {
		r.spend(user2-user, system2-system)
	}
	if err := run.drain(); err != nil {
		return nil, err
	}
	r.count(b)
	if ctx.Err() != nil {
		return r, fmt.Errorf("interrupted after %v", until.Sub(began).Round(time.Millisecond))
	}
	if !b.spec.verify || !b.spec.writes() {
		return r, nil
	}
	hide()
	return r, b.check(ctx, r, scr)
}

// check reads back what was written and compares it.
func (b *bench) check(ctx context.Context, r *benchResult, scr *screen) error {
	defer scr.follow(func() string {
		_, _, n := b.counts()
		return fmt.Sprintf("verify: %s compared", octets(n*int64(b.spec.bs)))
	})()
	run := b.start(ctx, -1, true)
	run.await(0)
	for _, j := range b.jobs {
		j.halt(nil)
	}
	err := run.drain()
	r.count(b)
	if err == nil && ctx.Err() != nil {
		err = errors.New("interrupted before all was verified")
	}
	return err
}

// benchRun is all jobs at work.
type benchRun struct {
	b     *bench
	ctx   context.Context // ends when a job fails, too
	end   context.CancelCauseFunc
	waits []<-chan struct{} // one per job, closed when its commands have ended
}

// start lets all jobs begin.
func (b *bench) start(ctx context.Context, limit int64, checking bool) *benchRun {
	r := &benchRun{b: b}
	r.ctx, r.end = context.WithCancelCause(ctx)
	for _, j := range b.jobs {
		r.waits = append(r.waits, j.start(limit, checking, r.end))
	}
	return r
}

// await waits until all jobs have ended, which it tells, or one has failed, or d is over; a d of 0 is no limit.
func (r *benchRun) await(d time.Duration) (ended bool) {
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	for _, idle := range r.waits {
		select {
		case <-idle:
		case <-timeout:
			return false
		case <-r.ctx.Done():
			return false
		}
	}
	return r.ctx.Err() == nil
}

// drain waits for the commands that are under way still, and tells what has failed. After a failure or an interruption they have benchDrain
// to end; then the disks are closed, which ends them.
func (r *benchRun) drain() error {
	defer r.end(nil)
	var patience <-chan time.Time
	for _, idle := range r.waits {
		for waiting, ended := true, r.ctx.Done(); waiting; {
			select {
			case <-idle:
				waiting = false
			case <-ended:
				ended = nil
				if patience == nil {
					patience = time.After(benchDrain)
				}
			case <-patience:
				r.b.closeDisks()
				patience = nil
			}
		}
	}
	return r.b.failed()
}

func (b *bench) failed() error {
	for _, j := range b.jobs {
		j.mu.Lock()
		err := j.err
		j.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// last is when the last counted command ended.
func (b *bench) last(fallback time.Time) time.Time {
	var last time.Time
	for _, j := range b.jobs {
		j.mu.Lock()
		if j.last.After(last) {
			last = j.last
		}
		j.mu.Unlock()
	}
	if last.IsZero() {
		return fallback
	}
	return last
}

func (b *bench) counts() (reads, writes, checked int64) {
	for _, j := range b.jobs {
		r, w, c := j.counts()
		reads, writes, checked = reads+r, writes+w, checked+c
	}
	return reads, writes, checked
}

// progress makes the line that is shown while a run lasts: what was done since the line before.
func (b *bench) progress(began time.Time) func() string {
	var reads, writes int64
	at := began
	return func() string {
		now := time.Now()
		r, w, _ := b.counts()
		if r < reads || w < writes { // the ramp is over
			reads, writes = 0, 0
		}
		span := max(now.Sub(at).Seconds(), 1e-3)
		line := b.spec.rw + ":"
		for _, side := range []struct {
			name string
			does bool
			n    int64
		}{{"read", b.spec.reads(), r - reads}, {"write", b.spec.writes(), w - writes}} {
			if side.does {
				rate := float64(side.n) / span
				line += fmt.Sprintf(" %s %s IOPS %s", side.name, thousands(rate), perSecond(rate*float64(b.spec.bs)))
			}
		}
		reads, writes, at = r, w, now
		switch took := now.Sub(began); {
		case b.spec.runtime > 0 && took < b.spec.ramp:
			return line + "  warming up"
		case b.spec.runtime > 0:
			left := max(b.spec.runtime+b.spec.ramp-took, 0)
			return line + fmt.Sprintf("  %v left", left.Round(time.Second))
		default:
			return line + fmt.Sprintf("  %d%%", min(100, 100*(r+w)*int64(b.spec.bs)/b.spec.size))
		}
	}
}
