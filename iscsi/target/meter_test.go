package target

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

func metered(c *Config) { c.Meter = true }

// TestMeter: what is measured is what was done, by logical unit and by session.
func TestMeter(t *testing.T) {
	disk := storetest.Fail(memory(t, 1<<20), nil)
	inBubble(t, metered, []store.Store{disk, memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		before := s.Metrics()
		require.Len(t, before.Units, 3, "two logical units and what is none")
		p.command(cmd{cdb: read10(0, 8), read: 4096})
		require.Zero(t, p.response().Status())
		p.command(cmd{cdb: write10(0, 2), write: pattern(1024, 1), immediate: 1024})
		require.Zero(t, p.response().Status())
		disk.Always(storetest.Read, syscall.EIO)
		p.command(cmd{cdb: read10(8, 1), read: 512})
		require.EqualValues(t, scsi.StatusCheckCondition, p.response().Status())
		p.command(cmd{lun: 9, cdb: read10(0, 1), read: 512})
		require.EqualValues(t, scsi.StatusCheckCondition, p.response().Status())

		m := s.Metrics()
		unit := func(lun int) (v Measure) {
			for _, u := range m.Units {
				if u.LUN == lun {
					require.Equal(t, targetName, u.Target)
					return u.Measure
				}
			}
			t.Fatal("no such unit")
			return v
		}
		u := unit(0)
		require.EqualValues(t, 2, u.Ops[OpRead].Commands)
		require.EqualValues(t, 4096, u.Ops[OpRead].Octets)
		require.EqualValues(t, 1, u.Ops[OpWrite].Commands)
		require.EqualValues(t, 1024, u.Ops[OpWrite].Octets)
		require.EqualValues(t, 1, u.Sense[scsi.KeyMediumError])
		require.Zero(t, u.Depth)
		require.EqualValues(t, 1, unit(-1).Ops[OpRead].Commands)
		require.EqualValues(t, 1, unit(-1).Sense[scsi.KeyIllegalRequest])
		require.Len(t, m.Sessions, 1)
		ss := m.Sessions[0]
		require.Equal(t, initiatorName, ss.Initiator)
		require.EqualValues(t, 3, ss.Ops[OpRead].Commands)
		require.EqualValues(t, 1, ss.Ops[OpWrite].Commands)
		require.Equal(t, 1, m.Opened)
		p.leave()
	})
}

// TestMeterLatency: a command's time runs from its PDU to its answer, and falls into the bucket that holds it.
func TestMeterLatency(t *testing.T) {
	disk := storetest.Delay(memory(t, 1<<20))
	inBubble(t, metered, []store.Store{disk}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		disk.Hold(storetest.Read)
		p.command(cmd{cdb: read10(0, 1), read: 512})
		<-disk.Arrived()
		require.Equal(t, 1, s.Metrics().Units[1].Depth)
		time.Sleep(3 * time.Millisecond) // virtual
		synctest.Wait()
		disk.Release()
		require.Zero(t, p.response().Status())
		o := s.Metrics().Units[1].Ops[OpRead]
		require.Equal(t, 3*time.Millisecond, o.Latency)
		for i, n := range o.Buckets {
			want := uint64(0)
			if 3*time.Millisecond <= BucketBound(i) && 3*time.Millisecond > BucketBound(i)/2 {
				want = 1
			}
			require.Equal(t, want, n, "bucket up to %v", BucketBound(i))
		}
		p.leave()
	})
}

// TestBucketBounds: a latency of exactly a bound belongs below it, the next nanosecond above it.
func TestBucketBounds(t *testing.T) {
	for i := range NumBuckets - 1 {
		var m Meter
		m.record(make([]byte, 6), &scsi.Result{}, BucketBound(i))
		m.record(make([]byte, 6), &scsi.Result{}, BucketBound(i)+1)
		o := m.Measure().Ops[OpOther]
		require.EqualValues(t, 1, o.Buckets[i])
		require.EqualValues(t, 1, o.Buckets[i+1])
		require.EqualValues(t, 2, o.Commands)
	}
}

// TestMeterAllocatesNothing: measuring costs no allocation either.
func TestMeterAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("not with the race detector")
	}
	n, err := store.NewNull(1 << 40)
	require.NoError(t, err)
	s := newServer(t, metered, n)
	d := newDirect(t, s)
	rd := read10(64, 8)
	require.Zero(t, testing.AllocsPerRun(500, func() { d.run1(rd, 4096, 0, 0) }))
	require.EqualValues(t, 501, s.Metrics().Sessions[0].Ops[OpRead].Commands)
	d.close()
	require.NoError(t, s.Shutdown(context.Background()))
}

// TestRefusalsAreCounted by the status that they were given.
func TestRefusalsAreCounted(t *testing.T) {
	inBubble(t, func(c *Config) { c.Limits.InitiatorSessions = 1 }, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		refused := func(status iscsi.LoginStatus, kv ...string) {
			p := connect(t, s, func(p *peer) { p.isid[5]++ })
			p.inject(p.loginRequest(kv...))
			require.Equal(t, status, iscsi.LoginResponse(p.pdu(iscsi.OpLoginRsp).BHS[:]).Status())
			require.Error(t, p.ended())
		}
		first := connect(t, s)
		first.login(normalKeys()...)
		refused(iscsi.LoginNoResources, normalKeys()...)
		refused(iscsi.LoginNotFound, "InitiatorName", initiatorName, "TargetName", targetName+"x", "SessionType", "Normal")
		silent := connect(t, s)
		require.ErrorIs(t, silent.ended(), ErrLoginTimeout)
		require.Equal(t, map[string]uint64{"out of resources": 1, "target not found": 1, "timeout": 1}, s.Metrics().Refused)
		other := connect(t, s, func(p *peer) { p.isid[5]++ })
		other.login("InitiatorName", initiatorName+".other", "TargetName", targetName, "SessionType", "Normal")
		other.leave()
		first.leave()
	})
}

// TestCommandLimit: a command above the limit is answered TASK SET FULL, moves nothing, and succeeds when it is sent again.
func TestCommandLimit(t *testing.T) {
	disk := storetest.Delay(memory(t, 1<<20))
	inBubble(t, func(c *Config) { c.Limits.Commands = 2 }, []store.Store{disk}, func(t *testing.T, s *Server) {
		a := connect(t, s).disk()
		b := connect(t, s, func(p *peer) { p.isid[5] = 9 }).disk()
		disk.Hold(storetest.Read)
		for range 2 {
			a.command(cmd{cdb: read10(0, 1), read: 512})
			<-disk.Arrived()
		}
		b.command(cmd{cdb: write10(0, 1), write: pattern(512, 3), immediate: 512})
		require.EqualValues(t, scsi.StatusTaskSetFull, b.response().Status())
		disk.Release()
		for range 2 {
			require.Zero(t, a.response().Status())
		}
		b.command(cmd{cdb: write10(0, 1), write: pattern(512, 3), immediate: 512})
		require.Zero(t, b.response().Status())
		require.Zero(t, s.commands.Load())
		a.leave()
		b.leave()
	})
}

// TestReleaseLU: a logical unit that is removed lets its running commands end, and what has not begun never reaches the one that
// gets its number.
func TestReleaseLU(t *testing.T) {
	old := storetest.Delay(memory(t, 1<<20))
	inBubble(t, func(c *Config) { c.Limits.Workers = 1 }, []store.Store{old}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		old.Hold(storetest.Write)
		write := func(lba uint32) {
			p.command(cmd{cdb: write10(lba, 1), write: pattern(512, 3), immediate: 512})
		}
		write(0)
		<-old.Arrived()
		write(1) // waits for the worker
		synctest.Wait()
		dev := s.cfg.Targets[0].Device
		lu, err := dev.Remove(0)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.ReleaseLU(ctx, targetName, lu), context.Canceled)
		released := make(chan error)
		go func() { released <- s.ReleaseLU(t.Context(), targetName, lu) }()
		synctest.Wait()
		select {
		case <-released:
			t.Fatal("released while a command runs")
		default:
		}
		old.Release()
		require.NoError(t, <-released)
		require.Zero(t, p.response().Status(), "the one that ran")
		require.EqualValues(t, scsi.StatusCheckCondition, p.response().Status(), "the one that did not")

		fresh := memory(t, 1<<20)
		lu, err = scsi.NewLU(fresh, scsi.LUConfig{Identity: "other"})
		require.NoError(t, err)
		require.NoError(t, dev.Add(0, lu))
		p.settle(0)
		got := make([]byte, 1024)
		_, err = fresh.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, make([]byte, 1024), got)
		write(7)
		require.Zero(t, p.response().Status())
		p.leave()
	})
}

func BenchmarkRead4KMetered(b *testing.B) {
	n, err := store.NewNull(1 << 40)
	require.NoError(b, err)
	s := newServer(b, metered, n)
	d := newDirect(b, s)
	cdb := read10(0, 8)
	b.ReportAllocs()
	for b.Loop() {
		d.run1(cdb, 4096, 0, 0)
	}
	d.close()
	_ = s.Shutdown(context.Background())
}
