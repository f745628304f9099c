package scsi_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// lines are what was logged since the last call, without the time.
func lines(b *bytes.Buffer) []string {
	s := strings.TrimSuffix(b.String(), "\n")
	b.Reset()
	if s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

// logTo logs what iserd does by default.
func logTo(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// A store's errors are logged: the first of each kind at once, then one in ten seconds that tells how
// many there were.
func TestStoreErrorsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		fail := storetest.Fail(memory(t, 1<<20), nil)
		r := newRig(t, fail, scsi.LUConfig{Identity: "iqn.2026-11.com.example:disk,0", Log: logTo(&log)})
		write := func() { r.do(scsi.Write(8, 4, 0), make([]byte, 2048), 0) }
		read := func() { r.do(scsi.Read(16, 4, 0), nil, 2048) }

		write()
		read()
		assert.Empty(t, lines(&log), "nothing is said of what is good")

		fail.Always(storetest.Write, syscall.EIO)
		for range 1000 {
			write()
		}
		const first = `level=WARN msg="store failed" lun=iqn.2026-11.com.example:disk,0 store=memory op=WRITE(10) lba=8 error="input/output error"`
		assert.Equal(t, []string{first}, lines(&log))
		fail.Always(storetest.Write, syscall.ENOSPC)
		write()
		got := lines(&log)
		require.Len(t, got, 1, "another kind has a line of its own")
		assert.Contains(t, got[0], `error="no space left on device"`)
		fail.Always(storetest.Read, syscall.EIO)
		read()
		got = lines(&log)
		require.Len(t, got, 1)
		assert.Contains(t, got[0], "op=READ(10) lba=16")

		fail.Always(storetest.Write, syscall.EIO)
		time.Sleep(10*time.Second - 1)
		write()
		assert.Empty(t, lines(&log))
		time.Sleep(time.Nanosecond)
		write()
		assert.Equal(t, []string{first + " suppressed=1000"}, lines(&log))
		time.Sleep(time.Hour)
		write()
		assert.Equal(t, []string{first}, lines(&log), "counted from the last line on")
	})
}

// An error of a command that was aborted is still the disk's; the abort itself is none.
func TestErrorsOfAbortedCommandsAreLogged(t *testing.T) {
	var log bytes.Buffer
	slow := storetest.Delay(storetest.Fail(memory(t, 1<<20), func(op storetest.Op) error {
		if op.Kind == storetest.Write {
			return syscall.EIO
		}
		return nil
	}))
	r := newRig(t, slow, scsi.LUConfig{Log: logTo(&log)})
	cdb := scsi.Write(8, 1, 0)
	ctx, cancel := context.WithCancel(t.Context())
	slow.Hold(storetest.Write)
	done := make(chan scsi.Result)
	go func() {
		done <- r.lu.Execute(ctx, r.nexus, cdb[:], &wire{out: make([]byte, 512), chunk: 4096})
	}()
	<-slow.Arrived()
	cancel()
	slow.Release()
	assert.ErrorIs(t, (<-done).Err, context.Canceled)
	assert.Len(t, lines(&log), 1)
	res := r.lu.Execute(ctx, r.nexus, cdb[:], &wire{out: make([]byte, 512), chunk: 4096})
	assert.ErrorIs(t, res.Err, context.Canceled)
	assert.Empty(t, lines(&log))
}

// A read that fails at once but is good in blocks ends well; the operator of such a disk is told.
func TestRepeatedReadIsLogged(t *testing.T) {
	var log bytes.Buffer
	fail := storetest.Fail(memory(t, 1<<20), nil)
	r := newRig(t, fail, scsi.LUConfig{Log: logTo(&log)})
	fail.Next(storetest.Read, syscall.EIO)
	r.do(scsi.Read(16, 4, 0), nil, 2048).good(t)
	got := lines(&log)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "good when repeated")
	assert.Contains(t, got[0], "lba=16")
}

// A failed flush has its one line, and the writes that it refuses have none.
func TestFailedFlushIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	fail := storetest.Fail(storetest.Forget(memory(t, 1<<20)), nil)
	r := newRig(t, fail, scsi.LUConfig{Log: logTo(&log)})
	fail.Always(storetest.Flush, errors.Join(store.ErrFlush, syscall.EIO))
	for range 3 {
		r.do(scsi.SynchronizeCache(0, 0), nil, 0).fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
		r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
	}
	got := lines(&log)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "level=ERROR")
}

// A file that somebody cuts short under the logical unit is a medium error to reads and writes, is told
// to the operator, and is not made longer again.
func TestFileCutShort(t *testing.T) {
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 1<<20)
	require.NoError(t, err)
	defer s.Close()
	r := newRig(t, s, scsi.LUConfig{Log: logTo(&log)})
	require.NoError(t, os.Truncate(path, 10*512))
	r.do(scsi.Read(0, 10, 0), nil, 10*512).good(t)
	require.Empty(t, lines(&log))
	a := r.do(scsi.Read(0, 64, 0), nil, 64*512)
	a.fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	assert.EqualValues(t, 10, a.sense.Info)
	a = r.do(scsi.Write(100, 8, 0), make([]byte, 8*512), 0)
	a.fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
	assert.EqualValues(t, 100, a.sense.Info)
	r.do(scsi.Write(0, 10, 0), make([]byte, 10*512), 0).good(t)
	got := lines(&log)
	require.Len(t, got, 2)
	for _, line := range got {
		assert.Contains(t, line, "became shorter")
		assert.Contains(t, line, "octets 5120 to 1048575 are lost")
	}
	fi, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 10*512, fi.Size())

	require.NoError(t, os.Truncate(path, 0))
	assert.False(t, r.lu.Refresh(), "a disk has a block at least")
	assert.EqualValues(t, 2048, r.lu.Capacity())
	require.Len(t, lines(&log), 1)
}
