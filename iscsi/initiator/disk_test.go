package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// simulated runs f in virtual time over both transports.
func simulated(t *testing.T, portals []string, f func(t *testing.T, s *sim)) {
	for _, transport := range []string{"tcp", "iser"} {
		t.Run(transport, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, transport, 1<<20, portals...)
				defer s.end()
				f(t, s)
			})
		})
	}
}

var onePortal, twoPortals = []string{"a:1"}, []string{"a:1", "b:1"}

func block(b byte) []byte { return bytes.Repeat([]byte{b}, 512) }

func TestDiskOutlivesItsSessions(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		require.Contains(t, d.Name(), "naa.")
		for i := range 20 {
			_, err := d.WriteAt(block(byte(i)), int64(i)*512)
			require.NoError(t, err)
			s.net.unplug("a:1")
			begun := time.Now()
			time.AfterFunc(5*time.Second, func() { s.net.plug("a:1") })
			b := make([]byte, 512)
			_, err = d.ReadAt(b, int64(i)*512)
			require.NoError(t, err)
			require.Equal(t, block(byte(i)), b)
			require.Less(t, time.Since(begun), 12*time.Second)
		}
		require.GreaterOrEqual(t, d.Stats().Lost, uint64(20))
		require.NoError(t, d.Flush(t.Context()))
	})
}

func TestDiskOutlivesItsTarget(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		_, err := d.WriteAt(block(1), 0)
		require.NoError(t, err)
		s.restart()
		b := make([]byte, 512)
		_, err = d.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, block(1), b)
	})
}

func TestCommandsFailOnceWhenNoPathComesBack(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		cfg := s.config()
		cfg.ReplacementTimeout = 30 * time.Second
		d := s.open(cfg, onePortal...)
		defer d.Close()
		s.net.unplug("a:1")
		begun := time.Now()
		_, err := d.WriteAt(block(1), 0)
		var pe *initiator.PathError
		require.ErrorAs(t, err, &pe)
		require.ErrorIs(t, err, initiator.ErrNoPath)
		require.ErrorContains(t, err, "unreachable")
		require.Equal(t, 30*time.Second, time.Since(begun).Round(time.Second))
		begun = time.Now()
		_, err = d.ReadAt(block(1), 0)
		require.ErrorIs(t, err, initiator.ErrNoPath)
		require.Less(t, time.Since(begun), time.Second, "the time is over for all")
		s.net.plug("a:1")
		time.Sleep(20 * time.Second)
		_, err = d.WriteAt(block(2), 0)
		require.NoError(t, err, "a path that is back is used")
	})
}

func TestSilentNetworkIsFoundOut(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		s.net.swallow("a:1")
		begun := time.Now()
		_, err := d.WriteAt(block(1), 0)
		require.NoError(t, err)
		require.Less(t, time.Since(begun), time.Minute)
	})
}

func TestContextsEndWhileThereIsNoPath(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		s.net.unplug("a:1")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := d.WriteAtContext(ctx, block(1), 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		done := make(chan *initiator.Request, 1)
		r := &initiator.Request{Done: initiator.Notify(done)}
		d.PrepareFlush(r)
		require.NoError(t, d.Submit(r))
		d.Cancel(r)
		require.ErrorIs(t, (<-done).Err, initiator.ErrAborted)
		require.NoError(t, d.Submit(r))
		require.NoError(t, d.Close())
		require.ErrorIs(t, (<-done).Err, initiator.ErrClosed)
		require.ErrorIs(t, d.Submit(r), initiator.ErrClosed)
	})
}

func TestAnotherDiskIsNotUsed(t *testing.T) {
	for name, change := range map[string]func(*scsi.LUConfig){
		"serial":     func(c *scsi.LUConfig) { c.Serial = "sim-0002" },
		"block size": func(c *scsi.LUConfig) { c.BlockSize = 4096 },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, onePortal, func(t *testing.T, s *sim) {
				cfg := s.config()
				cfg.ReplacementTimeout = 10 * time.Second
				d := s.open(cfg, onePortal...)
				defer d.Close()
				s.restart(change)
				_, err := d.WriteAt(block(1), 0)
				require.ErrorIs(t, err, initiator.ErrNoPath)
				require.ErrorIs(t, err, initiator.ErrOtherDisk)
				var ie *initiator.IdentityError
				require.ErrorAs(t, err, &ie)
				b := make([]byte, 512)
				_, err = s.store.ReadAt(b, 0)
				require.NoError(t, err)
				require.Equal(t, block(0), b)
			})
		})
	}
}

func TestCommandsForOnceAreNotSentTwice(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		require.NoError(t, d.CompareAndWrite(t.Context(), 0, block(0), block(1)))
		s.net.swallow("a:1")
		err := d.CompareAndWrite(t.Context(), 0, block(1), block(2))
		require.ErrorIs(t, err, initiator.ErrUncertain)
		require.ErrorContains(t, err, "COMPARE AND WRITE may or may not have been executed")
		s.net.unplug("a:1")
		time.AfterFunc(time.Second, func() { s.net.plug("a:1") })
		require.NoError(t, d.CompareAndWrite(t.Context(), 1, block(0), block(1)), "it never left")
	})
}

func TestDiskTakesSimpleTasksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, "tcp", 1<<20, "a:1")
		defer s.end()
		d := s.open(s.config(), "a:1")
		defer d.Close()
		r := &initiator.Request{Attr: iscsi.AttrOrdered, Done: func(*initiator.Request) {}}
		require.ErrorIs(t, d.Submit(r), initiator.ErrOrdered)
	})
}

func TestOverlappingWritesTakeTurns(t *testing.T) {
	simulated(t, twoPortals, func(t *testing.T, s *sim) {
		d := s.open(s.config(), twoPortals...)
		defer d.Close()
		done := make(chan *initiator.Request, 64)
		var reqs []*initiator.Request
		for i := range 64 {
			r := &initiator.Request{Done: initiator.Notify(done)}
			buf, err := d.Alloc(1024)
			require.NoError(t, err)
			defer buf.Release()
			copy(buf.Bytes(), bytes.Repeat([]byte{byte(i)}, 1024))
			d.PrepareWrite(r, uint64(i%2), 2, 512, buf)
			reqs = append(reqs, r)
		}
		require.NoError(t, d.Submit(reqs...))
		for range reqs {
			require.NoError(t, (<-done).Err)
		}
		b := make([]byte, 3*512)
		_, err := d.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, append(block(62), bytes.Repeat([]byte{63}, 1024)...), b, "the last that was submitted is the last written")
	})
}

func TestFailoverAndFailback(t *testing.T) {
	for _, policy := range []initiator.Policy{initiator.RoundRobin, initiator.LeastQueue} {
		t.Run(policy.String(), func(t *testing.T) {
			simulated(t, twoPortals, func(t *testing.T, s *sim) {
				cfg := s.config()
				cfg.Policy = policy
				var events []initiator.PathEvent
				cfg.OnPath = func(e initiator.PathEvent) { events = append(events, e) }
				d := s.open(cfg, twoPortals...)
				defer d.Close()
				synctest.Wait()
				require.Len(t, d.Paths(), 2)
				for i := range 10 {
					gone := twoPortals[i%2]
					s.net.swallow(gone) // so that writes are under way by it
					done := make(chan *initiator.Request, 16)
					for k := range 16 {
						r := &initiator.Request{Done: initiator.Notify(done)}
						buf, err := d.Alloc(512)
						require.NoError(t, err)
						defer buf.Release()
						copy(buf.Bytes(), block(byte(i)))
						d.PrepareWrite(r, uint64(k), 1, 512, buf)
						require.NoError(t, d.Submit(r))
					}
					synctest.Wait()
					s.net.unplug(gone)
					begun := time.Now()
					for range 16 {
						require.NoError(t, (<-done).Err)
					}
					require.Less(t, time.Since(begun), time.Second, "nobody waits for the lost path")
					require.Equal(t, 1, active(d))
					b := make([]byte, 16*512)
					_, err := d.ReadAt(b, 0)
					require.NoError(t, err)
					require.Equal(t, bytes.Repeat([]byte{byte(i)}, len(b)), b)
					s.net.plug(gone)
					time.Sleep(15 * time.Second)
					require.Equal(t, 2, active(d), "the path is used again")
				}
				require.GreaterOrEqual(t, d.Stats().Fences, uint64(10))
				require.NotEmpty(t, events)
			})
		})
	}
}

// TestLateWritesAreFencedOff lets writes of a lost path reach the target long after the disk has gone on by another one.
func TestLateWritesAreFencedOff(t *testing.T) {
	for _, transport := range []string{"tcp", "iser"} {
		t.Run(transport, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := prepareSim(t, transport, 1<<20)
				s.tag = 1 // one target portal group
				s.begin(twoPortals)
				defer s.end()
				d := s.open(s.config(), twoPortals...)
				defer d.Close()
				synctest.Wait()
				s.net.linger("a:1", 20*time.Second)
				done := make(chan *initiator.Request, 4)
				for k := range 4 {
					r := &initiator.Request{Done: initiator.Notify(done)}
					buf, err := d.Alloc(512)
					require.NoError(t, err)
					defer buf.Release()
					copy(buf.Bytes(), block(1))
					d.PrepareWrite(r, uint64(k), 1, 512, buf)
					require.NoError(t, d.Submit(r))
				}
				synctest.Wait()
				s.net.unplug("a:1")
				for range 4 {
					require.NoError(t, (<-done).Err)
				}
				want := bytes.Repeat([]byte{2}, 4*512)
				_, err := d.WriteAt(want, 0)
				require.NoError(t, err)
				<-time.After(time.Minute)
				b := make([]byte, len(want))
				_, err = d.ReadAt(b, 0)
				require.NoError(t, err)
				require.Equal(t, want, b)
				require.Positive(t, d.Stats().Fences)
			})
		})
	}
}

func active(d *initiator.Disk) int {
	n := 0
	for _, p := range d.Paths() {
		if p.Active {
			n++
		}
	}
	return n
}

func TestLostReservationStopsWrites(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		d := s.open(s.config(), onePortal...)
		defer d.Close()
		ctx := t.Context()
		require.NoError(t, d.Register(ctx, 0, 0xabc, initiator.RegisterOptions{}))
		require.NoError(t, d.Reserve(ctx, 0xabc, initiator.WriteExclusive))
		r, err := d.Reservation(ctx)
		require.NoError(t, err)
		require.True(t, r.Held && r.Key == 0xabc && r.Type == initiator.WriteExclusive)
		list, err := d.Registrations(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Contains(t, list[0].Initiator, "iqn.2026-11.com.example:host")
		_, err = d.ReservationCapabilities(ctx)
		require.NoError(t, err)
		// It outlives a session, since the initiator port is the same.
		s.net.unplug("a:1")
		s.net.plug("a:1")
		_, err = d.WriteAt(block(1), 0)
		require.NoError(t, err)
		// It does not outlive a target that forgets it.
		s.restart()
		_, err = d.WriteAt(block(2), 0)
		require.ErrorIs(t, err, initiator.ErrReservationLost)
		_, err = d.WriteAt(block(2), 0)
		require.ErrorIs(t, err, initiator.ErrReservationLost, "until somebody acts on it")
		require.NoError(t, d.Register(ctx, 0, 0xabc, initiator.RegisterOptions{}))
		_, err = d.WriteAt(block(2), 0)
		require.NoError(t, err)
		require.NoError(t, d.Reserve(ctx, 0xabc, initiator.WriteExclusive))
		require.NoError(t, d.Release(ctx, 0xabc, initiator.WriteExclusive))
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	ctx := context.Background()
	_, err := initiator.Open(ctx, nil)
	require.ErrorContains(t, err, "no URL")
	_, err = initiator.Open(ctx, []string{"iscsi://h/iqn.2026-11.com.example:e2e"}, initiator.WithDialer("iscsi", simDialer{}))
	require.ErrorContains(t, err, "names no LUN")
	_, err = initiator.Open(ctx, []string{"iser://h/iqn.2026-11.com.example:e2e/0"})
	require.ErrorContains(t, err, "no dialer for iser")
	_, err = initiator.Dial(ctx, "nonsense")
	require.ErrorContains(t, err, "is not a URL")
	synctest.Test(t, func(t *testing.T) {
		n := newSimNet()
		_, err := initiator.Open(ctx, []string{"iscsi://h/iqn.2026-11.com.example:e2e/0"}, initiator.WithDialer("iscsi", simDialer{n}))
		require.ErrorContains(t, err, "connection refused")
		require.False(t, errors.Is(err, initiator.ErrNoPath))
	})
}
