package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Sizes within a startup frame, in octets.
const (
	keyLen    = 16
	headerLen = keyLen + 4 // key, flags, revision, PD_Length
	depthsLen = 4          // IRD and ORD of an enhanced frame
	// MaxFrameLen is the size of the largest startup frame.
	MaxFrameLen = headerLen + MaxPrivateData
)

// The keys tell a Request from a Reply, and MPA from anything else.
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// RequestKey is what the first 16 octets of a connection are if its initiator speaks MPA. A
// listener that serves several protocols on one port compares them.
const RequestKey = requestKey

const (
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagReject   = 0x20
	flagEnhanced = 0x10
)

// Frame is a Request or Reply frame (RFC 5044, section 7.1.1; RFC 6581, sections 6 and 9):
//
//	 0               16              17        18          20
//	+---------------+-+-+-+-+-------+---------+-----------+--------------+
//	|  key          |M|C|R|S|  res  |   Rev   | PD_Length | private data |
//	+---------------+-+-+-+-+-------+---------+-----------+--------------+
//
// With S the private data begins with the IRD and ORD word:
//
//	 0 1 2                          16 18                             32
//	+-+-+---------------------------+-+-+------------------------------+
//	|A|B|           IRD             |C|D|             ORD              |
//	+-+-+---------------------------+-+-+------------------------------+
type Frame struct {
	Reply    bool // a Reply frame, else a Request
	Markers  bool // M: the sender wants Markers in what it receives
	CRC      bool // C: the sender wants CRCs
	Reject   bool // R: the responder's ULP refuses; in Replies only
	Enhanced bool // S: the private data begins with IRD and ORD; never in revision 1
	Revision int  // 0 to 255
	Depths        // if Enhanced
	// PrivateData of the ULP, without the IRD and ORD word. A parsed frame's refers to the input.
	PrivateData []byte
}

// Depths is the content of the IRD and ORD word of an enhanced frame.
type Depths struct {
	PeerToPeer bool // A
	RTR        RTR  // B Send, C Write, D Read; meaningless without A
	IRD, ORD   int  // 14 bits each
}

const (
	depthMask = UlpNegotiates
	bitHigh   = 0x8000 // A, C
	bitLow    = 0x4000 // B, D
)

func (d Depths) append(b []byte) []byte {
	ird, ord := uint16(d.IRD)&depthMask, uint16(d.ORD)&depthMask
	if d.PeerToPeer { // without A the other flags have to be zero, too
		ird |= bitHigh
		if d.RTR&RTRSend != 0 {
			ird |= bitLow
		}
		if d.RTR&RTRWrite != 0 {
			ord |= bitHigh
		}
		if d.RTR&RTRRead != 0 {
			ord |= bitLow
		}
	}
	b = binary.BigEndian.AppendUint16(b, ird)
	return binary.BigEndian.AppendUint16(b, ord)
}

func parseDepths(b []byte) Depths {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	d := Depths{IRD: int(ird & depthMask), ORD: int(ord & depthMask)}
	if ird&bitHigh == 0 {
		return d
	}
	d.PeerToPeer = true
	if ird&bitLow != 0 {
		d.RTR |= RTRSend
	}
	if ord&bitHigh != 0 {
		d.RTR |= RTRWrite
	}
	if ord&bitLow != 0 {
		d.RTR |= RTRRead
	}
	return d
}

// AppendTo appends the frame's octets to b. The private data has to fit.
func (f *Frame) AppendTo(b []byte) []byte {
	key, flags, n := requestKey, byte(0), len(f.PrivateData)
	if f.Reply {
		key = replyKey
		if f.Reject {
			flags |= flagReject
		}
	}
	if f.Markers {
		flags |= flagMarkers
	}
	if f.CRC {
		flags |= flagCRC
	}
	if f.Enhanced {
		flags |= flagEnhanced
		n += depthsLen
	}
	b = append(b, key...)
	b = append(b, flags, byte(f.Revision))
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Enhanced {
		b = f.append(b)
	}
	return append(b, f.PrivateData...)
}

// frameLen tells how many octets the frame that begins with b has, as far as b shows: at least the
// header's 20. It fails as soon as b cannot become a valid frame of the kind that is due.
func frameLen(b []byte, reply bool) (int, error) {
	key := requestKey
	if reply {
		key = replyKey
	}
	if n := min(len(b), keyLen); !bytes.Equal(b[:n], []byte(key[:n])) {
		if other := otherKey(reply); n == keyLen && string(b[:n]) == other {
			return 0, errorf(CodeFrame, "both ends act as %v", roleOf(reply))
		}
		return 0, errorf(CodeFrame, "key %q, want %q", b[:n], key)
	}
	if len(b) < headerLen {
		return headerLen, nil
	}
	n := int(binary.BigEndian.Uint16(b[18:]))
	if n > MaxPrivateData {
		return 0, errorf(CodeFrame, "PD_Length %d exceeds %d", n, MaxPrivateData)
	}
	return headerLen + n, nil
}

func otherKey(reply bool) string {
	if reply {
		return requestKey
	}
	return replyKey
}

// roleOf is the role of the end that waits for a Reply or for a Request.
func roleOf(reply bool) Role {
	if reply {
		return Initiator
	}
	return Responder
}

// ParseFrame decodes the frame that b holds, a Request or a Reply. b has to hold exactly one frame;
// all errors have CodeFrame. Bits that are reserved in the frame's revision are not looked at.
func ParseFrame(b []byte) (Frame, error) {
	reply := len(b) >= keyLen && string(b[:keyLen]) == replyKey
	n, err := frameLen(b, reply)
	if err != nil {
		return Frame{}, err
	}
	if len(b) < n {
		return Frame{}, errorf(CodeFrame, "%d of %d octets", len(b), n)
	}
	if len(b) > n {
		return Frame{}, errorf(CodeFrame, "%d octets behind the frame", len(b)-n)
	}
	flags := b[16]
	f := Frame{
		Reply:    reply,
		Markers:  flags&flagMarkers != 0,
		CRC:      flags&flagCRC != 0,
		Reject:   reply && flags&flagReject != 0,
		Revision: int(b[17]),
	}
	private := b[headerLen:]
	if f.Enhanced = flags&flagEnhanced != 0 && f.Revision >= 2; f.Enhanced {
		if len(private) < depthsLen {
			return Frame{}, errorf(CodeFrame, "enhanced, but only %d octets of private data", len(private))
		}
		f.Depths = parseDepths(private)
		private = private[depthsLen:]
	}
	if len(private) > 0 {
		f.PrivateData = private
	}
	return f, nil
}

// String puts the frame on one line for a log.
func (f *Frame) String() string {
	s := "Request"
	if f.Reply {
		s = "Reply"
	}
	s += fmt.Sprintf(" rev %d", f.Revision)
	for _, x := range []struct {
		on   bool
		name string
	}{{f.Markers, " M"}, {f.CRC, " C"}, {f.Reject, " R"}, {f.Enhanced, " S"}} {
		if x.on {
			s += x.name
		}
	}
	if f.Enhanced {
		s += fmt.Sprintf(" ird %d ord %d", f.IRD, f.ORD)
		if f.PeerToPeer {
			s += fmt.Sprintf(" rtr %v", f.RTR)
		}
	}
	return s + fmt.Sprintf(" private %d", len(f.PrivateData))
}
