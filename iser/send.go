package iser

import (
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// SendControl implements iscsi.Datamover. The PDU is copied into its Send, so that it is released
// before SendControl returns.
func (d *Datamover) SendControl(p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	d.mu.Lock()
	err := d.downLocked()
	if err == nil {
		err = d.sendControl(p, t)
	}
	d.mu.Unlock()
	p.Release()
	return err
}

// sendControl is SendControl below d.mu; it does not release p.
func (d *Datamover) sendControl(p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	if err := d.checkOutgoing(p); err != nil {
		return err
	}
	o, msg, err := d.newMessage(HeaderLen + iscsi.BHSLen + len(p.AHS) + len(p.Data) + iscsi.Pad(len(p.Data)))
	if err != nil {
		return err
	}
	h := Header(msg)
	h.Init()
	bhs := msg[HeaderLen:][:iscsi.BHSLen]
	copy(bhs, p.BHS[:])
	iscsi.BHS(bhs).SetAHSLen(len(p.AHS))
	iscsi.BHS(bhs).SetDataLen(len(p.Data))
	n := HeaderLen + iscsi.BHSLen
	n += copy(msg[n:], p.AHS)
	n += copy(msg[n:], p.Data)
	clear(msg[n:])

	o.wr.Op = rnic.OpSend
	switch op := p.Opcode(); {
	case op == iscsi.OpSCSICommand && !d.target:
		if err := d.advertise(h, bhs, t); err != nil {
			d.dropMessage(o)
			return err
		}
	case op == iscsi.OpTaskMgmtReq && !d.target && iscsi.TaskMgmtRequest(bhs).Function() == iscsi.TaskReassign:
		if err := d.reassign(h, bhs, t); err != nil {
			d.dropMessage(o)
			return err
		}
	case op == iscsi.OpSCSIResponse && d.target:
		itt := iscsi.BHS(bhs).ITT()
		if m, ok := d.remote[itt]; ok {
			delete(d.remote, itt)
			d.nameSTag(&o.wr, h, &m)
		}
	}
	if d.fence {
		o.wr.Flags |= rnic.Fence
		d.fence = false
	}
	d.stats.pdusSent++
	d.enqueue(o, false)
	return nil
}

// nameSTag has the message of a SCSI Response name the STag that its task is over for (RFC 7145, section 7.3.2): by Send with Invalidate where
// that is agreed on, else in the header. Linux's initiator, which is known by its CM header, has nothing in the header of a response, whatever
// was agreed on, and invalidates what it has advertised by itself. d.mu is held.
func (d *Datamover) nameSTag(wr *rnic.SendWR, h Header, m *mapping) {
	s := m.invalidate()
	switch {
	case s == 0:
	case d.sendInv:
		wr.Op, wr.RemoteSTag = rnic.OpSendInvalidate, s
	case d.peerCM:
	case m.hasRead:
		h.SetRead(s, 0)
	default:
		h.SetWrite(s, 0)
	}
}

// checkOutgoing refuses PDUs that may not be sent now (RFC 7145, sections 7.3 and 8.1).
func (d *Datamover) checkOutgoing(p *iscsi.PDU) error {
	h := iscsi.BHS(p.BHS[:])
	op := p.Opcode()
	switch op {
	case iscsi.OpDataIn, iscsi.OpR2T, iscsi.OpSNACK:
		return fmt.Errorf("%w: opcode 0x%02x", ErrNotISER, uint8(op))
	case iscsi.OpDataOut:
		if h.TTT() != iscsi.ReservedTag {
			return fmt.Errorf("%w: solicited Data-Out", ErrNotISER)
		}
	}
	if n := d.maxSend(); len(p.Data) > n {
		return fmt.Errorf("%w: data segment of %d octets, the peer takes %d", ErrTooLarge, len(p.Data), n)
	}
	if len(p.AHS)%4 != 0 || len(p.AHS) > iscsi.MaxAHS {
		return fmt.Errorf("%w: AHS of %d octets", ErrTooLarge, len(p.AHS))
	}
	if m := d.params.MaxAHSLength; m > 0 && uint32(len(p.AHS)) > (m+3)&^3 {
		return fmt.Errorf("%w: AHS of %d octets, the peer takes %d", ErrTooLarge, len(p.AHS), m)
	}
	if d.phase != phaseFull || d.unexpected.limit == 0 {
		return nil
	}
	ok := true
	switch {
	case !d.target:
		// What is sent at once and outside of the window; a ping's answer is expected.
		if h.Immediate() && op != iscsi.OpLoginReq && !(op == iscsi.OpNOPOut && h.TTT() != iscsi.ReservedTag) {
			ok = d.unexpected.add(h.CmdSN(), 0)
		}
	case op == iscsi.OpNOPIn && h.ITT() == iscsi.ReservedTag:
		if ok = d.unexpected.add(h.StatSN(), 0); ok {
			d.unexpected.pinged(h.TTT())
		}
	case op == iscsi.OpAsync, op == iscsi.OpReject:
		ok = d.unexpected.add(h.StatSN(), 1) // the last one is kept for a ping, which gets the others retired
	}
	if !ok {
		return fmt.Errorf("%w: %d", ErrUnexpectedLimit, d.unexpected.limit)
	}
	return nil
}

// newMessage returns an op with room for a message of n octets.
func (d *Datamover) newMessage(n int) (*op, []byte, error) {
	o := d.newOp(opControl)
	if n <= inlineOctets && n <= d.dom.attr.MaxInline {
		o.wr.Inline = o.inline[:n]
		return o, o.wr.Inline, nil
	}
	if n > d.dom.receives.size {
		d.putOp(o)
		return nil, nil, fmt.Errorf("%w: PDU of %d octets, the domain's slots have %d", ErrTooLarge, n, d.dom.receives.size)
	}
	r, err := d.dom.receives.borrow(true)
	if err != nil {
		d.putOp(o)
		return nil, nil, fmt.Errorf("%w: %w", iscsi.ErrNoMemory, err)
	}
	o.slot = r
	o.sge[0] = rnic.SGE{MR: r.mr, Off: r.off, Len: n}
	o.wr.SGE = o.sge[:]
	return o, r.mem[:n], nil
}

// dropMessage undoes newMessage.
func (d *Datamover) dropMessage(o *op) {
	if o.slot != nil {
		d.dom.receives.giveBack(o.slot, true)
	}
	d.putOp(o)
}

// sendHello sends a Hello or HelloReply, before whatever waits to be sent; d.mu is held.
func (d *Datamover) sendHello(msg []byte) error {
	o, room, err := d.newMessage(len(msg))
	if err != nil {
		return err
	}
	copy(room, msg)
	o.wr.Op = rnic.OpSend
	d.waiting.pushFront(o)
	d.hold, d.helloHold = false, false
	d.pump()
	return nil
}
