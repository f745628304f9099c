package tcp

import (
	"fmt"
	"sync"

	"goiwarp/iscsi"
)

// Bounds of one vectored write.
const (
	runPDUs   = 128
	runOctets = 512 << 10
	// pumpRounds is how many writes a caller does on its own stack before it leaves the rest to the writer.
	pumpRounds = 8
	// scratchMin and scratchMax bound the copy with which the writer waits.
	scratchMin = 2 << 10
	scratchMax = 64 << 10
)

// outgoing is one PDU on its way out, or the promise of several (a burst).
type outgoing struct {
	next *outgoing

	bhs                      [iscsi.BHSLen + iscsi.DigestLen]byte // with the header digest behind it, if there is no AHS
	ahs                      []byte
	ahsCheck                 [iscsi.DigestLen]byte // header digest behind an AHS
	data                     []byte
	tail                     [3 + iscsi.DigestLen]byte // padding and data digest
	n                        int                       // octets in all, once ready
	headerDigest, dataDigest bool
	ready                    bool // digests are in place: nothing of it may change
	begun                    bool // octets of it may have been sent

	pdu    *iscsi.PDU   // SendControl's: released when sent
	buf    iscsi.Buffer // PutData's: released when sent
	notify bool         // PutData's: completion tag is told when sent
	itt    uint32
	tag    uint64

	task  *task // of a burst and the Data-Out PDUs that are made of it
	burst burst
}

// burst is the answer to an R2T: the Data-Out PDUs that are still to be made, of the octets from off
// to end of the task's data-out. The header of its outgoing is the first one's.
type burst struct {
	off, end int
	sn       uint32
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

func newOutgoing() *outgoing { return outgoings.Get().(*outgoing) }

// recycle forgets o.
func (o *outgoing) recycle() {
	*o = outgoing{}
	outgoings.Put(o)
}

// abandon is for what was not sent and never will be.
func (o *outgoing) abandon() {
	switch {
	case o.pdu != nil:
		o.pdu.Release()
	case o.buf != nil && !o.notify:
		o.buf.Release()
	}
	o.recycle()
}

// header is the PDU's BHS.
func (o *outgoing) header() iscsi.BHS { return o.bhs[:iscsi.BHSLen] }

// isDataOut tells whether o is a Data-Out PDU of the layer above.
func (o *outgoing) isDataOut() bool { return o.header().Opcode() == iscsi.OpDataOut }

// seal fills in lengths, padding and digests. After it nobody may change the PDU or its data: the digest
// covers the very octets that are sent.
func (o *outgoing) seal() {
	h := o.header()
	h.SetAHSLen(len(o.ahs))
	h.SetDataLen(len(o.data))
	o.n = iscsi.BHSLen + len(o.ahs) + len(o.data) + o.tailLen()
	if o.headerDigest {
		o.n += iscsi.DigestLen
		sum := iscsi.Digest(iscsi.Digest(0, h), o.ahs)
		if len(o.ahs) == 0 {
			iscsi.PutDigest(o.bhs[iscsi.BHSLen:], sum)
		} else {
			iscsi.PutDigest(o.ahsCheck[:], sum)
		}
	}
	pad := iscsi.Pad(len(o.data))
	clear(o.tail[:pad])
	if o.dataDigest && len(o.data) > 0 {
		iscsi.PutDigest(o.tail[pad:], iscsi.Digest(iscsi.Digest(0, o.data), o.tail[:pad]))
	}
	o.ready = true
}

func (o *outgoing) tailLen() int {
	n := iscsi.Pad(len(o.data))
	if o.dataDigest && len(o.data) > 0 {
		n += iscsi.DigestLen
	}
	return n
}

// parts appends the PDU's octets from skip on to list.
func (o *outgoing) parts(list [][]byte, skip int) [][]byte {
	h := o.bhs[:iscsi.BHSLen]
	if o.headerDigest && len(o.ahs) == 0 {
		h = o.bhs[:]
	}
	list, skip = part(list, h, skip)
	if len(o.ahs) > 0 {
		list, skip = part(list, o.ahs, skip)
		if o.headerDigest {
			list, skip = part(list, o.ahsCheck[:], skip)
		}
	}
	list, skip = part(list, o.data, skip)
	list, _ = part(list, o.tail[:o.tailLen()], skip)
	return list
}

func part(list [][]byte, b []byte, skip int) ([][]byte, int) {
	if skip >= len(b) {
		return list, skip - len(b)
	}
	return append(list, b[skip:]), 0
}

// sender is the writing half's list of PDUs that are being sent. Whoever has set queue.writing owns it, but
// touches PDUs and memory only under mu, so that a task's memory can be withdrawn between two attempts.
type sender struct {
	mu       sync.Mutex
	run      []*outgoing
	sent     int // octets of run[0] that the socket has taken
	list     [][]byte
	scratch  []byte
	finished *outgoing // sent completely, not yet released
}

// attempt does one non-blocking write. It tells whether the socket is full, and whether there is more
// to write; if not, the right to write has been given back.
func (d *Datamover) attempt() (full, more bool) {
	s := &d.sender
	n, err := 0, error(nil)
	s.mu.Lock()
	d.fillRun()
	list := s.list[:0]
	octets := 0
	for k, o := range s.run {
		if !o.ready {
			o.seal()
		}
		skip := 0
		if k == 0 {
			skip = s.sent
		}
		list = o.parts(list, skip)
		if octets += o.n; octets >= runOctets {
			break
		}
	}
	s.list = list
	if len(list) > 0 {
		n, err = d.sock.TryWrite(list)
		d.stats.writes.Add(1)
	}
	full = len(list) > 0 && n == 0
	clear(list)
	d.account(n)
	done := s.finished
	s.finished = nil
	s.mu.Unlock()
	d.complete(done)
	return full, d.yield(err)
}

// fillRun moves PDUs from the queue to the run. The sender is locked.
func (d *Datamover) fillRun() {
	s, q := &d.sender, &d.queue
	octets := 0
	for _, o := range s.run {
		octets += len(o.data)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(s.run) < runPDUs && octets < runOctets && q.waiting() {
		o := q.next(maxSend(d.params.Load()))
		octets += len(o.data) + iscsi.BHSLen
		s.run = append(s.run, o)
	}
}

// account notes that the socket took n octets. The sender is locked.
func (d *Datamover) account(n int) {
	s := &d.sender
	d.stats.octetsOut.Add(uint64(n))
	k := 0
	for n > 0 {
		o := s.run[k]
		rest := o.n - s.sent
		if n < rest {
			s.sent += n
			o.begun = true
			break
		}
		n -= rest
		s.sent = 0
		k++
		d.stats.pdusOut.Add(1)
	}
	if k == 0 {
		return
	}
	tail := &s.finished
	for *tail != nil {
		tail = &(*tail).next
	}
	for _, o := range s.run[:k] {
		*tail = o
		tail = &o.next
	}
	rest := copy(s.run, s.run[k:])
	clear(s.run[rest:])
	s.run = s.run[:rest]
}

// complete releases what was sent, and queues the completions that are to be told.
func (d *Datamover) complete(list *outgoing) {
	for list != nil {
		o := list
		list, o.next = o.next, nil
		if o.notify {
			d.queue.addCompletion(o)
			continue
		}
		if o.pdu != nil {
			d.queue.uncount(o)
			o.pdu.Release()
		} else if o.buf != nil {
			o.buf.Release()
		}
		o.recycle()
	}
}

// yield gives the right to write back if there is nothing left to write or the connection is
// down, and tells whether the caller still has it.
func (d *Datamover) yield(err error) bool {
	q := &d.queue
	if err != nil {
		d.fail(fmt.Errorf("iscsi/tcp: %w: %w", iscsi.ErrConnection, err), true)
	}
	q.mu.Lock()
	if !q.dead && (q.waiting() || len(d.sender.run) > 0) {
		q.mu.Unlock()
		return true
	}
	q.writing, q.handed = false, false
	q.idle.Broadcast()
	fin := q.claimFIN()
	q.mu.Unlock()
	if fin {
		d.closeWrite()
	}
	return false
}

// pump writes what is queued without waiting and leaves the rest to the writer. The caller has
// claimed the right to write. upcaller tells that the caller delivers completions itself.
func (d *Datamover) pump(upcaller bool) {
	for round := 0; ; round++ {
		full, more := d.attempt()
		if !more {
			break
		}
		if full || round == pumpRounds {
			d.queue.mu.Lock()
			d.queue.handed = true
			d.queue.idle.Broadcast() // teardown does not wait for the writer any more
			d.queue.mu.Unlock()
			d.poke()
			return
		}
	}
	if !upcaller && d.queue.hasCompletions() {
		d.poke()
	}
}

// writer is the goroutine that waits for the peer to read.
type writer struct {
	wake  chan struct{}
	quit  chan struct{}
	ended chan struct{}
}

// poke wakes the writer.
func (d *Datamover) poke() {
	select {
	case d.writer.wake <- struct{}{}:
	default:
	}
}

// write is the writer's loop.
func (d *Datamover) write() {
	defer close(d.writer.ended)
	for {
		select {
		case <-d.writer.quit:
			return
		case <-d.writer.wake:
		}
		if d.queue.takeHanded() {
			d.drainQueue()
		}
		if d.queue.hasCompletions() {
			d.beginBatch()
			d.endBatch()
		}
	}
}

// drainQueue writes until the queue is empty, waiting for the socket where it must. It waits with a
// copy of the next octets, so that no one's memory is in use while the peer does not read.
func (d *Datamover) drainQueue() {
	size := scratchMin
	s := &d.sender
	for {
		full, more := d.attempt()
		if !more {
			break
		}
		if !full {
			continue
		}
		s.mu.Lock()
		b := s.preview(size)
		s.mu.Unlock()
		d.stats.waits.Add(1)
		n, err := d.sock.Write(b)
		s.mu.Lock()
		d.account(n)
		done := s.finished
		s.finished = nil
		s.mu.Unlock()
		d.complete(done)
		if err != nil {
			d.yield(err)
			break
		}
		size = min(2*size, scratchMax)
	}
	s.mu.Lock()
	s.scratch = nil // an idle connection is small
	s.mu.Unlock()
}

// preview copies up to size octets that are to be sent next. The PDUs are begun: they can no
// longer be taken back. The list is the sender's.
func (s *sender) preview(size int) [][]byte {
	if cap(s.scratch) < size {
		s.scratch = make([]byte, 0, size)
	}
	b := s.scratch[:0]
	for k, o := range s.run {
		skip := 0
		if k == 0 {
			skip = s.sent
		}
		if !o.ready {
			o.seal()
		}
		s.list = o.parts(s.list[:0], skip)
		o.begun = true
		for _, p := range s.list {
			b = append(b, p[:min(len(p), size-len(b))]...)
		}
		if len(b) == size {
			break
		}
	}
	clear(s.list)
	s.list = append(s.list[:0], b)
	return s.list
}
