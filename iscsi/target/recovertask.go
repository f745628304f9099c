package target

import (
	"errors"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// taskRecovery is what a task needs to go on after a loss. At ErrorRecoveryLevel 0 it stays empty. The session's lock guards it.
type taskRecovery struct {
	parked  bool // its connection is gone: nothing is sent or asked for
	ready   bool // parked where proceed would take it on
	lost    bool // executing, and its data-in went nowhere: it executes again
	outLost bool // unsolicited data was lost: the rest is asked for
	asks    int  // recovery R2Ts so far
	seen    uint64

	copying bool   // data-in that cannot be read twice is copied
	copy    []byte // that
	in      inProgress
}

// inProgress is how far a command's data-in has come.
type inProgress struct {
	base  uint32   // DataSN of marks[0]
	marks []uint32 // Buffer Offset of each Data-In sent on this connection
	end   int64    // octets sent
	acked uint32   // the first DataSN that the initiator has not acknowledged
	skip  int64    // octets that it has: they are not sent again
}

// Bounds of what a task keeps.
const (
	maxCopy  = 64 << 10 // octets of data-in that is copied
	maxMarks = 64 << 10
	maxAsks  = 16 // recovery R2Ts
)

// from is where data-in goes on if the initiator expects the DataSN exp: at the last acknowledged place if that is 0 or makes no
// sense (RFC 7143, section 11.5.6). ok is false if that place is not known any more.
func (p *inProgress) from(exp uint32) (next inProgress, ok bool) {
	sn := p.acked
	if n := exp - p.base; exp != 0 && iscsi.SN(p.acked).LessEqual(iscsi.SN(exp)) && n <= uint32(len(p.marks)) {
		sn = exp
	}
	next = inProgress{base: sn, acked: sn}
	switch n := sn - p.base; {
	case n == 0 && sn == p.base && len(p.marks) == 0:
		next.skip = p.skip
	case n < uint32(len(p.marks)):
		next.skip = int64(p.marks[n])
	case n == uint32(len(p.marks)) && n < maxMarks:
		next.skip = p.end
	default:
		return next, false
	}
	next.end = next.skip
	return next, true
}

// numbering is how far a command's data-in came on the connection, which is closed, with the numbers that its initiator knows: those of an
// R-Data SNACK, if it sent one (RFC 7143, sections 11.5.6 and 11.16.3).
func (c *conn) numbering(itt uint32, p *inProgress) *inProgress {
	if r, ok := c.dm.(iscsi.Renumberer); ok {
		if l, ok := r.Renumbered(itt); ok {
			return &inProgress{base: l.First, acked: l.First, skip: int64(l.Skip), marks: l.Offsets, end: int64(l.End)}
		}
	}
	return p
}

// gone tells a running command why it cannot go on.
func (t *task) gone() error {
	switch {
	case t.aborted:
		return errAborted
	case t.rec.lost:
		return errLost
	}
	return nil
}

// prepareRecovery decides what is kept of a new command. c.mu is held.
func (c *conn) prepareRecovery(t *task) {
	t.rec.copying = c.params.ErrorRecoveryLevel == 2 && !t.immediate && t.in.total > 0 && t.in.total <= maxCopy && !readsMedium(t.cdb)
}

// readsMedium tells the commands that can be executed again because they change nothing: READ (SBC-4, sections 5.13 to 5.17). Others may take
// something with them, as REQUEST SENSE does.
func readsMedium(cdb []byte) bool {
	switch cdb[0] {
	case 0x08, 0x28, 0xa8, 0x88:
		return true
	}
	return len(cdb) > 9 && cdb[0] == 0x7f && cdb[8] == 0 && cdb[9] == 0x09 // READ(32)
}

// copyIn keeps data-in that is not to be read twice.
func (t *task) copyIn(b []byte, off int64) {
	r := &t.rec
	if !r.copying {
		return
	}
	end := int(off) + len(b)
	if end > maxCopy {
		r.copying, r.copy = false, nil
		return
	}
	if end > len(r.copy) {
		r.copy = append(r.copy, make([]byte, end-len(r.copy))...)
	}
	copy(r.copy[off:], b)
}

// prepareIn readies a Data-In for ErrorRecoveryLevel > 0: it asks for an acknowledgement at the end of a sequence, and leaves out what the
// initiator has. false: nothing is to be sent, and the buffer is released.
func (t *task) prepareIn(x *iscsi.DataIn) bool {
	c, r := t.conn, &t.rec
	if skip := r.in.skip - int64(x.Offset); skip > 0 {
		n := int(min(skip, int64(x.Len)))
		x.From, x.Offset, x.Len = x.From+n, x.Offset+n, x.Len-n
	}
	if r.parked || x.Len == 0 {
		x.Buf.Release()
		return false
	}
	if x.Final && !x.More && !c.params.RDMAExtensions {
		x.Ack, x.TTT = true, c.freshTTT()
	}
	if c.params.ErrorRecoveryLevel == 2 {
		if len(r.in.marks) < maxMarks {
			r.in.marks = append(r.in.marks, uint32(x.Offset))
		}
		r.in.end = int64(x.Offset + x.Len)
	}
	return true
}

// unlessLost is the end of a PutData: one that the connection did not take is no failure of a command that another
// connection may take on.
func (t *task) unlessLost(err error) error {
	if err == nil || !t.outlives(err) {
		return err
	}
	t.rec.parked = true
	if t.rec.copying {
		return nil
	}
	t.rec.lost = true
	return errLost
}

// outlives tells that the loss of its connection, which err tells of, does not end the task. c.mu is held.
func (t *task) outlives(err error) bool {
	return !t.immediate && errors.Is(err, iscsi.ErrConnection) && t.conn.recoverable()
}

// again readies a command whose execution has come to its end in vain for the next one. The session's lock is held.
func (t *task) again() {
	t.releaseData()
	t.in = t.in.pool()
	t.rec.lost, t.inline = false, false
	t.phase, t.rec.ready = collect, true
	if !t.rec.parked {
		t.conn.goOn(t)
	}
}

// park takes a task off its closed connection. c.mu is held.
func (c *conn) park(t *task) {
	r, o := &t.rec, &t.out
	r.parked = true
	switch t.phase {
	case ready, running:
		for i := range o.pieces {
			o.pieces[i].asked = 0
		}
		o.asked = 0
		for i, s := range t.in.out {
			s.buf.Release()
			t.in.out[i] = sent{}
		}
		t.in.out, t.in.lent = t.in.out[:0], 0
		r.lost = r.lost || t.in.total > 0 && !r.copying
		t.cond.Broadcast()
		return
	case waitMemory:
		c.memory.remove(t)
		r.ready, t.phase = true, collect
	case collect:
		r.ready = true
	case waitUnit:
	}
	prefix := o.prefix()
	t.releaseData()
	t.in = t.in.pool()
	o.restart(prefix)
}

// prefix copies the unsolicited data that has arrived for a command that has not begun to execute.
func (o *outData) prefix() []byte {
	if o.received == 0 {
		return nil
	}
	b := make([]byte, 0, o.received)
	for i := range o.pieces {
		p := &o.pieces[i]
		if n := min(o.copied-p.off, int64(p.have)); n > 0 {
			b = append(b, p.buf.Bytes()[:n]...)
		}
	}
	for i := range o.held {
		b = append(b, o.held[i].data...)
	}
	return b
}

// restart makes unsolicited data the only data that has arrived.
func (o *outData) restart(data []byte) {
	o.open, o.whole = false, false
	o.received, o.copied, o.next, o.asked, o.window = int64(len(data)), 0, 0, 0, 0
	if len(data) > 0 {
		o.held = append(o.held[:0], heldData{&iscsi.PDU{}, data})
	}
}

// take gives a parked task this connection, and lets it go on behind the data-in that the initiator has. c.mu is held.
func (c *conn) take(t *task, from inProgress) {
	old := t.conn
	if t.in.holder {
		old.holders--
		c.holders++
	}
	old.active--
	c.active++
	t.conn = c
	t.rec.parked, t.rec.in = false, from
	t.dataInSN, t.r2tSN, t.sentIn = from.base, 0, 0
	t.in.burst = 0
	old.settled()
	switch {
	case t.rec.lost: // again takes it on when its execution has come back
	case t.phase == running:
		c.solicit(t)
		t.cond.Broadcast()
	case t.rec.ready:
		c.goOn(t)
	case t.phase == waitUnit:
		t.in.begin(t)
	}
}

// goOn takes a task on that stands where proceed would have it. c.mu is held.
func (c *conn) goOn(t *task) {
	t.rec.ready = false
	t.in.begin(t)
	c.proceed(t)
}

// reassign is TASK REASSIGN (RFC 7143, sections 7.2.2, 11.5.1 and 11.5.6). The task goes on behind the response. c.mu is held.
func (c *conn) reassign(f *function, rtt, expDataSN uint32) {
	if c.params.ErrorRecoveryLevel < 2 {
		c.managed(f, iscsi.TaskNoReassign)
		return
	}
	if _, managed := c.manage[rtt]; managed || c.text.open && c.text.itt == rtt {
		c.managed(f, iscsi.TaskFunctionRejected)
		return
	}
	if c.params.RDMAExtensions {
		expDataSN = 0 // RFC 7145, section 7.3.3
	}
	if t := c.tasks[rtt]; t != nil {
		if !t.conn.rec.loggedOut {
			c.managed(f, iscsi.TaskStillAllegiant)
			return
		}
		from, ok := t.conn.numbering(rtt, &t.rec.in).from(expDataSN)
		if !ok {
			c.managed(f, iscsi.TaskNoReassign)
			return
		}
		c.managed(f, iscsi.TaskComplete)
		c.take(t, from)
		return
	}
	for _, o := range c.conns {
		for i, k := range o.rec.kept {
			switch {
			case k.itt != rtt:
				continue
			case !o.rec.loggedOut:
				c.managed(f, iscsi.TaskStillAllegiant)
				return
			}
			from, ok := o.numbering(rtt, &k.in).from(expDataSN)
			if !ok {
				c.managed(f, iscsi.TaskNoReassign)
				return
			}
			o.dropKept(i, i+1)
			c.managed(f, iscsi.TaskComplete)
			c.replay(k, from)
			o.settled()
			return
		}
	}
	c.managed(f, iscsi.TaskNoTask)
}

// replay ends a command anew that came to its end on another connection: with the same status, and the data-in from a place on. c.mu is held.
func (c *conn) replay(k *outcome, from inProgress) {
	if k.reread {
		c.reread(k, from)
		return
	}
	sn, burst := from.base, 0
	k.in = from
	k.in.marks = nil
	for off := int(from.skip); off < len(k.data); sn++ {
		n := min(c.maxPutData, len(k.data)-off, c.params.MaxBurstLength-burst)
		burst += n
		final := off+n == len(k.data) || burst == c.params.MaxBurstLength
		k.in.marks = append(k.in.marks, uint32(off))
		c.dataIn = iscsi.DataIn{
			ITT: k.itt, TTT: iscsi.ReservedTag, DataSN: sn, Offset: off, Buf: plainBuffer(k.data[off:][:n]), Len: n, Final: final,
		}
		if final {
			burst = 0
		}
		_ = c.dm.PutData(&c.dataIn) // an error is the connection's end: the outcome is kept for the next one
		off += n
	}
	k.in.end = int64(len(k.data))
	p := c.pdus.get()
	p.BHS = k.rsp.BHS
	p.Data = append(p.Room[:0], k.rsp.Data...)
	if h := iscsi.SCSIResponse(p.BHS[:]); len(k.data) > 0 {
		h.SetExpDataSN(sn)
	}
	k.statSN = uint32(c.statSN)
	c.keep(k)
	c.respond(p)
}

// plainBuffer is ordinary memory as a Datamover's buffer.
type plainBuffer []byte

// Bytes implements iscsi.Buffer.
func (b plainBuffer) Bytes() []byte { return b }

// Release implements iscsi.Buffer.
func (plainBuffer) Release() {}

// reread executes a command again that has sent its data-in and changes nothing.
func (c *conn) reread(k *outcome, from inProgress) {
	t := c.newTask()
	m := &k.cmd
	t.itt, t.lun, t.cmdSN, t.attr = k.itt, m.lun, m.cmdSN, iscsi.AttrSimple
	t.read, t.write, t.inLen, t.outLen = m.read, m.write, m.inLen, m.outLen
	t.cdb = m.cdb
	lun := c.sess.nexus.Resolve(t.lun)
	t.plan = c.node.Device.Plan(lun, t.cdb)
	t.unit = c.node.unit(lun)
	c.begin(t)
	c.tasks[t.itt] = t
	c.active++
	c.inFlight++
	t.rec.in, t.dataInSN = from, from.base
	t.in.begin(t)
	if t.unit.enter(t) {
		c.proceed(t)
	}
}

// failLost makes a command end with CHECK CONDITION because data of it was lost for good (RFC 7143, section 11.4.7.2).
func (t *task) failLost(code scsi.Code) {
	if t.fail == nil {
		r := scsi.Check(scsi.KeyAbortedCommand, code)
		t.fail = &r
	}
}
