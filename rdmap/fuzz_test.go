package rdmap

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// FuzzTerminate reads any Terminate Header; what it makes of it can be written and read again.
func FuzzTerminate(f *testing.F) {
	for _, s := range []string{
		"1001 0700 0000 4141 0000 0000 0000 0001 0000 1000 0000 0000 0000 0700 0000 0000 0000 0040 0000 1000 c4e0 eb00 0000 55fd 1f3a f370",
		"1100 c000 000e c140 00de ad00 0000 0000 0000 0000", "0202 0000", "2106 0000", "12",
	} {
		f.Add(unhex(f, s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, started bool) {
		m, err := ParseTerminate(b, started)
		if err != nil {
			assert.Less(t, len(b), termControl)
			return
		}
		m2, err := ParseTerminate(m.Append(nil), started)
		require.NoError(t, err)
		if m2.Swapped { // without header bits an implausible combination may read the other way round
			return
		}
		m.Swapped = false
		assert.Equal(t, m, m2)
		e := &TerminateError{Layer: m.Layer, Type: m.Type, Code: m.Code, Remote: true, Message: *m}
		assert.NotContains(t, e.Error(), "\n")
	})
}

// FuzzHeaders reads RDMAP's own headers of any octets and writes them again.
func FuzzHeaders(f *testing.F) {
	f.Add(make([]byte, AtomicRequestLen))
	f.Add(unhex(f, "0011 1100 0000 0000 0000 0040 0000 0010 00de ad00 0000 0000 0000 0080"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= ReadRequestLen {
			v := ReadRequest(b).Fields()
			out := make([]byte, ReadRequestLen)
			ReadRequest(out).Encode(&v)
			assert.Equal(t, b[:ReadRequestLen], out)
		}
		if len(b) >= AtomicRequestLen {
			v := AtomicRequest(b).Fields()
			out := make([]byte, AtomicRequestLen)
			AtomicRequest(out).Encode(&v)
			assert.Equal(t, b[4:AtomicRequestLen], out[4:])
			assert.Equal(t, b[3]&atomicOpMask, out[3])
		}
		if len(b) >= AtomicResponseLen {
			out := make([]byte, AtomicResponseLen)
			AtomicResponse(out).Encode(AtomicResponse(b).ID(), AtomicResponse(b).Original())
			assert.Equal(t, b[:AtomicResponseLen], out)
		}
	})
}

// fuzzSTag in a ULPDU stands for the region that the peer may reach.
const (
	fuzzSTag = 0x00abcd01
	fuzzMem  = 16 << 10
)

// FuzzInbound feeds a stream with any ULPDUs, each behind its length in two octets. It may not panic,
// hang, leave a receive behind or touch memory that it was not allowed to.
func FuzzInbound(f *testing.F) {
	join := func(us ...[]byte) []byte {
		var b []byte
		for _, u := range us {
			b = binary.BigEndian.AppendUint16(b, uint16(len(u)))
			b = append(b, u...)
		}
		return b
	}
	f.Add(join(untagged(true, OpSend, 0, 0, 1, 0, []byte("hello")), tagged(true, OpWrite, fuzzSTag, 10, []byte("world"))), false)
	f.Add(join(readRequest(1, ReadRequestFields{SinkSTag: 7, Size: 100, SourceSTag: fuzzSTag}), untagged(true, OpSend, 0, 0, 1, 0, nil)), true)
	f.Add(join(atomicRequest(1, AtomicFields{STag: fuzzSTag, Data: 1}), untagged(true, OpImmediate, 0, 0, 1, 0, make([]byte, 8))), true)
	f.Add(join(untagged(false, OpSend, 0, 0, 1, 4, []byte("abcd")), untagged(true, OpSend, 0, 0, 1, 0, []byte("abcd"))), false)
	f.Add(join(untagged(true, OpSendInvalidate, fuzzSTag, 0, 1, 0, []byte("x")), tagged(true, OpWrite, fuzzSTag, 0, []byte("y"))), false)
	f.Add(join(tagged(true, OpWrite, 1, 0, nil), tagged(true, OpReadResponse, fuzzSTag, 0, repeat('r', 64)), untagged(true, OpAtomicResponse, 0, 3, 1, 0, []byte{11: 1})), true)
	f.Add(join(untagged(true, OpTerminate, 0, 2, 1, 0, []byte{0x11, 0, 0xc0, 0})), false)
	f.Fuzz(func(t *testing.T, in []byte, plain bool) {
		synctest.Test(t, func(t *testing.T) {
			var opts mpa.Options
			if plain {
				opts.CRC = mpa.Off
			}
			ca, cb := memLink(t, 16<<10, 1460, opts)
			r, s := &raw{t, ca}, newSide(t, cb, Config{Role: Responder, IRD: 2, ORD: 2}, ddp.LocalWrite, fuzzMem)
			copy(s.mem, bytes.Repeat([]byte("keep out"), fuzzMem/8))
			before := append([]byte(nil), s.mem...)
			s.expect(4096, 256, 4)
			w, err := s.domain.Register(s.mem[8192:8192+4096], 0, allRights, 0)
			require.NoError(t, err)
			stag := w.STag()
			require.NoError(t, s.Post(chain(
				&Op{Code: Read, Segs: []Seg{{Region: w, Len: 64}}, RemoteSTag: 1},
				&Op{Code: FetchAdd, RemoteSTag: 1},
			)))
			s.run()
			go func() { // takes all answers
				for r.next() != nil {
				}
			}()
			for n := 0; len(in) >= 2 && n < 64; n++ {
				u := in[2:]
				u = u[:min(int(binary.BigEndian.Uint16(in)), len(u), 8192)]
				in = in[2+len(u):]
				u = bytes.ReplaceAll(u, []byte{0, 0xab, 0xcd, 1}, binary.BigEndian.AppendUint32(nil, uint32(stag)))
				r.send(u)
			}
			_ = r.c.CloseWrite()
			<-s.rec.over
			_, done := s.rec.snapshot()
			require.Len(t, done, 2)
			s.rec.mu.Lock()
			taken := 4 - len(s.rec.receives)
			s.rec.mu.Unlock()
			msgs, _ := s.rec.snapshot()
			require.Len(t, msgs, taken)
			for _, m := range [][2]int{{0, 4096}, {4096 + 4*256, 8192}, {8192 + 4096, fuzzMem}} {
				require.True(t, bytes.Equal(before[m[0]:m[1]], s.mem[m[0]:m[1]]), "memory out of reach was changed")
			}
			r.c.Close()
		})
	})
}
