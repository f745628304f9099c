package nbd

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
	"goiwarp/iscsi/initiator"
)

// FuzzTransmission: whatever a client sends, the connection ends, all memory comes back, and blocks that no write names stay as they are.
func FuzzTransmission(f *testing.F) {
	f.Add(appendRequest(appendRequest(nil, CmdWrite, 0, 1, 0, 512, make([]byte, 512)), CmdRead, 0, 2, 0, 1024, nil))
	f.Add(appendRequest(appendRequest(nil, CmdTrim, 1, 1, 0, 1<<20, nil), CmdWriteZeroes, 3, 2, 512, 512, nil))
	f.Add(appendRequest(nil, CmdFlush, 0, 1, 0, 0, nil))
	f.Add(appendRequest(nil, CmdWrite, 0, 1, 1<<63, 1<<31, nil))
	f.Add(appendRequest(appendRequest(nil, CmdBlockStatus, cmdFlagReqOne, 1, 0, 1024, nil), CmdCache, 0, 2, 0, 512, nil))
	f.Add(appendRequest(appendRequest(nil, CmdRead, cmdFlagDF, 1, 1<<40, 512, nil), CmdWriteZeroes, cmdFlagFastZero, 2, 0, 512, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		survive(t, b, nil, func(x *transmission) { _ = x.run(t.Context()) })
	})
}

// FuzzVisits: the same of what visits do, as far as they go.
func FuzzVisits(f *testing.F) {
	f.Add(appendRequest(appendRequest(nil, CmdWrite, 0, 1, 0, 4096, make([]byte, 4096)), CmdRead, 0, 2, 0, 1024, nil))
	f.Add(appendRequest(appendRequest(nil, CmdFlush, 0, 1, 0, 0, nil), CmdWrite, 0, 2, 0, 16<<10, make([]byte, 16<<10)))
	f.Add(appendRequest(appendRequest(nil, CmdTrim, 0, 1, 0, 512, nil), CmdDisconnect, 0, 2, 0, 0, nil)[:50])
	poller := sock.NewPoller(time.Hour)
	f.Fuzz(func(t *testing.T, b []byte) {
		survive(t, b, poller, func(x *transmission) {
			for more := x.guest != nil; more; {
				if _, more = x.Visit(); more {
					runtime.Gosched()
				}
			}
			_ = x.run(t.Context())
		})
	})
}

// survive serves a client that sends b.
func survive(t *testing.T, b []byte, poller *sock.Poller, serve func(*transmission)) {
	d := newRAM(64 << 10)
	d.holes = []initiator.BlockStatus{{Blocks: 1, State: initiator.Deallocated}, {LBA: 1, Blocks: 127}}
	x := export(d)
	x.Map, x.ReadsZeros, x.Prefetch = true, true, true
	s, err := New(d, x, Config{Depth: 4, Memory: largePiece, Poller: poller})
	require.NoError(t, err)
	near, far := pair(t, "unix")
	go func() {
		_, _ = near.Write(b)
		_ = near.(*net.UnixConn).CloseWrite()
	}()
	drained := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, near)
		_ = near.Close()
		close(drained)
	}()
	p, err := s.pool()
	require.NoError(t, err)
	serve(newTransmission(s, far, p, agreement{structured: len(b)%2 == 0, allocation: len(b)%4 == 0}))
	<-drained
	require.LessOrEqual(t, d.lent.Load(), int32(4+1))
	p.release()
	s.Close()
	require.Zero(t, d.lent.Load())
	if !bytes.Contains(b, []byte{0x25, 0x60, 0x95, 0x13}) {
		require.Equal(t, make([]byte, 64<<10), d.at(0, 64<<10))
	}
}

// TestSteadyStateAllocatesNothing: reads, writes with FUA and flushes, whose memory is there.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	round := steady(t)
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n > 0 && !raceEnabled {
		t.Errorf("%v allocations a round", n)
	}
}

// steady is a session's round of requests.
func steady(t *testing.T) (round func()) {
	d := newRAM(1 << 20)
	v := newSession(t, d, export(d), Config{})
	ask := appendRequest(nil, CmdWrite, cmdFlagFUA, 1, 4096, 4096, make([]byte, 4096))
	ask = appendRequest(ask, CmdRead, 0, 2, 4096, 64<<10, nil)
	ask = appendRequest(ask, CmdFlush, 0, 3, 0, 0, nil)
	answer := make([]byte, 3*simpleReplyLen+64<<10)
	return func() {
		if _, err := v.c.Write(ask); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(v.c, answer); err != nil {
			t.Error(err)
		}
	}
}
