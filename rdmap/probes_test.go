package rdmap

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// quote is the Terminate Header that quotes segment u.
func quote(layer, typ, code uint8, u []byte, withRead bool) []byte {
	t := Terminate{Layer: layer, Type: typ, Code: code, HasLen: true, SegmentLen: uint16(len(u)), DDP: u[:ddp.Control(u).HeaderLen()]}
	if withRead {
		t.ReadRequest = u[ddp.UntaggedLen:][:ReadRequestLen]
	}
	return t.Append(nil)
}

// probe is one wrong message and the answer that the RFCs name.
type probe struct {
	name   string
	access ddp.Access // of the responder's region; 0: all rights
	irds   int
	no     int // receives that are not posted: of the 2
	// bad makes the messages; the last one is wrong.
	bad func(s *side) [][]byte
	// want is the Terminate Header, made of the wrong message.
	want func(bad []byte) []byte
	err  error
}

func dErr(t ddp.ErrorType, c ddp.ErrorCode) error { return &ddp.Error{Type: t, Code: c} }

func rErr(t ErrorType, c ErrorCode) error { return &Error{Type: t, Code: c} }

// quotes answers with the segment's DDP header, reads with its Read Request header too.
func quotes(layer, typ, code uint8) func([]byte) []byte {
	return func(b []byte) []byte { return quote(layer, typ, code, b, false) }
}

func reads(typ, code uint8) func([]byte) []byte {
	return func(b []byte) []byte { return quote(Layer, typ, code, b, true) }
}

func bare(layer, typ, code uint8) func([]byte) []byte {
	return func([]byte) []byte { return []byte{layer<<4 | typ, code, 0, 0} }
}

var probes = []probe{
	// DDP, tagged.
	{
		name: "write to unknown STag",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "c140 00de ad00 0000 0000 0000 0000 7171 7171 7171 7171")}
		},
		want: quotes(1, 1, 0), err: dErr(ddp.TaggedBuffer, ddp.CodeInvalidSTag),
	},
	{
		name: "write with a stale key",
		bad: func(s *side) [][]byte {
			return [][]byte{tagged(true, OpWrite, s.region.STag()^1, s.to(0), []byte("x"))}
		},
		want: quotes(1, 1, 0), err: dErr(ddp.TaggedBuffer, ddp.CodeInvalidSTag),
	},
	{
		name: "write without the right", access: ddp.LocalWrite | ddp.RemoteRead,
		bad: func(s *side) [][]byte {
			return [][]byte{tagged(true, OpWrite, s.region.STag(), s.to(0), []byte("x"))}
		},
		want: quotes(1, 1, 0), err: dErr(ddp.TaggedBuffer, ddp.CodeInvalidSTag),
	},
	{
		name: "write beyond the end",
		bad: func(s *side) [][]byte {
			return [][]byte{tagged(true, OpWrite, s.region.STag(), s.to(sideMem-3), []byte("four"))}
		},
		want: quotes(1, 1, 1), err: dErr(ddp.TaggedBuffer, ddp.CodeBaseBounds),
	},
	{
		name: "write before the base",
		bad: func(s *side) [][]byte {
			return [][]byte{tagged(true, OpWrite, s.region.STag(), s.to(0)-1, []byte("x"))}
		},
		want: quotes(1, 1, 1), err: dErr(ddp.TaggedBuffer, ddp.CodeBaseBounds),
	},
	{
		name: "write in another domain",
		bad: func(s *side) [][]byte {
			other, err := s.table.NewDomain().Register(s.mem, 0, allRights, 0)
			require.NoError(s.t, err)
			return [][]byte{tagged(true, OpWrite, other.STag(), 0, []byte("x"))}
		},
		want: quotes(1, 1, 2), err: dErr(ddp.TaggedBuffer, ddp.CodeNotAssociated),
	},
	{
		name: "write to another stream's STag",
		bad: func(s *side) [][]byte {
			other, err := s.domain.Register(s.mem, 0, allRights, s.ID()+1)
			require.NoError(s.t, err)
			return [][]byte{tagged(true, OpWrite, other.STag(), 0, []byte("x"))}
		},
		want: quotes(1, 1, 2), err: dErr(ddp.TaggedBuffer, ddp.CodeNotAssociated),
	},
	{
		name: "write whose TO wraps",
		bad: func(s *side) [][]byte {
			return [][]byte{tagged(true, OpWrite, s.region.STag(), 1<<64-2, []byte("four"))}
		},
		want: quotes(1, 1, 3), err: dErr(ddp.TaggedBuffer, ddp.CodeTOWrap),
	},
	{
		name: "tagged DDP version 2",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "c240 00de ad00 0000 0000 0000 0000 7171")}
		},
		want: quotes(1, 1, 4), err: dErr(ddp.TaggedBuffer, ddp.CodeTaggedVersion),
	},

	// DDP, untagged.
	{
		name: "send to QN 3",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4143 0000 0000 0000 0003 0000 0002 0000 0000 0000 0000 0000 1000 00ab cd01 0000 0040")}
		},
		want: quotes(1, 2, 1), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidQN),
	},
	{
		name: "send to QN 4",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpSend, 0, 4, 1, 0, nil)} },
		want: quotes(1, 2, 1), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidQN),
	},
	{
		name: "Read Request to QN 0",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpReadRequest, 0, 0, 1, 0, make([]byte, ReadRequestLen))}
		},
		want: quotes(1, 2, 1), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidQN),
	},
	{
		name: "no receive posted", no: 2,
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpSend, 0, 0, 1, 0, []byte("hello"))} },
		want: quotes(1, 2, 2), err: dErr(ddp.UntaggedBuffer, ddp.CodeNoBuffer),
	},
	{
		name: "Immediate Data without a receive", no: 2,
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpImmediate, 0, 0, 1, 0, make([]byte, 8))} },
		want: quotes(1, 2, 2), err: dErr(ddp.UntaggedBuffer, ddp.CodeNoBuffer),
	},
	{
		name: "send MSN 5",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4143 0000 0000 0000 0000 0000 0005 0000 0000 0000 0000 0000 1000 00ab cd01 0000 0040")}
		},
		want: quotes(1, 2, 3), err: dErr(ddp.UntaggedBuffer, ddp.CodeMSNRange),
	},
	{
		name: "send MSN again",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpSend, 0, 0, 1, 0, nil), untagged(true, OpSend, 0, 0, 1, 0, []byte("again"))}
		},
		want: quotes(1, 2, 3), err: dErr(ddp.UntaggedBuffer, ddp.CodeMSNRange),
	},
	{
		name: "Read Request MSN 2",
		bad:  func(s *side) [][]byte { return [][]byte{readRequest(2, ReadRequestFields{})} },
		want: quotes(1, 2, 3), err: dErr(ddp.UntaggedBuffer, ddp.CodeMSNRange),
	},
	{
		name: "MO outside the buffer",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpSend, 0, 0, 1, 65, []byte("x"))} },
		want: quotes(1, 2, 4), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidMO),
	},
	{
		name: "MO of a Read Request",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpReadRequest, 0, 1, 1, 4, make([]byte, 24))}
		},
		want: quotes(1, 2, 4), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidMO),
	},
	{
		name: "segments contradict each other",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(false, OpSend, 0, 0, 1, 8, repeat('x', 8)), untagged(true, OpSend, 0, 0, 1, 0, repeat('y', 8))}
		},
		want: quotes(1, 2, 4), err: dErr(ddp.UntaggedBuffer, ddp.CodeInvalidMO),
	},
	{
		name: "send longer than its receive",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpSend, 0, 0, 1, 0, repeat('z', 65))} },
		want: quotes(1, 2, 5), err: dErr(ddp.UntaggedBuffer, ddp.CodeTooLong),
	},
	{
		name: "second segment longer than the rest",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(false, OpSend, 0, 0, 1, 0, repeat('z', 64)), untagged(true, OpSend, 0, 0, 1, 64, []byte("z"))}
		},
		want: quotes(1, 2, 5), err: dErr(ddp.UntaggedBuffer, ddp.CodeTooLong),
	},
	{
		name: "Read Request with a payload",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpReadRequest, 0, 1, 1, 0, make([]byte, ReadRequestLen+1))}
		},
		want: quotes(1, 2, 5), err: dErr(ddp.UntaggedBuffer, ddp.CodeTooLong),
	},
	{
		name: "Immediate Data of 9 octets",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpImmediate, 0, 0, 1, 0, make([]byte, 9))} },
		want: quotes(1, 2, 5), err: dErr(ddp.UntaggedBuffer, ddp.CodeTooLong),
	},
	{
		name: "untagged DDP version 2",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4243 0000 0000 0000 0000 0000 0001 0000 0000 0000 0000 0000 1000 00ab cd01 0000 0040")}
		},
		want: quotes(1, 2, 6), err: dErr(ddp.UntaggedBuffer, ddp.CodeUntaggedVersion),
	},
	{
		name: "more Reads than IRD", irds: 2,
		bad: func(s *side) [][]byte {
			q := ReadRequestFields{Size: 500000, SourceSTag: s.region.STag(), SourceTO: s.to(0)}
			return [][]byte{readRequest(1, q), readRequest(2, q), readRequest(3, q)}
		},
		want: quotes(1, 2, 2), err: dErr(ddp.UntaggedBuffer, ddp.CodeNoBuffer),
	},

	// RDMAP, remote protection.
	{
		name: "read of unknown STag",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4141 0000 0000 0000 0001 0000 0001 0000 0000 0011 1100 0000 0000 0000 0040 0000 0010 00de ad00 0000 0000 0000 0080")}
		},
		want: reads(1, 0), err: rErr(RemoteProtection, CodeInvalidSTag),
	},
	{
		name: "read beyond the end",
		bad: func(s *side) [][]byte {
			return [][]byte{readRequest(1, ReadRequestFields{Size: sideMem + 1, SourceSTag: s.region.STag(), SourceTO: s.to(0)})}
		},
		want: reads(1, 1), err: rErr(RemoteProtection, CodeBaseBounds),
	},
	{
		name: "read without the right", access: ddp.LocalWrite | ddp.RemoteWrite,
		bad: func(s *side) [][]byte {
			return [][]byte{readRequest(1, ReadRequestFields{Size: 1, SourceSTag: s.region.STag(), SourceTO: s.to(0)})}
		},
		want: reads(1, 2), err: rErr(RemoteProtection, CodeAccess),
	},
	{
		name: "read of another stream's STag",
		bad: func(s *side) [][]byte {
			other, err := s.domain.Register(s.mem, 0, allRights, s.ID()+1)
			require.NoError(s.t, err)
			return [][]byte{readRequest(1, ReadRequestFields{Size: 1, SourceSTag: other.STag()})}
		},
		want: reads(1, 3), err: rErr(RemoteProtection, CodeNotAssociated),
	},
	{
		name: "read whose TO wraps",
		bad: func(s *side) [][]byte {
			return [][]byte{readRequest(1, ReadRequestFields{Size: 2, SourceSTag: s.region.STag(), SourceTO: 1<<64 - 1})}
		},
		want: reads(1, 4), err: rErr(RemoteProtection, CodeTOWrap),
	},
	{
		name: "send-invalidate of unknown STag",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4144 1234 5600 0000 0000 0000 0001 0000 0000 0000 0000 0000 1000 00ab cd01 0000 0040")}
		},
		want: quotes(0, 1, 9), err: rErr(RemoteProtection, CodeCannotInvalidate),
	},
	{
		name: "send-invalidate of a region without remote rights", access: ddp.LocalWrite,
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpSendSEInvalidate, uint32(s.region.STag()), 0, 1, 0, nil)}
		},
		want: quotes(0, 1, 9), err: rErr(RemoteProtection, CodeCannotInvalidate),
	},
	{
		name: "send-invalidate of a region that streams share",
		bad: func(s *side) [][]byte {
			s.domain.Join()
			return [][]byte{untagged(true, OpSendInvalidate, uint32(s.region.STag()), 0, 1, 0, nil)}
		},
		want: quotes(0, 1, 9), err: rErr(RemoteProtection, CodeCannotInvalidate),
	},
	{
		name: "atomic without the right", access: ddp.LocalWrite | ddp.RemoteWrite | ddp.RemoteRead,
		bad: func(s *side) [][]byte {
			return [][]byte{atomicRequest(1, AtomicFields{STag: s.region.STag(), TO: s.to(0)})}
		},
		want: quotes(0, 1, 2), err: rErr(RemoteProtection, CodeAccess),
	},

	// RDMAP, remote operation.
	{
		name: "RDMAP version 0",
		bad: func(s *side) [][]byte {
			return [][]byte{unhex(s.t, "4103 0000 0000 0000 0000 0000 0001 0000 0000 0000 0000 0000 1000 00ab cd01 0000 0040")}
		},
		want: quotes(0, 2, 5), err: rErr(RemoteOperation, CodeVersion),
	},
	{
		name: "opcode 12",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, 12, 0, 0, 1, 0, []byte("hello"))} },
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "tagged Send",
		bad:  func(s *side) [][]byte { return [][]byte{tagged(true, OpSend, 1, 0, nil)} },
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "untagged Write",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpWrite, 0, 0, 1, 0, nil)} },
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "Read Response unasked",
		bad:  func(s *side) [][]byte { return [][]byte{tagged(true, OpReadResponse, 1, 0, []byte("hello"))} },
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "Atomic Response unasked",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpAtomicResponse, 0, 3, 1, 0, make([]byte, AtomicResponseLen))}
		},
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "opcode changes within a message",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(false, OpSend, 0, 0, 1, 0, []byte("he")), untagged(true, OpSendSE, 0, 0, 1, 2, []byte("llo"))}
		},
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "unknown atomic operation",
		bad: func(s *side) [][]byte {
			return [][]byte{atomicRequest(1, AtomicFields{Op: 1, STag: s.region.STag(), TO: s.to(0)})}
		},
		want: quotes(0, 2, 6), err: rErr(RemoteOperation, CodeUnexpectedOpcode),
	},
	{
		name: "atomic that is not aligned",
		bad: func(s *side) [][]byte {
			return [][]byte{atomicRequest(1, AtomicFields{STag: s.region.STag(), TO: s.to(4)})}
		},
		want: quotes(0, 2, 7), err: rErr(RemoteOperation, CodeCatastrophicStream),
	},
	{
		name: "Immediate Data of 7 octets",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpImmediate, 0, 0, 1, 0, make([]byte, 7))} },
		want: quotes(0, 2, 0xff), err: rErr(RemoteOperation, CodeUnspecified),
	},
	{
		name: "Read Request of 27 octets",
		bad: func(s *side) [][]byte {
			return [][]byte{untagged(true, OpReadRequest, 0, 1, 1, 0, make([]byte, ReadRequestLen-1))}
		},
		want: quotes(0, 2, 0xff), err: rErr(RemoteOperation, CodeUnspecified),
	},
	{
		name: "Terminate of 3 octets",
		bad:  func(s *side) [][]byte { return [][]byte{untagged(true, OpTerminate, 0, 2, 1, 0, make([]byte, 3))} },
		want: quotes(0, 2, 0xff), err: rErr(RemoteOperation, CodeUnspecified),
	},

	// The layer below: the length says less than the header needs.
	{
		name: "ULPDU ends within its header",
		bad:  func(s *side) [][]byte { return [][]byte{unhex(s.t, "4143 0000 0000 0000 0000")} },
		want: bare(2, 0, 3), err: mpa.ErrMarker,
	},
	{
		name: "ULPDU of one octet",
		bad:  func(s *side) [][]byte { return [][]byte{{0x41}} },
		want: bare(2, 0, 3), err: mpa.ErrMarker,
	},
	{
		name: "ULPDU of no octet",
		bad:  func(s *side) [][]byte { return [][]byte{{}} },
		want: bare(2, 0, 3), err: mpa.ErrMarker,
	},
}

// TestProbes sends each wrong message as the first of a connection and compares the answer with the
// form and the code of RFC 5040, section 4.8, RFC 5041, section 7.2 and RFC 7306, section 8.
func TestProbes(t *testing.T) {
	for _, p := range probes {
		for _, opts := range []mpa.Options{{}, {CRC: mpa.Off}} {
			name := p.name
			if opts.CRC == mpa.Off {
				name += " plain"
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					if p.access == 0 {
						p.access = allRights
					}
					if p.irds == 0 {
						p.irds = 4
					}
					r, s := rawPair(t, Config{IRD: p.irds, ORD: 4}, opts, p.access)
					s.expect(4096, 64, 2-p.no)
					bad := p.bad(s)
					before := append([]byte(nil), s.mem...)
					s.run()
					r.send(bad...)
					last := bad[len(bad)-1]
					assert.Equal(t, hex.EncodeToString(p.want(last)), hex.EncodeToString(r.terminate()))
					require.NoError(t, r.c.CloseWrite())
					err := s.rec.reason()
					assert.ErrorIs(t, err, p.err)
					msgs, _ := s.rec.snapshot()
					for _, m := range msgs {
						if m.Err != nil && !errors.Is(m.Err, ErrFlushed) {
							assert.ErrorIs(t, m.Err, p.err)
						}
					}
					if len(bad) == 1 {
						assert.Equal(t, string(before[:4096]), string(s.mem[:4096]))
						assert.Equal(t, string(before[8192:]), string(s.mem[8192:]))
					}
				})
			})
		}
	}
}
