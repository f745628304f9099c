package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi"
)

// transfers are the places where data segments go: at the initiator tasks by ITT, at the target
// GetData by TTT. mu guards them, and is held while octets are copied into their memory: after a transfer was
// marked dead under mu nothing is placed in it.
type transfers struct {
	mu      sync.Mutex
	tasks   table[task]
	gets    table[get]
	dropped dropped
	alarm   *time.Timer // looks for sequences that have stopped (ErrorRecoveryLevel > 0)
	armed   bool
}

// sink is memory that data segments are placed in.
type sink struct {
	mem  []byte
	dead bool // not to be written to
	busy bool // the reader is placing a segment: it recycles a dead one
}

// task is a SCSI command of the initiator that moves data.
type task struct {
	sink   // data-in
	itt    uint32
	out    []byte       // data-out
	got    int          // octets of data-in placed
	asked  int          // octets of data-out up to the end of the last R2T
	sn     uint32       // next DataSN or R2TSN: they share numbers (RFC 7143, section 11.8.3)
	cover  cover        // what was placed, where it may come in any order
	mend   *mending     // what was lost; nil at ErrorRecoveryLevel 0
	bursts atomic.Int32 // R2Ts whose answer is not wholly on its way
	queued bool         // dead, and the sender may still know it
	mute   bool         // no more data-out
}

// get is a GetData of the target.
type get struct {
	sink
	itt, ttt uint32
	tag      uint64
	buf      iscsi.Buffer
	off, got int    // buffer offset within the task, and octets placed
	sn       uint32 // next DataSN

	lun   uint64
	r2tSN uint32
	lost  bool      // a PDU was lost: what follows is passed over until F (ErrorRecoveryLevel > 0)
	moved time.Time // of the R2T or the last Data-Out, likewise
}

// table finds transfers by their tag. It allocates only to grow.
type table[T any] struct {
	buckets []*node[T] // a power of two, or none
	n       int
	spare   *node[T]
}

type node[T any] struct {
	key   uint32
	next  *node[T]
	value T
}

func (t *table[T]) bucket(key uint32) **node[T] { return &t.buckets[key&uint32(len(t.buckets)-1)] }

// get returns the transfer with this key, or nil.
func (t *table[T]) get(key uint32) *node[T] {
	if t.n == 0 {
		return nil
	}
	for n := *t.bucket(key); n != nil; n = n.next {
		if n.key == key {
			return n
		}
	}
	return nil
}

// put adds a transfer with an empty value.
func (t *table[T]) put(key uint32) *node[T] {
	if t.n >= 2*len(t.buckets) {
		old := t.buckets
		t.buckets = make([]*node[T], max(16, 2*len(old)))
		for _, n := range old {
			for n != nil {
				next, b := n.next, t.bucket(n.key)
				n.next, *b = *b, n
				n = next
			}
		}
	}
	n := t.spare
	if n == nil {
		n = new(node[T])
	} else {
		t.spare = n.next
	}
	b := t.bucket(key)
	n.key, n.next, *b = key, *b, n
	t.n++
	return n
}

// remove takes n out; recycle follows when nobody uses it.
func (t *table[T]) remove(n *node[T]) {
	for p := t.bucket(n.key); *p != nil; p = &(*p).next {
		if *p == n {
			*p, n.next = n.next, nil
			t.n--
			return
		}
	}
}

func (t *table[T]) recycle(n *node[T]) {
	var empty T
	n.value = empty
	n.next, t.spare = t.spare, n
}

// begin registers the buffers of the initiator's task itt, a new one or one that is reassigned to this connection.
func (t *transfers) begin(itt uint32, b *iscsi.TaskBuffers, reassigned bool, level int) error {
	var in, out []byte
	if b.In != nil {
		in = b.In.Bytes()
	}
	if b.Out != nil {
		out = b.Out.Bytes()
	}
	if b.InLen < 0 || b.InLen > len(in) || b.OutLen < 0 || b.OutLen > len(out) {
		return fmt.Errorf("iscsi/tcp: ITT %#x: %d octets in and %d out do not fit buffers of %d and %d",
			itt, b.InLen, b.OutLen, len(in), len(out))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tasks.get(itt) != nil {
		return fmt.Errorf("iscsi/tcp: ITT %#x is in use", itt)
	}
	k := &t.tasks.put(itt).value
	k.itt, k.mem, k.out = itt, in[:b.InLen:b.InLen], out[:b.OutLen:b.OutLen]
	if level > 0 {
		k.mend = &mending{buffers: b}
		if reassigned {
			k.got = b.Acked
			k.mend.numbers.Reset(iscsi.SN(b.AckedSN))
		} else {
			b.Acked, b.AckedSN = 0, 0
		}
	}
	return nil
}

// end forgets the initiator's task itt, if it is known: nothing is placed in its data-in any more.
// A task with data-out must be withdrawn from the sender and then given to free.
func (t *transfers) end(itt uint32) (out *node[task]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.tasks.get(itt)
	if n == nil {
		return nil
	}
	k := &n.value
	t.tasks.remove(n)
	k.dead, k.mem = true, nil
	if len(k.out) > 0 {
		k.queued = true
		return n
	}
	if !k.busy {
		t.tasks.recycle(n)
	}
	return nil
}

// free recycles a task that end has returned.
func (t *transfers) free(n *node[task]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.value.queued = false
	if !n.value.busy {
		t.tasks.recycle(n)
	}
}

// dropGets forgets the target's GetData of the task itt and releases their buffers.
func (t *transfers) dropGets(itt uint32) {
	var release []iscsi.Buffer
	t.mu.Lock()
	for _, n := range t.gets.buckets {
		for n != nil {
			next := n.next
			if g := &n.value; g.itt == itt {
				t.gets.remove(n)
				t.dropped.add(g.itt, g.ttt)
				release = append(release, g.buf)
				g.dead, g.mem, g.buf = true, nil, nil
				if !g.busy {
					t.gets.recycle(n)
				}
			}
			n = next
		}
	}
	t.mu.Unlock()
	for _, b := range release {
		b.Release()
	}
}

// dropped remembers GetData that were forgotten, whose Data-Out PDUs may still come: they are thrown away, where data that
// nobody ever asked for ends the connection.
type dropped struct {
	list [256]struct{ itt, ttt uint32 }
	n    int // ever added
}

func (d *dropped) add(itt, ttt uint32) {
	e := &d.list[d.n%len(d.list)]
	e.itt, e.ttt = itt, ttt
	d.n++
}

func (d *dropped) has(itt, ttt uint32) bool {
	for _, e := range d.list[:min(d.n, len(d.list))] {
		if e.itt == itt && e.ttt == ttt {
			return true
		}
	}
	return false
}

// DeallocateTaskResources implements iscsi.Datamover. Data-Out PDUs of the task that were not begun are not
// sent, and the rest of one that was is sent from a copy.
func (d *Datamover) DeallocateTaskResources(itt uint32) {
	if d.target {
		d.transfers.dropGets(itt)
		d.forgetCompletions(itt)
		if d.phase.Load().level > 0 {
			d.keep.forget(itt)
		}
		return
	}
	d.endTask(itt)
}

// forgetCompletions makes PutData of the task, sent or not, end without a notification.
func (d *Datamover) forgetCompletions(itt uint32) {
	s, q := &d.sender, &d.queue
	var release []iscsi.Buffer
	s.mu.Lock()
	q.mu.Lock()
	for _, o := range s.run {
		if o.buf != nil && o.itt == itt {
			o.notify = false
		}
	}
	for o := q.head; o != nil; o = o.next {
		if o.buf != nil && o.itt == itt {
			o.notify = false
		}
	}
	var last *outgoing
	for p := &q.completions; *p != nil; {
		o := *p
		if o.itt != itt {
			last, p = o, &o.next
			continue
		}
		*p = o.next
		release = append(release, o.buf)
		o.recycle()
	}
	q.lastCompletion = last
	q.mu.Unlock()
	s.mu.Unlock()
	for _, b := range release {
		b.Release()
	}
}

// withdraw takes the octets of an initiator's task out of the sender's hands, so that the caller
// may use their memory for something else.
func (d *Datamover) withdraw(itt uint32) {
	s, q := &d.sender, &d.queue
	var gone *outgoing
	s.mu.Lock()
	q.mu.Lock()
	var before *outgoing
	for o := q.head; o != nil; {
		next := o.next
		switch {
		case !o.carries(itt):
			before = o
		case o.isDataOut():
			q.unlink(before, o)
			o.next, gone = gone, o
		default: // a command whose number the target waits for
			o.data = append([]byte(nil), o.data...)
			before = o
		}
		o = next
	}
	run := s.run[:0]
	for _, o := range s.run {
		switch {
		case !o.carries(itt):
		case o.isDataOut() && !o.begun:
			o.next, gone = gone, o
			continue
		default:
			o.data = append([]byte(nil), o.data...)
		}
		run = append(run, o)
	}
	clear(s.run[len(run):])
	s.run = run
	q.mu.Unlock()
	s.mu.Unlock()
	for gone != nil {
		o := gone
		gone, o.next = o.next, nil
		if o.pdu != nil {
			q.uncount(o)
		}
		o.abandon()
	}
}

// carries tells whether o's data may lie in the memory of the initiator's task itt.
func (o *outgoing) carries(itt uint32) bool {
	op := o.header().Opcode()
	return o.itt == itt && (op == iscsi.OpDataOut || op == iscsi.OpSCSICommand) && (o.task != nil || len(o.data) > 0)
}
