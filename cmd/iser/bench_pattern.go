package main

import (
	"encoding/binary"
	"fmt"
)

// fillPattern fills p with what belongs at octet off of a disk: each 8 octets depend on where they are and on the seed, so
// that data at a wrong place, or of another run, is as wrong as data that was spoilt. off and the length of p are multiples of 8.
func fillPattern(p []byte, off int64, seed uint64) {
	x := uint64(off)/8 + splitMix(seed)
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], splitMix(x*0x9e3779b97f4a7c15))
		x++
	}
}

// checkPattern finds the first octet of p that fillPattern would have made otherwise.
func checkPattern(p []byte, off int64, seed uint64) error {
	x := uint64(off)/8 + splitMix(seed)
	for i := 0; i+8 <= len(p); i += 8 {
		want := splitMix(x * 0x9e3779b97f4a7c15)
		x++
		if binary.LittleEndian.Uint64(p[i:]) == want {
			continue
		}
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], want)
		k := 0
		for p[i+k] == w[k] {
			k++
		}
		return &patternError{off: off + int64(i+k), have: p[i+k], want: w[k]}
	}
	return nil
}

// patternError is an octet that is not what was written.
type patternError struct {
	off        int64
	have, want byte
}

func (e *patternError) Error() string {
	return fmt.Sprintf("octet %d is %02xh, and %02xh was written there", e.off, e.have, e.want)
}

// bitmap notes which commands' blocks were written.
type bitmap []uint64

func newBitmap(n int64) bitmap { return make(bitmap, (n+63)/64) }

func (b bitmap) set(i int64)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) has(i int64) bool { return b[i/64]&(1<<(i%64)) != 0 }

// next is the first that is set from i on, below n; n if there is none.
func (b bitmap) next(i, n int64) int64 {
	for i < n && !b.has(i) {
		if b[i/64] == 0 {
			i = i/64*64 + 63
		}
		i++
	}
	return min(i, n)
}
