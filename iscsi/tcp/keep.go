package tcp

import (
	"sync"

	"goiwarp/iscsi"
)

// keeper is a target's memory of what its initiator may ask for again (ErrorRecoveryLevel > 0): numbered responses until ExpStatSN passes
// them, and Data-In until a DataACK or the status of the command acknowledges it (RFC 7143, sections 7.1.3 and 11.16). Data is kept
// as copies, since buffers belong to tasks that go on.
//
//	responses:  acked ...  | base ........................ next |     one for each StatSN
//	task:       acked ...  | base .. (given up) .. kept .. next |     one for each DataSN
//
// What is kept is bounded in octets. Beyond the bound the oldest data is given up, and a SNACK for it is rejected.
type keeper struct {
	mu        sync.Mutex
	limit     int // octets of data
	octets    int
	base      iscsi.SN // StatSN of responses[0]
	responses []*iscsi.PDU
	tasks     map[uint32]*keptTask
	acks      map[uint32]*keptTask // by the Target Transfer Tag of a Data-In with the A bit
	first     *keptTask            // oldest, through newer
	last      *keptTask
	layouts   map[uint32]iscsi.DataLayout // of tasks that were not acknowledged when the connection ended; see Renumbered
}

// maxResponses bounds the responses that are kept. An initiator acknowledges them with whatever it sends, so that more are not to be
// expected than fit its command window a few times.
const maxResponses = 4096

// keptTask is one command's data-in.
type keptTask struct {
	itt          uint32
	base         uint32       // DataSN of pdus[0]
	pdus         []*iscsi.PDU // nil elements were given up
	ttts         []uint32
	done         bool // the status was handed over, with statSN
	statSN       iscsi.SN
	tag          uint32   // SNACK Tag of the last R-Data SNACK, 0 if none
	mute         bool     // an R-Data SNACK waits for the command's end
	anew         bool     // resegmented: offsets, end are valid
	offsets      []uint32 // Buffer Offset of each of pdus
	acked        uint32   // octets before pdus[0]
	end          uint32
	older, newer *keptTask
}

func (t *keptTask) next() uint32 { return t.base + uint32(len(t.pdus)) }

// begin starts to keep from the StatSN of the first response on.
func (k *keeper) begin(base iscsi.SN, limit int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.base, k.limit = base, limit
	k.tasks, k.acks = make(map[uint32]*keptTask), make(map[uint32]*keptTask)
}

// task finds or makes the record of a command.
func (k *keeper) task(itt uint32) *keptTask {
	t := k.tasks[itt]
	if t != nil && t.done { // an old command's: the tag is used again, so that its status has arrived
		k.drop(t)
		t = nil
	}
	if t == nil {
		t = &keptTask{itt: itt, older: k.last}
		if k.last == nil {
			k.first = t
		} else {
			k.last.newer = t
		}
		k.last = t
		k.tasks[itt] = t
	}
	return t
}

// drop forgets a command's data.
func (k *keeper) drop(t *keptTask) {
	for _, p := range t.pdus {
		k.free(p)
	}
	for _, ttt := range t.ttts {
		if k.acks[ttt] == t {
			delete(k.acks, ttt)
		}
	}
	if t.older == nil {
		k.first = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		k.last = t.older
	} else {
		t.newer.older = t.older
	}
	if k.tasks[t.itt] == t {
		delete(k.tasks, t.itt)
	}
}

func (k *keeper) free(p *iscsi.PDU) {
	if p != nil {
		k.octets -= len(p.Data)
		p.Release()
	}
}

// data keeps one Data-In. It sets its DataSN to what it has been counted as, and tells whether it is to be sent now.
func (k *keeper) data(h iscsi.DataInPDU, b []byte) (send bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.task(h.ITT())
	if len(t.pdus) == 0 && t.base == 0 && h.DataSN() != 0 {
		t.base = h.DataSN() // a task that was reassigned goes on where it was acknowledged
	}
	h.SetDataSN(t.next())
	p := newReceived(len(b))
	copy(p.BHS[:], h)
	p.Data = p.Room[:len(b):len(b)]
	copy(p.Data, b)
	t.pdus = append(t.pdus, p)
	if h.Ack() {
		t.ttts = append(t.ttts, h.TTT())
		k.acks[h.TTT()] = t
	}
	k.octets += len(b)
	for o := k.first; k.octets > k.limit && o != nil; o = o.newer {
		for i, old := range o.pdus {
			if k.octets <= k.limit {
				break
			}
			k.free(old)
			o.pdus[i] = nil
		}
	}
	return !t.mute
}

// response keeps a copy of a numbered response, which may be changed before it is sent. again is data that an R-Data SNACK wants behind the
// command's end; it goes out before the response.
func (k *keeper) response(p *iscsi.PDU, segment int) (again []*iscsi.PDU) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.Opcode() == iscsi.OpSCSIResponse {
		r := iscsi.SCSIResponse(p.BHS[:])
		if t := k.tasks[r.ITT()]; t != nil && !t.done {
			t.done, t.statSN = true, r.StatSN()
			if t.tag != 0 {
				var ok bool
				if again, ok = k.resegment(t, segment); !ok {
					p.Data = snackRejected(r)
				}
				r.SetSNACKTag(t.tag)
			}
			if r.ExpDataSN() != 0 {
				r.SetExpDataSN(t.next())
			}
		}
	}
	k.responses = append(k.responses, copyPDU(p))
	if len(k.responses) > maxResponses {
		k.responses[0].Release()
		k.responses = append(k.responses[:0], k.responses[1:]...)
		k.base++
	}
	return again
}

// snackRejected makes r the end of a command whose data cannot be sent again (RFC 7143, section 11.4.7.2), and returns its data segment.
func snackRejected(r iscsi.SCSIResponse) []byte {
	r.SetResponse(iscsi.ResponseCompleted)
	r.SetStatus(statusCheckCondition)
	r.SetOverflow(false)
	r.SetUnderflow(false)
	r.SetResidual(0)
	return iscsi.AppendSense(nil, abortedCommand(0x11, 0x13))
}

const statusCheckCondition = 0x02

// abortedCommand is fixed format sense data with the sense key ABORTED COMMAND (SPC-4, section 4.5.3).
func abortedCommand(asc, ascq byte) []byte {
	b := make([]byte, 18)
	b[0], b[2], b[7], b[12], b[13] = 0x70, 0x0b, 10, asc, ascq
	return b
}

func copyPDU(p *iscsi.PDU) *iscsi.PDU {
	c := newReceived(len(p.Data))
	c.BHS = p.BHS
	c.Data = c.Room[:len(p.Data):len(p.Data)]
	copy(c.Data, p.Data)
	return c
}

// acknowledge forgets what the initiator has: all responses before exp, and the data of commands that they end.
func (k *keeper) acknowledge(exp iscsi.SN) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := int(exp - k.base)
	if !k.base.Less(exp) || n > len(k.responses) {
		return
	}
	for _, p := range k.responses[:n] {
		if p.Opcode() == iscsi.OpSCSIResponse {
			if t := k.tasks[iscsi.BHS(p.BHS[:]).ITT()]; t != nil && t.done && t.statSN == iscsi.BHS(p.BHS[:]).StatSN() {
				k.drop(t)
			}
		}
		p.Release()
	}
	rest := copy(k.responses, k.responses[n:])
	clear(k.responses[rest:])
	k.responses = k.responses[:rest]
	k.base = exp
}

// forget drops the data of a task that gets no response.
func (k *keeper) forget(itt uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.tasks[itt]; t != nil && !t.done {
		k.drop(t)
	}
}

// close drops everything.
func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for itt, t := range k.tasks {
		if t.mute || t.anew {
			if k.layouts == nil {
				k.layouts = make(map[uint32]iscsi.DataLayout)
			}
			k.layouts[itt] = t.layout()
		}
	}
	for k.first != nil {
		k.drop(k.first)
	}
	for _, p := range k.responses {
		p.Release()
	}
	k.responses = nil
}

// ackData handles a DataACK SNACK: data of the task before expDataSN has arrived.
func (k *keeper) ackData(ttt, expDataSN uint32) (itt uint32, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.acks[ttt]
	if t == nil {
		return 0, false
	}
	n := expDataSN - t.base
	if n > uint32(len(t.pdus)) {
		return 0, false
	}
	for i, p := range t.pdus[:n] {
		switch {
		case i+1 < len(t.offsets):
			t.acked = t.offsets[i+1]
		case t.anew:
			t.acked = t.end
		case p != nil:
			t.acked = iscsi.DataInPDU(p.BHS[:]).Offset() + uint32(len(p.Data))
		}
		k.free(p)
	}
	t.offsets = t.offsets[min(int(n), len(t.offsets)):]
	t.pdus = append(t.pdus[:0], t.pdus[n:]...)
	t.base = expDataSN
	delete(k.acks, ttt)
	return t.itt, true
}

// outcome is what a SNACK came to.
type outcome struct {
	again  []*iscsi.PDU // copies, to be sent
	reason iscsi.RejectReason
	next   uint32 // DataSN, with a Reject
	lost   bool   // data is not kept any more, and the command has no status yet
	known  bool   // there is data-in of the task
	why    string
}

// snackData handles a Data/R2T SNACK for data-in.
func (k *keeper) snackData(itt uint32, run iscsi.Run) (o outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tasks[itt]
	if t == nil {
		return o
	}
	o.known, o.next = true, t.next()
	first, n := uint32(run.First)-t.base, run.Len
	if run.First == 0 && run.Len == 0 {
		first = 0
	}
	if n == 0 {
		n = uint32(len(t.pdus)) - first
	}
	if have := uint32(len(t.pdus)); first >= have || n > have-first {
		o.reason, o.why = iscsi.RejectProtocolError, "data that was not sent, or that was acknowledged"
		return o
	}
	for _, p := range t.pdus[first:][:n] {
		if p == nil {
			o.reason, o.lost, o.why = iscsi.RejectSNACK, !t.done, "data is not kept any more"
			return o
		}
	}
	for _, p := range t.pdus[first:][:n] {
		o.again = append(o.again, copyPDU(p))
	}
	return o
}

// snackRData handles an R-Data SNACK: all data that is not acknowledged is sent again in segments of the length that the initiator takes
// now, and behind it a SCSI Response with the tag. A command that is not at its end stops sending until it is.
func (k *keeper) snackRData(itt, tag uint32, segment int) (o outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tasks[itt]
	switch {
	case t == nil:
		o.reason, o.why = iscsi.RejectProtocolError, "no data of such a task"
		return o
	case tag == 0 || tag == iscsi.ReservedTag:
		o.reason, o.why = iscsi.RejectInvalidField, "reserved SNACK Tag"
		return o
	}
	o.known, o.next = true, t.next()
	t.tag = tag
	if !t.done {
		for _, p := range t.pdus {
			if p == nil {
				o.reason, o.lost, o.why = iscsi.RejectSNACK, true, "data is not kept any more"
				return o
			}
		}
		t.mute = true
		return o
	}
	again, ok := k.resegment(t, segment)
	if !ok {
		o.reason, o.why = iscsi.RejectSNACK, "data is not kept any more"
		return o
	}
	r := k.responses[t.statSN-k.base]
	h := iscsi.SCSIResponse(r.BHS[:])
	h.SetSNACKTag(tag)
	if h.ExpDataSN() != 0 {
		h.SetExpDataSN(t.next())
	}
	o.again = append(again, copyPDU(r))
	return o
}

// resegment lays a command's data out anew in Data-In PDUs of at most segment octets, from the acknowledged DataSN on, and returns copies of
// them; false if some of it is not kept any more.
func (k *keeper) resegment(t *keptTask, segment int) ([]*iscsi.PDU, bool) {
	var pdus []*iscsi.PDU
	for _, p := range t.pdus {
		if p == nil {
			return nil, false
		}
	}
	for _, p := range t.pdus {
		h := iscsi.DataInPDU(p.BHS[:])
		for off := 0; ; {
			n := min(segment, len(p.Data)-off)
			c := newReceived(n)
			c.BHS = p.BHS
			c.Data = c.Room[:n:n]
			copy(c.Data, p.Data[off:])
			d := iscsi.DataInPDU(c.BHS[:])
			last := off+n == len(p.Data)
			d.SetDataSN(t.base + uint32(len(pdus)))
			d.SetOffset(h.Offset() + uint32(off))
			d.SetFinal(h.Final() && last)
			if d.SetAck(h.Ack() && last); !d.Ack() {
				d.SetTTT(iscsi.ReservedTag)
				d.SetLUN(0)
			}
			pdus = append(pdus, c)
			k.octets += n
			if off += n; last {
				break
			}
		}
		k.free(p)
	}
	t.pdus, t.mute, t.anew, t.offsets = pdus, false, true, make([]uint32, 0, len(pdus))
	for _, p := range pdus {
		off := iscsi.DataInPDU(p.BHS[:]).Offset()
		t.offsets, t.end = append(t.offsets, off), off+uint32(len(p.Data))
	}
	again := make([]*iscsi.PDU, 0, len(pdus))
	for _, p := range pdus {
		again = append(again, copyPDU(p))
	}
	return again, true
}

// layout is how a task's data-in is numbered whose initiator has asked for all of it anew: as it was sent then, or, as long as it was not,
// not at all, since the initiator has dropped what it had.
func (t *keptTask) layout() iscsi.DataLayout {
	l := iscsi.DataLayout{First: t.base, Skip: t.acked}
	if t.anew {
		l.Offsets, l.End = t.offsets, t.end
	} else if len(t.pdus) > 0 && t.pdus[0] != nil {
		l.Skip = iscsi.DataInPDU(t.pdus[0].BHS[:]).Offset()
	}
	return l
}

var _ iscsi.Renumberer = (*Datamover)(nil)

// Renumbered implements iscsi.Renumberer.
func (d *Datamover) Renumbered(itt uint32) (iscsi.DataLayout, bool) {
	d.keep.mu.Lock()
	defer d.keep.mu.Unlock()
	l, ok := d.keep.layouts[itt]
	return l, ok
}

// snackStatus handles a Status SNACK.
func (k *keeper) snackStatus(run iscsi.Run) (o outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first, have := uint32(run.First-k.base), uint32(len(k.responses))
	if run.First == 0 && run.Len == 0 {
		first = 0
	}
	n := run.Len
	if n == 0 && first < have {
		n = have - first
	}
	switch {
	case n == 0 && first == 0 && run.First == 0: // all that is not acknowledged, which is nothing
	case first >= have || n > have-first:
		o.reason, o.why = iscsi.RejectProtocolError, "status that was not sent, or that was acknowledged"
	default:
		for _, p := range k.responses[first:][:n] {
			o.again = append(o.again, copyPDU(p))
		}
	}
	return o
}
