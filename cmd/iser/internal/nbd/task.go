package nbd

import (
	"errors"
	"fmt"
	"sync/atomic"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// task is one request from its header to its reply. Tasks and what they need are made once and used again and again.
//
//	take --> commands under way --all ended--> (flush, where FUA asks for one) --> reply queued --> written --> pool
type task struct {
	request
	conn    *transmission
	pieces  []*piece
	batch   []*initiator.Request
	left    atomic.Int32      // commands that have not ended
	failure atomic.Uint32     // the first error, an Errno
	req     initiator.Request // SYNCHRONIZE CACHE
	one     [1]*initiator.Request
	head    head
	tail    []byte // payload of the reply that is not in pieces
	next    *task
}

// fail keeps the first error.
func (k *task) fail(e Errno) {
	if e != 0 {
		k.failure.CompareAndSwap(0, uint32(e))
	}
}

// begin sends the task's commands. The last one that ends goes on with the task.
func (k *task) begin() {
	t := k.conn
	switch k.typ {
	case CmdFlush:
		k.flush()
		return
	case CmdTrim, CmdWriteZeroes:
		t.long.Go(k.zero)
		return
	case CmdBlockStatus:
		t.long.Go(k.status)
		return
	case CmdCache:
		k.prefetch()
		return
	}
	bs := t.s.export.BlockSize
	off, fua := k.offset, byte(0)
	if k.flags&cmdFlagFUA != 0 && t.s.export.FUA {
		fua = scsi.FUA
	}
	for _, x := range k.pieces {
		lba, blocks, r := off/uint64(bs), uint32(x.n/bs), &x.req
		if k.typ == CmdRead {
			r.CDB, r.In, r.InLen, r.Out, r.OutLen = scsi.Read(lba, blocks, 0), x.buf, x.n, nil, 0
		} else {
			r.CDB, r.Out, r.OutLen, r.In, r.InLen = scsi.Write(lba, blocks, fua), x.buf, x.n, nil, 0
		}
		off += uint64(x.n)
		k.batch = append(k.batch, r)
	}
	k.left.Store(int32(len(k.batch)))
	if err := t.s.disk.Submit(k.batch...); err != nil {
		k.ended(err)
		k.moved()
	}
}

// ended notes how a command ended.
func (k *task) ended(err error) {
	if err != nil {
		k.conn.s.log.Debug("nbd request failed", "command", k.typ.String(), "offset", k.offset, "length", k.length, "error", err)
		k.fail(errnoOf(err, k.typ))
	}
}

// moved is the Done of a piece's command.
func moved(r *initiator.Request) {
	x := r.Context.(*piece)
	k := x.task
	err := r.Err
	if err == nil && r.Residual > 0 && !r.Overflow {
		err = fmt.Errorf("%w: %d octets of %d", initiator.ErrShort, r.Moved(), x.n)
	}
	k.ended(err)
	if k.left.Add(-1) == 0 {
		k.moved()
	}
}

// moved goes on when all commands of a read or write have ended.
func (k *task) moved() {
	if k.typ == CmdWrite && k.flags&cmdFlagFUA != 0 && !k.conn.s.export.FUA && k.failure.Load() == 0 {
		k.flush()
		return
	}
	k.answer()
}

// flush makes what was written durable, and then answers.
func (k *task) flush() {
	k.req.CDB = scsi.SynchronizeCache(0, 0)
	k.one[0] = &k.req
	if err := k.conn.s.disk.Submit(k.one[:]...); err != nil {
		k.ended(err)
		k.answer()
	}
}

// flushed is the Done of a flush. A logical unit without a cache need not know the command.
func flushed(r *initiator.Request) {
	k := r.Context.(*task)
	if err := r.Err; err != nil && !errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		k.ended(err)
	}
	k.answer()
}

// prefetch tells the disk what will be read, and does not wait until it is there.
func (k *task) prefetch() {
	bs := uint64(k.conn.s.export.BlockSize)
	k.req.CDB = scsi.PreFetch(k.offset/bs, uint32(uint64(k.length)/bs), true)
	k.one[0] = &k.req
	if err := k.conn.s.disk.Submit(k.one[:]...); err != nil {
		k.ended(err)
		k.answer()
	}
}

// status finds out how the request's blocks are provisioned. It runs in a goroutine of its own, as zero does.
func (k *task) status() {
	var err error
	if k.tail, err = k.conn.s.appendStatus(k.conn.ctx, k.tail[:0], &k.request); err != nil {
		k.tail = k.tail[:0]
	}
	k.ended(err)
	k.answer()
}

// zero does what may take many commands. It runs in a goroutine of its own: trims and zeroes are rare, long, or both.
func (k *task) zero() {
	t := k.conn
	x := &t.s.export
	bs := uint64(x.BlockSize)
	lba, blocks := k.offset/bs, uint64(k.length)/bs
	var err error
	switch {
	case k.typ == CmdTrim && x.Unmap:
		err = t.s.disk.Unmap(t.ctx, scsi.Extent{LBA: lba, Blocks: uint32(blocks)})
	case k.typ == CmdTrim:
		err = t.s.disk.WriteZeroes(t.ctx, lba, blocks, true)
	default:
		err = t.s.disk.WriteZeroes(t.ctx, lba, blocks, x.UnmapSame && k.flags&cmdFlagNoHole == 0)
	}
	if err == nil && k.flags&cmdFlagFUA != 0 {
		err = t.s.disk.Flush(t.ctx)
	}
	k.ended(err)
	k.answer()
}

// answer queues the reply. The task is not touched afterwards.
func (k *task) answer() {
	e := Errno(k.failure.Load())
	s := &k.conn.s.stats
	switch {
	case e != 0:
		s.failed.Add(1)
	case k.typ == CmdRead:
		s.read.Add(uint64(k.length))
	case k.typ == CmdWrite:
		s.written.Add(uint64(k.length))
	}
	if g := k.conn.guest; g != nil {
		g.Ended()
	}
	k.putHead(e)
	k.conn.out.push(k)
}
