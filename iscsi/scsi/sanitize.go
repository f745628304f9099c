package scsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi/store"
)

// sanitizeStep is how many octets of blocks a SANITIZE changes between two looks at whether it shall
// end.
const sanitizeStep = 8 << 20

// sanitize is a sanitize operation (SBC-4, section 4.11). It belongs to the logical unit, not to the
// command that began it: neither an abort nor a reset nor the loss of the nexus stops it.
//
//	(none) --SANITIZE--> running --all blocks done--> (none)
//	                        |
//	                        +--error--> failed --SANITIZE--> running
//	                                      |
//	                                      +--EXIT FAILURE MODE, if AUSE was set--> (none)
//
// While it runs, and after it has failed, everything that touches the medium is refused.
//
// Neither does the end of the process: what it does is kept (LUConfig.Sanitizing) from before its first block is touched until its success, and
// it goes on where it can be known to have come, which is the end of a pass.
type sanitize struct {
	plan  sanitizePlan // Done is changed by who runs it
	total uint64       // octets to change, in all passes
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}

	done   atomic.Uint64 // octets changed
	failed atomic.Pointer[error]
}

// errSanitizeStopped ends a sanitize operation when its logical unit is closed.
var errSanitizeStopped = errors.New("scsi: logical unit closed while it was sanitized")

// lets tells whether a command may run: those that neither touch the medium nor depend on it. c is not
// nil.
func (s *sanitize) lets(c *command) bool {
	switch c.op {
	case OpInquiry, OpRequestSense, OpReportLUNs, OpLogSense, OpMaintenanceIn:
		return true
	case OpSanitize:
		return s.failed.Load() != nil
	}
	return false
}

// condition is the sense data of a command that is refused.
func (s *sanitize) condition() *Sense {
	if s.failed.Load() != nil {
		return &Sense{Key: KeyMediumError, Code: CodeSanitizeFailed}
	}
	// In floating point, since the product may need more than 64 bits.
	progress := float64(s.done.Load()) / float64(max(s.total, 1)) * 65536
	return &Sense{
		Key: KeyNotReady, Code: CodeSanitizeInProgress,
		ProgressValid: true, Progress: uint16(min(progress, math.MaxUint16)),
	}
}

// reservedSanitize refuses what is reserved in SANITIZE's CDB and a parameter list where there is none.
func (t *task) reservedSanitize(withList bool) bool {
	for i := 2; i <= 6; i++ {
		if t.cdb[i] != 0 {
			t.badField(i)
			return true
		}
	}
	if !withList && sanitizeLength(t.cdb) != 0 {
		t.badField(7)
		return true
	}
	return false
}

// sanitizeOverwrite is SANITIZE with OVERWRITE (SBC-4, section 5.38). The parameter list has how often
// to overwrite and with what:
//
//	 0                    1      2          4
//	+--------------------+------+----------+---------------------------+
//	|INVERT TEST count   |  0   | length   | initialization pattern ...|
//	+--------------------+------+----------+---------------------------+
//
// With INVERT every second pass writes the pattern's complement.
func (t *task) sanitizeOverwrite() {
	l := t.lu
	if t.reservedSanitize(true) {
		return
	}
	bs := l.cfg.BlockSize
	length := sanitizeLength(t.cdb)
	if length < 5 || length > int64(bs)+4 {
		t.badField(7)
		return
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	list, ok := t.parameterList(buf[:], length)
	if !ok {
		return
	}
	passes := int(list[0] & 0x1f)
	pattern := int(binary.BigEndian.Uint16(list[2:]))
	switch {
	case list[0]&0x40 != 0 || passes == 0: // TEST is 00b or 01b, both without a vendor's test
		t.badParameter(0)
		return
	case pattern == 0 || pattern > bs:
		t.badParameter(2)
		return
	case pattern > len(list)-4:
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	if !t.writable() {
		return
	}
	t.sanitize(sanitizePlan{
		Operation: planOverwrite, Pattern: bytes.Clone(list[4 : 4+pattern]), Passes: passes, Invert: list[0]&0x80 != 0,
	})
}

// sanitizeBlockErase is SANITIZE with BLOCK ERASE: all blocks are unmapped and read as zeros.
func (t *task) sanitizeBlockErase() {
	if t.reservedSanitize(false) || !t.writable() {
		return
	}
	t.sanitize(sanitizePlan{Operation: planErase, Passes: 1})
}

// sanitizeExitFailureMode ends a failure of an operation that allowed it; without a failure it does
// nothing.
func (t *task) sanitizeExitFailureMode() {
	if t.cdb[1]&0xe0 != 0 {
		t.badBits(1, t.cdb[1]&0xe0)
		return
	}
	if t.reservedSanitize(false) {
		return
	}
	l := t.lu
	l.sanitizeState.mu.Lock()
	defer l.sanitizeState.mu.Unlock()
	s := l.sanitizing.Load()
	switch {
	case s == nil:
		return
	case s.failed.Load() == nil: // begun meanwhile
		t.sense(s.condition())
		return
	case !s.plan.Unrestricted:
		t.badField(1)
		return
	}
	if err := l.keepSanitize(nil); err != nil {
		t.fault("the end of a failed sanitize operation could not be kept", err, true, 0)
		t.fail(KeyHardwareError, CodeInternalTargetFailure)
		return
	}
	l.sanitizing.Store(nil)
}

// sanitize starts an operation and, without IMMED, waits for its end.
func (t *task) sanitize(plan sanitizePlan) {
	plan.Unrestricted = t.cdb[1]&0x20 != 0
	s, err := t.lu.startSanitize(plan)
	switch {
	case err != nil:
		t.fault("sanitize cannot begin, since that could not be kept", err, true, 0)
		t.fail(KeyHardwareError, CodeInternalTargetFailure)
		return
	case s == nil:
		t.fail(KeyNotReady, CodeSanitizeInProgress)
		return
	}
	if t.cdb[1]&0x80 != 0 { // IMMED
		return
	}
	select {
	case <-s.ended:
		if s.failed.Load() != nil {
			t.sense(s.condition())
		}
	case <-t.ctx.Done():
		t.res.Err = t.ctx.Err()
	}
}

// sanitizeState guards the beginning of an operation, and the end of a failure, against another one and against Close.
type sanitizeState struct {
	mu     sync.Mutex
	closed bool
}

// startSanitize begins an operation unless one runs; s is nil then. It is an error if it could not be kept that one has begun: no block has
// been touched then.
func (l *LU) startSanitize(plan sanitizePlan) (s *sanitize, err error) {
	l.sanitizeState.mu.Lock()
	defer l.sanitizeState.mu.Unlock()
	old := l.sanitizing.Load()
	if l.sanitizeState.closed || old != nil && old.failed.Load() == nil {
		return nil, nil
	}
	s = l.newSanitize(plan)
	l.sanitizing.Store(s)
	if err := l.keepSanitize(&plan); err != nil {
		l.sanitizing.Store(old)
		s.stop()
		return nil, err
	}
	go l.runSanitize(s)
	return s, nil
}

func (l *LU) newSanitize(plan sanitizePlan) *sanitize {
	pass := l.blocks.Load() * uint64(l.cfg.BlockSize)
	s := &sanitize{plan: plan, total: pass * uint64(plan.Passes), ended: make(chan struct{})}
	s.done.Store(pass * uint64(plan.Done))
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// runSanitize does what an operation does, to its end. What was kept of it goes before the medium is within reach again, or a restart
// would do it once more, to data that has come since.
func (l *LU) runSanitize(s *sanitize) {
	defer close(s.ended)
	defer s.stop()
	err := error(nil)
	if s.plan.Operation == planErase {
		err = l.erase(s)
	} else {
		err = l.overwrite(s)
	}
	if err == nil {
		err = l.flush()
	}
	if err == nil {
		err = l.keepSanitize(nil)
	}
	if err == nil {
		l.sanitizing.CompareAndSwap(s, nil)
		return
	}
	defer s.failed.Store(&err) // after it has been kept, since a new operation may begin then
	attrs := []any{"lun", l.cfg.Identity, "store", l.info.Name, "error", err}
	if errors.Is(err, errSanitizeStopped) && l.cfg.Sanitizing != nil {
		l.log.Info("sanitize stops, and goes on when the logical unit is served again", attrs...)
		return
	}
	l.log.Error("sanitize failed; the logical unit refuses access until it succeeds", attrs...)
	plan := s.plan
	plan.Failed = true
	if keepErr := l.keepSanitize(&plan); keepErr != nil {
		l.log.Error("that sanitize failed could not be kept; a restart begins it again", "lun", l.cfg.Identity, "error", keepErr)
	}
}

// Close ends what the logical unit does by itself, which is copies in the background and a sanitize operation, and waits for it. The
// caller closes the store afterwards. An operation that is ended so goes on when a logical unit with the same LUConfig.Sanitizing is
// made; without one it has failed, as the log says, and is forgotten.
func (l *LU) Close() {
	l.copies.close()
	l.sanitizeState.mu.Lock()
	l.sanitizeState.closed = true
	s := l.sanitizing.Load()
	l.sanitizeState.mu.Unlock()
	if s != nil {
		s.stop()
		<-s.ended
	}
}

// overwrite writes the pattern over and over, no faster than the logical unit's limits allow. Writes that were under way when the operation
// began end first, since it takes the lock of each step.
func (l *LU) overwrite(s *sanitize) error {
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	bs := uint64(l.cfg.BlockSize)
	for i := range buf { // each block begins with the pattern
		buf[i] = s.plan.Pattern[i%int(bs)%len(s.plan.Pattern)]
	}
	if s.plan.Invert && s.plan.Done%2 == 1 {
		complement(buf[:])
	}
	for pass := s.plan.Done; pass < s.plan.Passes; {
		err := l.sanitizeSteps(s.ctx, func(lba, n uint64) error {
			for off := uint64(0); off < n*bs; {
				size := min(n*bs-off, scratchSize)
				if err := l.pace(s.ctx, int64(size)); err != nil {
					return errSanitizeStopped
				}
				if _, err := l.writeLocked(buf[:size], lba+off/bs, false); err != nil {
					return err
				}
				off += size
				s.done.Add(size)
			}
			return nil
		})
		// Each pass reaches the medium, or the next one would replace it in a cache.
		if err == nil {
			err = l.flush()
		}
		if err != nil {
			return err
		}
		if pass++; pass == s.plan.Passes {
			break
		}
		s.plan.Done = pass
		if err := l.keepSanitize(&s.plan); err != nil {
			return err
		}
		if s.plan.Invert {
			complement(buf[:])
		}
	}
	return nil
}

func complement(p []byte) {
	for i := range p {
		p[i] = ^p[i]
	}
}

// erase unmaps all blocks.
func (l *LU) erase(s *sanitize) error {
	d, bs := l.store.(store.Discarder), int64(l.cfg.BlockSize)
	return l.sanitizeSteps(s.ctx, func(lba, n uint64) error {
		if err := d.Discard(int64(lba)*bs, int64(n)*bs); err != nil {
			return err
		}
		s.done.Add(n * uint64(bs))
		return nil
	})
}

// sanitizeSteps does a step for all blocks, in rising order, each with its blocks locked.
func (l *LU) sanitizeSteps(ctx context.Context, step func(lba, n uint64) error) error {
	per := sanitizeStep / uint64(l.cfg.BlockSize)
	for lba, end := uint64(0), l.blocks.Load(); lba < end; {
		n := min(end-lba, per)
		held := span{lba: lba, end: lba + n, exclusive: true}
		if err := l.locks.lock(ctx, held); err != nil {
			return errSanitizeStopped
		}
		err := step(lba, n)
		l.locks.unlock(held)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return errSanitizeStopped
		}
		lba += n
	}
	return nil
}
