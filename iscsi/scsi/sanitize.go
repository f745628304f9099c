package scsi

import (
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
type sanitize struct {
	unrestricted bool   // AUSE: EXIT FAILURE MODE may end a failure
	total        uint64 // octets to change, in all passes
	stop         context.CancelFunc
	ended        chan struct{}

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
	// One block of the pattern, repeated and cut.
	block := make([]byte, bs)
	for i := range block {
		block[i] = list[4+i%pattern]
	}
	invert := list[0]&0x80 != 0
	t.sanitize(passes, func(ctx context.Context, s *sanitize) error {
		return l.overwrite(ctx, s, block, passes, invert)
	})
}

// sanitizeBlockErase is SANITIZE with BLOCK ERASE: all blocks are unmapped and read as zeros.
func (t *task) sanitizeBlockErase() {
	if t.reservedSanitize(false) || !t.writable() {
		return
	}
	t.sanitize(1, t.lu.erase)
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
	s := t.lu.sanitizing.Load()
	if s == nil {
		return
	}
	if !s.unrestricted {
		t.badField(1)
		return
	}
	t.lu.sanitizing.CompareAndSwap(s, nil)
}

// sanitize starts an operation and, without IMMED, waits for its end.
func (t *task) sanitize(passes int, work func(context.Context, *sanitize) error) {
	l := t.lu
	ctx, cancel := context.WithCancel(context.Background())
	s := &sanitize{
		unrestricted: t.cdb[1]&0x20 != 0,
		total:        l.blocks.Load() * uint64(l.cfg.BlockSize) * uint64(passes),
		stop:         cancel, ended: make(chan struct{}),
	}
	if !l.startSanitize(s) {
		cancel()
		t.fail(KeyNotReady, CodeSanitizeInProgress)
		return
	}
	go func() {
		defer close(s.ended)
		defer cancel()
		err := work(ctx, s)
		if err == nil {
			err = l.flush()
		}
		if err != nil {
			l.log.Error("sanitize failed; the logical unit refuses access until it succeeds", "lun", l.cfg.Identity, "store", l.info.Name, "error", err)
			s.failed.Store(&err)
			return
		}
		l.sanitizing.CompareAndSwap(s, nil)
	}()
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

// sanitizeState guards the beginning of an operation against another one and against Close.
type sanitizeState struct {
	mu     sync.Mutex
	closed bool
}

// startSanitize makes s the operation of the logical unit unless one runs.
func (l *LU) startSanitize(s *sanitize) bool {
	l.sanitizeState.mu.Lock()
	defer l.sanitizeState.mu.Unlock()
	if l.sanitizeState.closed {
		return false
	}
	for {
		old := l.sanitizing.Load()
		if old != nil && old.failed.Load() == nil {
			return false
		}
		if l.sanitizing.CompareAndSwap(old, s) {
			return true
		}
	}
}

// Close ends what the logical unit does by itself, which is copies in the background and a sanitize operation, and waits for it. The
// caller closes the store afterwards. An operation that is ended so has failed, as the log says; like all of a logical
// unit's state it is forgotten with the process, so that it has to be started again.
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

// overwrite writes block over and over, passes times, no faster than the logical unit's limits allow. Writes
// that were under way when the operation began end first, since it takes the lock of each step.
func (l *LU) overwrite(ctx context.Context, s *sanitize, block []byte, passes int, invert bool) error {
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	for i := 0; i < scratchSize; i += len(block) {
		copy(buf[i:], block)
	}
	for pass := range passes {
		if pass > 0 && invert {
			complement(buf[:])
		}
		err := l.sanitizeSteps(ctx, func(lba, n uint64) error {
			bs := uint64(len(block))
			for off := uint64(0); off < n*bs; {
				size := min(n*bs-off, scratchSize)
				if err := l.pace(ctx, int64(size)); err != nil {
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
	}
	return nil
}

func complement(p []byte) {
	for i := range p {
		p[i] = ^p[i]
	}
}

// erase unmaps all blocks.
func (l *LU) erase(ctx context.Context, s *sanitize) error {
	d, bs := l.store.(store.Discarder), int64(l.cfg.BlockSize)
	return l.sanitizeSteps(ctx, func(lba, n uint64) error {
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
