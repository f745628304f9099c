package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/store"
)

const (
	wholeSize = 1 << 20
	cutSize   = 10_000 // within a page
)

// cutFile is a store full of ones whose file somebody else has cut to cutSize.
func cutFile(t *testing.T) (s *store.File, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, wholeSize)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	_, err = s.WriteAt(bytes.Repeat([]byte{1}, wholeSize), 0)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, cutSize))
	return s, path
}

// accesses are all that touch a range.
var accesses = []struct {
	name string
	do   func(s *store.File, off, n int64) error
}{
	{"read", func(s *store.File, off, n int64) error { _, err := s.ReadAt(make([]byte, n), off); return err }},
	{"write", func(s *store.File, off, n int64) error { _, err := s.WriteAt(make([]byte, n), off); return err }},
	{"write through", func(s *store.File, off, n int64) error { return s.WriteFUA(make([]byte, n), off) }},
	{"discard", func(s *store.File, off, n int64) error { return s.Discard(off, n) }},
	{"write zeroes", func(s *store.File, off, n int64) error { return s.WriteZeroes(off, n) }},
	{"extent", func(s *store.File, off, n int64) error { _, _, err := s.Extent(off, n); return err }},
}

// Whatever touches the lost range first fails, is told why, and leaves the file as short as it is; what
// was not lost is there.
func TestFileCutShort(t *testing.T) {
	for _, a := range accesses {
		t.Run(a.name, func(t *testing.T) {
			for _, at := range []struct{ off, n int64 }{
				{cutSize - 1, 2}, {cutSize, 1}, {0, wholeSize}, {wholeSize / 2, 4096}, {wholeSize - 1, 1},
			} {
				s, path := cutFile(t)
				err := a.do(s, at.off, at.n)
				require.ErrorIs(t, err, store.ErrShrunk, at)
				assert.ErrorIs(t, err, syscall.EIO)
				assert.NotErrorIs(t, err, store.ErrRange)
				assert.ErrorContains(t, err, path)
				fi, err := os.Stat(path)
				require.NoError(t, err)
				assert.EqualValues(t, cutSize, fi.Size(), "never grown again")
				got := make([]byte, cutSize)
				_, err = s.ReadAt(got, 0)
				require.NoError(t, err)
				assert.Equal(t, bytes.Repeat([]byte{1}, cutSize), got)
				require.NoError(t, a.do(s, 0, cutSize), "what is left can be used")
				require.NoError(t, s.Flush())
			}
		})
	}
}

// A loss that any access has met is remembered when the file is made longer again: its zeros are not
// data. What the file gains beyond its old size is not lost.
func TestFileCutShortAndGrownAgain(t *testing.T) {
	for _, a := range accesses {
		if a.name == "read" { // a read within the file meets no end
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			s, path := cutFile(t)
			require.NoError(t, a.do(s, 0, 512), "before the cut, and it sees the end")
			require.NoError(t, os.Truncate(path, 2*wholeSize))
			for _, b := range accesses {
				assert.ErrorIs(t, b.do(s, cutSize, 512), store.ErrShrunk, b.name)
			}
			assert.EqualValues(t, 2*wholeSize, s.Size())
			for _, b := range accesses {
				assert.ErrorIs(t, b.do(s, wholeSize-512, 1024), store.ErrShrunk, b.name)
				assert.NoError(t, b.do(s, wholeSize, wholeSize), b.name)
				assert.NoError(t, b.do(s, 0, cutSize), b.name)
			}
		})
	}
}

// A shorter size that the store has taken over gives the rest up, and nothing is missed when the file
// grows after that.
func TestFileSizeGivesLostRangeUp(t *testing.T) {
	s, path := cutFile(t)
	_, err := s.WriteAt([]byte{1}, cutSize)
	require.ErrorIs(t, err, store.ErrShrunk)
	require.NoError(t, os.Truncate(path, 2*cutSize))
	assert.EqualValues(t, 2*cutSize, s.Size())
	_, err = s.WriteAt([]byte{1}, 2*cutSize-1)
	assert.ErrorIs(t, err, store.ErrShrunk, "lost as before")
	_, err = s.WriteAt([]byte{1}, 2*cutSize)
	assert.ErrorIs(t, err, store.ErrRange)

	require.NoError(t, os.Truncate(path, cutSize))
	assert.EqualValues(t, cutSize, s.Size())
	require.NoError(t, os.Truncate(path, wholeSize))
	assert.EqualValues(t, wholeSize, s.Size())
	for _, a := range accesses {
		assert.NoError(t, a.do(s, 0, wholeSize), a.name)
	}
}

// Resize makes the file longer on purpose; what was lost before it stays lost, unless it is cut off.
func TestResizeOfFileCutShort(t *testing.T) {
	s, _ := cutFile(t)
	require.NoError(t, s.Resize(2*wholeSize))
	_, err := s.ReadAt(make([]byte, 512), cutSize)
	assert.ErrorIs(t, err, store.ErrShrunk)
	_, err = s.ReadAt(make([]byte, 512), wholeSize)
	assert.NoError(t, err)
	require.NoError(t, s.Resize(cutSize))
	require.NoError(t, s.Resize(wholeSize))
	_, err = s.ReadAt(make([]byte, wholeSize), 0)
	assert.NoError(t, err)
}

// A write that runs while Resize makes the file shorter does not make it longer again.
func TestResizeAgainstWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, wholeSize)
	require.NoError(t, err)
	defer s.Close()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for range 200 {
				if _, err := s.WriteAt(make([]byte, 512), wholeSize-512*int64(i+1)); err != nil {
					assert.ErrorIs(t, err, store.ErrRange)
				}
			}
		})
	}
	for range 20 {
		require.NoError(t, s.Resize(4096))
		fi, err := os.Stat(path)
		require.NoError(t, err)
		assert.EqualValues(t, 4096, fi.Size())
		require.NoError(t, s.Resize(wholeSize))
	}
	writers.Wait()
}

func TestFileMadeLonger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, wholeSize)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, os.Truncate(path, 2*wholeSize))
	_, err = s.WriteAt([]byte{1}, wholeSize)
	assert.ErrorIs(t, err, store.ErrRange, "not before it was looked at")
	assert.EqualValues(t, 2*wholeSize, s.Size())
	_, err = s.WriteAt([]byte{1}, 2*wholeSize-1)
	assert.NoError(t, err)
}

func BenchmarkFileWrite(b *testing.B) {
	s, err := store.CreateFile(filepath.Join(b.TempDir(), "disk.img"), wholeSize)
	require.NoError(b, err)
	defer s.Close()
	p := make([]byte, 4096)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.WriteAt(p, 0); err != nil {
			b.Fatal(err)
		}
	}
}
