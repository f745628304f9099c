package tests

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// TestSanitizeOutlivesCrash: a disk that was being sanitized when its daemon was killed serves nothing of what it held, before and after
// the operation is done (SBC-4, section 4.11).
func TestSanitizeOutlivesCrash(t *testing.T) {
	image := filepath.Join(t.TempDir(), "disk.img")
	const size = 4 << 20
	require.NoError(t, os.WriteFile(image, bytes.Repeat([]byte("secret. "), size/8), 0o600))
	slow := []string{"--lun", image + ",bw=32KiB"} // two minutes
	d := startDaemon(t, slow...)
	h := d.login(t, "a", 1)
	block := make([]byte, 512)
	require.Equal(t, scsi.StatusGood, h.do(scsi.Read(0, 1, 0), block, nil))
	c := scsi.CDB{scsi.OpSanitize, 0x80 | scsi.SASanitizeOverwrite, 8: 5} // IMMED
	require.Equal(t, scsi.StatusGood, h.do(c, nil, []byte{1, 0, 0, 1, 0xa5}))
	require.NoError(t, d.cmd.Process.Kill())
	<-d.done
	fi, err := os.Stat(image + ".sanitize")
	require.NoError(t, err)
	require.EqualValues(t, 0o600, fi.Mode().Perm())

	inProgress := func(h *host) bool {
		_, err := h.lu.Do(context.Background(), scsi.Read(0, 1, 0).Append(nil), block, nil)
		var e *scsi.Error
		return errors.As(err, &e) && e.Sense.Key == scsi.KeyNotReady && e.Sense.Code == scsi.CodeSanitizeInProgress
	}
	d = startDaemon(t, slow...)
	h = d.login(t, "a", 1)
	h.do(scsi.RequestSense(18), make([]byte, 18), nil)
	require.Eventually(t, func() bool { return inProgress(h) }, time.Minute, 10*time.Millisecond, "after the unit attention")
	require.Zero(t, d.stop(t), "does not wait for its end")
	_, err = os.Stat(image + ".sanitize")
	require.NoError(t, err)

	d = startDaemon(t, "--lun", image)
	h = d.login(t, "a", 1)
	require.Eventually(t, func() bool { return h.do(scsi.TestUnitReady(), nil, nil) == scsi.StatusGood }, bound, 10*time.Millisecond)
	data := make([]byte, size/4)
	for lba := uint64(0); lba < size/512; lba += size / 4 / 512 {
		require.Equal(t, scsi.StatusGood, h.do(scsi.Read(lba, size/4/512, 0), data, nil))
		require.Equal(t, bytes.Repeat([]byte{0xa5}, len(data)), data)
	}
	_, err = os.Stat(image + ".sanitize")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Zero(t, d.stop(t))
}
