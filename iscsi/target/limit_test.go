package target

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// limited runs f against a server whose LUN 0 has limits, in virtual time, with all buckets full.
func limited(t *testing.T, iops, bandwidth int64, f func(t *testing.T, s *Server, p *peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil, memory(t, 16<<20), memory(t, 1<<20))
		p := connect(t, s).disk()
		require.NoError(t, s.all()[0].Device.LU(0).Limiter().Set(iops, bandwidth))
		time.Sleep(time.Second) // virtual: full buckets
		f(t, s, p)
		p.leave()
		require.NoError(t, s.Shutdown(context.Background()))
	})
}

// TestLimitIOPS: after what 100 ms bring, commands pass at their rate, in their order, and other logical units and commands that
// touch no medium do not wait.
func TestLimitIOPS(t *testing.T) {
	limited(t, 100, 0, func(t *testing.T, _ *Server, p *peer) {
		start := time.Now()
		var itts []uint32
		for range 60 {
			itts = append(itts, p.command(cmd{cdb: read10(0, 1), read: 512}))
		}
		inquiry := p.command(cmd{cdb: []byte{0x12, 0, 0, 0, 96, 0}, read: 96})
		other := p.command(cmd{lun: 1, cdb: read10(0, 1), read: 512})
		for range 10 {
			require.Equal(t, itts[0], p.response().ITT())
			itts = itts[1:]
		}
		require.Equal(t, inquiry, p.response().ITT())
		require.Equal(t, other, p.response().ITT())
		require.Zero(t, time.Since(start))
		for _, itt := range itts {
			h := p.response()
			require.Equal(t, itt, h.ITT())
			require.Zero(t, h.Status())
		}
		require.InDelta(t, 0.5, time.Since(start).Seconds(), 0.001)
	})
}

// TestLimitBandwidth: a transfer larger than the bucket passes, and the next ones pay for it.
func TestLimitBandwidth(t *testing.T) {
	limited(t, 0, 1<<20, func(t *testing.T, _ *Server, p *peer) {
		start := time.Now()
		for range 5 {
			p.command(cmd{cdb: read10(0, 1024), read: 512 << 10})
		}
		for i := range 5 {
			require.Zero(t, p.response().Status())
			// The first finds 100 ms' worth of octets, and leaves 400 ms of debt.
			want := max(0, 0.5*float64(i)-0.1)
			require.InDelta(t, want, time.Since(start).Seconds(), 0.001, i)
		}
		for range 2 {
			p.command(cmd{cdb: write10(0, 16), write: pattern(8192, 1), immediate: 8192})
		}
		require.Zero(t, p.response().Status())
		require.InDelta(t, 2.4, time.Since(start).Seconds(), 0.001, "writes, too")
		require.Zero(t, p.response().Status())
	})
}

// TestLimitedCommandsCanBeAborted: one that waits for its turn ends at once, and costs nothing.
func TestLimitedCommandsCanBeAborted(t *testing.T) {
	limited(t, 1, 0, func(t *testing.T, s *Server, p *peer) {
		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.Zero(t, p.response().Status())
		start := time.Now()
		sn := p.cmdSN
		first := p.command(cmd{cdb: read10(0, 1), read: 512})
		second := p.command(cmd{cdb: read10(0, 1), read: 512})
		p.tmf(iscsi.AbortTask, 0, first, sn)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		require.Zero(t, time.Since(start))
		require.Equal(t, second, p.response().ITT())
		require.InDelta(t, 1, time.Since(start).Seconds(), 0.001)
		for range 20 {
			p.command(cmd{cdb: read10(0, 1), read: 512})
		}
		p.tmf(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
		require.Equal(t, iscsi.TaskComplete, p.managed())
		synctest.Wait()
		_, some := p.peek()
		require.False(t, some)
		require.NoError(t, s.all()[0].Device.LU(0).Limiter().Set(0, 0))
		p.settle(0)
		p.command(cmd{cdb: read10(0, 1), read: 512})
		require.Zero(t, p.response().Status())
		require.InDelta(t, 1, time.Since(start).Seconds(), 0.001, "no limit any more")
	})
}

// TestLimitEndsWithSession: a session that goes with commands held back leaves nothing behind.
func TestLimitEndsWithSession(t *testing.T) {
	limited(t, 1, 0, func(t *testing.T, s *Server, p *peer) {
		q := connect(t, s)
		q.isid[5] = 9
		q.login(normalKeys()...)
		for range 20 {
			q.command(cmd{cdb: read10(0, 1), read: 512})
		}
		synctest.Wait()
		q.cut(nil)
		<-q.serve
		synctest.Wait()
		require.Len(t, s.Status().Sessions, 1)
	})
}

// TestLimitIsShared: connections get as much of a bounded rate each, however many commands each has sent, one that comes later is
// not made to wait behind what was there before it, and each one's commands stay in their order.
func TestLimitIsShared(t *testing.T) {
	limited(t, 10, 0, func(t *testing.T, s *Server, deep *peer) {
		p := connect(t, s, func(p *peer) { p.isid[5] = 9 }).disk()
		send := func(p *peer, n int) (itts []uint32) {
			for range n {
				itts = append(itts, p.command(cmd{cdb: read10(0, 1), read: 512}))
			}
			synctest.Wait()
			return itts
		}
		first := send(deep, 40)
		require.Equal(t, first[0], deep.response().ITT(), "what 100 ms bring")
		later := send(p, 5)
		start := time.Now()
		for _, itt := range later {
			require.Equal(t, itt, p.response().ITT())
		}
		require.InDelta(t, 1, time.Since(start).Seconds(), 0.21, "10 of 40 commands: every other one")
		for _, itt := range first[1:] {
			require.Equal(t, itt, deep.response().ITT())
		}
		require.InDelta(t, 4.4, time.Since(start).Seconds(), 0.001, "and all at the rate")
		p.leave()
	})
}
