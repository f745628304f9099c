package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) store.Store {
		s, err := store.NewMemory(size)
		require.NoError(t, err)
		return s
	})
}

func TestNull(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) store.Store {
		s, err := store.NewNull(size)
		require.NoError(t, err)
		return s
	})
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	storetest.Run(t, func(t *testing.T, size int64) store.Store {
		path := filepath.Join(dir, "disk.img")
		os.Remove(path)
		s, err := store.CreateFile(path, size)
		require.NoError(t, err)
		return s
	})
}

func TestSizesThatAreNone(t *testing.T) {
	for _, size := range []int64{0, -1} {
		_, err := store.NewMemory(size)
		assert.Error(t, err)
		_, err = store.NewNull(size)
		assert.Error(t, err)
		path := filepath.Join(t.TempDir(), "disk.img")
		_, err = store.CreateFile(path, size)
		assert.Error(t, err)
		assert.NoFileExists(t, path)
	}
}

// A memory store takes memory for what was written, not for its size.
func TestMemoryIsSparse(t *testing.T) {
	s, err := store.NewMemory(1 << 50)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.WriteAt([]byte("end"), 1<<50-3)
	require.NoError(t, err)
	mapped, n, err := s.Extent(0, 1<<50)
	require.NoError(t, err)
	assert.False(t, mapped)
	assert.EqualValues(t, 1<<50-64<<10, n)
	require.NoError(t, s.Discard(0, 1<<50))
	mapped, n, err = s.Extent(0, 1<<50)
	require.NoError(t, err)
	assert.False(t, mapped)
	assert.EqualValues(t, 1<<50, n)
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	mem, err := store.NewMemory(1 << 20)
	require.NoError(t, err)
	defer mem.Close()
	null, err := store.NewNull(1 << 20)
	require.NoError(t, err)
	defer null.Close()
	file, err := store.CreateFile(filepath.Join(t.TempDir(), "disk.img"), 1<<20)
	require.NoError(t, err)
	defer file.Close()
	p := make([]byte, 128<<10)
	for _, s := range []store.Store{mem, null, file} {
		_, err := s.WriteAt(p, 4096) // takes the pages
		require.NoError(t, err)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := s.WriteAt(p, 4096); err != nil {
				t.Fatal(err)
			}
			if _, err := s.ReadAt(p, 4096); err != nil {
				t.Fatal(err)
			}
		}), s.Info().Kind)
	}
	assert.Zero(t, testing.AllocsPerRun(5, func() {
		if err := file.WriteFUA(p, 4096); err != nil {
			t.Fatal(err)
		}
		if err := file.Flush(); err != nil {
			t.Fatal(err)
		}
	}))
}

func TestFileLastsOverReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 1<<20)
	require.NoError(t, err)
	data := bytes.Repeat([]byte("durable!"), 512)
	require.NoError(t, s.WriteFUA(data, 8192))
	require.NoError(t, s.Close())
	s, err = store.OpenFile(path, store.FileOptions{})
	require.NoError(t, err)
	defer s.Close()
	got := make([]byte, len(data))
	_, err = s.ReadAt(got, 8192)
	require.NoError(t, err)
	assert.Equal(t, data, got)
}

func TestFileIsNeverOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := store.CreateFile(path, 1<<20)
	require.ErrorIs(t, err, os.ErrExist)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(got))
}

func TestFileIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 1<<20)
	require.NoError(t, err)
	for _, ro := range []bool{false, true} {
		_, err = store.OpenFile(path, store.FileOptions{ReadOnly: ro})
		assert.ErrorIs(t, err, store.ErrLocked)
	}
	link := filepath.Join(filepath.Dir(path), "other name")
	require.NoError(t, os.Link(path, link))
	_, err = store.OpenFile(link, store.FileOptions{})
	assert.ErrorIs(t, err, store.ErrLocked, "by another name it is the same file")
	require.NoError(t, s.Close())

	r1, err := store.OpenFile(path, store.FileOptions{ReadOnly: true})
	require.NoError(t, err)
	r2, err := store.OpenFile(path, store.FileOptions{ReadOnly: true})
	require.NoError(t, err, "readers share")
	_, err = store.OpenFile(path, store.FileOptions{})
	assert.ErrorIs(t, err, store.ErrLocked)
	require.NoError(t, r1.Close())
	require.NoError(t, r2.Close())
	s, err = store.OpenFile(path, store.FileOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestFileReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{5}, 4096), 0o400))
	s, err := store.OpenFile(path, store.FileOptions{ReadOnly: true})
	require.NoError(t, err)
	defer s.Close()
	assert.True(t, s.Info().ReadOnly)
	assert.Zero(t, s.Info().DiscardGranularity)
	p := make([]byte, 512)
	_, err = s.ReadAt(p, 512)
	require.NoError(t, err)
	assert.Equal(t, bytes.Repeat([]byte{5}, 512), p)
	_, err = s.WriteAt(p, 0)
	assert.ErrorIs(t, err, store.ErrReadOnly)
	assert.ErrorIs(t, s.WriteFUA(p, 0), store.ErrReadOnly)
	assert.ErrorIs(t, s.Discard(0, 512), store.ErrReadOnly)
	assert.ErrorIs(t, s.WriteZeroes(0, 512), store.ErrReadOnly)
	assert.ErrorIs(t, s.Resize(1<<20), store.ErrReadOnly)
	assert.NoError(t, s.Flush())
}

func TestFileOfAnotherKind(t *testing.T) {
	_, err := store.OpenFile(t.TempDir(), store.FileOptions{})
	assert.ErrorContains(t, err, "neither a regular file nor a block device")
	_, err = store.OpenFile(filepath.Join(t.TempDir(), "missing"), store.FileOptions{})
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = store.OpenFile(os.DevNull, store.FileOptions{})
	assert.ErrorContains(t, err, "neither a regular file nor a block device")
}

func TestFilters(t *testing.T) {
	memory := func(t *testing.T, size int64) store.Store {
		s, err := store.NewMemory(size)
		require.NoError(t, err)
		return s
	}
	for name, wrap := range map[string]func(store.Store) store.Store{
		"delay":  func(s store.Store) store.Store { return storetest.Delay(s) },
		"fail":   func(s store.Store) store.Store { return storetest.Fail(s, nil) },
		"log":    func(s store.Store) store.Store { return storetest.Log(s, nil) },
		"forget": func(s store.Store) store.Store { return storetest.Forget(s) },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T, size int64) store.Store { return wrap(memory(t, size)) })
		})
	}
}

func TestForgetLosesWhatWasNotFlushed(t *testing.T) {
	under, err := store.NewMemory(4096)
	require.NoError(t, err)
	s := storetest.Forget(under)
	defer s.Close()
	read := func() string {
		p := make([]byte, 5)
		_, err := s.ReadAt(p, 0)
		require.NoError(t, err)
		return string(p)
	}
	write := func(off int64, text string) {
		_, err := s.WriteAt([]byte(text), off)
		require.NoError(t, err)
	}
	write(0, "aaaaa")
	require.NoError(t, s.Flush())
	write(0, "b")
	require.NoError(t, s.WriteFUA([]byte("c"), 1))
	write(2, "d")
	write(3, "e")
	assert.Equal(t, "bcdea", read())
	assert.Equal(t, 3, s.Unflushed())
	require.NoError(t, s.Crash(func(op storetest.Op) bool { return op.Off == 3 }))
	assert.Equal(t, "acaea", read(), "flushed, written through, and what the cache happened to write back")
}

func TestFailAndDelay(t *testing.T) {
	under, err := store.NewMemory(4096)
	require.NoError(t, err)
	f := storetest.Fail(under, nil)
	d := storetest.Delay(f)
	defer d.Close()
	f.Next(storetest.Write, syscall.ENOSPC)
	_, err = d.WriteAt([]byte("x"), 0)
	assert.ErrorIs(t, err, syscall.ENOSPC)
	_, err = d.WriteAt([]byte("x"), 0)
	assert.NoError(t, err)

	d.Hold(storetest.Flush)
	done := make(chan error)
	go func() { done <- d.Flush() }()
	assert.Equal(t, storetest.Op{Kind: storetest.Flush}, <-d.Arrived())
	_, err = d.WriteAt([]byte("y"), 0)
	assert.NoError(t, err, "only flushes are held")
	d.Step()
	assert.NoError(t, <-done)
	go func() { done <- d.Flush() }()
	<-d.Arrived()
	d.Release()
	assert.NoError(t, <-done)
	assert.NoError(t, d.Flush())
}
