package initiator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// LUN is a logical unit of a session's target. Its methods may be called by many goroutines at once. But for Do and Submit, they
// send a command again that the logical unit put off: with a unit attention (which says what happened before, and did not run the
// command), BUSY or TASK SET FULL.
type LUN struct {
	c    carrier
	lun  uint64
	pool requestPool
	told func(scsi.Code) // of unit attentions; set before use

	geo atomic.Pointer[geometry]
	// edge is held while a part of a block is replaced, which takes a read and a write.
	edge sync.Mutex
}

// geometry is what a LUN's size and limits are.
type geometry struct {
	capacity  scsi.Capacity
	blockSize int
	maxBlocks uint32 // per command
	limits    scsi.BlockLimits
}

// Bounds of trying again.
const (
	maxAttentions = 8
	maxBusy       = 14
	busyFirst     = 10 * time.Millisecond
	busyLast      = time.Second
)

// maxTransfer bounds one command of ReadAt and WriteAt, in octets; larger ones are split and overlap.
const maxTransfer = 512 << 10

// LUN is the logical unit of a number.
func (s *Session) LUN(n uint16) *LUN { return s.LUNOf(scsi.EncodeLUN(int(n))) }

// LUNOf is the logical unit of a LUN as it stands on the wire, as ReportLUNs tells them. It is the same one each time.
func (s *Session) LUNOf(lun uint64) *LUN {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.luns[lun]
	if l == nil {
		l = &LUN{c: s, lun: lun}
		s.luns[lun] = l
	}
	return l
}

// Result is how a command sent by Do ended.
type Result struct {
	Status scsi.Status
	// In and Out are how many octets were moved, as the target says.
	In, Out int
	// Residual is how many octets fewer than asked for were moved; with Overflow how many more there would have been.
	Residual int
	Overflow bool
}

// Do sends one command, once, with the caller's memory for its data (at most one of in and out for all but bidirectional commands).
// For a status other than GOOD the error is a *scsi.Error with the sense data, and Result counts all the same.
func (l *LUN) Do(ctx context.Context, cdb, in, out []byte) (Result, error) {
	r := l.pool.get()
	defer l.pool.put(r)
	r.LongCDB = cdb
	r.useIn(in)
	r.useOut(out)
	if err := l.once(ctx, r); err != nil && r.Status == scsi.StatusGood {
		return Result{}, err
	}
	res := Result{Status: r.Status, In: r.InLen, Out: r.OutLen, Overflow: r.Overflow, Residual: r.Residual}
	if !r.Overflow {
		if r.OutLen > 0 {
			res.Out -= r.Residual
		} else {
			res.In -= r.Residual
		}
	}
	if r.OutLen > 0 && r.InLen > 0 && !r.BidiOverflow {
		res.In -= r.BidiResidual
	}
	return res, r.Err
}

// Submit sends commands and returns at once; each ends by its Done, in any order. They are sent once, whatever the status. An error means that
// none was taken.
func (l *LUN) Submit(reqs ...*Request) error {
	for _, r := range reqs {
		if r.Done == nil {
			return errors.New("initiator: request without Done")
		}
	}
	switch c := l.c.(type) { // called by their types, they leave the caller's list where it is: a submission allocates nothing
	case *Session:
		return c.submit(l.lun, reqs)
	case *Disk:
		return c.submit(l.lun, reqs)
	}
	return l.c.submit(l.lun, slices.Clone(reqs))
}

// Execute sends a command that its owner has prepared, waits for its end, and sends it again where the logical unit put it off. Done is not
// called.
func (l *LUN) Execute(ctx context.Context, r *Request) error {
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	done := r.Done
	r.Done = nil
	err := l.run(ctx, r)
	r.Done = done
	return err
}

// Notify makes a Done that sends requests to ch, which must have room for all that are under way: it is never waited for.
func Notify(ch chan<- *Request) func(*Request) {
	return func(r *Request) {
		select {
		case ch <- r:
		default:
			panic("initiator: no room in the channel of completions")
		}
	}
}

// Alloc lends memory for command data, registered with the Datamover where there is one that registers, so that data moves without a copy. It never
// waits: iscsi.ErrNoMemory when the connection's share is used up.
func (l *LUN) Alloc(n int) (iscsi.Buffer, error) { return l.c.Alloc(n) }

// buffer lends registered memory, or plain memory when that is used up.
func (l *LUN) buffer(n int) (iscsi.Buffer, error) {
	b, err := l.c.Alloc(n)
	if errors.Is(err, iscsi.ErrNoMemory) {
		return &memory{make([]byte, n)}, nil
	}
	return b, err
}

// Cancel gives up a submitted command. It returns when the command has ended, and its Done been called, which must not have
// used it again. A command that was already on its way is aborted at the target.
func (l *LUN) Cancel(r *Request) { l.c.stop(r) }

// PrepareRead makes r a read of blocks into buf. scsi.FUA and scsi.DPO can be set in octet 1 of the CDB afterwards.
func (l *LUN) PrepareRead(r *Request, lba uint64, blocks uint32, blockSize int, buf iscsi.Buffer) {
	r.CDB, r.LongCDB = scsi.Read(lba, blocks, 0), nil
	r.In, r.InLen, r.Out, r.OutLen = buf, int(blocks)*blockSize, nil, 0
}

// PrepareWrite makes r a write of blocks from buf. scsi.FUA and scsi.DPO can be set in octet 1 of the CDB afterwards.
func (l *LUN) PrepareWrite(r *Request, lba uint64, blocks uint32, blockSize int, buf iscsi.Buffer) {
	r.CDB, r.LongCDB = scsi.Write(lba, blocks, 0), nil
	r.Out, r.OutLen, r.In, r.InLen = buf, int(blocks)*blockSize, nil, 0
}

// PrepareFlush makes r a SYNCHRONIZE CACHE of the whole logical unit.
func (l *LUN) PrepareFlush(r *Request) { r.prepare(scsi.SynchronizeCache(0, 0)) }

// PrepareWriteZeroes makes r a WRITE SAME(16) without data. Not every logical unit knows it: WriteZeroes finds another way.
func (l *LUN) PrepareWriteZeroes(r *Request, lba uint64, blocks uint32, unmap bool) {
	r.prepare(scsi.WriteZeroes(lba, blocks, unmap))
}

// PrepareUnmap makes r an UNMAP of one range; its parameter list lies within r.
func (l *LUN) PrepareUnmap(r *Request, lba uint64, blocks uint32) {
	r.prepare(scsi.Unmap(1))
	e := [1]scsi.Extent{{LBA: lba, Blocks: blocks}}
	r.useOut(scsi.AppendUnmap(r.list[:0], e[:]))
}

// ReadBuf reads blocks into buf, which has room for them. Nothing is copied if buf comes from Session.Alloc, and nothing allocated.
func (l *LUN) ReadBuf(ctx context.Context, lba uint64, blocks uint32, buf iscsi.Buffer) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	r := l.pool.get()
	defer l.pool.put(r)
	l.PrepareRead(r, lba, blocks, g.blockSize, buf)
	return l.whole(ctx, r)
}

// WriteBuf writes blocks from buf, as ReadBuf reads them.
func (l *LUN) WriteBuf(ctx context.Context, lba uint64, blocks uint32, buf iscsi.Buffer) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	r := l.pool.get()
	defer l.pool.put(r)
	l.PrepareWrite(r, lba, blocks, g.blockSize, buf)
	return l.whole(ctx, r)
}

// Flush makes what was written durable: SYNCHRONIZE CACHE of the whole logical unit. One that has no cache and no such command needs none.
func (l *LUN) Flush(ctx context.Context) error {
	err := l.simple(ctx, scsi.SynchronizeCache(0, 0))
	if errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		return nil
	}
	return err
}

// FlushRange is Flush for a range of blocks; 0 blocks are all from lba on.
func (l *LUN) FlushRange(ctx context.Context, lba uint64, blocks uint32) error {
	err := l.simple(ctx, scsi.SynchronizeCache(lba, blocks))
	if errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		return nil
	}
	return err
}

// TestUnitReady is TEST UNIT READY.
func (l *LUN) TestUnitReady(ctx context.Context) error { return l.simple(ctx, scsi.TestUnitReady()) }

// Reset is LOGICAL UNIT RESET: it ends the commands of every initiator at the logical unit.
func (l *LUN) Reset(ctx context.Context) error { return l.c.resetLUN(ctx, l.lun) }

func (s *Session) resetLUN(ctx context.Context, lun uint64) error {
	rsp, err := s.TaskManagement(ctx, iscsi.LogicalUnitReset, lun)
	if err == nil && rsp != iscsi.TaskComplete {
		err = fmt.Errorf("initiator: %v: %v", iscsi.LogicalUnitReset, rsp)
	}
	return err
}

// ReportLUNs asks the target for its logical units, as they stand on the wire (LUNOf).
func (s *Session) ReportLUNs(ctx context.Context) ([]uint64, error) {
	l := s.LUN(0)
	n := uint32(8 + 8*256)
	for {
		b, err := l.fetch(ctx, scsi.ReportLUNs(n), int(n))
		if err != nil {
			return nil, err
		}
		luns, total, err := scsi.ParseReportLUNs(b)
		if err != nil || len(luns) >= total || n >= 8+8*16384 {
			return luns, err
		}
		n = 8 + 8*16384
	}
}

// fetch runs a command that returns up to n octets.
func (l *LUN) fetch(ctx context.Context, cdb scsi.CDB, n int) ([]byte, error) {
	r := l.pool.get()
	defer l.pool.put(r)
	b := make([]byte, n)
	r.CDB = cdb
	r.useIn(b)
	if err := l.run(ctx, r); err != nil {
		return nil, err
	}
	return b[:r.Moved()], nil
}

// simple runs a command without data.
func (l *LUN) simple(ctx context.Context, cdb scsi.CDB) error {
	r := l.pool.get()
	defer l.pool.put(r)
	r.CDB = cdb
	return l.run(ctx, r)
}

// whole runs a command that has to move all its data.
func (l *LUN) whole(ctx context.Context, r *Request) error {
	return l.complete(r, l.run(ctx, r))
}

func (l *LUN) complete(r *Request, err error) error {
	if err == nil && r.Residual > 0 && !r.Overflow {
		return fmt.Errorf("%w: %s moved %d octets of %d", ErrShort, scsi.OpcodeName(r.command()), r.Moved(), r.InLen+r.OutLen)
	}
	return err
}

// run sends a command until the logical unit takes it, within bounds.
func (l *LUN) run(ctx context.Context, r *Request) error {
	err := l.once(ctx, r)
	if err == nil {
		return nil
	}
	return l.again(ctx, r, err)
}

// again goes on with a command that has failed with err, if that was only for now.
func (l *LUN) again(ctx context.Context, r *Request, err error) error {
	if r.relay != nil {
		return err // who has sent it again already
	}
	attentions, busy, pause := 0, 0, busyFirst
	for err != nil {
		var e *scsi.Error
		switch {
		case !errors.As(err, &e):
			return err
		case e.UnitAttention():
			if attentions++; attentions > maxAttentions {
				return err
			}
			l.geo.Store(nil) // perhaps it has another size now
			if l.told != nil {
				l.told(e.Sense.Code)
			}
			l.c.logger().Debug("scsi unit attention", "target", l.c.node(), "lun", l.lun, "sense", e.Sense.String())
		case e.Status == scsi.StatusBusy, e.Status == scsi.StatusTaskSetFull:
			if busy++; busy > maxBusy {
				return err
			}
			if werr := sleep(ctx, pause); werr != nil {
				return werr
			}
			pause = min(2*pause, busyLast)
		default:
			return err
		}
		err = l.once(ctx, r)
	}
	return nil
}

// sleep waits for d, or for the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// once sends r and waits until it has ended.
func (l *LUN) once(ctx context.Context, r *Request) error {
	if ctx.Err() != nil {
		r.Err = context.Cause(ctx)
		return r.Err
	}
	if err := l.start(r); err != nil {
		return err
	}
	return l.wait(ctx, r)
}

// start sends r, which ends by waking a waiting caller.
func (l *LUN) start(r *Request) error {
	r.one[0] = r
	if err := l.c.submit(l.lun, r.one[:]); err != nil {
		r.Err = err
		return err
	}
	return nil
}
