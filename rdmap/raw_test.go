package rdmap

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// raw is a scripted peer: it speaks MPA and writes ULPDUs by hand.
type raw struct {
	t testing.TB
	c *mpa.Conn
}

func (r *raw) send(ulpdus ...[]byte) {
	for _, u := range ulpdus {
		r.c.AppendCopy(u, nil)
	}
	_ = r.c.Flush() // the stream may have ended already
}

// next reads one ULPDU; nil at the end.
func (r *raw) next() []byte {
	f, err := r.c.Next()
	if err != nil {
		return nil
	}
	require.NoError(r.t, f.Fill())
	b := make([]byte, f.Len)
	f.CopyTo(0, b)
	return b
}

// terminate reads up to a Terminate Message and returns its header; nil if none came.
func (r *raw) terminate() []byte {
	for {
		u := r.next()
		if u == nil {
			return nil
		}
		if u[0] == 0x41 && u[1] == 0x47 {
			h := ddp.Untagged(u)
			assert.EqualValues(r.t, QueueTerminate, h.QN())
			assert.EqualValues(r.t, 1, h.MSN())
			assert.Zero(r.t, h.MO())
			return u[ddp.UntaggedLen:]
		}
	}
}

// rawPair is a scripted initiator and a responder's stream.
func rawPair(t testing.TB, cfg Config, opts mpa.Options, access ddp.Access) (*raw, *side) {
	t.Helper()
	ca, cb := memLink(t, 64<<10, 1460, opts)
	cfg.Role = Responder
	s := newSide(t, cb, cfg, access, sideMem)
	return &raw{t, ca}, s
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	require.NoError(t, err)
	return b
}

// untagged makes a segment by hand.
func untagged(last bool, op Opcode, word, qn, msn, mo uint32, payload []byte) []byte {
	b := make([]byte, ddp.UntaggedLen, ddp.UntaggedLen+len(payload))
	ddp.Untagged(b).Encode(&ddp.UntaggedFields{Last: last, ULP: uint8(MakeControl(op)), ULPWord: word, QN: qn, MSN: msn, MO: mo})
	return append(b, payload...)
}

func tagged(last bool, op Opcode, stag ddp.STag, to uint64, payload []byte) []byte {
	b := make([]byte, ddp.TaggedLen, ddp.TaggedLen+len(payload))
	ddp.Tagged(b).Encode(&ddp.TaggedFields{Last: last, ULP: uint8(MakeControl(op)), STag: stag, TO: to})
	return append(b, payload...)
}

func readRequest(msn uint32, f ReadRequestFields) []byte {
	b := make([]byte, ReadRequestLen)
	ReadRequest(b).Encode(&f)
	return untagged(true, OpReadRequest, 0, QueueRequest, msn, 0, b)
}

func atomicRequest(msn uint32, f AtomicFields) []byte {
	b := make([]byte, AtomicRequestLen)
	AtomicRequest(b).Encode(&f)
	return untagged(true, OpAtomicRequest, 0, QueueRequest, msn, 0, b)
}
