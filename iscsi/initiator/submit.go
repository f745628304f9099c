package initiator

import (
	"errors"
	"time"

	"goiwarp/iscsi"
)

// submit queues requests for a logical unit and sends what the window takes. They end in any order, each by its Done.
func (s *Session) submit(lun uint64, reqs []*Request) error {
	s.mu.Lock()
	if s.state != sessionUp {
		err := s.errLocked()
		s.unlock()
		return err
	}
	for _, r := range reqs {
		r.relay = nil
		s.push(r, lun)
	}
	s.pump()
	s.unlock()
	return nil
}

// push queues a command; mu is held.
func (s *Session) push(r *Request, lun uint64) {
	r.lun, r.state, r.Err, r.Status, r.senseLen = lun, requestQueued, nil, 0, 0
	r.Residual, r.Overflow, r.BidiResidual, r.BidiOverflow = 0, false, 0, false
	r.sent, r.late, r.mute, r.resent, r.todo = false, false, false, 0, nothing
	if s.cfg.Hooks.Command != nil {
		r.begun = time.Now()
	}
	s.queue.push(r)
}

// enqueue is submit for a relay, which holds a lock of its own meanwhile: what ends under it ends only in settle, which is owed then.
func (s *Session) enqueue(lun uint64, r *Request) (owed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != sessionUp {
		return false, s.errLocked()
	}
	s.push(r, lun)
	s.pump()
	return s.ended.head != nil || s.answered != nil, nil
}

// settle completes what has ended under an enqueue.
func (s *Session) settle() {
	s.mu.Lock()
	s.unlock()
}

// pump sends queued commands while there are slots and the target's window is open.
func (s *Session) pump() {
	if s.adopts() {
		s.adopt()
	}
	for s.queue.head != nil && len(s.free) > 0 && s.cmdSN.LessEqual(s.maxCmdSN) && !s.ending() && !s.rec.headless {
		r := s.queue.head
		s.queue.remove(r)
		if !s.send(r) {
			return
		}
	}
}

// send sends one command with its immediate and unsolicited data (RFC 7143, section 4.2.5.2). It is false if nothing
// more can be sent for now.
//
//	data-out:  | immediate | unsolicited Data-Out PDUs | solicited |
//	           0          imm                        unsol       OutLen
func (s *Session) send(r *Request) bool {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	sl := &s.slots[i]
	r.itt, r.cmdSN, r.state, r.sent, r.tick = s.tag(i), s.cmdSN, requestSent, true, s.deadline.tick
	sl.req = r
	if r.via = s.spread(); r.via != nil {
		r.via.load++
	}
	s.inFlight++
	s.cmdSN++
	if err := s.transmit(r); err != nil {
		return s.sendFailed(r, sl, err)
	}
	return !s.ending()
}

// sendAgain sends a command once more, with the tag and the number that it has (a retry, RFC 7143, section 7.2.1). The target has said
// that it discarded the first.
func (s *Session) sendAgain(r *Request) {
	s.mover(r).DeallocateTaskResources(r.itt) // what is still to be sent of it, too
	if err := s.transmit(r); err != nil && !s.ending() {
		s.sendFault(r.via, err)
	}
}

// transmit sends a command's PDUs. An error means that none was.
func (s *Session) transmit(r *Request) error {
	imm, unsol := s.unsolicited(r.OutLen, s.limit(r.via))
	p := s.pdus.get()
	c := iscsi.SCSICommand(p.BHS[:])
	c.Init()
	c.SetFinal(unsol == imm)
	c.SetRead(r.InLen > 0)
	c.SetWrite(r.OutLen > 0)
	c.SetAttr(r.Attr)
	c.SetLUN(r.lun)
	c.SetITT(r.itt)
	c.SetCmdSN(r.cmdSN)
	c.SetExpStatSN(s.statSN(r.via))
	c.SetEDTL(uint32(r.InLen))
	if r.OutLen > 0 {
		c.SetEDTL(uint32(r.OutLen))
	}
	cdb := r.command()
	c.SetCDB(cdb[:min(len(cdb), iscsi.CDBLen)])
	if len(cdb) > iscsi.CDBLen || r.InLen > 0 && r.OutLen > 0 {
		p.Room = iscsi.AppendExtendedCDB(p.Room[:0], cdb)
		if r.InLen > 0 && r.OutLen > 0 {
			p.Room = iscsi.AppendBidiReadLen(p.Room, uint32(r.InLen))
		}
		p.AHS = p.Room
	}
	var t *iscsi.TaskBuffers
	if r.InLen > 0 || r.OutLen > 0 {
		t = &r.bufs
		*t = iscsi.TaskBuffers{In: r.In, Out: r.Out, InLen: r.InLen, OutLen: r.OutLen, Unsolicited: unsol}
	}
	if imm > 0 {
		p.Data = r.Out.Bytes()[:imm]
	}
	if err := s.sendBy(r.via, p, t); err != nil {
		return err
	}
	for off, sn := imm, uint32(0); off < unsol; sn++ {
		n := min(unsol-off, s.limit(r.via))
		q := s.pdus.get()
		d := iscsi.DataOutPDU(q.BHS[:])
		d.Init()
		d.SetFinal(off+n == unsol)
		d.SetLUN(r.lun)
		d.SetITT(r.itt)
		d.SetExpStatSN(s.statSN(r.via))
		d.SetDataSN(sn)
		d.SetOffset(uint32(off))
		q.Data = r.Out.Bytes()[off : off+n]
		if err := s.sendBy(r.via, q, nil); err != nil {
			s.sendFault(r.via, err)
			return nil
		}
		off += n
	}
	return nil
}

// unsolicited says how far immediate data and all unsolicited data of a write of n octets reach.
// maxData is the longest data segment of the connection.
func (s *Session) unsolicited(n, maxData int) (imm, unsol int) {
	if n == 0 {
		return 0, 0
	}
	first := min(n, s.params.FirstBurstLength)
	if s.params.ImmediateData {
		imm = min(first, maxData)
	}
	if s.params.InitialR2T {
		return imm, imm
	}
	return imm, first
}

// sendFailed undoes a command that the Datamover did not take. One that only lacks memory waits for others to end.
func (s *Session) sendFailed(r *Request, sl *slot, err error) bool {
	if errors.Is(err, iscsi.ErrConnection) {
		s.lose(r.via, err) // r goes on when the connection is recovered, or finish ends it with the others
		return !s.ending()
	}
	s.freeSlot(sl)
	s.cmdSN-- // the number was not seen by anybody
	r.sent = false
	if errors.Is(err, iscsi.ErrNoMemory) && s.inFlight > 0 {
		r.state = requestQueued
		s.queue.pushFront(r)
		return false
	}
	s.endRequest(r, err)
	return true
}

// checkDrained lets a logout go on that waits for the last command.
func (s *Session) checkDrained() {
	if s.drained != nil && (s.queue.head == nil && s.inFlight == 0 || s.ending()) {
		close(s.drained)
		s.drained = nil
	}
}
