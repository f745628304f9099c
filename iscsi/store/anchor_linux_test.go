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

// ext4 mounts a small file system of its own, if this machine lets us have one.
func ext4(t *testing.T, size int64) string {
	t.Helper()
	dev := loopDevice(t, size)
	if out, err := exec.Command("mkfs.ext4", "-q", "-O", "^has_journal", dev).CombinedOutput(); err != nil {
		t.Skipf("no ext4: %v: %s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "ext4")
	require.NoError(t, os.Mkdir(dir, 0o700))
	if err := unix.Mount(dev, dir, "ext4", 0, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// Anchored ranges read as zeros, are told of as anchored until they are written, and have space when there is none left.
func TestAnchor(t *testing.T) {
	dir := ext4(t, 16<<20)
	path := filepath.Join(dir, "disk.img")
	s, err := store.CreateFile(path, 64<<20)
	require.NoError(t, err)
	defer s.Close()
	require.True(t, s.Info().Anchors, "ext4 has unwritten extents")
	assert.Zero(t, allocated(t, path), "to find that out leaves nothing behind")
	status := func(off, most int64) (store.Provision, int64) {
		t.Helper()
		p, n, err := s.Provisioned(off, most)
		require.NoError(t, err)
		return p, n
	}
	is := func(off, most int64, want store.Provision, length int64) {
		t.Helper()
		p, n := status(off, most)
		assert.Equal(t, want, p, off)
		assert.Equal(t, length, n, off)
	}
	const mib = 1 << 20
	is(0, 64*mib, store.Deallocated, 64*mib)
	data := bytes.Repeat([]byte{7}, mib)
	_, err = s.WriteAt(data, 0)
	require.NoError(t, err)
	is(0, mib, store.Mapped, mib)
	require.NoError(t, s.Flush())
	require.NoError(t, s.Anchor(mib/2, 4*mib))
	// What was data may be taken for some as long as it is in the page cache; it is never said to have no space.
	is(0, mib/2, store.Mapped, mib/2)
	p, _ := status(mib/2, mib/2)
	assert.NotEqual(t, store.Deallocated, p)
	is(mib, 8*mib, store.Anchored, 3*mib+mib/2)
	is(5*mib, mib, store.Deallocated, mib)
	got := make([]byte, mib)
	_, err = s.ReadAt(got, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(append(bytes.Repeat([]byte{7}, mib/2), make([]byte, mib/2)...), got))

	// Nothing else is left.
	fill := filepath.Join(dir, "fill")
	require.NoError(t, os.WriteFile(fill, nil, 0o600))
	f, err := os.OpenFile(fill, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer f.Close()
	for size := mib; size > 0; {
		if _, err := f.Write(data[:size]); err != nil {
			size /= 2
		}
	}
	_, err = s.WriteAt(data, 32*mib)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, s.Anchor(32*mib, 8*mib), syscall.ENOSPC)
	for off := int64(mib); off < 4*mib; off += mib {
		_, err = s.WriteAt(data, off)
		require.NoError(t, err, "it has its space")
	}
	require.NoError(t, s.Flush())
	is(mib, 3*mib, store.Mapped, 3*mib)

	require.ErrorIs(t, s.Anchor(63*mib, 2*mib), store.ErrRange)
	require.NoError(t, s.Anchor(0, 0))
}

// A file system that cannot tell what is anchored offers no anchoring.
func TestNoAnchor(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	s, err := store.CreateFile(filepath.Join(dir, "disk.img"), 1<<20)
	require.NoError(t, err)
	defer s.Close()
	assert.False(t, s.Info().Anchors)
	p, n, err := s.Provisioned(0, 1<<20)
	require.NoError(t, err)
	assert.Equal(t, store.Deallocated, p)
	assert.EqualValues(t, 1<<20, n)
}
