package iser

import (
	"errors"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// opKind is what an op is for.
type opKind uint8

const (
	opControl opKind = iota
	opWrite          // PutData
	opRead           // GetData
	opAck            // the zero-length RDMA Read behind a PutData that asks for an acknowledgement
)

// inlineOctets is the room for PDUs that are copied into the work request: all but those with a larger data
// segment.
const inlineOctets = 256

// op is one work request of the send queue with what its completion needs.
//
//	waiting (sends, in order) --+
//	                            +--pump--> posted --completion--> free
//	reads   (limited by ORD)  --+
type op struct {
	wr   rnic.SendWR
	sge  [1]rnic.SGE
	kind opKind
	id   uint32

	slot *receive     // opControl: holds the PDU, if it did not fit inline
	buf  *buffer      // memory that the work request names; the op is one of its holders
	sink rnic.Window  // opRead: bound over buf
	user iscsi.Buffer // opRead: the caller's; opWrite with notify: likewise
	copy iscsi.Buffer // opRead into memory that is not the domain's: buf goes there when it is full
	at   int          // offset within copy

	itt       uint32
	tag       uint64
	dataSN    uint32
	notify    bool
	ack       bool // DataACKNotify when it completes
	forgotten bool // the task was deallocated

	inline [inlineOctets]byte
	next   *op
}

// holds tells whether something is to be done when o has completed.
func (o *op) holds() bool {
	return o.kind != opControl || o.slot != nil || o.buf != nil || o.notify || o.ack
}

// opList is a first-in first-out list.
type opList struct{ head, tail *op }

func (l *opList) push(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) pushFront(o *op) {
	o.next = l.head
	l.head = o
	if l.tail == nil {
		l.tail = o
	}
}

func (l *opList) pop() *op {
	o := l.head
	if o == nil {
		return nil
	}
	if l.head = o.next; l.head == nil {
		l.tail = nil
	}
	o.next = nil
	return o
}

// take removes and returns the ops of a list that match, as a list.
func (l *opList) take(match func(*op) bool) (out opList) {
	var keep opList
	for o := l.pop(); o != nil; o = l.pop() {
		if match(o) {
			out.push(o)
		} else {
			keep.push(o)
		}
	}
	*l = keep
	return out
}

// queues are a connection's outgoing work; Datamover.mu guards them.
type queues struct {
	ops     []*op // by ID
	freeOp  *op
	waiting opList
	reads   opList
	posted  opList
	nPosted int
	nReads  int  // RDMA Reads posted
	hold    bool // the last call promised more at once
	fence   bool // reads of a forgotten task are under way: the next PDU waits for them
}

// newOp returns an empty op.
func (d *Datamover) newOp(kind opKind) *op {
	o := d.freeOp
	if o == nil {
		o = &op{id: uint32(len(d.ops))}
		d.ops = append(d.ops, o)
	} else {
		d.freeOp, o.next = o.next, nil
	}
	o.kind = kind
	o.wr.ID = uint64(o.id)
	return o
}

// putOp frees an op whose holds were given back; d.mu is held.
func (d *Datamover) putOp(o *op) {
	o.wr = rnic.SendWR{}
	o.sge[0] = rnic.SGE{}
	o.slot, o.buf, o.sink, o.user, o.copy = nil, nil, nil, nil, nil
	o.itt, o.tag, o.dataSN, o.at = 0, 0, 0, 0
	o.notify, o.ack, o.forgotten = false, false, false
	o.next, d.freeOp = d.freeOp, o
}

// enqueue appends an op that keeps the order of the calls. With more it may wait for the next one.
func (d *Datamover) enqueue(o *op, more bool) {
	d.waiting.push(o)
	d.hold = more
	if !more {
		d.pump()
	}
}

// pump posts as much as the send queue and the peer's read depth take, in one chain; d.mu is held.
func (d *Datamover) pump() {
	if d.phase == phaseDown || d.qp == nil || d.helloHold {
		return
	}
	var first, last *op
	held := false // memory, or somebody who waits
	for d.nPosted < d.cfg.SendDepth {
		var o *op
		switch w := d.waiting.head; {
		case d.reads.head != nil && d.nReads < d.ord:
			o = d.reads.pop()
			d.nReads++
		case w == nil:
		case w.kind != opAck:
			o = d.waiting.pop()
		case d.nReads < d.ord:
			o = d.waiting.pop()
			d.nReads++
		}
		if o == nil {
			break
		}
		o.wr.Next = nil
		if first == nil {
			first = o
		} else {
			last.wr.Next = &o.wr
		}
		last = o
		held = held || o.holds()
		d.posted.push(o)
		d.nPosted++
	}
	if first != nil {
		// The last one tells when the unsignaled ones before it are done. Of PDUs that lie in their work requests nobody needs to hear, as long as
		// the queue has room: a completion costs a command that waits for nothing else a goroutine's wake-up.
		if held || d.nPosted > d.cfg.SendDepth/2 || d.phase == phaseDraining {
			last.wr.Flags |= rnic.Signaled
		}
		if err := d.qp.PostSend(&first.wr); err != nil {
			// As a whole or not at all: nothing of the chain will complete. Its ops stay on the
			// list of posted ones and are given back when the connection is torn down.
			d.failLocked(fmt.Errorf("iser: posting: %w", err))
			return
		}
	}
	if d.phase == phaseDraining && !d.disconnected && d.waiting.head == nil {
		d.disconnected = true
		if err := d.qp.Disconnect(); err != nil {
			d.failLocked(fmt.Errorf("iser: disconnecting: %w", err))
		}
	}
}

// completed handles the completion of a work request: that one and the unsignaled ones before it.
// d.up is held.
func (d *Datamover) completed(wc *rnic.Completion) {
	var err error
	if wc.Status != rnic.StatusOK {
		err = wc.Err
		if err == nil {
			err = errors.New(wc.Status.String())
		}
		if wc.Status != rnic.StatusFlushed {
			d.noteCause(err)
		}
	}
	for {
		d.mu.Lock()
		o := d.posted.pop()
		if o == nil {
			d.mu.Unlock()
			return
		}
		d.nPosted--
		if o.kind == opRead || o.kind == opAck {
			d.nReads--
		}
		d.mu.Unlock()
		if uint64(o.id) == wc.ID {
			d.finish(o, err)
			break
		}
		d.finish(o, nil)
	}
	d.mu.Lock()
	if d.waiting.head != nil && !d.hold || d.reads.head != nil || d.phase == phaseDraining {
		d.pump()
	}
	d.mu.Unlock()
}

// finish gives back what an op holds and tells who waits for it. d.up is held, d.mu is not.
func (d *Datamover) finish(o *op, err error) {
	if o.slot != nil {
		d.dom.receives.giveBack(o.slot, true)
	}
	if o.sink != nil {
		if e := o.sink.Invalidate(); e != nil && err == nil {
			err = e
		}
	}
	if o.copy != nil && err == nil && !o.forgotten {
		copy(o.copy.Bytes()[o.at:], o.buf.Bytes())
	}
	d.mu.Lock()
	if o.sink != nil {
		d.windows = append(d.windows, o.sink)
	}
	buf, user := o.buf, o.user
	forgotten, notify, ack := o.forgotten, o.notify, o.ack && err == nil
	itt, tag, dataSN := o.itt, o.tag, o.dataSN
	quiet := d.quiet
	if err != nil && !quiet {
		err = &connectionError{err}
	}
	d.putOp(o)
	d.mu.Unlock()
	if buf != nil {
		buf.Release()
	}
	if forgotten {
		// The caller has given the buffer up together with the task.
		if user != nil {
			user.Release()
		}
		return
	}
	if d.n == nil || quiet {
		return
	}
	if notify {
		d.n.DataCompletionNotify(itt, tag, err)
	}
	if ack {
		d.n.DataACKNotify(itt, dataSN+1)
	}
}
