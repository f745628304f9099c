package rnic

import "time"

// Toggle is an option that a device may decide itself.
type Toggle uint8

// Toggle values.
const (
	Default Toggle = iota
	On
	Off
)

// RTR is a set of Ready-To-Receive message forms (RFC 6581, section 9.2).
type RTR uint8

// RTR forms.
const (
	RTRSend RTR = 1 << iota
	RTRWrite
	RTRRead
)

// LinkOptions tune what lies below RDMAP. A hardware device ignores what its driver fixes. The
// zero value (and nil) is right for most uses.
type LinkOptions struct {
	Revision   int    // MPA revision of the request; 0 means 2
	Enhanced   Toggle // the S bit: IRD/ORD in the startup frames; default on
	CRC        Toggle // default on; off only where both ends say so (RFC 5044, section 4.4)
	Markers    Toggle // ask the peer to send Markers; default off
	PeerToPeer Toggle // ask for a Ready-To-Receive message; default off
	RTR        RTR    // forms offered; 0 means all
	// MaxFPDU raises the size of the FPDUs sent beyond what fits a TCP segment, up to 65535
	// octets of ULPDU; 0 stays within the segment (RFC 5044, section 4.5).
	MaxFPDU int
	// RequestTimeout bounds the responder's wait for a Request (default 5 s), ReplyTimeout the
	// initiator's for a Reply (default 10 s).
	RequestTimeout, ReplyTimeout time.Duration
	// NudgeDelay is how long the initiator's side waits for an answer to its first message
	// before it sends a zero-length RDMA Write that wakes a Linux soft-iWARP responder whose
	// receive callback came too late; 0 means 200 ms, negative never.
	NudgeDelay time.Duration
}
