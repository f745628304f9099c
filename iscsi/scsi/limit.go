package scsi

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// burst is how much of its rates a Limiter lets pass at once after a rest.
const burst = 100 * time.Millisecond

// Limiter bounds how many commands per second touch a logical unit's medium, and how many octets they move. Two buckets fill
// at the two rates, up to what 100 ms bring; a command needs one unit in both, and takes what it costs from both, below zero if
// need be: a transfer larger than a bucket passes, and those after it wait the longer.
//
// It neither sleeps nor keeps a queue: who runs commands asks Take. The zero value lets all pass. Its methods may be called by many
// goroutines at once.
type Limiter struct {
	on atomic.Bool

	mu    sync.Mutex // guards what follows
	count bucket     // in commands
	moved bucket     // in octets
}

// bucket holds what may pass now.
type bucket struct {
	rate  float64 // per second; 0: no bound
	level float64
	at    time.Time // of level
}

// ErrRate is a rate below zero.
var ErrRate = errors.New("scsi: a rate may not be negative")

// Set bounds commands and octets per second; 0 is no bound. It holds for the next command.
func (m *Limiter) Set(iops, bandwidth int64) error {
	if iops < 0 || bandwidth < 0 {
		return ErrRate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.count.set(float64(iops), now)
	m.moved.set(float64(bandwidth), now)
	m.on.Store(iops > 0 || bandwidth > 0)
	return nil
}

// Rates are the bounds in commands and octets per second; 0 is none.
func (m *Limiter) Rates() (iops, bandwidth int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.count.rate), int64(m.moved.rate)
}

// Limits tells that there is a bound.
func (m *Limiter) Limits() bool { return m.on.Load() }

// Take lets a command that moves so many octets pass, and is then 0; or it says how long to wait before asking again.
func (m *Limiter) Take(octets int64) time.Duration {
	if !m.on.Load() {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.count.fill(now)
	m.moved.fill(now)
	if wait := max(m.count.wait(), m.moved.wait()); wait > 0 {
		return wait
	}
	m.count.level--
	m.moved.level -= float64(octets)
	return 0
}

func (b *bucket) most() float64 { return max(b.rate*burst.Seconds(), 1) }

func (b *bucket) set(rate float64, now time.Time) {
	if rate == b.rate {
		return
	}
	b.fill(now)
	if b.rate == 0 {
		b.level = rate
	}
	b.rate, b.at = rate, now
	b.level = min(b.level, b.most())
}

func (b *bucket) fill(now time.Time) {
	if b.rate > 0 {
		b.level = min(b.level+b.rate*now.Sub(b.at).Seconds(), b.most())
	}
	b.at = now
}

// wait is how long it takes until something may pass: a command, or an octet.
func (b *bucket) wait() time.Duration {
	if b.rate == 0 || b.level >= 1 {
		return 0
	}
	// One more nanosecond, so that rounding does not leave the level just below.
	return time.Duration((1-b.level)/b.rate*float64(time.Second)) + 1
}

// Limiter bounds the logical unit's rate. Who runs its commands asks it before those for which Plan.Limited is set.
func (l *LU) Limiter() *Limiter { return &l.limiter }

// courtesy is how much longer than it must a piece of background work waits for the Limiter, once.
const courtesy = time.Millisecond

// pace waits until the Limiter lets so many octets pass, for what the logical unit moves without a command for each piece. Where a command
// waits for the same moment the command goes first, and the piece before the next: neither starves.
func (l *LU) pace(ctx context.Context, octets int64) error {
	if !l.limiter.Limits() {
		return nil
	}
	for turn := 0; ; turn++ {
		wait := l.limiter.Take(octets)
		if wait == 0 {
			return nil
		}
		if turn%2 == 0 {
			wait += courtesy
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
