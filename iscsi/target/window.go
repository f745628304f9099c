package target

import (
	"errors"

	"goiwarp/iscsi"
)

// heldPDU is a request that came ahead of its turn, on that connection, or the place of one that is given up (pdu nil).
type heldPDU struct {
	pdu  *iscsi.PDU
	conn *conn
	data []*iscsi.PDU // unsolicited Data-Out of the command, which does not wait for its turn
	size int          // octets of it
}

// maxHeldData is how many PDUs of unsolicited data are kept with a command that came ahead of its turn.
const maxHeldData = 128

// release gives all of it up.
func (h *heldPDU) release() {
	if h.pdu != nil {
		h.pdu.Release()
	}
	for _, p := range h.data {
		p.Release()
	}
	h.pdu, h.data = nil, nil
}

// holdData keeps unsolicited data whose command has not had its turn: another connection's requests come before it. It tells whether it
// has taken p. c.mu is held.
func (c *conn) holdData(p *iscsi.PDU) bool {
	itt := iscsi.BHS(p.BHS[:]).ITT()
	for sn, h := range c.held {
		if h.pdu == nil || h.conn != c || h.pdu.Opcode() != iscsi.OpSCSICommand || iscsi.BHS(h.pdu.BHS[:]).ITT() != itt {
			continue
		}
		if len(h.data) == maxHeldData || h.size+len(p.Data) > c.params.FirstBurstLength {
			return false
		}
		h.data, h.size = append(h.data, p), h.size+len(p.Data)
		c.held[sn] = h
		return true
	}
	return false
}

// request takes one PDU of full feature phase: by itself, then by its number (RFC 7143, section 4.2.2.1). c.mu is held.
func (c *conn) request(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	if err := iscsi.Validate(p, true); err != nil {
		reason := iscsi.RejectProtocolError
		var e *iscsi.ProtocolError
		if errors.As(err, &e) {
			reason = e.Reason
		}
		c.number(p) // its number is used up, or those behind it would wait for ever
		c.reject(p, reason, err.Error())
		c.nextHeld()
		return
	}
	if exp := h.ExpStatSN(); c.ackedStatSN.Less(exp) && exp.LessEqual(c.statSN) {
		c.ackedStatSN = exp
		if len(c.rec.kept) > 0 {
			c.forgetKept()
		}
		if c.fence != nil {
			c.acknowledged()
		}
	}
	switch p.Opcode() {
	case iscsi.OpDataOut:
		c.unsolicited(p)
		return
	case iscsi.OpSNACK: // the Datamover's, but at ErrorRecoveryLevel 0 and over RDMA (RFC 7145, section 7.3.11) nothing is sent again
		c.reject(p, iscsi.RejectProtocolError, "SNACK where nothing is sent again")
		return
	case iscsi.OpLoginReq: // RFC 7143, section 11.12; RFC 7145, section 7.3.9
		c.protocolError(p, "login in full feature phase")
		return
	}
	if h.Immediate() {
		c.deliver(p)
		return
	}
	sn := h.CmdSN()
	switch {
	case !sn.In(c.expCmdSN, c.maxCmdSN):
		// Silence is what the RFC asks for.
		c.log.Debug("command outside of the window", "cmdSN", sn, "expCmdSN", c.expCmdSN, "maxCmdSN", c.maxCmdSN)
		p.Release()
	case sn == c.expCmdSN:
		c.expCmdSN++
		c.deliver(p)
		c.nextHeld()
	default:
		if _, twice := c.held[sn]; twice {
			p.Release()
			return
		}
		c.hold(sn, p)
	}
}

// number uses up the number of a non-immediate request that is not delivered.
func (c *conn) number(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	switch p.Opcode() {
	case iscsi.OpNOPOut, iscsi.OpSCSICommand, iscsi.OpTaskMgmtReq, iscsi.OpTextReq, iscsi.OpLogoutReq:
	default:
		return
	}
	if h.Immediate() {
		return
	}
	c.plug(h.CmdSN())
}

// plug treats a number within the window as received.
func (c *conn) plug(sn iscsi.SN) {
	switch {
	case !sn.In(c.expCmdSN, c.maxCmdSN):
	case sn == c.expCmdSN:
		c.expCmdSN++
	default:
		if h, ok := c.held[sn]; ok {
			h.release()
		}
		c.hold(sn, nil)
	}
}

// hold keeps a request until those before it are there. The window bounds how many there are.
func (c *conn) hold(sn iscsi.SN, p *iscsi.PDU) {
	if c.held == nil {
		c.held = make(map[iscsi.SN]heldPDU)
	}
	c.held[sn] = heldPDU{pdu: p, conn: c}
}

// nextHeld delivers what was held and has its turn now.
func (c *conn) nextHeld() {
	for len(c.held) > 0 && !c.ending {
		h, ok := c.held[c.expCmdSN]
		if !ok {
			return
		}
		delete(c.held, c.expCmdSN)
		if h.pdu != nil && h.conn.state != stateFull {
			h.release() // its connection has gone: the initiator will send it on another
			return
		}
		c.expCmdSN++
		if h.pdu != nil {
			h.conn.deliver(h.pdu)
		}
		for _, p := range h.data {
			h.conn.unsolicited(p)
		}
	}
}

// discardHeld gives up the connection's requests that have not had their turn: they count as never received, and leave holes
// for the initiator to plug (RFC 7143, section 11.14). c.mu is held.
func (c *conn) discardHeld() {
	for sn, h := range c.held {
		if h.conn == c && h.pdu != nil {
			h.release()
			delete(c.held, sn)
		}
	}
}

// window is MaxCmdSN: commands in progress take room, and it never goes back. c.mu is held.
func (c *conn) window() iscsi.SN {
	room := c.room - c.inFlight
	if last := c.expCmdSN + iscsi.SN(max(room, 0)) - 1; c.maxCmdSN.Less(last) {
		c.maxCmdSN = last
	}
	return c.maxCmdSN
}

// deliver hands a request to whom it concerns, in order. c.mu is held.
func (c *conn) deliver(p *iscsi.PDU) {
	op := p.Opcode()
	if c.logout {
		c.reject(p, iscsi.RejectWaitLogout, "after the logout request")
		return
	}
	if c.discovery {
		switch op {
		case iscsi.OpTextReq, iscsi.OpLogoutReq, iscsi.OpNOPOut:
		default: // RFC 7143, section 7.4.3
			c.reject(p, iscsi.RejectNotSupported, "in a Discovery session")
			return
		}
	}
	switch op {
	case iscsi.OpSCSICommand:
		if len(c.swept) > 0 && c.sweeps(p) {
			p.Release()
			return
		}
		c.command(p)
	case iscsi.OpTaskMgmtReq:
		c.manageTasks(p)
	case iscsi.OpNOPOut:
		c.nopOut(p)
	case iscsi.OpTextReq:
		c.textRequest(p)
	case iscsi.OpLogoutReq:
		c.logoutRequest(p)
	default:
		c.reject(p, iscsi.RejectNotSupported, "unknown opcode")
	}
}
