package iser

import (
	"encoding/binary"
	"fmt"
)

// Version is the iSER version of RFC 7145, the only one that is spoken here.
const Version = 10

const flagREJ = 0x01

// Hello is the initiator's first message where iSERHelloRequired=Yes was agreed (RFC 7145, section 9.3):
//
//	 0         1         2           4                          28
//	+----+----+----+----+-----------+--------------------------+
//	|0010|rsvd|Max |Min | iSER-IRD  | reserved                 |
//	+----+----+----+----+-----------+--------------------------+
//
// The message is the header alone. The slice has HeaderLen octets.
type Hello []byte

// ParseHello checks a whole message's length and opcode (RFC 7145, section 10.1.3.3).
func ParseHello(msg []byte) (Hello, error) {
	if err := checkHello(msg, OpHello); err != nil {
		return nil, err
	}
	return Hello(msg), nil
}

// AppendHello appends the Hello of this version that declares ird inbound RDMA Reads.
func AppendHello(b []byte, ird int) []byte {
	var m [HeaderLen]byte
	m[0] = byte(OpHello) << 4
	m[1] = Version<<4 | Version
	binary.BigEndian.PutUint16(m[2:], clamp16(ird))
	return append(b, m[:]...)
}

// MaxVersion is the highest version that the initiator speaks.
func (h Hello) MaxVersion() int { return int(h[1] >> 4) }

// MinVersion is the lowest version that the initiator speaks.
func (h Hello) MinVersion() int { return int(h[1] & 0xf) }

// IRD is iSER-IRD: how many RDMA Reads of the target the initiator serves at once.
func (h Hello) IRD() int { return int(binary.BigEndian.Uint16(h[2:])) }

// Speaks says whether v is among the initiator's versions.
func (h Hello) Speaks(v int) bool { return h.MinVersion() <= v && v <= h.MaxVersion() }

func (h Hello) String() string {
	return fmt.Sprintf("Hello, versions %d to %d, IRD %d", h.MinVersion(), h.MaxVersion(), h.IRD())
}

// HelloReply is the target's answer to a Hello (RFC 7145, section 9.4):
//
//	 0         1         2           4                          28
//	+----+----+----+----+-----------+--------------------------+
//	|0011|000J|Max |Cur | iSER-ORD  | reserved                 |
//	+----+----+----+----+-----------+--------------------------+
//
// J (REJ) refuses the connection. The slice has HeaderLen octets.
type HelloReply []byte

// ParseHelloReply checks a whole message's length and opcode.
func ParseHelloReply(msg []byte) (HelloReply, error) {
	if err := checkHello(msg, OpHelloReply); err != nil {
		return nil, err
	}
	return HelloReply(msg), nil
}

// AppendHelloReply appends the answer that declares ord outbound RDMA Reads.
func AppendHelloReply(b []byte, ord int, reject bool) []byte {
	var m [HeaderLen]byte
	m[0] = byte(OpHelloReply) << 4
	if reject {
		m[0] |= flagREJ
	}
	m[1] = Version<<4 | Version
	binary.BigEndian.PutUint16(m[2:], clamp16(ord))
	return append(b, m[:]...)
}

// Rejected says that the target refuses the connection.
func (h HelloReply) Rejected() bool { return h[0]&flagREJ != 0 }

// MaxVersion is the highest version that the target speaks.
func (h HelloReply) MaxVersion() int { return int(h[1] >> 4) }

// Version is the version in force.
func (h HelloReply) Version() int { return int(h[1] & 0xf) }

// ORD is iSER-ORD: how many RDMA Reads the target has outstanding at most.
func (h HelloReply) ORD() int { return int(binary.BigEndian.Uint16(h[2:])) }

func (h HelloReply) String() string {
	s := fmt.Sprintf("HelloReply, version %d of at most %d, ORD %d", h.Version(), h.MaxVersion(), h.ORD())
	if h.Rejected() {
		s += ", rejected"
	}
	return s
}

func checkHello(msg []byte, want Opcode) error {
	if len(msg) != HeaderLen {
		return &LengthError{What: want.String(), Got: len(msg), Want: HeaderLen}
	}
	if got := Header(msg).Opcode(); got != want {
		return &HeaderError{Reason: fmt.Sprintf("%v where a %v is due", got, want)}
	}
	return nil
}

func clamp16(n int) uint16 { return uint16(min(max(n, 0), 1<<16-1)) }
