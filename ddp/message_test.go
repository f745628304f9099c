package ddp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSegmentation cuts messages of all kinds for all kinds of paths (RFC 5041, section 5.2).
func TestSegmentation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint32Range(0, 5000).Draw(t, "total")
		mulpdu := rapid.IntRange(128, 1500).Draw(t, "mulpdu")
		isTagged := rapid.Bool().Draw(t, "tagged")
		to := rapid.Uint64().Draw(t, "to")
		var m Outgoing
		if isTagged {
			m.StartTagged(TaggedFields{ULP: 0x40, STag: 7, TO: to, Last: true}, total)
		} else {
			m.StartUntagged(UntaggedFields{ULP: 0x43, ULPWord: 9, QN: 1, MSN: 5, MO: 77, Last: true}, total)
		}
		var off uint32
		for i := 0; !m.Ended(); i++ {
			head, n := m.Next(mulpdu)
			assert.LessOrEqual(t, len(head)+n, mulpdu)
			last := off+uint32(n) == total
			assert.Equal(t, last, m.Ended())
			if !last {
				assert.Equal(t, mulpdu, len(head)+n, "only the last segment is short")
			}
			if isTagged {
				assert.Equal(t, TaggedFields{ULP: 0x40, STag: 7, TO: to + uint64(off), Last: last}, Tagged(head).Fields())
			} else {
				assert.Equal(t, UntaggedFields{ULP: 0x43, ULPWord: 9, QN: 1, MSN: 5, MO: off, Last: last}, Untagged(head).Fields())
			}
			off += uint32(n)
			assert.Equal(t, off, m.Sent())
		}
		assert.Equal(t, total, off)
	})
}

func TestZeroLengthIsOneSegment(t *testing.T) { // RFC 5041, section 5.2
	var m Outgoing
	m.StartTagged(TaggedFields{}, 0)
	head, n := m.Next(128)
	assert.Zero(t, n)
	assert.True(t, Tagged(head).Last())
	assert.True(t, m.Ended())
}

// TestCoverModel compares the account of a message's octets with a plain set of them.
func TestCoverModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Cover
		have := map[uint64]bool{}
		length, known := uint64(0), false
		for range rapid.IntRange(1, 40).Draw(t, "segments") {
			from := rapid.Uint64Range(0, 60).Draw(t, "from")
			to := from + rapid.Uint64Range(0, 12).Draw(t, "n")
			last := rapid.IntRange(0, 9).Draw(t, "last") == 0
			top := uint64(0)
			for o := range have {
				top = max(top, o+1)
			}
			contradicts := last && (known && to != length || top > to) || !last && known && to > length
			before := c
			if !c.Add(from, to, last) {
				if !contradicts {
					require.EqualValues(t, maxGaps, before.n, "refused without need")
				}
				return
			}
			require.False(t, contradicts && from != to, "segments contradict each other")
			for o := from; o < to; o++ {
				have[o] = true
			}
			if last {
				length, known = to, true
			}
			next := uint64(0)
			for have[next] {
				next++
			}
			require.Equal(t, next, c.Next())
			require.Equal(t, known && next >= length, c.Complete())
		}
	})
}

func TestQueueChecks(t *testing.T) { // RFC 5041, section 7.1
	head := func(msn, mo uint32, last bool) Untagged {
		b := make([]byte, UntaggedLen)
		Untagged(b).Encode(&UntaggedFields{MSN: msn, MO: mo, Last: last})
		return b
	}
	code := func(e *Error) string {
		if e == nil {
			return "ok"
		}
		return fmt.Sprintf("%v %d", e.Type, e.Code)
	}
	q := NewQueue()
	assert.Equal(t, "ok", code(q.CheckMSN(head(1, 0, true))))
	assert.Equal(t, "untagged 3", code(q.CheckMSN(head(0, 0, true))))
	assert.Equal(t, "untagged 3", code(q.CheckMSN(head(2, 0, true))))
	for _, c := range []struct {
		mo, n, size int
		want        string
	}{
		{0, 0, 0, "ok"},
		{0, 10, 10, "ok"},
		{10, 0, 10, "ok"},
		{4, 6, 10, "ok"},
		{0, 11, 10, "untagged 5"},
		{4, 7, 10, "untagged 5"},
		{0, 1, 0, "untagged 5"},
		{11, 0, 10, "untagged 4"},
		{11, 1, 10, "untagged 4"},
		{10, 1, 10, "untagged 4"},
		{1<<32 - 1, 1, 10, "untagged 4"},
	} {
		assert.Equal(t, c.want, code(q.CheckMO(head(1, uint32(c.mo), false), c.n, c.size)), "%+v", c)
	}

	// A message in two segments, the second first.
	assert.Nil(t, q.Add(head(1, 6, true), 4))
	_, ok := q.Complete()
	assert.False(t, ok)
	assert.True(t, q.Open())
	assert.Nil(t, q.Add(head(1, 0, false), 6))
	n, ok := q.Complete()
	assert.True(t, ok)
	assert.Equal(t, 10, n)
	q.Deliver()
	assert.False(t, q.Open())
	assert.EqualValues(t, 2, q.MSN())
	q.Skip(1<<32 - 1)
	assert.Nil(t, q.Add(head(1<<32-1, 0, true), 0))
	_, ok = q.Complete()
	assert.True(t, ok, "no octet is a message, too")
	q.Deliver()
	assert.Zero(t, q.MSN())
}

// source is a buffered segment.
type source []byte

func (s source) CopyTo(off int, dst []byte) int { return copy(dst, s[off:]) }

// TestScatterAndGather moves octets through lists of elements, in pieces of any size.
func TestScatterAndGather(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := NewTable().NewDomain()
		mem := make([]byte, 400)
		r, err := d.Register(mem, 0, LocalWrite, 0)
		require.NoError(t, err)
		var segs []Seg
		total, at := 0, 0
		for i := range rapid.IntRange(1, 6).Draw(t, "elements") {
			n := rapid.IntRange(0, 50).Draw(t, "len")
			segs = append(segs, Seg{Region: r, Off: at + i, Len: n})
			at += n + i
			total += n
		}
		n, err := CheckSegs(d, segs, LocalWrite)
		require.NoError(t, err)
		require.EqualValues(t, total, n)
		want := make([]byte, total)
		for i := range want {
			want[i] = byte(i + 1)
		}
		var p Placement
		for off := 0; off < total; {
			n := rapid.IntRange(1, total-off).Draw(t, "segment")
			p.ToSegs(segs, off, n)
			if rapid.Bool().Draw(t, "whole") {
				require.NoError(t, p.Copy(source(want), off))
			} else { // in pieces, as a socket would
				for got := 0; got < n; {
					bufs, err := p.Acquire()
					require.NoError(t, err)
					room := 0
					for _, b := range bufs {
						room += len(b)
					}
					require.Equal(t, n-got, room)
					k := rapid.IntRange(0, n-got).Draw(t, "piece")
					left := want[off+got:][:k]
					for _, b := range bufs {
						left = left[copy(b, left):]
					}
					p.Release(k)
					got += k
				}
			}
			off += n
		}
		p.Done()
		var got []byte
		var c Cursor
		var l Loan
		c.Set(segs)
		for len(got) < total {
			n := rapid.IntRange(1, total-len(got)).Draw(t, "gather")
			require.NoError(t, l.Take(&c, n))
			for _, b := range l.Bufs {
				got = append(got, b...)
			}
			l.Return()
			c.Advance(n)
		}
		require.Equal(t, string(want), string(got))
		require.Error(t, l.Take(&c, 1), "beyond the list")
		r.Free()
		require.NoError(t, d.Close())
	})
}

func TestPlacementStopsAtInvalidation(t *testing.T) {
	d := NewTable().NewDomain()
	r, err := d.Register(make([]byte, 100), 0, RemoteWrite|LocalWrite, 0)
	require.NoError(t, err)
	var p Placement
	p.ToRegion(r, r.STag(), 10, 20)
	_, err = p.Acquire()
	require.NoError(t, err)
	p.Release(5)
	r.Invalidate()
	_, err = p.Acquire()
	assert.ErrorIs(t, err, &Error{Type: TaggedBuffer, Code: CodeInvalidSTag})
	assert.Equal(t, err, p.Fault())

	_, err = r.Bind(make([]byte, 100), 0, LocalWrite, 0)
	require.NoError(t, err)
	_, err = p.Acquire()
	assert.Error(t, err, "a new binding is not the old one")

	p.ToSegs([]Seg{{Region: r, Len: 10}}, 0, 10)
	r.Invalidate()
	assert.ErrorIs(t, p.Copy(source(make([]byte, 10)), 0), &Error{Type: LocalCatastrophic})
}
