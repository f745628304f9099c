package target

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// change changes settings by what f does.
func change(t *testing.T, s *Server, f func(*Settings)) {
	t.Helper()
	set := s.Settings()
	f(&set)
	require.NoError(t, s.Change(set))
	require.Equal(t, set, s.Settings())
}

// TestChangeWindow: a session keeps the window that it was promised, and the next one has the new one (RFC 7143, section 4.2.2.1:
// MaxCmdSN does not go back).
func TestChangeWindow(t *testing.T) {
	inBubble(t, func(c *Config) { c.Limits.Window = 4 }, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		a := connect(t, s)
		rsp := a.login(normalKeys()...)
		require.Equal(t, a.cmdSN+3, iscsi.BHS(rsp.BHS[:]).MaxCmdSN())
		change(t, s, func(set *Settings) { set.Window = 2 })
		a.settle(0)
		a.command(cmd{cdb: read10(0, 1), read: 512})
		require.Equal(t, a.cmdSN+3, a.response().MaxCmdSN())
		b := connect(t, s, func(p *peer) { p.isid[5] = 9 })
		rsp = b.login(normalKeys()...)
		require.Equal(t, b.cmdSN+1, iscsi.BHS(rsp.BHS[:]).MaxCmdSN())
		a.leave()
		b.leave()
	})
}

// TestChangeLimits: limits hold for who comes next, and nobody who is there is thrown out.
func TestChangeLimits(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		as := func(n byte) func(*peer) { return func(p *peer) { p.isid[5] = n } }
		a, b := connect(t, s, as(1)).disk(), connect(t, s, as(2)).disk()
		for _, f := range []func(*Settings){
			func(set *Settings) { set.Sessions = 1 },
			func(set *Settings) { set.InitiatorSessions = 2 },
			func(set *Settings) { set.Connections = 2 },
		} {
			before := s.Settings()
			change(t, s, f)
			late := connect(t, s, as(3))
			require.Equal(t, iscsi.LoginNoResources, late.status(late.loginRequest(normalKeys()...)))
			require.NoError(t, s.Change(before))
		}
		for _, p := range []*peer{a, b} {
			p.command(cmd{cdb: read10(0, 1), read: 512})
			require.Zero(t, p.response().Status())
		}
		c := connect(t, s, as(3)).disk()
		for _, p := range []*peer{a, b, c} {
			p.leave()
		}

		before := s.Settings()
		for _, f := range []func(*Settings){
			func(set *Settings) { set.Window = -1 },
			func(set *Settings) { set.Workers = maxWorkers + 1 },
			func(set *Settings) { set.LoginTimeout = -1 },
		} {
			set := before
			f(&set)
			require.Error(t, s.Change(set))
			require.Equal(t, before, s.Settings(), "nothing of it is in force")
		}
	})
}

// TestChangeCommands: the bound of all commands comes, holds, and goes.
func TestChangeCommands(t *testing.T) {
	disk := storetest.Delay(memory(t, 1<<20))
	inBubble(t, nil, []store.Store{disk}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		disk.Hold(storetest.Read)
		read := func() { p.command(cmd{cdb: read10(0, 1), read: 512}) }
		read() // not counted
		<-disk.Arrived()
		change(t, s, func(set *Settings) { set.Commands = 1 })
		read()
		<-disk.Arrived()
		read()
		require.EqualValues(t, scsi.StatusTaskSetFull, p.response().Status())
		change(t, s, func(set *Settings) { set.Commands = 0 })
		read()
		<-disk.Arrived()
		disk.Release()
		for range 3 {
			require.Zero(t, p.response().Status())
		}
		require.Zero(t, s.commands.Load())
		p.leave()
	})
}

// TestChangeWorkers: more workers begin with what waits already, and fewer leave one after the other.
func TestChangeWorkers(t *testing.T) {
	disk := storetest.Delay(memory(t, 1<<20))
	inBubble(t, func(c *Config) { c.Limits.Workers = 1 }, []store.Store{disk}, func(t *testing.T, s *Server) {
		p := connect(t, s).disk()
		arrived := func(want int) {
			t.Helper()
			for range want {
				<-disk.Arrived()
			}
			synctest.Wait()
			select {
			case <-disk.Arrived():
				t.Fatal("one more than there are workers")
			default:
			}
		}
		fill := func(n int) {
			for range n {
				p.command(cmd{cdb: read10(0, 1), read: 512})
			}
		}
		empty := func(n int) {
			disk.Release()
			for range n {
				require.Zero(t, p.response().Status())
			}
			synctest.Wait()
			for {
				select {
				case <-disk.Arrived():
					continue
				default:
				}
				break
			}
		}
		disk.Hold(storetest.Read)
		fill(6)
		arrived(1)
		change(t, s, func(set *Settings) { set.Workers = 4 })
		arrived(3)
		empty(6)
		change(t, s, func(set *Settings) { set.Workers = 2 })
		disk.Hold(storetest.Read)
		fill(6)
		arrived(2)
		empty(6)
		p.leave()
	})
}

// TestChangeTimers: a connection has the timers of the time when it came.
func TestChangeTimers(t *testing.T) {
	inBubble(t, func(c *Config) { c.PingInterval = time.Hour }, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		a := connect(t, s).disk()
		change(t, s, func(set *Settings) { set.PingInterval, set.LoginTimeout = time.Minute, time.Second })
		b := connect(t, s, func(p *peer) { p.isid[5] = 9 }).disk()
		began := time.Now()
		ttt := iscsi.NOPIn(b.pdu(iscsi.OpNOPIn).BHS[:]).TTT()
		require.NotEqual(t, iscsi.ReservedTag, ttt)
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
		b.pong([]uint32{ttt})
		_, some := a.peek()
		require.False(t, some)
		silent := connect(t, s, func(p *peer) { p.isid[5] = 10 })
		began = time.Now()
		require.ErrorIs(t, <-silent.serve, ErrLoginTimeout)
		require.Equal(t, time.Second, time.Since(began).Round(time.Millisecond))
		a.leave()
		b.leave()
	})
}

// TestChangeMeter: sessions that begin once somebody wants to know are measured, and those from before are passed over.
func TestChangeMeter(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		a := connect(t, s).disk()
		change(t, s, func(set *Settings) { set.Meter = true })
		b := connect(t, s, func(p *peer) { p.isid[5] = 9 }).disk()
		for _, p := range []*peer{a, b} {
			p.command(cmd{cdb: read10(0, 1), read: 512})
			require.Zero(t, p.response().Status())
		}
		m := s.Metrics()
		require.Len(t, m.Sessions, 1)
		require.EqualValues(t, 1, m.Sessions[0].Ops[OpRead].Commands)
		a.leave()
		b.leave()
	})
}
