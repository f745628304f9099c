package initiator

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// hearing counts the pings that reach f; while deaf is set nothing is answered.
type hearing struct {
	pings atomic.Int64
	deaf  atomic.Bool
	first time.Time // of the pings
}

func listen(f *fake) *hearing {
	h := new(hearing)
	f.script = func(_ *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() == iscsi.OpNOPOut {
			if h.pings.Add(1) == 1 {
				h.first = time.Now()
			}
		}
		return h.deaf.Load()
	}
	return h
}

// dead checks that the session ended for want of an answer, and when.
func dead(t *testing.T, err error, began time.Time, after time.Duration) {
	t.Helper()
	require.ErrorIs(t, err, ErrDeadTarget)
	require.ErrorIs(t, err, iscsi.ErrConnection)
	require.Equal(t, after, time.Since(began))
}

func TestSilentTargetIsDead(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Config)
		ping     time.Duration
		end      time.Duration
		commands int
	}{
		"idle":               {ping: 5 * time.Second, end: 15 * time.Second},
		"commands under way": {ping: 5 * time.Second, end: 15 * time.Second, commands: 3},
		"window closed":      {ping: 5 * time.Second, end: 15 * time.Second, commands: 200},
		"configured": {
			change: func(c *Config) { c.PingInterval, c.PingTimeout = time.Minute, time.Second },
			ping:   time.Minute, end: 61 * time.Second, commands: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				h := listen(f)
				cfg := testConfig()
				if c.change != nil {
					c.change(&cfg)
				}
				began := time.Now()
				s, err := Login(context.Background(), f, cfg)
				require.NoError(t, err)
				h.deaf.Store(true)
				ended := make(chan error, c.commands)
				for range c.commands {
					require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(r *Request) { ended <- r.Err }}))
				}
				<-s.Done()
				for range c.commands {
					dead(t, <-ended, began, c.end)
				}
				dead(t, s.Err(), began, c.end)
				require.Equal(t, c.ping, h.first.Sub(began))
				require.EqualValues(t, 1, h.pings.Load())
				require.ErrorIs(t, s.LUN(0).TestUnitReady(context.Background()), ErrDeadTarget)
			})
		})
	}
}

func TestDeadTargetReadsWell(t *testing.T) {
	err := &SessionError{Target: testTarget, Cause: &DeadTargetError{Silence: 15 * time.Second}}
	require.EqualError(t, err, "initiator: session with "+testTarget+
		" ended: target does not answer: nothing received for 15s, not even the answer to a ping")
}

func TestIdleTargetThatAnswersPingsLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := listen(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		time.Sleep(24 * time.Hour)
		require.NoError(t, s.Err())
		require.Greater(t, h.pings.Load(), int64(24*time.Hour/(2*DefaultPingInterval+DefaultPingTimeout)))
		require.NoError(t, s.Logout(context.Background()))
		time.Sleep(time.Hour)
		require.ErrorIs(t, s.Err(), ErrClosed)
	})
}

func TestBusySessionIsNotPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := listen(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		for range 1000 {
			require.NoError(t, s.LUN(0).TestUnitReady(context.Background()))
			time.Sleep(DefaultPingInterval - time.Millisecond)
		}
		require.Zero(t, h.pings.Load())
		s.Close()
	})
}

func TestNoPingsWhenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := listen(f)
		cfg := testConfig()
		cfg.PingInterval = -1
		s, err := Login(context.Background(), f, cfg)
		require.NoError(t, err)
		h.deaf.Store(true)
		time.Sleep(24 * time.Hour)
		require.NoError(t, s.Err())
		require.Zero(t, h.pings.Load())
		s.Close()
	})
}

// TestPingsUnansweredButCommandsAre: a target that ignores pings is alive as long as anything else comes, and never more than one is open.
func TestPingsUnansweredButCommandsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.tgt.Window = int(f.window)
		var pings atomic.Int64
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if p.Opcode() == iscsi.OpNOPOut {
				f.count(p)
				pings.Add(1)
				return true
			}
			return false
		}
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		for range 1000 {
			time.Sleep(DefaultPingTimeout + DefaultPingInterval - time.Millisecond)
			require.NoError(t, s.LUN(0).TestUnitReady(context.Background()))
		}
		require.EqualValues(t, 1, pings.Load())
		<-s.Done()
		require.ErrorIs(t, s.Err(), ErrDeadTarget)
	})
}

// TestDeadTargetWithoutRoomForPings: when all answers but those of commands are due already, their lack tells as much.
func TestDeadTargetWithoutRoomForPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := listen(f)
		s, err := Login(context.Background(), f, testConfig())
		require.NoError(t, err)
		h.deaf.Store(true)
		began := time.Now()
		ended := make(chan error, controlSlots)
		for range controlSlots {
			go func() { ended <- s.Ping(context.Background()) }()
		}
		for range controlSlots {
			dead(t, <-ended, began, DefaultPingInterval+DefaultPingTimeout)
		}
		<-s.Done()
	})
}

func TestLogoutFromSilentTargetEnds(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, s *Session){
		"drained": func(*testing.T, *Session) {},
		"a command under way": func(t *testing.T, s *Session) {
			require.NoError(t, s.LUN(0).Submit(&Request{CDB: scsi.TestUnitReady(), Done: func(*Request) {}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fk := newFake()
				h := listen(fk)
				var logout atomic.Bool
				before := fk.script
				fk.script = func(f *fake, p *iscsi.PDU, b *iscsi.TaskBuffers) bool {
					if logout.Load() {
						t.Errorf("%v after the Logout Request", p.Opcode())
					}
					logout.Store(p.Opcode() == iscsi.OpLogoutReq)
					return before(f, p, b)
				}
				s, err := Login(context.Background(), fk, testConfig())
				require.NoError(t, err)
				h.deaf.Store(true)
				f(t, s)
				began := time.Now()
				dead(t, s.Logout(context.Background()), began, DefaultPingInterval+DefaultPingTimeout)
			})
		})
	}
}

// metered is a fake that moves data by itself.
type metered struct {
	*fake
	received, sent atomic.Uint64
}

func (m *metered) Moved() (received, sent uint64) { return m.received.Load(), m.sent.Load() }

func (m *metered) Dial(context.Context, string) (iscsi.Datamover, error) { return m, nil }

// TestMovingDataIsLife: while data comes, or leaves as fast as a slow line takes it, nobody is given up for the answer that waits behind it.
func TestMovingDataIsLife(t *testing.T) {
	for name, move := range map[string]func(m *metered){
		"in":  func(m *metered) { m.received.Add(1) },
		"out": func(m *metered) { m.sent.Add(64 << 10) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &metered{fake: newFake()}
				h := listen(m.fake)
				s, err := Login(context.Background(), m, testConfig())
				require.NoError(t, err)
				h.deaf.Store(true)
				for range 1000 {
					move(m)
					time.Sleep(time.Second)
				}
				require.NoError(t, s.Err())
				require.LessOrEqual(t, h.pings.Load(), int64(1))
				began := time.Now()
				for { // what the system swallows meanwhile is no sign of life
					m.sent.Add(100)
					select {
					case <-s.Done():
						require.ErrorIs(t, s.Err(), ErrDeadTarget)
						require.LessOrEqual(t, time.Since(began), 2*DefaultPingInterval+2*DefaultPingTimeout)
						return
					case <-time.After(time.Second):
					}
				}
			})
		})
	}
}
