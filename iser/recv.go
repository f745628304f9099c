package iser

import (
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// complete is the completion queue's handler: it runs on the goroutine that reads the connection.
func (d *Datamover) complete(wcs []rnic.Completion) {
	d.up.Lock()
	defer d.up.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID&recvID == 0 {
			d.completed(wc)
			continue
		}
		r := d.dom.receives.slot(wc.ID)
		if r == nil {
			continue
		}
		ok := wc.Status == rnic.StatusOK
		if !ok && wc.Status != rnic.StatusFlushed {
			d.noteCause(wc.Err)
		}
		d.dom.receives.completed(r, d, ok)
		if d.dom.receives.srq == nil {
			d.mu.Lock()
			d.ownRecvs--
			d.mu.Unlock()
		}
		if !ok {
			continue
		}
		d.dom.enter(nil)
		r.len = wc.Len
		held := int(d.held.Add(1))
		if err := d.receive(r, held, wc.InvalidatedSTag); err != nil {
			d.fail(err)
		}
	}
}

// receive takes one message. Once it returns the slot was handed up or released. d.up is held.
func (d *Datamover) receive(r *receive, held int, invalidated rnic.STag) error {
	d.mu.Lock()
	switch {
	case d.phase == phaseDown:
		d.mu.Unlock()
		r.pdu.Release()
		return nil
	case d.limit < held:
		limit := d.limit
		d.mu.Unlock()
		r.pdu.Release()
		return &CreditError{Held: held, Limit: limit}
	}
	control, err := d.take(r, invalidated)
	d.mu.Unlock()
	if err != nil || !control {
		r.pdu.Release()
		return err
	}
	if d.n == nil {
		d.early = append(d.early, r)
		return nil
	}
	d.deliverEarly()
	d.n.ControlNotify(&r.pdu)
	return nil
}

// take does what a message means to the iSER layer before the iSCSI layer sees it. It says whether the message is a
// control PDU, which it parses. d.up and d.mu are held.
func (d *Datamover) take(r *receive, invalidated rnic.STag) (control bool, err error) {
	first, fullFirst := !d.received, d.fullFirst
	d.received, d.fullFirst = true, false
	msg := r.mem[:r.len]
	if len(msg) < HeaderLen {
		return false, &LengthError{What: "message", Got: len(msg), Want: HeaderLen}
	}
	if op := Header(msg).Opcode(); op != OpControl {
		return false, d.receiveHello(msg, first, fullFirst)
	}
	if err := d.helloDue(msg, fullFirst); err != nil {
		return false, err
	}
	if err := parse(&r.pdu, msg); err != nil {
		switch d.absentData(&r.pdu, msg) {
		case absentError:
			return false, err
		case absentIgnored:
			return false, nil
		}
	}
	return true, d.account(&r.pdu, Header(msg), invalidated)
}

// deliverEarly hands up what came before Start. d.up is held.
func (d *Datamover) deliverEarly() {
	early := d.early
	d.early = nil
	for _, r := range early {
		d.n.ControlNotify(&r.pdu)
	}
}

// parse makes p the PDU that a control message carries; its AHS and Data lie in msg. The data segment
// may come with its padding or, as ib_iser sends it, without.
func parse(p *iscsi.PDU, msg []byte) error {
	if len(msg) < HeaderLen+iscsi.BHSLen {
		return &LengthError{What: "control PDU", Got: len(msg), Want: HeaderLen + iscsi.BHSLen}
	}
	copy(p.BHS[:], msg[HeaderLen:])
	h := iscsi.BHS(p.BHS[:])
	ahs, data := h.AHSLen(), h.DataLen()
	body := msg[HeaderLen+iscsi.BHSLen:]
	want := ahs + data
	if len(body) != want && len(body) != want+iscsi.Pad(data) {
		return &LengthError{What: "control PDU", Got: len(msg), Want: HeaderLen + iscsi.BHSLen + want}
	}
	p.AHS, p.Data = body[:ahs:ahs], body[ahs:want:want]
	return nil
}

// account does what a control PDU means to the iSER layer: a target's notes what is advertised, an initiator's ends the
// task. d.up and d.mu are held.
func (d *Datamover) account(p *iscsi.PDU, h Header, invalidated rnic.STag) error {
	bhs := iscsi.BHS(p.BHS[:])
	op := p.Opcode()
	switch op {
	case iscsi.OpDataIn, iscsi.OpR2T:
		return d.headerError(h, fmt.Sprintf("PDU with opcode 0x%02x, which iSER replaces by RDMA", uint8(op)))
	case iscsi.OpDataOut:
		if bhs.TTT() != iscsi.ReservedTag {
			return d.headerError(h, "solicited Data-Out, which iSER replaces by RDMA Reads")
		}
	}
	if (h.ReadValid() || h.WriteValid()) && !mayNameSTags(d.target, op) {
		return d.headerError(h, fmt.Sprintf("STags in the header of a PDU with opcode 0x%02x", uint8(op)))
	}
	d.stats.pdusReceived++
	if d.target {
		err := d.accountTarget(bhs, p, h)
		if err == nil && invalidated != 0 {
			err = &InvalidationError{ITT: bhs.ITT(), STag: invalidated}
		}
		return err
	}
	if d.unexpected.limit > 0 && op != iscsi.OpLoginRsp {
		d.unexpected.retire(bhs.ExpCmdSN())
	}
	var t *task
	var foreign rnic.STag
	if op == iscsi.OpSCSIResponse {
		t = d.tasks[bhs.ITT()]
		delete(d.tasks, bhs.ITT())
		foreign = d.foreignSTag(t, h)
	}
	err := d.endTask(t, bhs, invalidated)
	if err == nil && foreign != 0 {
		err = &InvalidationError{ITT: bhs.ITT(), STag: foreign}
	}
	return err
}

// mayNameSTags tells whether the header of a PDU that arrives may have STags: those of an initiator's tasks (RFC 7145, section 9.2), and,
// since a plain Send has no other place for it, the STag of the task that a response ends (section 7.3.2).
func mayNameSTags(target bool, op iscsi.Opcode) bool {
	if target {
		return op == iscsi.OpSCSICommand || op == iscsi.OpTaskMgmtReq
	}
	return op == iscsi.OpSCSIResponse
}

// foreignSTag is the STag in a response's header that is not its task's to invalidate, 0 if there is none. The task's own are invalidated at
// its end, named or not. A task that has been given up (an abort that the response has crossed) has no STags any more, so that its response may
// name what it likes, but what another task lives on. d.mu is held.
func (d *Datamover) foreignSTag(t *task, h Header) rnic.STag {
	for _, s := range [...]struct {
		named bool
		stag  rnic.STag
		write bool
	}{{h.ReadValid(), h.ReadSTag(), false}, {h.WriteValid(), h.WriteSTag(), true}} {
		switch {
		case !s.named:
		case t == nil:
			for _, other := range d.tasks {
				if s.stag == other.read.stag || s.stag == other.write.stag {
					return s.stag
				}
			}
		case s.write && s.stag != t.write.stag, !s.write && s.stag != t.read.stag:
			return s.stag
		}
	}
	return 0
}

// headerError is a format error that shows the message's beginning.
func (d *Datamover) headerError(h Header, reason string) error {
	return &HeaderError{Reason: reason, Header: append([]byte(nil), h[:min(len(h), HeaderLen+4)]...)}
}

// helloDue checks a control message against the Hello exchange (RFC 7145, section 10.1.3.4). d.mu is held.
func (d *Datamover) helloDue(msg []byte, fullFirst bool) error {
	switch {
	case d.target && fullFirst && d.params.ISERHelloRequired:
		return d.headerError(msg, "control PDU where the Hello is due")
	case d.helloWait:
		return d.headerError(msg, "control PDU where the HelloReply is due")
	}
	return nil
}

// receiveHello handles messages that are not control PDUs.
//
// A target answers a Hello where iSERHelloRequired=Yes makes it due, and also as the very first
// message of a connection, when that key could not be negotiated yet (RFC 7145, section 5.1.3 has "old" initiators that send it). After
// a login that agreed on No it is a protocol error (sections 5.1.2 and 5.1.3). d.mu is held.
func (d *Datamover) receiveHello(msg []byte, first, fullFirst bool) error {
	op := Header(msg).Opcode()
	switch {
	case op == OpHello && d.target && (first && d.phase == phaseLogin || fullFirst && d.params.ISERHelloRequired):
		h, err := ParseHello(msg)
		if err != nil {
			return err
		}
		reject := !h.Speaks(Version) || h.IRD() > 0 && d.ord == 0
		d.ord = min(d.ord, h.IRD())
		if d.helloTimer != nil {
			d.helloTimer.Stop()
		}
		if err := d.sendHello(AppendHelloReply(nil, d.ord, reject)); err != nil {
			return err
		}
		if reject {
			d.drain(fmt.Errorf("%w: %v", ErrHelloRejected, h))
		}
		return nil
	case op == OpHelloReply && d.helloWait && d.helloTimer != nil: // nil: the Hello that it claims to answer has not left
		h, err := ParseHelloReply(msg)
		if err != nil {
			return err
		}
		d.helloWait = false
		if h.Rejected() {
			return fmt.Errorf("%w: %v", ErrHelloRejected, h)
		}
		if h.Version() != Version {
			return d.headerError(msg, fmt.Sprintf("HelloReply chooses version %d", h.Version()))
		}
		d.helloTimer.Stop()
		d.start.settle()
		return nil
	case op == OpHello || op == OpHelloReply:
		return d.headerError(msg, fmt.Sprintf("%v where none is due", op))
	}
	return d.headerError(msg, fmt.Sprintf("unknown %v", op))
}
