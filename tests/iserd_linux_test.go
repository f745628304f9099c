package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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

// TestSpaceThreshold: initiators and the operator are told before a thin disk's file system is full, and can ask how much is left.
func TestSpaceThreshold(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	s := serve(t, oneTarget(fmt.Sprintf("[[target.lun]]\nstore = %q\nsize = \"64MiB\"\nthreshold = \"4MiB\"\n", filepath.Join(dir, "disk.img"))))
	l, other := attach(t, s.Addr, targetName, "a").LUN(0), attach(t, s.Addr, targetName, "b").LUN(0) // a write may take its own attention
	ctx := context.Background()
	sets := func() (available, used uint32) {
		in := make([]byte, 64)
		for {
			_, err := l.Do(ctx, scsi.CDB{scsi.OpLogSense, 2: 0x40 | scsi.LogPageProvisioning, 8: 64}.Append(nil), in, nil)
			var e *scsi.Error
			if errors.As(err, &e) && e.UnitAttention() {
				continue
			}
			require.NoError(t, err)
			break
		}
		return binary.BigEndian.Uint32(in[8:]), binary.BigEndian.Uint32(in[20:])
	}
	available, used := sets()
	require.Equal(t, []uint32{8, 0}, []uint32{available, used})
	_, err := l.WriteAt(bytes.Repeat([]byte{1}, 5<<20), 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := other.Do(ctx, scsi.TestUnitReady().Append(nil), nil, nil)
		return errors.Is(err, scsi.CodeThresholdReached.Err())
	}, bound, 10*time.Millisecond)
	available, used = sets()
	require.Equal(t, []uint32{3, 5}, []uint32{available, used})
}
