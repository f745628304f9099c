package datamovertest

import (
	"errors"
	"fmt"
	"sync"

	"goiwarp/iscsi"
)

// chunk is how much the disk moves with one PutData or GetData at most.
const chunk = 32 << 10

// disk is a target's iSCSI layer that answers every command in the upcall in which its data is
// complete: reads with the pattern that the command's CDB names, writes with GOOD if the data has
// that pattern. It has one PutData or GetData outstanding per task and waits its turn for memory.
type disk struct {
	e       *end
	statSN  uint32
	tasks   map[uint32]*diskTask
	waiting []*diskTask
}

type diskTask struct {
	itt, seed uint32
	write     bool
	size, pos int
	n         int // octets under way in buf
	sn        uint32
	buf       iscsi.Buffer
	more      bool // unsolicited data follows
	bad       error
	answered  bool
}

func newDisk(e *end) *disk {
	d := &disk{e: e, tasks: map[uint32]*diskTask{}}
	e.setHandle(d.handle)
	return d
}

func (d *disk) handle(ev event) bool {
	switch ev.kind {
	case control:
		return d.control(ev.pdu)
	case completion:
		d.complete(ev)
	case terminated:
		return false
	}
	return true
}

func (d *disk) control(p *iscsi.PDU) bool {
	itt := field(p, offITT)
	switch p.Opcode() {
	case iscsi.OpSCSICommand:
		t := &diskTask{itt: itt, seed: be.Uint32(p.BHS[44:]), size: int(field(p, offTTT))}
		f := p.BHS[offFlags]
		t.write, t.more = f&flagWrite != 0, f&flagFinal == 0
		d.tasks[itt] = t
		d.unsolicited(t, p.Data)
	case iscsi.OpDataOut:
		t := d.tasks[itt]
		if t == nil || int(field(p, offBufOffset)) != t.pos {
			d.e.t.Errorf("disk: stray unsolicited data: ITT %d offset %d", itt, field(p, offBufOffset))
			return true
		}
		t.more = p.BHS[offFlags]&flagFinal == 0
		d.unsolicited(t, p.Data)
	case iscsi.OpNOPOut:
		d.statSN++
		d.failed(d.e.dm.SendControl(nopIn(itt, d.statSN, nil), nil))
	default:
		return false
	}
	return true
}

func (d *disk) unsolicited(t *diskTask, data []byte) {
	if err := mismatch(data, t.seed, t.pos); err != nil && t.bad == nil {
		t.bad = fmt.Errorf("unsolicited: %w", err)
	}
	t.pos += len(data)
	if !t.more {
		d.step(t)
	}
}

// step moves the task's next piece, or answers it.
func (d *disk) step(t *diskTask) {
	if t.write && t.pos == t.size {
		d.answer(t)
		return
	}
	n := min(chunk, t.size-t.pos)
	if !t.write {
		n = min(n, d.e.dm.Info().MaxPutData)
	}
	b, err := d.e.dm.Alloc(n)
	if errors.Is(err, iscsi.ErrNoMemory) {
		d.waiting = append(d.waiting, t)
		return
	}
	if d.failed(err) {
		return
	}
	t.buf, t.n = b, n
	if t.write {
		err = d.e.dm.GetData(&iscsi.DataOut{ITT: t.itt, TTT: t.itt, R2TSN: t.sn, Offset: t.pos, Buf: b, Len: n, Tag: uint64(t.pos)})
	} else {
		fill(b.Bytes(), t.seed, t.pos)
		last := t.pos+n == t.size
		err = d.e.dm.PutData(&iscsi.DataIn{
			ITT: t.itt, TTT: reservedTag, DataSN: t.sn, Offset: t.pos, Buf: b, Len: n,
			Final: last || (t.pos+n)%MaxBurstLength == 0, More: last, Notify: true, Tag: uint64(t.pos),
		})
	}
	t.sn++
	if !d.failed(err) && !t.write && t.pos+n == t.size {
		d.answer(t)
	}
}

func (d *disk) complete(ev event) {
	t := d.tasks[ev.itt]
	if t == nil || t.buf == nil || ev.tag != uint64(t.pos) {
		d.e.t.Errorf("disk: stray completion: ITT %d tag %d", ev.itt, ev.tag)
		return
	}
	if ev.err == nil && t.write {
		if err := mismatch(t.buf.Bytes(), t.seed, t.pos); err != nil && t.bad == nil {
			t.bad = err
		}
	}
	t.buf.Release()
	t.buf = nil
	t.pos += t.n
	switch {
	case t.answered:
		delete(d.tasks, t.itt)
	case ev.err == nil:
		d.step(t)
	}
	w := d.waiting
	d.waiting = nil
	for _, t := range w {
		d.step(t)
	}
}

func (d *disk) answer(t *diskTask) {
	status := byte(statusGood)
	if t.bad != nil {
		status = statusCheck
		d.e.t.Errorf("disk: write: ITT %d: %v", t.itt, t.bad)
	}
	t.answered = true
	if t.buf == nil {
		delete(d.tasks, t.itt)
	}
	d.statSN++
	d.failed(d.e.dm.SendControl(response(t.itt, d.statSN, status, 0, t.sn, nil), nil))
}

// failed tells whether err ends the task; any error but a lost connection fails the test.
func (d *disk) failed(err error) bool {
	if err != nil && !isConnection(err) {
		d.e.t.Errorf("disk: %v", err)
	}
	return err != nil
}

// close releases what the connection's end left with the disk; call it after Done.
func (d *disk) close() {
	for _, t := range d.tasks {
		if t.buf != nil {
			t.buf.Release()
		}
	}
}

// client is an initiator's iSCSI layer for many goroutines: a window of commands in flight.
type client struct {
	e     *end
	slots chan struct{}

	mu      sync.Mutex
	sn      uint32
	down    bool
	waiting map[uint32]chan *iscsi.PDU
}

func newClient(e *end) *client {
	c := &client{e: e, slots: make(chan struct{}, Window), waiting: map[uint32]chan *iscsi.PDU{}}
	e.setHandle(c.handle)
	return c
}

func (c *client) handle(ev event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ev.kind {
	case control:
		ch, ok := c.waiting[ev.itt]
		if !ok {
			return false
		}
		delete(c.waiting, ev.itt)
		ch <- ev.pdu
		return true
	case terminated:
		c.stop()
	}
	return false
}

// stop fails everything in flight.
func (c *client) stop() {
	c.down = true
	for itt, ch := range c.waiting {
		delete(c.waiting, itt)
		close(ch)
	}
}

// errDown: the connection ended before the answer came.
var errDown = fmt.Errorf("datamovertest: %w", iscsi.ErrConnection)

// do runs a command of n octets and returns its status. The task's buffers may not be touched before it
// returns; when the connection is lost it waits until it is down.
func (c *client) do(write bool, n, immediate, unsolicited int, b iscsi.Buffer) error {
	c.slots <- struct{}{}
	defer func() { <-c.slots }()
	ch := make(chan *iscsi.PDU, 1)
	c.mu.Lock()
	if c.down {
		c.mu.Unlock()
		return c.lost()
	}
	c.sn++
	sn := c.sn
	itt := sn
	c.waiting[itt] = ch
	var err error
	if write {
		fill(b.Bytes()[:n], sn, 0)
		first := immediate + unsolicited
		p := command(itt, sn, 0, n, b.Bytes()[:immediate], unsolicited > 0)
		be.PutUint32(p.BHS[44:], sn)
		err = c.e.dm.SendControl(p, &iscsi.TaskBuffers{Out: b, OutLen: n, Unsolicited: first})
		for off, k := immediate, uint32(0); off < first && err == nil; k++ {
			seg := min(c.e.segment(), first-off)
			err = c.e.dm.SendControl(dataOut(itt, k, off, b.Bytes()[off:off+seg], off+seg == first), nil)
			off += seg
		}
	} else {
		p := command(itt, sn, n, 0, nil, false)
		be.PutUint32(p.BHS[44:], sn)
		err = c.e.dm.SendControl(p, &iscsi.TaskBuffers{In: b, InLen: n})
	}
	if err != nil {
		delete(c.waiting, itt)
		c.mu.Unlock()
		if !isConnection(err) {
			return err
		}
		return c.lost()
	}
	c.mu.Unlock()
	var p *iscsi.PDU
	select {
	case p = <-ch:
	case <-c.e.dm.Done():
	}
	if p == nil {
		return c.lost()
	}
	if p.Opcode() != iscsi.OpSCSIResponse || p.BHS[offStatus] != statusGood {
		return fmt.Errorf("datamovertest: ITT %d: answered with opcode %#02x status %#02x", itt, byte(p.Opcode()), p.BHS[offStatus])
	}
	if !write {
		return mismatch(b.Bytes()[:n], sn, 0)
	}
	return nil
}

func (c *client) lost() error {
	<-c.e.dm.Done()
	return errDown
}
