package store_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"goiwarp/iscsi/store"
)

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

func TestDiscardGivesSpaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 8<<20)
	require.NoError(t, err)
	defer s.Close()
	assert.Zero(t, allocated(t, path), "a new file is sparse")
	if s.Info().DiscardGranularity == 0 {
		t.Skip("this file system punches no holes")
	}
	_, err = s.WriteAt(bytes.Repeat([]byte{1}, 4<<20), 0)
	require.NoError(t, err)
	require.NoError(t, s.Flush())
	before := allocated(t, path)
	require.NoError(t, s.Discard(1<<20, 2<<20))
	assert.LessOrEqual(t, allocated(t, path), before-2<<20)
	mapped, n, err := s.Extent(1<<20, 7<<20)
	require.NoError(t, err)
	assert.False(t, mapped)
	assert.EqualValues(t, 2<<20, n)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 8<<20, fi.Size())
}

// Another process cannot open what this one has.
func TestLockAgainstOtherProcess(t *testing.T) {
	if path := os.Getenv("STORE_LOCK_CHILD"); path != "" {
		_, err := store.OpenFile(path, store.FileOptions{})
		assert.ErrorIs(t, err, store.ErrLocked)
		return
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 4096)
	require.NoError(t, err)
	defer s.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestLockAgainstOtherProcess$")
	child.Env = append(os.Environ(), "STORE_LOCK_CHILD="+path)
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A virtual machine monitor's lock counts, too.
func TestLockAgainstRecordLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 1}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	_, err = store.OpenFile(path, store.FileOptions{})
	assert.ErrorIs(t, err, store.ErrLocked)
}

// A full file system is an error that says so, and what was there before can be read.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	s, err := store.CreateFile(filepath.Join(dir, "disk.img"), 8<<20)
	require.NoError(t, err)
	defer s.Close()
	data := bytes.Repeat([]byte{3}, 256<<10)
	off := int64(0)
	for err == nil && off < 8<<20 {
		if _, err = s.WriteAt(data, off); err == nil {
			off += int64(len(data))
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.ErrorIs(t, s.WriteFUA(data, off), syscall.ENOSPC)
	assert.NoError(t, s.Flush(), "a write that was refused breaks no flush")
	got := make([]byte, len(data))
	_, err = s.ReadAt(got, 0)
	require.NoError(t, err)
	assert.Equal(t, data, got)
	require.NoError(t, s.Discard(0, off))
	_, err = s.WriteAt(data, 0)
	assert.NoError(t, err, "space that was given back can be used")
}

// loopDevice gives the path of a block device over a file, if this machine lets us have one.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backing")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, size))
	out, err := exec.Command("losetup", "--find", "--show", path).Output()
	if err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	dev := string(bytes.TrimSpace(out))
	t.Cleanup(func() { assert.NoError(t, exec.Command("losetup", "--detach", dev).Run()) })
	return dev
}

func TestBlockDevice(t *testing.T) {
	dev := loopDevice(t, 4<<20)
	s, err := store.OpenFile(dev, store.FileOptions{})
	require.NoError(t, err)
	defer s.Close()
	assert.EqualValues(t, 4<<20, s.Size())
	assert.Equal(t, "block", s.Info().Kind)
	_, err = store.OpenFile(dev, store.FileOptions{})
	assert.ErrorIs(t, err, store.ErrLocked)
	data := bytes.Repeat([]byte{9}, 128<<10)
	_, err = s.WriteAt(data, 0)
	require.NoError(t, err)
	require.NoError(t, s.WriteFUA(data, 128<<10))
	require.NoError(t, s.Discard(64<<10, 64<<10))
	require.NoError(t, s.WriteZeroes(128<<10, 64<<10))
	require.NoError(t, s.Flush())
	want := bytes.Clone(append(append(append(bytes.Clone(data[:64<<10]), make([]byte, 64<<10)...), make([]byte, 64<<10)...), data[:64<<10]...))
	got := make([]byte, len(want))
	_, err = s.ReadAt(got, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got))
	assert.Error(t, s.Resize(8<<20))
}
