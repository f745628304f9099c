package scsi

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"goiwarp/iscsi/store"
)

// cause is what a store's error means to an initiator.
type cause uint8

const (
	causeMedium cause = iota // the data cannot be read or written
	causeFlush
	causeReadOnly
	causeSpace // no space left
	causeRange // beyond the store's end
	causeClosed
	causeBusy // passes by itself
	causes    // how many there are
)

func causeOf(err error) cause {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errFlushed), errors.Is(err, store.ErrFlush):
		return causeFlush
	case errors.Is(err, store.ErrReadOnly), errors.Is(err, syscall.EROFS):
		return causeReadOnly
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return causeSpace
	case errors.Is(err, store.ErrRange):
		return causeRange
	case errors.Is(err, store.ErrClosed):
		return causeClosed
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EINTR), errors.As(err, &timeout) && timeout.Timeout():
		return causeBusy
	}
	return causeMedium
}

// faultInterval is how long errors of a kind that was logged are only counted.
const faultInterval = 10 * time.Second

// faultLog bounds what a logical unit logs of its store's errors: the first of each kind, which is a
// direction and a cause, at once, then at most one per faultInterval. A broken disk under load
// fails thousands of commands in a second.
type faultLog struct {
	mu    sync.Mutex // guards kinds
	kinds [2][causes]struct {
		logged time.Time
		passed int // not logged since then
	}
}

// pass tells whether an error is to be logged now, and how many of its kind were not since the last.
func (f *faultLog) pass(write bool, c cause) (passed int, ok bool) {
	direction := 0
	if write {
		direction = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.kinds[direction][c]
	now := time.Now()
	if !k.logged.IsZero() && now.Sub(k.logged) < faultInterval {
		k.passed++
		return 0, false
	}
	passed = k.passed
	k.logged, k.passed = now, 0
	return passed, true
}

// fault tells the operator of an error of the store, which initiators learn of as sense data only.
// What a failed flush means has been said by fail.
func (t *task) fault(what string, err error, write bool, lba uint64) {
	t.lu.fault(t.cdb, what, err, write, lba)
}

func (l *LU) fault(cdb []byte, what string, err error, write bool, lba uint64) {
	c := causeOf(err)
	if c == causeFlush {
		return
	}
	passed, ok := l.faults.pass(write, c)
	if !ok {
		return
	}
	attrs := []any{"lun", l.cfg.Identity, "store", l.info.Name, "op", OpcodeName(cdb), "lba", lba, "error", err}
	if passed > 0 {
		attrs = append(attrs, "suppressed", passed)
	}
	l.log.Warn(what, attrs...)
}
