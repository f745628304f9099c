package mpa

import (
	"fmt"
	"strings"
	"time"
)

// Toggle is an option that has a default of its own.
type Toggle uint8

// Toggle values.
const (
	Default Toggle = iota
	On
	Off
)

// on resolves t with the option's default.
func (t Toggle) on(def bool) bool {
	if t == Default {
		return def
	}
	return t == On
}

// RTR is a set of Ready-To-Receive forms: zero-length messages by which the initiator of a
// peer-to-peer connection shows that it receives (RFC 6581, section 9.2).
type RTR uint8

// Ready-To-Receive forms.
const (
	RTRSend  RTR = 1 << iota // zero-length Send; consumes a receive buffer of the responder
	RTRWrite                 // zero-length RDMA Write
	RTRRead                  // zero-length RDMA Read

	rtrAll = RTRSend | RTRWrite | RTRRead
)

// String lists the forms, as in "Send|Write".
func (r RTR) String() string {
	var s []string
	for i, name := range [...]string{"Send", "Write", "Read"} {
		if r&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, "|")
}

// Limits and special values.
const (
	// MaxPrivateData is the size of a startup frame's private data, in octets. An enhanced frame
	// spends the first four of them on IRD and ORD (RFC 5044, section 7.1.1; RFC 6581, section 9).
	MaxPrivateData = 512
	// UlpNegotiates in place of an IRD or ORD says that the layers above agree on it by their own
	// means (RFC 6581, section 9.1). Every smaller value is a depth.
	UlpNegotiates = 0x3FFF
	// MaxULPDU is the largest ULPDU that the length field can express.
	MaxULPDU = 65535
	// MinMULPDU and MaxMULPDU bound the MULPDU that follows from a segment's size (RFC 5044,
	// section 3).
	MinMULPDU, MaxMULPDU = 128, 64768
)

// Default bounds of the startup phase.
const (
	DefaultRequestTimeout = 5 * time.Second
	DefaultReplyTimeout   = 10 * time.Second
)

// Options tune a connection. The zero value asks for what the RFCs recommend: revision 2 with IRD
// and ORD in the frames, CRCs, no Markers towards us, client-server, FPDUs that fit a TCP segment.
type Options struct {
	// Revision is the MPA revision of an initiator's Request and the highest that a responder
	// accepts: 1 or 2; 0 means 2. A peer that only knows revision 1 closes the connection on
	// revision 2; to reach it, say 1. There is no silent second attempt.
	Revision int
	// Enhanced puts IRD and ORD into the startup frames (the S bit, RFC 6581). Default on for
	// revision 2. A responder where it is off closes the connection on an enhanced Request.
	Enhanced Toggle
	// CRC is our wish, default on. CRCs are used unless both ends wish them off. Turn it off only
	// where something as strong as a CRC32c protects the path end to end (RFC 5044, section 4.4).
	CRC Toggle
	// Markers asks the peer to send Markers. Default off: they help only receivers that take TCP
	// segments out of order, which a socket never hands out. What the peer asks of us is always
	// honoured.
	Markers Toggle
	// PeerToPeer makes an initiator ask for the peer-to-peer model, in which it sends a
	// Ready-To-Receive message first, so that the responder may be the first to send data. Needs
	// Enhanced. A responder follows the Request.
	PeerToPeer Toggle
	// RTR lists the Ready-To-Receive forms that we can do; 0 means all.
	RTR RTR
	// MaxFPDU allows ULPDUs of up to so many octets even where they do not fit a TCP segment:
	// between software peers fewer and larger FPDUs are faster, RDMA hardware wants them to fit.
	// 0 stays within the segment, at most MaxULPDU. With Markers towards the peer MaxMULPDU is the
	// limit, since the Markers' pointers hold no more.
	MaxFPDU int
	// RequestTimeout bounds a responder's wait for the Request; 0 means 5 s. ReplyTimeout bounds
	// an initiator's wait for the Reply; 0 means 10 s.
	RequestTimeout, ReplyTimeout time.Duration
}

// resolve fills in defaults and refuses what cannot work.
func (o Options) resolve() (Options, error) {
	if o.Revision == 0 {
		o.Revision = 2
	}
	if o.Revision != 1 && o.Revision != 2 {
		return o, errorf(CodeLocal, "revision %d is not 1 or 2", o.Revision)
	}
	if o.Revision == 1 {
		if o.Enhanced == On || o.PeerToPeer == On {
			return o, errorf(CodeLocal, "enhanced startup and peer-to-peer need revision 2")
		}
		o.Enhanced = Off
	}
	if o.PeerToPeer == On && o.Enhanced == Off {
		return o, errorf(CodeLocal, "peer-to-peer needs enhanced startup")
	}
	if o.MaxFPDU < 0 || o.MaxFPDU > MaxULPDU {
		return o, errorf(CodeLocal, "FPDU limit %d is not within 0 and %d", o.MaxFPDU, MaxULPDU)
	}
	if o.RTR&^rtrAll != 0 {
		return o, errorf(CodeLocal, "unknown RTR forms %#x", uint8(o.RTR))
	}
	if o.RTR == 0 {
		o.RTR = rtrAll
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.ReplyTimeout <= 0 {
		o.ReplyTimeout = DefaultReplyTimeout
	}
	return o, nil
}

// checkArgs refuses an IRD or ORD that 14 bits do not hold, and private data that does not fit.
func checkArgs(private []byte, enhanced bool, ird, ord int) error {
	if ird < 0 || ird > UlpNegotiates || ord < 0 || ord > UlpNegotiates {
		return errorf(CodeLocal, "IRD %d or ORD %d does not fit 14 bits", ird, ord)
	}
	room := MaxPrivateData
	if enhanced {
		room -= depthsLen
	}
	if len(private) > room {
		return errorf(CodeLocal, "%d octets of private data, %d fit", len(private), room)
	}
	return nil
}

// Role tells the two ends of the startup apart.
type Role uint8

// Roles.
const (
	Initiator Role = iota // sent the Request
	Responder             // sent the Reply
)

// String names the role.
func (r Role) String() string {
	if r == Initiator {
		return "initiator"
	}
	return "responder"
}

// Params is what the two ends have agreed on.
type Params struct {
	Role       Role
	Revision   int  // MPA revision of the Reply
	Enhanced   bool // the frames held IRD and ORD
	CRC        bool // CRCs are generated and checked
	MarkersIn  bool // the peer sends Markers
	MarkersOut bool // we send Markers
	// IRD and ORD are ours, as agreed; UlpNegotiates means that the ULPs do it. Without Enhanced
	// they are what the caller asked for.
	IRD, ORD int
	// PeerIRD and PeerORD are as the peer's frame had them; 0 without Enhanced.
	PeerIRD, PeerORD int
	// PeerToPeer says that the initiator's first FPDU is a Ready-To-Receive message.
	PeerToPeer bool
	// RTR, if PeerToPeer: for an initiator the one form to send, for a responder the forms that it
	// named and now expects one of.
	RTR RTR
	// PrivateData of the peer, without the IRD and ORD.
	PrivateData []byte
}

// String puts the parameters on one line for a log.
func (p *Params) String() string {
	s := fmt.Sprintf("%v rev %d enhanced %t crc %t markers in %t out %t ird %d ord %d",
		p.Role, p.Revision, p.Enhanced, p.CRC, p.MarkersIn, p.MarkersOut, p.IRD, p.ORD)
	if p.PeerToPeer {
		s += fmt.Sprintf(" rtr %v", p.RTR)
	}
	return s + fmt.Sprintf(" private %d", len(p.PrivateData))
}
