package tests

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// TestFullDisk: a write for which there is no space ends with SPACE ALLOCATION FAILED WRITE PROTECT, and other logical units go on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	s := serve(t, oneTarget(fmt.Sprintf("[[target.lun]]\nstore = %q\nsize = \"1MiB\"\n[[target.lun]]\nstore = \"mem:1MiB\"\n", filepath.Join(dir, "disk.img"))))
	a := attach(t, s.Addr, targetName, "a")
	var err error
	for off := int64(0); off < 1<<20 && err == nil; off += 64 << 10 {
		_, err = a.LUN(0).WriteAt(bytes.Repeat([]byte{1}, 64<<10), off)
	}
	require.ErrorIs(t, err, scsi.CodeSpaceAllocationFailed.Err())
	_, err = a.LUN(1).WriteAt(make([]byte, 512), 0)
	require.NoError(t, err)
	works(t, a, 0)
}
