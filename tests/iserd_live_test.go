package tests

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// TestChangedLimits: rates change under a session, by 'iserd ctl lun limit' and by a reload, and the disk stays the same one.
func TestChangedLimits(t *testing.T) {
	disk := func(more string) string { return oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n" + more) }
	s := serve(t, disk("iops = 5000\n"))
	a := attach(t, s.Addr, targetName, "a")
	_, err := a.LUN(0).WriteAt([]byte(strings.Repeat("x", 512)), 0)
	require.NoError(t, err)
	type lun struct{ IOPS, Bandwidth int64 }
	rates := func() lun { return ask[[]lun](s, "luns")[0] }
	require.Equal(t, lun{5000, 0}, rates())
	require.Contains(t, s.must("lun", "limit", "0", "--iops", "none", "--bw", "64MiB"), "limited to 64MiB/s")
	require.Equal(t, lun{0, 64 << 20}, rates())
	require.Contains(t, s.must("luns"), "64MiB/s")
	require.Contains(t, s.must("save", "-"), `bw = "64MiB"`)
	require.Equal(t, 2, s.ctl("lun", "limit", "0").status)
	require.Equal(t, 2, s.ctl("lun", "limit", "0", "--iops", "-1").status)

	s.configure(disk("iops = 7000\nbw = \"1GiB\"\n"))
	out := s.must("reload")
	require.Contains(t, out, "LUN 0 limited to 7000 commands/s and 1GiB/s")
	require.NotContains(t, out, "removed")
	s.configure(disk(""))
	require.Contains(t, s.must("reload"), "LUN 0 limited to nothing")
	require.Zero(t, rates())
	b := make([]byte, 512)
	_, err = a.LUN(0).ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 512), string(b), "it is the same disk")
}

// TestAccessStates: each portal group is a path with an access state that an operator, the file, or an initiator changes.
func TestAccessStates(t *testing.T) {
	portals := "[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = 3\n[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = 2\n"
	target := func(more string) string {
		return portals + fmt.Sprintf("[[target]]\nname = %q\n%s[[target.lun]]\nstore = \"mem:1MiB\"\n[[target.lun]]\nstore = \"mem:1MiB\"\n", targetName, more)
	}
	s := serve(t, target("alua = [{group = 2, state = \"standby\"}]\n"))
	st := ask[struct{ Portals []struct{ Address string } }](s, "status")
	three, two := attach(t, st.Portals[0].Address, targetName, "a"), attach(t, st.Portals[1].Address, targetName, "a")
	states := func(lun uint16) map[uint16]initiator.AccessState {
		t.Helper()
		groups, err := three.LUN(lun).PortGroups(t.Context())
		require.NoError(t, err)
		m := make(map[uint16]initiator.AccessState)
		for _, g := range groups {
			require.Equal(t, []uint16{g.ID}, g.Ports)
			m[g.ID] = g.State
		}
		return m
	}
	require.Equal(t, map[uint16]initiator.AccessState{2: initiator.Standby, 3: initiator.ActiveOptimized}, states(0), "and no other groups")
	read := func(s *initiator.Session) error {
		_, err := s.LUN(0).ReadAt(make([]byte, 512), 0)
		return err
	}
	require.NoError(t, read(three))
	require.ErrorIs(t, read(two), scsi.CodeNotAccessibleStandby.Err())

	require.Contains(t, s.must("alua", "set", "2", "active/non-optimized"), "portal group 2 is active/non-optimized")
	require.NoError(t, read(two))
	require.Regexp(t, targetName+` +2 +active/non-optimized +0,1\n`, s.must("alua"))
	require.Contains(t, s.must("save", "-"), `alua = [{group = 2, state = "active/non-optimized"}]`)

	// An initiator changes the state of one logical unit; the operator sees it, and has the last word.
	require.NoError(t, three.LUN(1).SetPortGroup(t.Context(), 2, initiator.Unavailable))
	type row struct {
		Target     string
		Group, LUN int
		State      string
	}
	require.Contains(t, ask[[]row](s, "alua"), row{targetName, 2, 1, "unavailable"})
	require.Regexp(t, targetName+` +2 +unavailable +1\n`, s.must("alua"))
	s.must("alua", "set", "2", "active/non-optimized")
	require.Equal(t, map[uint16]initiator.AccessState{2: initiator.ActiveNonOptimized, 3: initiator.ActiveOptimized}, states(1))

	// A disk that comes later has the states, too.
	s.must("lun", "add", "mem:1MiB")
	require.Contains(t, ask[[]row](s, "alua"), row{targetName, 2, 2, "active/non-optimized"})
	s.configure(target("alua = [{group = 3, state = \"unavailable\"}]\n"))
	out := s.must("reload")
	require.Contains(t, out, "portal group 2 is active/optimized")
	require.Contains(t, out, "portal group 3 is unavailable")
	require.NoError(t, read(two))
	require.ErrorIs(t, read(three), scsi.CodeNotAccessibleUnavailable.Err())

	for want, args := range map[string][]string{"has no portal group 7 (it has 2 3)": {"alua", "set", "7", "standby"}, "want active/optimized": {"alua", "set", "2", "off"}} {
		r := s.ctl(args...)
		require.NotZero(t, r.status)
		require.Contains(t, r.stderr, want)
	}
	s.configure(target("alua = [{group = 7, state = \"standby\"}]\n"))
	require.Contains(t, s.ctl("reload").stderr, "no portal has the group 7")
}

// TestGroupFlags: --listen makes portals with groups, as a file does.
func TestGroupFlags(t *testing.T) {
	d := startDaemon(t, "--target", targetName, "--lun", "mem:1MiB", "--listen", "127.0.0.1:0,group=4,advertise=192.0.2.7:3260", "--listen", "127.0.0.1:0,group=5")
	out := tool(t, nil, "discover", d.Addr)
	require.Contains(t, out, "192.0.2.7:3260")
	a := attach(t, d.Addr, targetName, "a")
	groups, err := a.LUN(0).PortGroups(t.Context())
	require.NoError(t, err)
	require.Len(t, groups, 3, "that of --listen without a group, which is 1, too")
	require.EqualValues(t, 1, groups[0].ID)
	require.EqualValues(t, 4, groups[1].ID)
	require.EqualValues(t, 5, groups[2].ID)
	for _, bad := range []string{"127.0.0.1:0,group=0", "127.0.0.1:0,group=x", "127.0.0.1:0,colour=red", "127.0.0.1:0,advertise=here"} {
		r := run(t, nil, program(t, "iserd"), "--lun", "mem:1MiB", "--listen", bad)
		require.Equal(t, 2, r.status, bad)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
	}
}

// TestAliasAndGroupsReload: both change at a reload, and sessions stay.
func TestAliasAndGroupsReload(t *testing.T) {
	portals := "[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = 1\n[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = 2\n"
	target := func(more string) string {
		return portals + fmt.Sprintf("[[target]]\nname = %q\n%s[[target.lun]]\nstore = \"mem:1MiB\"\n", targetName, more)
	}
	s := serve(t, target("alias = \"old\"\n"))
	a := attach(t, s.Addr, targetName, "a")
	s.configure(target("alias = \"new\"\ngroups = [2]\n"))
	out := s.must("reload")
	require.Contains(t, out, "alias changed")
	require.Contains(t, out, "portal groups changed")
	require.NotContains(t, out, "next start")
	works(t, a, 0)
	_, err := login(t, s.Addr, targetName, "b")
	require.Error(t, err)
	st := ask[struct{ Portals []struct{ Address string } }](s, "status")
	works(t, attach(t, st.Portals[1].Address, targetName, "b"), 0)
	require.Equal(t, "new", ask[[]struct{ Alias string }](s, "targets")[0].Alias)
}

// TestGroupLeaves: a portal group that the file does not name any more leaves what initiators are told of ports at once, or with the last
// session through it; they get unit attentions for it, and nothing of its state is left when it comes back.
func TestGroupLeaves(t *testing.T) {
	portal := func(g int) string { return fmt.Sprintf("[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = %d\n", g) }
	target := func(more string) string {
		return fmt.Sprintf("[[target]]\nname = %q\n%s[[target.lun]]\nstore = \"mem:1MiB\"\n", targetName, more)
	}
	s := serve(t, portal(1)+portal(2)+portal(3)+target("alua = [{group = 3, state = \"standby\"}]\n"))
	st := ask[struct{ Portals []struct{ Address string } }](s, "status")
	one, two := attach(t, st.Portals[0].Address, targetName, "a"), attach(t, st.Portals[1].Address, targetName, "a")
	works(t, one, 0)
	works(t, two, 0)
	ready := func() error {
		_, err := one.LUN(0).Do(t.Context(), make([]byte, 6), nil, nil)
		return err
	}
	require.NoError(t, ready())
	groups := func() (ids []uint16) {
		t.Helper()
		all, err := one.LUN(0).PortGroups(t.Context())
		require.NoError(t, err)
		for _, g := range all {
			ids = append(ids, g.ID)
		}
		return ids
	}
	told := func() {
		t.Helper()
		require.ErrorIs(t, ready(), scsi.CodeInquiryDataChanged.Err())
		require.ErrorIs(t, ready(), scsi.CodeAsymmetricAccessChanged.Err())
		require.NoError(t, ready())
	}
	require.Equal(t, []uint16{1, 2, 3}, groups())

	s.configure(portal(1) + portal(2) + target(""))
	s.must("reload")
	told()
	require.Equal(t, []uint16{1, 2}, groups())
	require.Contains(t, s.ctl("alua", "set", "3", "standby").stderr, "has no portal group 3 (it has 1 2)")

	s.configure(portal(1) + target(""))
	s.must("reload")
	require.NoError(t, ready())
	require.Equal(t, []uint16{1, 2}, groups(), "a session goes through it")
	works(t, two, 0)
	require.NoError(t, two.Logout(t.Context()))
	for n := 2; n != 1; n = len(ask[[]struct{}](s, "sessions", "--interval", "0")) { // its end is behind the answer to its logout
	}
	told()
	require.Equal(t, []uint16{1}, groups())

	s.configure(portal(1) + portal(3) + target(""))
	s.must("reload")
	told()
	require.Regexp(t, targetName+` +3 +active/optimized`, s.must("alua"))
}

// TestLookWhileChanging: while a change waits for a session that does not end, whoever only looks is answered at once, signs of life go on,
// and the next change waits for its turn.
func TestLookWhileChanging(t *testing.T) {
	const second = targetName + ".second"
	t.Setenv("WATCHDOG_USEC", "40000")
	timers := "[timers]\nlogout = \"1h\"\ndrain = \"1h\"\nping = \"-1s\"\n"
	one := oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n")
	s := serve(t, one+fmt.Sprintf("[[target]]\nname = %q\n[[target.lun]]\nstore = \"mem:1MiB\"\n", second)+timers)
	deaf := deafen(t, s.Addr)
	quiet := attach(t, deaf.addr, second, "quiet")
	works(t, quiet, 0)
	deaf.stop() // it will not hear that it is to log out

	s.configure(one + timers)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	s.notice("RELOADING=1")
	type status struct {
		Targets, Sessions int
		Changing          bool
	}
	for st := (status{}); st.Targets != 1; st = ask[status](s, "status") { // the reload is at the target's sessions once the target is gone
	}
	require.Equal(t, status{1, 1, true}, ask[status](s, "status"))
	require.Contains(t, s.must("status"), "being changed")
	require.Len(t, ask[[]struct{}](s, "targets"), 1)
	require.Len(t, ask[[]struct{}](s, "luns"), 1)
	require.Len(t, ask[[]struct{}](s, "alua"), 1)
	require.Len(t, ask[[]struct{}](s, "sessions", "--interval", "0"), 1)
	require.Contains(t, s.must("save", "-"), targetName)
	require.NotEmpty(t, s.scrape())
	for range 50 { // more than a socket keeps from before
		require.Equal(t, "WATCHDOG=1", s.notice("WATCHDOG=1"))
	}
	works(t, attach(t, s.Addr, targetName, "other"), 0)
	next := make(chan result, 1)
	go func() { next <- s.ctl("lun", "resize", "0", "2MiB") }()

	deaf.resume()
	require.Contains(t, s.notice("READY=1"), "STATUS=Serving 1 targets")
	r := <-next
	require.Zero(t, r.status, r.stderr)
	require.False(t, ask[status](s, "status").Changing)
}

// TestStopWhileChanging: SIGTERM ends a change that waits, too.
func TestStopWhileChanging(t *testing.T) {
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n")+"[timers]\nlogout = \"100ms\"\ndrain = \"1h\"\n")
	deaf := deafen(t, s.Addr)
	attach(t, deaf.addr, targetName, "quiet")
	deaf.stop()
	done := make(chan result, 1)
	go func() { done <- s.ctl("target", "remove", targetName) }()
	type status struct{ Targets int }
	for st := (status{1}); st.Targets != 0; st = ask[status](s, "status") {
	}
	require.Zero(t, s.stop(t))
	<-done
	deaf.resume()
}

// deaf is a way to a portal on which nothing comes back while it is stopped.
type deaf struct {
	addr string
	mu   sync.Mutex // held while it is stopped
}

func (d *deaf) stop()   { d.mu.Lock() }
func (d *deaf) resume() { d.mu.Unlock() }

func deafen(t *testing.T, addr string) *deaf {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &deaf{addr: ln.Addr().String()}
	t.Cleanup(func() { _ = ln.Close() })
	copyAll := func(to, from net.Conn, gate *sync.Mutex) {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			gate.Lock() // waits while it is stopped
			_, _ = to.Write(b[:n])
			gate.Unlock()
			if err != nil {
				_ = to.Close()
				return
			}
		}
	}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				return
			}
			go copyAll(out, in, new(sync.Mutex))
			go copyAll(in, out, &d.mu)
		}
	}()
	return d
}
