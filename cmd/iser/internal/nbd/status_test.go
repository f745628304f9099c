package nbd

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// chunk reads the one chunk that a structured reply has.
func (c *client) chunk() (typ uint16, payload []byte) {
	var b [chunkLen]byte
	_, err := io.ReadFull(c.c, b[:])
	require.NoError(c.t, err)
	require.EqualValues(c.t, magicChunk, binary.BigEndian.Uint32(b[:]))
	require.EqualValues(c.t, chunkDone, binary.BigEndian.Uint16(b[4:]))
	require.EqualValues(c.t, 7, binary.BigEndian.Uint64(b[8:]))
	payload = make([]byte, binary.BigEndian.Uint32(b[16:]))
	_, err = io.ReadFull(c.c, payload)
	require.NoError(c.t, err)
	return binary.BigEndian.Uint16(b[6:]), payload
}

// structured sends a request and reads its structured reply.
func (c *client) structured(cmd Command, flags uint16, off uint64, n uint32) (uint16, []byte) {
	c.send(cmd, flags, 7, off, n, nil)
	return c.chunk()
}

// TestStructuredReplies compares octets put together from the protocol's text.
func TestStructuredReplies(t *testing.T) {
	d := newRAM(1 << 20)
	copy(d.b[512:], "goiwarp")
	v := newAgreed(t, d, export(d), Config{}, agreement{structured: true})
	raw := func(n int) string {
		b := make([]byte, n)
		_, err := io.ReadFull(v.c, b)
		require.NoError(t, err)
		return hex.EncodeToString(b)
	}
	v.send(CmdRead, cmdFlagDF, 7, 512, 512, nil)
	require.Equal(t, "668e33ef"+"0001"+"0001"+"0000000000000007"+"00000208"+"0000000000000200"+hex.EncodeToString(d.at(512, 512)), raw(20+8+512))
	v.send(CmdRead, 0, 7, 1<<20, 512, nil)
	require.Equal(t, "668e33ef"+"0001"+"8001"+"0000000000000007"+"00000006"+"00000016"+"0000", raw(20+6))
	v.send(CmdFlush, 0, 7, 0, 0, nil)
	require.Equal(t, "67446698"+"00000000"+"0000000000000007", raw(16), "what carries no payload is answered simply")
	v.send(CmdBlockStatus, 0, 7, 0, 512, nil)
	require.Equal(t, "668e33ef"+"0001"+"8001"+"0000000000000007"+"00000006"+"00000016"+"0000", raw(20+6), "the context was not chosen")
	d.set(func() { d.err = errors.New("broken") })
	v.send(CmdRead, 0, 7, 512, 512, nil)
	require.Equal(t, "668e33ef"+"0001"+"8001"+"0000000000000007"+"00000006"+"00000005"+"0000", raw(20+6), "and none of the data")
}

func TestSimpleReadsKnowNoDF(t *testing.T) {
	d := newRAM(1 << 20)
	v := newSession(t, d, export(d), Config{})
	_, e := v.do(CmdRead, cmdFlagDF, 0, 512, nil)
	require.Equal(t, errnoInval, e)
	_, e = v.do(CmdBlockStatus, 0, 0, 512, nil)
	require.Equal(t, errnoInval, e)
}

var mapping = agreement{structured: true, allocation: true}

// extents reads the payload of a block status chunk as lengths and states, in turns.
func extents(t require.TestingT, typ uint16, b []byte) []uint32 {
	require.EqualValues(t, chunkBlockStatus, typ)
	require.EqualValues(t, contextID, binary.BigEndian.Uint32(b))
	require.Zero(t, len(b)%8-4)
	var list []uint32
	for b = b[4:]; len(b) > 0; b = b[4:] {
		list = append(list, binary.BigEndian.Uint32(b))
	}
	return list
}

func TestBlockStatus(t *testing.T) {
	d := newRAM(1 << 20)
	d.holes = []initiator.BlockStatus{
		{LBA: 0, Blocks: 8, State: initiator.Mapped},
		{LBA: 8, Blocks: 8, State: initiator.Deallocated},
		{LBA: 16, Blocks: 16, State: initiator.Deallocated},
		{LBA: 32, Blocks: 8, State: initiator.Anchored},
		{LBA: 40, Blocks: 2008, State: initiator.Mapped},
	}
	x := export(d)
	x.Map, x.ReadsZeros = true, true
	for _, most := range []int{0, 1, 2} {
		d.set(func() { d.most = most })
		v := newAgreed(t, d, x, Config{}, mapping)
		ask := func(flags uint16, off uint64, n uint32) []uint32 {
			typ, b := v.structured(CmdBlockStatus, flags, off, n)
			return extents(t, typ, b)
		}
		require.Equal(t, []uint32{4096, 0, 24 * 512, stateHole | stateZero, 4096, stateZero, 2008 * 512, 0}, ask(0, 0, 1<<20))
		require.Equal(t, []uint32{23 * 512, stateHole | stateZero, 512, stateZero}, ask(0, 9*512, 24*512), "no more than was asked for")
		require.Equal(t, []uint32{23 * 512, stateHole | stateZero}, ask(cmdFlagReqOne, 9*512, 24*512))
		typ, b := v.structured(CmdBlockStatus, 0, 1<<20, 512)
		require.EqualValues(t, chunkError, typ)
		require.EqualValues(t, errnoInval, binary.BigEndian.Uint32(b))
	}
	x.ReadsZeros = false
	v := newAgreed(t, d, x, Config{}, mapping)
	typ, b := v.structured(CmdBlockStatus, 0, 8*512, 32*512)
	require.Equal(t, []uint32{24 * 512, stateHole, 4096, 0}, extents(t, typ, b), "what is read there is not known")

	x.Map = false
	v = newAgreed(t, d, x, Config{}, mapping)
	typ, b = v.structured(CmdBlockStatus, 0, 0, 1<<20)
	require.Equal(t, []uint32{1 << 20, 0}, extents(t, typ, b), "a disk that does not tell has all of its room")

	d.set(func() {
		d.err = &scsi.Error{Status: scsi.StatusCheckCondition, HasSense: true, Sense: scsi.Sense{Key: scsi.KeyMediumError}}
	})
	x.Map = true
	v = newAgreed(t, d, x, Config{}, mapping)
	typ, b = v.structured(CmdBlockStatus, 0, 0, 1<<20)
	require.EqualValues(t, chunkError, typ)
	require.EqualValues(t, errnoIO, binary.BigEndian.Uint32(b))
}

// TestBlockStatusSaysWhatTheDiskSays: for any layout, request and length of the disk's answers, the answer begins at the request, covers no more than it, is
// cut short only by its bounds, and gives each block the state that it has.
func TestBlockStatusSaysWhatTheDiskSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const blocks = 64
		states := rapid.SliceOfN(rapid.ByteRange(0, 2), blocks, blocks).Draw(t, "states")
		d := newRAM(blocks * blockSize)
		for i, p := range states {
			d.holes = append(d.holes, initiator.BlockStatus{LBA: uint64(i), Blocks: 1, State: initiator.Provisioning(p)})
		}
		d.most = rapid.IntRange(1, 8).Draw(t, "most")
		x := export(d)
		x.Map, x.ReadsZeros = true, true
		first := rapid.IntRange(0, blocks-1).Draw(t, "first")
		n := rapid.IntRange(1, blocks-first).Draw(t, "blocks")
		one := rapid.Bool().Draw(t, "one")
		r := &request{typ: CmdBlockStatus, offset: uint64(first * blockSize), length: uint32(n * blockSize)}
		if one {
			r.flags = cmdFlagReqOne
		}
		b, err := (&Server{disk: d, export: x}).appendStatus(t.Context(), nil, r)
		require.NoError(t, err)
		list := extents(t, chunkBlockStatus, b)
		require.NotEmpty(t, list)
		at := first
		for i := 0; i < len(list); i += 2 {
			require.NotZero(t, list[i])
			for range list[i] / blockSize {
				require.Equal(t, x.stateOf(initiator.Provisioning(states[at])), list[i+1], "block %d", at)
				at++
			}
		}
		if one {
			require.Len(t, list, 2)
		} else {
			require.Equal(t, first+n, at)
		}
	})
}

func TestFastZeroes(t *testing.T) {
	d := newRAM(1 << 20)
	x := export(d)
	for _, fast := range []bool{false, true} {
		x.ReadsZeros = fast
		v := newSession(t, d, x, Config{})
		_, e := v.do(CmdWriteZeroes, cmdFlagFastZero, 0, 4096, nil)
		if !fast {
			require.Equal(t, errnoInval, e, "the flag was not offered")
			continue
		}
		require.Zero(t, e)
		_, zeroed := d.taken()
		require.Equal(t, []bool{true}, zeroed)
		_, e = v.do(CmdWriteZeroes, cmdFlagFastZero|cmdFlagNoHole, 0, 4096, nil)
		require.Equal(t, errnoNotSup, e)
	}
}

func TestCache(t *testing.T) {
	d := newRAM(1 << 20)
	x := export(d)
	v := newSession(t, d, x, Config{})
	_, e := v.do(CmdCache, 0, 0, 4096, nil)
	require.Equal(t, errnoInval, e)
	x.Prefetch, x.ReadOnly = true, true
	v = newSession(t, d, x, Config{})
	_, e = v.do(CmdCache, 0, 0, 4096, nil)
	require.Zero(t, e)
	require.EqualValues(t, 1, d.fetched.Load())
	_, e = v.do(CmdCache, cmdFlagFUA, 0, 4096, nil)
	require.Equal(t, errnoInval, e)
}
