package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/store"
)

// Run is the suite that every store passes. open gives a new store of that many octets that reads
// as zeros; the suite closes it. A store that keeps nothing (Info.Kind "null") is held to the rest
// of the contract.
func Run(t *testing.T, open func(t *testing.T, size int64) store.Store) {
	t.Run("range", func(t *testing.T) { testRange(t, open(t, 1<<20)) })
	t.Run("size", func(t *testing.T) { testSize(t, open(t, 100_001)) })
	t.Run("zeros", func(t *testing.T) { testZeros(t, open(t, 1<<20)) })
	t.Run("closed", func(t *testing.T) { testClosed(t, open(t, 1<<20)) })
	t.Run("parallel", func(t *testing.T) { testParallel(t, open(t, 4<<20)) })
	t.Run("extents", func(t *testing.T) { testExtents(t, open(t, 4<<20)) })
	t.Run("resize", func(t *testing.T) { testResize(t, open(t, 256<<10)) })
	t.Run("model", func(t *testing.T) { testModel(t, open) })
}

func keeps(s store.Store) bool { return s.Info().Kind != "null" }

// finish closes a store and checks that it can be.
func finish(t *testing.T, s store.Store) {
	t.Helper()
	require.NoError(t, s.Close())
}

func testRange(t *testing.T, s store.Store) {
	defer finish(t, s)
	size := s.Size()
	for _, r := range []struct{ off, n int64 }{
		{-1, 1}, {-1, 0}, {size, 1}, {size - 1, 2}, {size + 1, 0}, {math.MaxInt64, 1}, {math.MaxInt64 - 511, 512}, {math.MinInt64, 1},
	} {
		name := fmt.Sprintf("%d+%d", r.off, r.n)
		p := bytes.Repeat([]byte{0xa5}, int(r.n))
		_, err := s.ReadAt(p, r.off)
		assert.ErrorIs(t, err, store.ErrRange, "read %s", name)
		assert.Equal(t, bytes.Repeat([]byte{0xa5}, int(r.n)), p, "a refused read touches nothing: %s", name)
		_, err = s.WriteAt(p, r.off)
		assert.ErrorIs(t, err, store.ErrRange, "write %s", name)
		if f, ok := s.(store.FUAWriter); ok {
			assertRange(t, f.WriteFUA(p, r.off), "write-fua "+name)
		}
		if d, ok := s.(store.Discarder); ok {
			assertRange(t, d.Discard(r.off, r.n), "discard "+name)
		}
		if z, ok := s.(store.Zeroer); ok {
			assertRange(t, z.WriteZeroes(r.off, r.n), "zero "+name)
		}
		if m, ok := s.(store.Mapper); ok {
			_, _, err := m.Extent(r.off, r.n)
			assertRange(t, err, "extent "+name)
		}
	}
	got := make([]byte, 1)
	_, err := s.ReadAt(got, size-1)
	require.NoError(t, err)
	assert.Zero(t, got[0], "refused writes touch nothing")
	for _, off := range []int64{0, size} {
		n, err := s.ReadAt(nil, off)
		assert.NoError(t, err, "an empty read at %d", off)
		assert.Zero(t, n)
		_, err = s.WriteAt(nil, off)
		assert.NoError(t, err, "an empty write at %d", off)
	}
}

func assertRange(t *testing.T, err error, what string) {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) {
		assert.ErrorIs(t, err, store.ErrRange, what)
	}
}

func testSize(t *testing.T, s store.Store) {
	defer finish(t, s)
	assert.EqualValues(t, 100_001, s.Size(), "any size is kept to the octet")
	_, err := s.WriteAt([]byte{1}, 100_000)
	assert.NoError(t, err)
	info := s.Info()
	assert.NotEmpty(t, info.Kind)
	assert.NotEmpty(t, info.Name)
	assert.Positive(t, info.Align)
	assert.False(t, info.ReadOnly)
	assert.Equal(t, info, s.Info())
}

func testZeros(t *testing.T, s store.Store) {
	defer finish(t, s)
	p := bytes.Repeat([]byte{0xff}, 70_000)
	n, err := s.ReadAt(p, 12_345)
	require.NoError(t, err)
	assert.Equal(t, len(p), n)
	assert.Equal(t, make([]byte, len(p)), p, "what was never written is zeros")
}

func testClosed(t *testing.T, s store.Store) {
	require.NoError(t, s.Close())
	p := make([]byte, 512)
	_, err := s.ReadAt(p, 0)
	assert.ErrorIs(t, err, store.ErrClosed)
	_, err = s.WriteAt(p, 0)
	assert.ErrorIs(t, err, store.ErrClosed)
	assert.ErrorIs(t, s.Flush(), store.ErrClosed)
	assert.ErrorIs(t, s.Close(), store.ErrClosed)
}

// testParallel lets many goroutines write their own blocks, neighbours in the same page, and read
// them back.
func testParallel(t *testing.T, s store.Store) {
	defer finish(t, s)
	const workers, block, rounds = 8, 512, 64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			p, got := bytes.Repeat([]byte{byte(w + 1)}, block), make([]byte, block)
			for i := range rounds {
				off := int64((i*workers + w) * block)
				if _, err := s.WriteAt(p, off); !assert.NoError(t, err) {
					return
				}
				if i%16 == 0 {
					assert.NoError(t, s.Flush())
				}
				if d, ok := s.(store.Discarder); ok && i > 0 && i%4 == 0 {
					old := int64(((i-1)*workers + w) * block)
					if err := d.Discard(old, block); !errors.Is(err, errors.ErrUnsupported) {
						assert.NoError(t, err)
					}
				}
				_, err := s.ReadAt(got, off)
				assert.NoError(t, err)
				if keeps(s) {
					assert.Equal(t, p, got)
				}
			}
		})
	}
	wg.Wait()
}

func testExtents(t *testing.T, s store.Store) {
	defer finish(t, s)
	m, ok := s.(store.Mapper)
	if !ok {
		t.Skip("no Mapper")
	}
	data := bytes.Repeat([]byte{7}, 64<<10)
	_, err := s.WriteAt(data, 1<<20)
	require.NoError(t, err)
	for off, steps := int64(0), 0; off < s.Size(); steps++ {
		mapped, n, err := m.Extent(off, s.Size()-off)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip("no Mapper under the filter")
		}
		require.NoError(t, err)
		require.Positive(t, n)
		require.LessOrEqual(t, off+n, s.Size())
		require.Less(t, steps, 1000)
		if !mapped && keeps(s) {
			assert.False(t, off < 1<<20+64<<10 && 1<<20 < off+n, "data lies in the hole %d+%d", off, n)
		}
		off += n
	}
	_, n, err := m.Extent(1<<20, 512)
	require.NoError(t, err)
	assert.EqualValues(t, 512, n, "an extent ends where it was asked to")
}

func testResize(t *testing.T, s store.Store) {
	defer finish(t, s)
	r, ok := s.(store.Resizer)
	if !ok {
		t.Skip("no Resizer")
	}
	data := bytes.Repeat([]byte{9}, 256<<10)
	_, err := s.WriteAt(data, 0)
	require.NoError(t, err)
	if err := r.Resize(512 << 10); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no Resizer under the filter")
	}
	require.EqualValues(t, 512<<10, s.Size())
	got := make([]byte, 512<<10)
	_, err = s.ReadAt(got, 0)
	require.NoError(t, err)
	if keeps(s) {
		assert.Equal(t, data, got[:256<<10])
	}
	assert.Equal(t, make([]byte, 256<<10), got[256<<10:], "what was gained is zeros")
	require.NoError(t, r.Resize(100_000))
	_, err = s.ReadAt(make([]byte, 1), 100_000)
	assert.ErrorIs(t, err, store.ErrRange)
	require.NoError(t, r.Resize(256<<10))
	_, err = s.ReadAt(got[:256<<10], 0)
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 256<<10-100_000), got[100_000:256<<10], "what was cut off does not come back")
	assert.Error(t, r.Resize(0))
	assert.Error(t, r.Resize(-1))
}

// testModel drives a store and an array of octets with the same operations and compares them.
func testModel(t *testing.T, open func(t *testing.T, size int64) store.Store) {
	const size = 140_000 // some pages and a part of one
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t, size)
		defer func() {
			if err := s.Close(); err != nil {
				rt.Fatalf("close: %v", err)
			}
		}()
		model := make([]byte, size)
		seed := byte(0)
		// A real disk takes its time to make things durable.
		sometimes := func(rt *rapid.T) bool { return rapid.IntRange(0, 3).Draw(rt, "one in four") == 0 }
		span := func(rt *rapid.T) (off, n int64) {
			off = rapid.Int64Range(0, size).Draw(rt, "off")
			return off, rapid.Int64Range(0, size-off).Draw(rt, "n")
		}
		fill := func(off, n int64) []byte {
			seed++
			p := model[off : off+n]
			for i := range p {
				p[i] = byte(i)*3 + seed | 1
			}
			return p
		}
		ok := func(rt *rapid.T, err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		optional := func(rt *rapid.T, off, n int64, err error) {
			if errors.Is(err, errors.ErrUnsupported) {
				return
			}
			ok(rt, err)
			clear(model[off : off+n])
		}
		compare := func(rt *rapid.T, off, n int64) {
			got := make([]byte, n)
			_, err := s.ReadAt(got, off)
			ok(rt, err)
			if want := model[off : off+n]; keeps(s) && !bytes.Equal(got, want) {
				for i := range got {
					if got[i] != want[i] {
						rt.Fatalf("octet %d is %#02x, must be %#02x", off+int64(i), got[i], want[i])
					}
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				off, n := span(rt)
				_, err := s.WriteAt(fill(off, n), off)
				ok(rt, err)
			},
			"fua": func(rt *rapid.T) {
				off, n := span(rt)
				if f, is := s.(store.FUAWriter); is && sometimes(rt) {
					old := bytes.Clone(model)
					err := f.WriteFUA(fill(off, n), off)
					if errors.Is(err, errors.ErrUnsupported) {
						copy(model, old)
						return
					}
					ok(rt, err)
				}
			},
			"discard": func(rt *rapid.T) {
				off, n := span(rt)
				if d, is := s.(store.Discarder); is {
					optional(rt, off, n, d.Discard(off, n))
				}
			},
			"zero": func(rt *rapid.T) {
				off, n := span(rt)
				if z, is := s.(store.Zeroer); is {
					optional(rt, off, n, z.WriteZeroes(off, n))
				}
			},
			"flush": func(rt *rapid.T) {
				if sometimes(rt) {
					ok(rt, s.Flush())
				}
			},
			"read": func(rt *rapid.T) {
				off, n := span(rt)
				compare(rt, off, n)
			},
		})
		compare(rt, 0, size)
	})
}
