package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"goiwarp/rnic"
)

// perfMagic begins the private data of a perf connection; its last octet is the version.
const perfMagic = "gwperf\x00\x01"

// perfTest is one measurement.
type perfTest struct {
	op      rnic.Opcode
	latency bool
	both    bool // both ends work
	size    int  // octets of an operation
	depth   int  // operations under way
	count   int  // operations of each working end
}

// name is perftest's name for the test.
func (t perfTest) name() string {
	op := map[rnic.Opcode]string{rnic.OpWrite: "write", rnic.OpRead: "read", rnic.OpSend: "send", rnic.OpFetchAdd: "atomic"}[t.op]
	if t.latency {
		return op + "_lat"
	}
	return op + "_bw"
}

// check bounds what a user or a peer asks for.
func (t perfTest) check() error {
	switch {
	case t.op != rnic.OpWrite && t.op != rnic.OpRead && t.op != rnic.OpSend && t.op != rnic.OpFetchAdd:
		return fmt.Errorf("operation %d is none that can be measured", t.op)
	case t.op == rnic.OpFetchAdd && t.size != 8:
		return fmt.Errorf("an atomic has 8 octets, not %d", t.size)
	case t.size < 1 || t.size > perfMaxSize:
		return fmt.Errorf("size %d: want 1 octet to %s", t.size, humanize.IBytes(perfMaxSize))
	case t.depth < 1 || t.depth > perfMaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", t.depth, perfMaxDepth)
	case t.count < 1 || t.count > perfMaxCount:
		return fmt.Errorf("iterations %d: want 1 to %d", t.count, perfMaxCount)
	}
	return nil
}

// remote is a peer's region.
type remote struct {
	stag rnic.STag
	addr uint64
}

// A client's request, with its own region, for the server to work on; the server's answer has its region alone:
//
//	0        8    9       10      12     16      20      24     28     36
//	| magic  | op | flags |  rsvd | size | depth | count | STag | addr |
//	| magic  | STag       | addr                 |
//	0        8            12                     20
const (
	requestLen = 36
	answerLen  = 20

	flagLatency = 1
	flagBoth    = 2
)

func (t perfTest) request(r remote) []byte {
	b := make([]byte, requestLen)
	copy(b, perfMagic)
	b[8] = byte(t.op)
	if t.latency {
		b[9] |= flagLatency
	}
	if t.both {
		b[9] |= flagBoth
	}
	binary.BigEndian.PutUint32(b[12:], uint32(t.size))
	binary.BigEndian.PutUint32(b[16:], uint32(t.depth))
	binary.BigEndian.PutUint32(b[20:], uint32(t.count))
	binary.BigEndian.PutUint32(b[24:], uint32(r.stag))
	binary.BigEndian.PutUint64(b[28:], r.addr)
	return b
}

// parseRequest reads a request; a device may have padded it.
func parseRequest(b []byte) (t perfTest, r remote, err error) {
	if len(b) < requestLen || string(b[:len(perfMagic)]) != perfMagic {
		return t, r, fmt.Errorf("this is no request of iwarp perf, or one of another version")
	}
	t = perfTest{
		op: rnic.Opcode(b[8]), latency: b[9]&flagLatency != 0, both: b[9]&flagBoth != 0,
		size:  int(binary.BigEndian.Uint32(b[12:])),
		depth: int(binary.BigEndian.Uint32(b[16:])),
		count: int(binary.BigEndian.Uint32(b[20:])),
	}
	return t, remote{rnic.STag(binary.BigEndian.Uint32(b[24:])), binary.BigEndian.Uint64(b[28:])}, t.check()
}

func (r remote) answer() []byte {
	b := make([]byte, answerLen)
	copy(b, perfMagic)
	binary.BigEndian.PutUint32(b[8:], uint32(r.stag))
	binary.BigEndian.PutUint64(b[12:], r.addr)
	return b
}

func parseAnswer(b []byte) (remote, error) {
	if len(b) < answerLen || string(b[:len(perfMagic)]) != perfMagic {
		return remote{}, fmt.Errorf("the server is no 'iwarp perf serve', or one of another version")
	}
	return remote{rnic.STag(binary.BigEndian.Uint32(b[8:])), binary.BigEndian.Uint64(b[12:])}, nil
}

// refusal is the private data of a Reject: why, cut to what any device carries.
func refusal(err error) []byte {
	const limit = 100
	b := append([]byte(perfMagic), err.Error()...)
	return b[:min(len(b), limit)]
}

// refused is why the server refused, if it said so.
func refused(private []byte) string {
	s, ours := strings.CutPrefix(string(private), perfMagic)
	if !ours {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
}
