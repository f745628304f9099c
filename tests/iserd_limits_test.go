package tests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// resident is the memory of iserd that is in use, in KiB.
func (s *service) resident() int {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0 // no /proc
	}
	f := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(s.t, f)
	kib, err := strconv.Atoi(string(f[1]))
	require.NoError(s.t, err)
	return kib
}

// TestMemoryLimit drives iserd to its limit of memory: a login over iSER that does not fit is refused with the status for it,
// everybody else is served, over both transports at once, and no more than the limit is held.
func TestMemoryLimit(t *testing.T) {
	const limit = 32 << 20
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"null:1GiB\"\n[limits]\nmemory = \"32MiB\"\nsession-memory = \"16MiB\"\n"))
	dev := soft.New(soft.Config{})
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	domain, err := iser.NewDomain(dev, iser.DomainConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, domain.Close()) })
	enter := func() (*initiator.Session, error) {
		a, err := initiator.Login(t.Context(), &iser.Dialer{Domain: domain}, initiator.Config{
			Addr: s.Addr, TargetName: targetName, InitiatorName: "iqn.2026-11.com.example:many",
		})
		if err == nil {
			t.Cleanup(a.Close)
		}
		return a, err
	}
	var in []*initiator.Session
	for len(in) < 64 {
		a, err := enter()
		if err != nil {
			require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginNoResources, ""))
			break
		}
		in = append(in, a)
	}
	require.Less(t, len(in), 64, "nobody was refused")
	require.Greater(t, len(in), 1)
	t.Logf("%d sessions over iSER", len(in))

	all := in
	for i := range 8 {
		all = append(all, attach(t, s.Addr, targetName, fmt.Sprint("tcp", i)))
	}
	var wait sync.WaitGroup
	for i, a := range all {
		for j := range 4 {
			wait.Go(func() {
				off := int64(i*4+j) << 22
				if _, err := a.LUN(0).WriteAt(make([]byte, 4<<20), off); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
				if _, err := a.LUN(0).ReadAt(make([]byte, 4<<20), off); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
			})
		}
	}
	wait.Wait()
	m, held := s.scrape(), 0.0
	for _, use := range []string{"tcp data held", "iser data held", "iser receives held"} {
		held += m[fmt.Sprintf("iserd_memory_bytes{use=%q}", use)]
	}
	require.NotZero(t, held)
	require.LessOrEqual(t, held, float64(limit))
	require.EqualValues(t, 1, m[`iserd_logins_refused_total{reason="out of resources"}`])
	t.Logf("%.0f MiB held, %d MiB resident at most", held/(1<<20), s.resident()>>10)
	require.Less(t, s.resident(), (limit+(128<<20))>>10)

	require.NoError(t, in[0].Logout(t.Context())) // what one session leaves another one gets
	<-in[0].Done()
	for {
		a, err := enter()
		if errors.Is(err, iscsi.NewLoginError(iscsi.LoginNoResources, "")) {
			continue // the connection is on its way out
		}
		require.NoError(t, err)
		works(t, a, 0)
		break
	}
}

// TestMediumError: where the store fails a command has MEDIUM ERROR with the address of the first block that is not there (SBC-3, section 4.18.1), and
// what is beside it goes on. An image that somebody has made shorter fails without a disk that does.
func TestMediumError(t *testing.T) {
	dir := t.TempDir()
	img := filepath.Join(dir, "disk.img")
	s := serve(t, oneTarget(fmt.Sprintf("[[target.lun]]\nstore = %q\nsize = \"1MiB\"\n[[target.lun]]\nstore = \"mem:1MiB\"\n", img)))
	a := attach(t, s.Addr, targetName, "a")
	data := bytes.Repeat([]byte("goiwarp."), 1<<20/8)
	_, err := a.LUN(0).WriteAt(data, 0)
	require.NoError(t, err)
	require.NoError(t, a.LUN(0).Flush(t.Context()))
	require.NoError(t, os.Truncate(img, 512<<10))

	got := make([]byte, 8*512)
	_, err = a.LUN(0).ReadAt(got, 1020*512)
	var e *scsi.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, scsi.KeyMediumError, e.Sense.Key)
	require.True(t, e.Sense.InfoValid)
	require.EqualValues(t, 1024, e.Sense.Info)
	_, err = a.LUN(0).ReadAt(got, 1016*512)
	require.NoError(t, err)
	require.Equal(t, data[:len(got)], got)
	_, err = a.LUN(0).WriteAt(got, 1100*512)
	require.ErrorAs(t, err, &e)
	require.Equal(t, scsi.KeyMediumError, e.Sense.Key, "and nothing is written where data was lost")
	require.EqualValues(t, 1100, e.Sense.Info)
	_, err = a.LUN(1).WriteAt(got, 0)
	require.NoError(t, err)
	require.NoError(t, a.Err())
	require.EqualValues(t, 2, s.scrape()[fmt.Sprintf(`iserd_lun_sense_total{key="MEDIUM ERROR",lun="0",target=%q}`, targetName)])
	require.Zero(t, run(t, nil, program(t, "iserd"), "ctl", "--socket", filepath.Join(s.dir, "control"), "status").status)
}

// TestSessionsShareFairly: 64 sessions whose disk is the bottleneck get as much of it each, though one has sent far more commands than the
// others. The disk's rate is next to nothing until all have sent theirs, so that who comes first does not matter.
func TestSessionsShareFairly(t *testing.T) {
	const sessions, each, greedy = 64, 8, 120
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n"))
	var all [sessions]*initiator.Session
	for i := range all {
		all[i] = attach(t, s.Addr, targetName, fmt.Sprint("h", i))
		works(t, all[i], 0)
	}
	type row struct {
		Initiator string
		InFlight  int `json:"in_flight"`
		Commands  int
	}
	seen := func() (n int) {
		for _, r := range ask[[]row](s, "sessions", "--interval", "0") {
			n += r.InFlight + r.Commands
		}
		return n
	}
	before := seen()
	s.must("lun", "limit", "0", "--iops", "1")
	var mu sync.Mutex
	var order []int
	var wait sync.WaitGroup
	total := 0
	for i, a := range all {
		n := each
		if i == 0 {
			n = greedy
		}
		total += n
		for range n {
			wait.Go(func() {
				if _, err := a.LUN(0).ReadAt(make([]byte, 512), 0); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
		}
	}
	for seen() < before+total {
	}
	s.must("lun", "limit", "0", "--iops", "400")
	wait.Wait()
	require.Len(t, order, total)
	for rounds := 2; rounds <= each; rounds += 2 {
		var got [sessions]int
		for _, i := range order[:rounds*sessions] {
			got[i]++
		}
		least, most := each, 0
		for i := 1; i < sessions; i++ {
			least, most = min(least, got[i]), max(most, got[i])
		}
		// A fair share is one each in a round; that they are told of by as many connections blurs the order.
		require.GreaterOrEqual(t, least, rounds-3, "after %d rounds: %v", rounds, got)
		require.LessOrEqual(t, most, rounds+3, "after %d rounds: %v", rounds, got)
		require.LessOrEqual(t, got[0], rounds+16, "the greedy one after %d rounds", rounds)
	}
}

// TestGuide: every configuration in the guide is one that iserd takes, and every verb of 'iserd ctl' in it is one that there is.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/admin.md")
	require.NoError(t, err)
	secrets := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(secrets, []byte("host1 a-secret-of-12-octets-or-more\n"), 0o600))
	proof := filepath.Join(t.TempDir(), "proof")
	require.NoError(t, os.WriteFile(proof, []byte("target a-secret-for-the-other-way\n"), 0o600))
	files := regexp.MustCompile("(?s)\n```toml\n(.*?)\n```").FindAllSubmatch(guide, -1)
	require.GreaterOrEqual(t, len(files), 2)
	for i, f := range files {
		file := filepath.Join(t.TempDir(), "iserd.toml")
		text := strings.NewReplacer("/etc/iserd/users", secrets, "/etc/iserd/proof", proof).Replace(string(f[1]))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		r := run(t, nil, program(t, "iserd"), "check", file)
		require.Zero(t, r.status, "example %d: %s", i+1, r.stderr)
	}
	verbs := regexp.MustCompile("iserd ctl ([a-z-]+)(?: (add|remove|resize|limit|read-only|set))?").FindAllSubmatch(guide, -1)
	require.NotEmpty(t, verbs)
	tried := make(map[string]bool)
	for _, v := range verbs {
		args := strings.Fields(string(v[1]) + " " + string(v[2]))
		if key := strings.Join(args, " "); !tried[key] {
			tried[key] = true
			r := run(t, nil, program(t, "iserd"), append(append([]string{"ctl"}, args...), "--help")...)
			require.Zero(t, r.status, "%v: %s", args, r.stderr)
			require.Contains(t, r.stdout, "iserd ctl "+key, "no such verb")
		}
	}
}

// TestCredentials: secrets can be systemd's credentials, which 'iserd check' cannot see outside of the service.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users"), []byte("host1 a-secret-of-12-octets-or-more\n"), 0o400))
	text := oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n[[target.access]]\nchap = \"cred:users\"\n")
	file := filepath.Join(t.TempDir(), "iserd.toml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	r := run(t, nil, program(t, "iserd"), "check", file)
	require.Zero(t, r.status, r.stderr)
	require.Contains(t, r.stdout, "cred:users is not looked into")
	r = run(t, nil, program(t, "iserd"), "--config", file)
	require.Equal(t, 1, r.status)
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	r = run(t, nil, program(t, "iserd"), "check", file)
	require.NotContains(t, r.stdout, "not looked into")
	s := serve(t, text)
	_, err := login(t, s.Addr, targetName, "host1")
	require.Error(t, err, "without a proof")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("a-secret-of-12-octets-or-more"), 0o600))
	tool(t, nil, "ls", "--chap-user", "host1", "--chap-secret-file", secret, s.url("iscsi", ""))
}
