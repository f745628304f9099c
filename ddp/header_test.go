package ddp

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Headers as a Linux soft-iWARP wrote them.
func TestHeadersOfSoftIWARP(t *testing.T) {
	b, err := hex.DecodeString("c1420000070000000000000000400000")
	require.NoError(t, err)
	assert.True(t, Control(b).Tagged())
	assert.EqualValues(t, 1, Control(b).Version())
	assert.Equal(t, TaggedLen, Control(b).HeaderLen())
	assert.Equal(t, TaggedFields{Last: true, ULP: 0x42, STag: 0x700, TO: 0x40}, Tagged(b).Fields())

	b, err = hex.DecodeString("01441234560000000000000000010000 0008"[:32] + "0008")
	require.NoError(t, err)
	assert.False(t, Control(b).Tagged())
	assert.False(t, Control(b).Last())
	assert.Equal(t, UntaggedLen, Control(b).HeaderLen())
	assert.Equal(t, UntaggedFields{ULP: 0x44, ULPWord: 0x12345600, MSN: 1, MO: 8}, Untagged(b).Fields())
}

func TestHeadersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tf := TaggedFields{rapid.Bool().Draw(t, "last"), rapid.Uint8().Draw(t, "ulp"), STag(rapid.Uint32().Draw(t, "stag")), rapid.Uint64().Draw(t, "to")}
		b := make([]byte, TaggedLen)
		Tagged(b).Encode(&tf)
		assert.Equal(t, tf, Tagged(b).Fields())
		assert.True(t, Control(b).Tagged())
		assert.Equal(t, tf.ULP, Control(b).ULP())
		assert.EqualValues(t, Version, Control(b).Version())

		uf := UntaggedFields{rapid.Bool().Draw(t, "last"), rapid.Uint8().Draw(t, "ulp"), rapid.Uint32().Draw(t, "word"), rapid.Uint32().Draw(t, "qn"), rapid.Uint32().Draw(t, "msn"), rapid.Uint32().Draw(t, "mo")}
		b = make([]byte, UntaggedLen)
		Untagged(b).Encode(&uf)
		assert.Equal(t, uf, Untagged(b).Fields())
		assert.False(t, Control(b).Tagged())
		assert.Equal(t, uf.Last, Control(b).Last())
	})
}

func TestErrorsReadWell(t *testing.T) {
	seen := map[string]bool{}
	for typ := LocalCatastrophic; typ <= UntaggedBuffer; typ++ {
		for code := ErrorCode(0); code <= 7; code++ {
			e := &Error{Type: typ, Code: code}
			assert.False(t, seen[e.Error()], e.Error())
			seen[e.Error()] = true
			assert.ErrorIs(t, &Error{Type: typ, Code: code, Detail: "where"}, e)
			assert.NotErrorIs(t, e, &Error{Type: typ, Code: code, Remote: true})
		}
	}
	assert.Equal(t, "ddp: tagged: base or bounds violation: STag 0x00abcd01 TO 0x1000 length 512: out of bounds",
		TaggedFault(FaultBounds, func() Tagged {
			b := make([]byte, TaggedLen)
			Tagged(b).Encode(&TaggedFields{STag: 0xabcd01, TO: 4096})
			return b
		}(), 512).Error())
	assert.Equal(t, "ddp: reported by the peer: untagged: no buffer available", (&Error{Type: UntaggedBuffer, Code: CodeNoBuffer, Remote: true}).Error())
	for f := NoFault; f <= FaultShared+1; f++ {
		assert.NotEmpty(t, f.String())
	}
}

// FuzzHeaders reads headers of any octets that are long enough and writes them again.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte("\xc1\x42\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x40"))
	f.Add([]byte("\x41\x43\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < MinLen || len(b) < Control(b).HeaderLen() {
			return
		}
		n := Control(b).HeaderLen()
		out := make([]byte, n)
		if Control(b).Tagged() {
			tf := Tagged(b).Fields()
			Tagged(out).Encode(&tf)
		} else {
			uf := Untagged(b).Fields()
			Untagged(out).Encode(&uf)
		}
		// Reserved bits and a foreign version are not kept.
		want := append([]byte(nil), b[:n]...)
		want[0] = want[0]&(flagTagged|flagLast) | Version
		assert.Equal(t, want, out)
	})
}
