package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// loopDevice gives a block device over a file, which fails with EIO where the file fails it.
func loopDevice(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("losetup", "--find", "--show", path).Output()
	if err != nil {
		t.Skipf("no loop devices, which need root: %v", err)
	}
	dev := string(bytes.TrimSpace(out))
	t.Cleanup(func() { assert.NoError(t, exec.Command("losetup", "--detach", dev).Run()) })
	return dev
}

// raw runs one command, again after a unit attention, and gives its error.
func raw(t *testing.T, l *initiator.LUN, cdb scsi.CDB, in, out []byte) error {
	t.Helper()
	for {
		_, err := l.Do(context.Background(), cdb.Append(nil), in, out)
		var e *scsi.Error
		if errors.As(err, &e) && e.UnitAttention() {
			continue
		}
		return err
	}
}

// TestReadFailure: blocks that a device cannot read are MEDIUM ERROR with the first one's address at the initiator, which gets what is before
// it. The daemon, the rest of the disk and the other disks go on.
func TestReadFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backing")
	const size, good = 8 << 20, 4 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	dev := loopDevice(t, path)
	s := serve(t, oneTarget(fmt.Sprintf("[[target.lun]]\nstore = %q\n[[target.lun]]\nstore = \"mem:1MiB\"\n", dev)))
	a, b := attach(t, s.Addr, targetName, "a"), attach(t, s.Addr, targetName, "b")
	require.NoError(t, os.Truncate(path, good)) // the device's second half is gone

	const first = good / 512
	for _, lba := range []uint64{first - 8, first - 1024} {
		in := make([]byte, 2048*512)
		err := raw(t, a.LUN(0), scsi.Read(lba, 2048, 0), in, nil)
		var e *scsi.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, scsi.Sense{Key: scsi.KeyMediumError, Code: scsi.CodeUnrecoveredRead, Info: first, InfoValid: true}, e.Sense)
		before := (first - lba) * 512
		require.True(t, bytes.Equal(data[:before], in[:before]), "what is good came")
	}
	var e *scsi.Error
	require.ErrorAs(t, raw(t, a.LUN(0), scsi.Verify(first+100, 8, scsi.VerifyMedium), nil, nil), &e)
	require.Equal(t, scsi.Sense{Key: scsi.KeyMediumError, Code: scsi.CodeUnrecoveredRead, Info: first + 100, InfoValid: true}, e.Sense)
	in := make([]byte, 4096)
	require.NoError(t, raw(t, b.LUN(0), scsi.Read(0, 8, 0), in, nil))
	require.Equal(t, data[:4096], in)
	works(t, b, 1)
	log := make([]byte, 64)
	require.NoError(t, raw(t, b.LUN(0), scsi.CDB{scsi.OpLogSense, 2: 0x40 | scsi.LogPageReadErrors, 8: 64}, log, nil))
	require.Equal(t, []byte{0, 6, 2, 8, 0, 0, 0, 0, 0, 0, 0, 2}, log[28:40], "two uncorrected errors")
}

// TestWriteFailure: data that a device cannot write is MEDIUM ERROR with the command that has to make it durable. What was lost is not known,
// so that the disk takes no more writes, and says so; other disks do.
func TestWriteFailure(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(small, syscall.MNT_DETACH)) })
	path := filepath.Join(small, "backing")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 8<<20))
	dev := loopDevice(t, path)
	s := serve(t, oneTarget(fmt.Sprintf("[[target.lun]]\nstore = %q\n[[target.lun]]\nstore = \"mem:1MiB\"\n", dev)))
	a, b := attach(t, s.Addr, targetName, "a"), attach(t, s.Addr, targetName, "b")
	block := bytes.Repeat([]byte{7}, 1<<20)
	var err error
	for lba := uint64(0); lba < 8<<20/512 && err == nil; lba += 2048 {
		err = raw(t, a.LUN(0), scsi.Write(lba, 2048, scsi.FUA), nil, block)
	}
	var e *scsi.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, scsi.KeyMediumError, e.Sense.Key, e)
	require.Equal(t, scsi.CodeWriteError, e.Sense.Code)
	require.ErrorIs(t, raw(t, b.LUN(0), scsi.Write(0, 1, 0), nil, block[:512]), scsi.CodeWriteProtected.Err())
	require.ErrorIs(t, raw(t, b.LUN(0), scsi.SynchronizeCache(0, 0), nil, nil), scsi.CodeWriteError.Err(), "never again as if nothing had been")
	works(t, b, 1)
	require.NoError(t, raw(t, b.LUN(1), scsi.Write(0, 2048, scsi.FUA), nil, block))
}
