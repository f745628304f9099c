package capture

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadFindsBothDirections(t *testing.T) {
	conns, err := Read("../testdata/siw-rping.pcap")
	require.NoError(t, err)
	require.Len(t, conns, 1)
	c := conns[0]
	assert.Equal(t, "10.9.0.1:7174", c.Server)
	assert.Equal(t, "MPA ID Req Frame", string(c.FromClient[:16]))
	assert.Equal(t, "MPA ID Rep Frame", string(c.FromServer[:16]))
	n := 0
	for _, turn := range c.Turns {
		n += len(turn.Data)
	}
	assert.Equal(t, len(c.FromClient)+len(c.FromServer), n)
}

func TestFlowReorders(t *testing.T) {
	f := &flow{next: 0xfffffffe}
	assert.Empty(t, f.take(segment{2, []byte("ef")}), "a hole waits")
	assert.Equal(t, "abcdef", string(f.take(segment{0xfffffffe, []byte("abcd")})), "across the wrap of the sequence number")
	assert.Empty(t, f.take(segment{0, []byte("cd")}), "a retransmission adds nothing")
	assert.Equal(t, "g", string(f.take(segment{3, []byte("fg")})), "an overlap adds what is new")
}
