package iscsi

import "fmt"

// ProtocolError is a received PDU that breaks the protocol. A target answers with a Reject of that Reason; an
// initiator, which has no Reject, drops the connection.
type ProtocolError struct {
	Opcode Opcode
	Reason RejectReason
	Text   string // what is wrong
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("iscsi: %v: %v: %s", e.Opcode, e.Reason, e.Text)
}

// Validate checks a received PDU by itself: that its kind comes from that side, and that the fields which the receiver
// builds on are possible and do not contradict each other. What depends on the session (serial numbers, tags, lengths
// negotiated) is the session's to check. The error is a *ProtocolError.
//
// Reserved bits are not looked at (RFC 7143, section 11.2: receivers ignore them).
func Validate(p *PDU, fromInitiator bool) error {
	op := p.Opcode()
	text, reason := "", RejectInvalidField
	switch {
	case op.FromInitiator() != fromInitiator:
		text, reason = "wrong direction", RejectProtocolError
	case len(p.AHS) > 0 && op != OpSCSICommand:
		text = "AHS"
	case fromInitiator:
		text, reason = validateRequest(p)
	default:
		text, reason = validateResponse(p)
	}
	if text == "" {
		return nil
	}
	return &ProtocolError{Opcode: op, Reason: reason, Text: text}
}

func validateRequest(p *PDU) (string, RejectReason) {
	b := p.BHS[:]
	h := BHS(b)
	invalid := RejectInvalidField
	switch h.Opcode() {
	case OpNOPOut:
		switch {
		case !h.Final():
			return "F is not set", invalid
		case h.ITT() == ReservedTag && !h.Immediate():
			return "reserved ITT without I", invalid
		}
	case OpSCSICommand:
		return validateCommand(p)
	case OpTaskMgmtReq:
		switch {
		case !h.Final():
			return "F is not set", invalid
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		}
	case OpLoginReq:
		return validateLogin(h[1]), RejectProtocolError
	case OpTextReq:
		switch {
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case h.Final() && TextRequest(b).Continue():
			return "F and C", RejectProtocolError
		}
	case OpDataOut:
		if h.ITT() == ReservedTag {
			return "reserved ITT", invalid
		}
	case OpLogoutReq:
		switch {
		case !h.Final():
			return "F is not set", invalid
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case LogoutRequest(b).Reason() > LogoutRecovery:
			return "unknown reason", invalid
		}
	case OpSNACK:
		s := SNACKRequest(b)
		switch {
		case s.Type() > SNACKRData:
			return "unknown type", invalid
		case s.Type() == SNACKStatus && s.ITT() != ReservedTag:
			return "Status SNACK with an ITT", invalid
		case (s.Type() == SNACKDataR2T || s.Type() == SNACKRData) && s.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case s.Type() == SNACKDataACK && (s.TTT() == ReservedTag || s.RunLength() != 0):
			return "DataACK without TTT or with a run length", invalid
		case len(p.Data) > 0:
			return "data segment", invalid
		}
	default:
		return "unknown opcode", RejectNotSupported
	}
	return "", 0
}

func validateCommand(p *PDU) (string, RejectReason) {
	c := SCSICommand(p.BHS[:])
	invalid := RejectInvalidField
	switch {
	case c.ITT() == ReservedTag:
		return "reserved ITT", invalid
	case c.Attr() > AttrACA:
		return "reserved task attribute", invalid
	case !c.Final() && !c.Write():
		return "neither F nor W", invalid
	case !c.Write() && len(p.Data) > 0:
		return "immediate data without W", invalid
	}
	a, err := ParseAHS(p.AHS)
	switch {
	case err != nil:
		return err.Error(), invalid
	case a.HasBidi && (!c.Read() || !c.Write()):
		return "bidirectional read length without R and W", invalid
	}
	return "", 0
}

// validateLogin checks the flags of a login PDU: T|C|..|CSG|NSG.
func validateLogin(flags byte) string {
	t, c, csg, nsg := flags&0x80 != 0, flags&0x40 != 0, Stage(flags>>2&3), Stage(flags&3)
	switch {
	case t && c:
		return "T and C"
	case csg != StageSecurity && csg != StageOperational:
		return fmt.Sprintf("current stage %d", csg)
	case t && (nsg <= csg || nsg != StageOperational && nsg != StageFullFeature):
		return fmt.Sprintf("from stage %d to stage %d", csg, nsg)
	}
	return ""
}

func validateResponse(p *PDU) (string, RejectReason) {
	b := p.BHS[:]
	h := BHS(b)
	invalid := RejectInvalidField
	switch h.Opcode() {
	case OpNOPIn:
		if h.ITT() != ReservedTag && h.TTT() != ReservedTag {
			return "both ITT and TTT", invalid
		}
	case OpSCSIResponse:
		r := SCSIResponse(b)
		switch {
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case r.Overflow() && r.Underflow(), r.BidiOverflow() && r.BidiUnderflow():
			return "both overflow and underflow", invalid
		case len(p.Data) == 1, len(p.Data) >= 2 && int(p.Data[0])<<8+int(p.Data[1]) > len(p.Data)-2:
			return "sense data beyond the data segment", invalid
		}
	case OpTaskMgmtRsp, OpLogoutRsp:
		if h.ITT() == ReservedTag {
			return "reserved ITT", invalid
		}
	case OpLoginRsp:
		// With a status other than success T, CSG and NSG are reserved.
		if LoginResponse(b).Status().Class() != 0 {
			return "", 0
		}
		return validateLogin(h[1]), RejectProtocolError
	case OpTextRsp:
		switch {
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case h.Final() && TextResponse(b).Continue():
			return "F and C", RejectProtocolError
		case h.Final() && h.TTT() != ReservedTag:
			return "F with a TTT", invalid
		case !h.Final() && h.TTT() == ReservedTag:
			return "neither F nor a TTT", invalid
		}
	case OpDataIn:
		d := DataInPDU(b)
		switch {
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case d.HasStatus() && !d.Final():
			return "S without F", invalid
		case d.HasStatus() && d.Overflow() && d.Underflow():
			return "both overflow and underflow", invalid
		}
	case OpR2T:
		r := R2T(b)
		switch {
		case h.ITT() == ReservedTag:
			return "reserved ITT", invalid
		case h.TTT() == ReservedTag:
			return "reserved TTT", invalid
		case r.DesiredLen() == 0:
			return "asks for nothing", invalid
		case len(p.Data) > 0:
			return "data segment", invalid
		}
	case OpAsync, OpReject:
	default:
		return "unknown opcode", RejectNotSupported
	}
	return "", 0
}
