package nbd

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestReadsWhatWasWritten(t *testing.T) {
	for _, n := range []int{512, 4096, smallPiece, smallPiece + 512, largePiece, largePiece + 512, 3*largePiece + 1024, 4 << 20} {
		v := newSession(t, newRAM(8<<20), export(newRAM(8<<20)), Config{})
		b := random(n, uint64(n))
		_, e := v.do(CmdWrite, 0, 1024, uint32(n), b)
		require.Zero(t, e)
		require.Equal(t, b, v.d.at(1024, n), "%d octets", n)
		got, e := v.do(CmdRead, 0, 1024, uint32(n), nil)
		require.Zero(t, e)
		require.True(t, bytes.Equal(b, got), "%d octets", n)
		v.send(CmdDisconnect, 0, 0, 0, 0, nil)
		require.NoError(t, v.end())
	}
}

// TestRepliesComeInTheOrderOfTheDisk: requests sent as one write, answered last first.
func TestRepliesComeInTheOrderOfTheDisk(t *testing.T) {
	d := newRAM(1 << 20)
	d.hold = true
	v := newSession(t, d, export(d), Config{})
	var b []byte
	const n = 40
	for i := range uint64(n) {
		b = appendRequest(b, CmdWrite, 0, i, i*4096, 4096, bytes.Repeat([]byte{byte(i)}, 4096))
	}
	_, err := v.c.Write(b)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.waiting() == n }, waitFor, tick)
	go d.release()
	for i := range uint64(n) {
		cookie, e := v.reply()
		require.Zero(t, e)
		require.Equal(t, n-1-i, cookie)
	}
	for i := range n {
		require.Equal(t, byte(i), d.at(i*4096+4095, 1)[0])
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		cmd    Command
		flags  uint16
		off    uint64
		n      uint32
		change func(*Export)
		want   Errno
	}{
		"read past the end":       {cmd: CmdRead, off: 1 << 20, n: 512, want: errnoInval},
		"write past the end":      {cmd: CmdWrite, off: 1<<20 - 512, n: 1024, want: errnoNoSpace},
		"offset that wraps":       {cmd: CmdRead, off: 1<<64 - 512, n: 1024, want: errnoInval},
		"half a block":            {cmd: CmdRead, off: 0, n: 256, want: errnoInval},
		"write of half a block":   {cmd: CmdWrite, off: 256, n: 512, want: errnoInval},
		"no octets":               {cmd: CmdRead, want: errnoInval},
		"unknown command":         {cmd: 99, n: 512, want: errnoInval},
		"unknown flag":            {cmd: CmdWrite, flags: 1 << 9, n: 512, want: errnoInval},
		"longer than the maximum": {cmd: CmdRead, n: MaxRequest + 512, want: errnoInval, change: func(x *Export) { x.Size = 1 << 40 }},
		"write protected":         {cmd: CmdWrite, n: 512, want: errnoPerm, change: func(x *Export) { x.ReadOnly = true }},
		"zeroes, write protected": {cmd: CmdWriteZeroes, n: 512, want: errnoPerm, change: func(x *Export) { x.ReadOnly = true }},
		"trim of a thick disk":    {cmd: CmdTrim, n: 512, want: errnoNotSup, change: func(x *Export) { x.Unmap, x.UnmapSame = false, false }},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRAM(1 << 20)
			x := export(d)
			if c.change != nil {
				c.change(&x)
			}
			v := newSession(t, d, x, Config{})
			var payload []byte
			if c.cmd == CmdWrite {
				payload = make([]byte, c.n)
			}
			_, e := v.do(c.cmd, c.flags, c.off, c.n, payload)
			require.Equal(t, c.want, e)
			got, e := v.do(CmdRead, 0, 0, 512, nil) // it goes on, at the next request's first octet
			require.Zero(t, e)
			require.Equal(t, make([]byte, 512), got)
		})
	}
}

func TestErrorsOfTheDisk(t *testing.T) {
	sense := func(k scsi.Key, c scsi.Code) error {
		return &scsi.Error{Status: scsi.StatusCheckCondition, HasSense: true, Sense: scsi.Sense{Key: k, Code: c}}
	}
	for _, c := range []struct {
		err  error
		want Errno
	}{
		{sense(scsi.KeyDataProtect, scsi.CodeSpaceAllocationFailed), errnoNoSpace},
		{sense(scsi.KeyDataProtect, scsi.CodeWriteProtected), errnoPerm},
		{sense(scsi.KeyMediumError, 0x1100), errnoIO},
		{sense(scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCDB), errnoInval},
		{sense(scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange), errnoNoSpace},
		{&initiator.PathError{Cause: io.EOF}, errnoIO},
		{initiator.ErrClosed, errnoShutdown},
	} {
		d := newRAM(1 << 20)
		d.err = c.err
		v := newSession(t, d, export(d), Config{})
		_, e := v.do(CmdWrite, 0, 0, 512, make([]byte, 512))
		require.Equal(t, c.want, e, "%v", c.err)
		require.EqualValues(t, 1, v.s.Stats().Failed)
	}
}

// TestForceUnitAccess: by the bit where the disk knows it, else by a flush behind the write.
func TestForceUnitAccess(t *testing.T) {
	for _, fua := range []bool{true, false} {
		d := newRAM(1 << 20)
		x := export(d)
		x.FUA = fua
		v := newSession(t, d, x, Config{})
		_, e := v.do(CmdWrite, cmdFlagFUA, 0, 512, make([]byte, 512))
		require.Zero(t, e)
		require.Equal(t, fua, d.fua.Load() == 1)
		require.Equal(t, !fua, d.flushes.Load() == 1)
		_, e = v.do(CmdFlush, 0, 0, 0, nil)
		require.Zero(t, e)
	}
}

func TestTrimAndZeroes(t *testing.T) {
	d := newRAM(1 << 20)
	v := newSession(t, d, export(d), Config{})
	_, e := v.do(CmdTrim, 0, 4096, 8192, nil)
	require.Zero(t, e)
	unmapped, _ := d.taken()
	require.Equal(t, []scsi.Extent{{LBA: 8, Blocks: 16}}, unmapped)
	_, e = v.do(CmdWrite, 0, 0, 4096, random(4096, 1))
	require.Zero(t, e)
	_, e = v.do(CmdWriteZeroes, cmdFlagFUA, 0, 2048, nil)
	require.Zero(t, e)
	_, e = v.do(CmdWriteZeroes, cmdFlagNoHole, 2048, 2048, nil)
	require.Zero(t, e)
	_, zeroed := d.taken()
	require.Equal(t, []bool{true, false}, zeroed)
	require.Equal(t, make([]byte, 4096), d.at(0, 4096))
	require.EqualValues(t, 1, d.flushes.Load())
}

// TestDrain: what was taken when the server is told to stop is answered, and what was not is not.
func TestDrain(t *testing.T) {
	d := newRAM(1 << 20)
	d.hold = true
	v := newSession(t, d, export(d), Config{})
	v.send(CmdWrite, 0, 3, 0, 512, make([]byte, 512))
	v.send(CmdWrite, 0, 4, 512, 512, make([]byte, 100)) // the rest never comes
	require.Eventually(t, func() bool { return d.waiting() == 1 }, waitFor, tick)
	v.stop()
	d.release()
	cookie, e := v.reply()
	require.Zero(t, e)
	require.EqualValues(t, 3, cookie)
	_, err := v.c.Read(make([]byte, 1))
	require.Error(t, err) // the end, or a reset for what was sent and not read
	require.NoError(t, v.end())
}

// TestAbandon: no answer at all, rather than a wrong one.
func TestAbandon(t *testing.T) {
	d := newRAM(1 << 20)
	d.hold = true
	v := newSession(t, d, export(d), Config{})
	v.send(CmdRead, 0, 3, 0, 512, nil)
	require.Eventually(t, func() bool { return d.waiting() == 1 }, waitFor, tick)
	v.s.Abandon()
	d.err = initiator.ErrClosed
	d.release()
	b, _ := io.ReadAll(v.c)
	require.Empty(t, b)
	require.ErrorIs(t, v.end(), net.ErrClosed)
}

// TestSlowClient: one that takes no replies holds up nobody who completes commands, and memory stays within bounds.
func TestSlowClient(t *testing.T) {
	d := newRAM(8 << 20)
	v := newSession(t, d, export(d), Config{Memory: 1 << 20, Depth: 8})
	go func() {
		for i := range uint64(64) {
			if _, err := v.c.Write(appendRequest(nil, CmdRead, 0, i, 0, 512<<10, nil)); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return v.s.Stats().Read >= 1<<20 }, waitFor, tick)
	require.LessOrEqual(t, d.lent.Load(), int32(8+4))
	for range 64 {
		_, e := v.reply()
		require.Zero(t, e)
		_, err := io.CopyN(io.Discard, v.c, 512<<10)
		require.NoError(t, err)
	}
}

func TestWhatEndsAConnection(t *testing.T) {
	for name, b := range map[string][]byte{
		"no magic":            make([]byte, requestLen),
		"a huge payload":      appendRequest(nil, CmdWrite, 0, 1, 0, 1<<32-1, nil),
		"cut within a header": appendRequest(nil, CmdRead, 0, 1, 0, 512, nil)[:20],
		"cut within payload":  appendRequest(nil, CmdWrite, 0, 1, 0, 512, make([]byte, 100)),
	} {
		t.Run(name, func(t *testing.T) {
			d := newRAM(1 << 20)
			v := newSession(t, d, export(d), Config{})
			_, err := v.c.Write(b)
			require.NoError(t, err)
			require.NoError(t, v.c.(*net.UnixConn).CloseWrite())
			err = v.end()
			var pe *ProtocolError
			require.True(t, errors.As(err, &pe) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
			require.Equal(t, make([]byte, 1<<20), d.at(0, 1<<20))
		})
	}
}

func TestResize(t *testing.T) {
	d := newRAM(1 << 20)
	x := export(d)
	x.Size = 1 << 19
	v := newSession(t, d, x, Config{})
	_, e := v.do(CmdRead, 0, 1<<19, 512, nil)
	require.Equal(t, errnoInval, e)
	require.NoError(t, v.s.Resize(1<<20))
	require.Error(t, v.s.Resize(1000))
	_, e = v.do(CmdRead, 0, 1<<19, 512, nil)
	require.Zero(t, e)
}

// TestShortCommands: a disk that moves little by one command, and less than asked.
func TestShortCommands(t *testing.T) {
	d := newRAM(1 << 20)
	x := export(d)
	x.MaxTransfer = 4096
	v := newSession(t, d, x, Config{Memory: 1 << 20})
	b := random(100*512, 5)
	_, e := v.do(CmdWrite, 0, 0, uint32(len(b)), b)
	require.Zero(t, e)
	got, e := v.do(CmdRead, 0, 0, uint32(len(b)), nil)
	require.Zero(t, e)
	require.True(t, bytes.Equal(b, got))
}

func TestPreparedMemoryIsUsedAgain(t *testing.T) {
	d := newRAM(1 << 20)
	s, err := New(d, export(d), Config{Prepare: 1, Depth: 4, Memory: 1 << 20})
	require.NoError(t, err)
	require.EqualValues(t, 4+4, d.lent.Load())
	for range 3 {
		near, far := pair(t, "tcp")
		done := make(chan error, 1)
		go func() { done <- s.Transmit(t.Context(), far) }()
		c := &client{t, near}
		_, e := c.do(CmdRead, 0, 0, 1<<20, nil)
		require.Zero(t, e)
		c.send(CmdDisconnect, 0, 0, 0, 0, nil)
		require.NoError(t, <-done)
		require.NoError(t, near.Close())
		require.EqualValues(t, 4+4, d.lent.Load())
	}
	s.Close()
	require.Zero(t, d.lent.Load())
}
