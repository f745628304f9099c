package tcp

import (
	"fmt"
	"sync"

	"goiwarp/iscsi"
)

// queue holds what is to be sent, in order, and decides who sends it. mu guards all of it and is held for
// moments only, never across a system call.
type queue struct {
	mu         sync.Mutex
	head, tail *outgoing
	held       *outgoing // the last PDU, if its caller promised another one at once

	writing bool      // someone has the right to write (sender)
	handed  bool      // it is the writer's to take
	idle    sync.Cond // writing has become false, or handed true
	batch   bool      // upcalls run: whoever runs them sends at their end

	dead     bool  // the connection has failed
	closing  bool  // nothing more is taken
	finished bool  // closing, and the FIN is someone's to send
	err      error // why; nil if an end was asked for

	completions    *outgoing // PutData with Notify that were sent
	lastCompletion *outgoing

	pdus, octets int // of the layer above, waiting

	headerDigest, dataDigest bool

	// What PDUs that are made here say of the numbers that the layer above keeps: the values of its last
	// PDU. A target's StatSN is the next one's.
	statSN, expCmdSN, maxCmdSN iscsi.SN
	expStatSN                  iscsi.SN
}

func (q *queue) setDigests(ph *phase) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.headerDigest, q.dataDigest = ph.headerDigest, ph.dataDigest
}

// waiting tells whether there is something to send. What is held back for its caller's next PDU is
// not: it would go alone. q is locked.
func (q *queue) waiting() bool { return q.head != nil && q.head != q.held }

// claim takes the right to write, if there is something to write and nobody has it. q is locked.
func (q *queue) claim() bool {
	if q.batch || q.writing || q.dead || !q.waiting() {
		return false
	}
	q.writing = true
	return true
}

// claimFIN takes the right to send the FIN, once everything before it was sent. q is locked.
func (q *queue) claimFIN() bool {
	if !q.closing || q.finished || q.dead || q.batch || q.writing || q.head != nil {
		return false
	}
	q.finished = true
	return true
}

// push appends o. q is locked.
func (q *queue) push(o *outgoing) {
	o.headerDigest, o.dataDigest = q.headerDigest, q.dataDigest
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
	q.held = nil
}

// next takes the next PDU off the queue, of a burst one of at most segment octets. q is locked.
func (q *queue) next(segment int) *outgoing {
	o := q.head
	if o.task != nil {
		if c := q.dataOut(o, segment); c != nil {
			return c
		}
		// Not later: once the last octet has left, the target may ask for more.
		o.task.bursts.Add(-1)
	}
	q.unlink(nil, o)
	return o
}

// unlink takes o, which follows before, off the queue. q is locked.
func (q *queue) unlink(before, o *outgoing) {
	if before == nil {
		q.head = o.next
	} else {
		before.next = o.next
	}
	if q.tail == o {
		q.tail = before
	}
	o.next = nil
}

// dataOut makes a Data-Out PDU of a burst. The last one is made of the burst itself: nil.
func (q *queue) dataOut(o *outgoing, segment int) *outgoing {
	b := &o.burst
	n := min(segment, b.end-b.off)
	last := b.off+n == b.end
	c := o
	if !last {
		c = newOutgoing()
		c.bhs, c.task, c.itt = o.bhs, o.task, o.itt
		c.headerDigest, c.dataDigest = o.headerDigest, o.dataDigest
	}
	h := iscsi.DataOutPDU(c.header())
	h.SetFinal(last)
	h.SetExpStatSN(q.expStatSN)
	h.SetDataSN(b.sn)
	h.SetOffset(uint32(b.off))
	c.data = c.task.out[b.off:][:n]
	b.off += n
	b.sn++
	if last {
		return nil
	}
	return c
}

// takeAll empties the queue, of a connection that is down. q is locked. Completions that nobody
// was told of are the caller's to know when Done is closed.
func (q *queue) takeAll() *outgoing {
	list := q.head
	q.head, q.tail, q.held = nil, nil, nil
	if q.lastCompletion != nil {
		q.lastCompletion.next = list
		list = q.completions
		q.completions, q.lastCompletion = nil, nil
	}
	return list
}

func (q *queue) takeHanded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.handed
	q.handed = false
	return h
}

func (q *queue) addCompletion(o *outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lastCompletion == nil {
		q.completions = o
	} else {
		q.lastCompletion.next = o
	}
	q.lastCompletion = o
}

func (q *queue) hasCompletions() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.completions != nil
}

func (q *queue) takeCompletions() *outgoing {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.completions
	q.completions, q.lastCompletion = nil, nil
	return list
}

// count notes a PDU of the layer above and tells whether there are too many. q is locked.
func (q *queue) count(o *outgoing, maxOctets int) (tooMany bool) {
	q.pdus++
	q.octets += len(o.pdu.Data)
	return q.pdus > maxQueuedPDUs || q.octets > maxOctets
}

func (q *queue) uncount(o *outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pdus--
	q.octets -= len(o.pdu.Data)
}

// beginBatch makes this goroutine the one whose upcalls run, and keeps what they send in the queue.
func (d *Datamover) beginBatch() {
	d.upcalls.Lock()
	d.queue.mu.Lock()
	d.queue.batch = true
	d.queue.mu.Unlock()
}

// endBatch sends what was queued, delivers the completions that this makes, and lets others run
// upcalls.
func (d *Datamover) endBatch() {
	q := &d.queue
	for {
		q.mu.Lock()
		q.batch = false
		run, fin := q.claim(), q.claimFIN()
		list := q.completions
		q.mu.Unlock()
		if run {
			d.pump(true)
		}
		if fin {
			d.closeWrite()
		}
		if list == nil && !q.hasCompletions() {
			break
		}
		q.mu.Lock()
		q.batch = true
		q.mu.Unlock()
		d.deliver(q.takeCompletions())
	}
	d.upcalls.Unlock()
}

// deliver tells the completions in list. The upcalls are this goroutine's.
func (d *Datamover) deliver(list *outgoing) {
	for list != nil {
		o := list
		list = o.next
		itt, tag := o.itt, o.tag
		o.recycle()
		if !d.local.Load() {
			d.up.DataCompletionNotify(itt, tag, nil)
		}
	}
}

// post queues o and sends what can be sent, or keeps it for the caller's promise of more (hold). On an error o
// was not taken.
func (d *Datamover) post(o *outgoing, hold bool) error {
	q := &d.queue
	q.mu.Lock()
	if err := q.refuses(); err != nil {
		q.mu.Unlock()
		return err
	}
	if h := o.header(); d.target {
		h.SetWindow(q.expCmdSN, q.maxCmdSN)
		if h.Opcode() == iscsi.OpR2T {
			h.SetStatSN(q.statSN)
		}
	}
	q.push(o)
	run := false
	if hold {
		q.held = o
	} else {
		run = q.claim()
	}
	q.mu.Unlock()
	if run {
		d.pump(false)
	}
	return nil
}

// refuses is the error of a method that would send on a connection that is down or closing. q is locked.
func (q *queue) refuses() error {
	switch {
	case !q.dead && !q.closing:
		return nil
	case q.err == nil:
		return errEnding
	}
	return q.err
}

// SendControl implements iscsi.Datamover. It takes p over on an error as well. In full feature
// phase p's data segment may be as long as the peer declared with MaxRecvDataSegmentLength.
func (d *Datamover) SendControl(p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	err := d.checkControl(p)
	registered := false
	itt := iscsi.BHS(p.BHS[:]).ITT()
	if err == nil && t != nil && (t.In != nil || t.Out != nil) {
		switch h := iscsi.TaskMgmtRequest(p.BHS[:]); {
		case p.Opcode() == iscsi.OpSCSICommand:
			err = d.transfers.begin(itt, t, false, d.phase.Load().level)
			registered = err == nil
		case p.Opcode() == iscsi.OpTaskMgmtReq && h.Function() == iscsi.TaskReassign:
			itt = h.RTT()
			err = d.transfers.begin(itt, t, true, d.phase.Load().level)
			registered = err == nil
		}
	}
	if err == nil {
		err = d.sendControl(p)
	}
	if err != nil {
		if registered {
			d.endTask(itt)
		}
		p.Release()
	}
	return err
}

func (d *Datamover) checkControl(p *iscsi.PDU) error {
	h := iscsi.BHS(p.BHS[:])
	switch op := p.Opcode(); {
	case op == iscsi.OpSNACK, op == iscsi.OpDataIn, op == iscsi.OpR2T, op == iscsi.OpDataOut && h.TTT() != iscsi.ReservedTag:
		return fmt.Errorf("iscsi/tcp: opcode %#02x is the Datamover's own to send", byte(op))
	case len(p.AHS)%4 != 0 || len(p.AHS) > iscsi.MaxAHS:
		return fmt.Errorf("iscsi/tcp: AHS of %d octets", len(p.AHS))
	case d.phase.Load().full && len(p.Data) > maxSend(d.params.Load()):
		return fmt.Errorf("iscsi/tcp: data segment of %d octets, the peer takes %d", len(p.Data), maxSend(d.params.Load()))
	case len(p.Data) > iscsi.MaxDataSegment:
		return fmt.Errorf("iscsi/tcp: data segment of %d octets", len(p.Data))
	}
	return nil
}

// sendControl queues p, or folds it into the Data-In before it.
func (d *Datamover) sendControl(p *iscsi.PDU) error {
	q := &d.queue
	if d.target && d.phase.Load().level > 0 && numbered(p) {
		d.resend(d.keep.response(p, maxSend(d.params.Load())))
	}
	q.mu.Lock()
	if err := q.refuses(); err != nil {
		q.mu.Unlock()
		return err
	}
	if d.target {
		q.noteTarget(p)
	} else {
		q.expStatSN = iscsi.BHS(p.BHS[:]).ExpStatSN()
	}
	folded := q.fold(p)
	tooMany := false
	if !folded {
		tooMany = q.count(d.pushControl(p), d.cfg.MaxQueued)
	}
	run := q.claim()
	q.mu.Unlock()
	if folded {
		d.stats.folded.Add(1)
		p.Release()
	}
	if run {
		d.pump(false)
	}
	if tooMany {
		d.fail(&Error{Kind: Backlog, Detail: "too many PDUs wait to be sent", Remote: true}, true)
	}
	return nil
}

// pushControl queues p as it is. q is locked.
func (d *Datamover) pushControl(p *iscsi.PDU) *outgoing {
	o := newOutgoing()
	copy(o.bhs[:], p.BHS[:])
	o.pdu, o.ahs, o.data, o.itt = p, p.AHS, p.Data, iscsi.BHS(p.BHS[:]).ITT()
	d.queue.push(o)
	return o
}

// sendFinal queues the final Login Response as the last PDU without digests.
func (d *Datamover) sendFinal(p *iscsi.PDU, ph *phase) error {
	q := &d.queue
	q.mu.Lock()
	err := q.refuses()
	run := false
	if err == nil {
		q.noteTarget(p)
		q.count(d.pushControl(p), d.cfg.MaxQueued)
		q.headerDigest, q.dataDigest = ph.headerDigest, ph.dataDigest
		run = q.claim()
	}
	q.mu.Unlock()
	if err != nil {
		p.Release()
	}
	if run {
		d.pump(false)
	}
	return err
}

// noteTarget keeps the numbers of a target's PDU for Data-In and R2T. q is locked.
func (q *queue) noteTarget(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	q.expCmdSN, q.maxCmdSN, q.statSN = h.ExpCmdSN(), h.MaxCmdSN(), h.StatSN()
	if numbered(p) {
		q.statSN++
	}
}

// numbered tells whether a PDU of the target's layer above uses up its StatSN: all do but a ping of its own (RFC 7143, section 11.19.2).
func numbered(p *iscsi.PDU) bool {
	return p.Opcode() != iscsi.OpNOPIn || iscsi.BHS(p.BHS[:]).ITT() != iscsi.ReservedTag
}

// fold puts a SCSI Response into the Data-In that was just queued, if it says no more than a Data-In can
// (RFC 7143, section 11.7.3): GOOD, no sense, and nothing but the residual of the data-in. q is locked.
func (q *queue) fold(p *iscsi.PDU) bool {
	o := q.held
	q.held = nil
	if o == nil || p.Opcode() != iscsi.OpSCSIResponse || len(p.Data)+len(p.AHS) > 0 {
		return false
	}
	r, h := iscsi.SCSIResponse(p.BHS[:]), iscsi.DataInPDU(o.header())
	if r.ITT() != h.ITT() || !h.Final() || r.ExpDataSN() != h.DataSN()+1 || r.Response() != 0 || r.Status() != 0 ||
		r.StatusQualifier() != 0 || r.BidiOverflow() || r.BidiUnderflow() {
		return false
	}
	h.SetHasStatus(true)
	h.SetOverflow(r.Overflow())
	h.SetUnderflow(r.Underflow())
	h.SetResidual(r.Residual())
	h.SetStatSN(r.StatSN())
	h.SetExpCmdSN(q.expCmdSN)
	h.SetMaxCmdSN(q.maxCmdSN)
	return true
}
