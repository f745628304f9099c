package tests

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// write writes the whole configuration, sockets included.
func (s *service) write(text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.file, []byte(text), 0o600))
}

// TestReloadSettings: limits, timers and what lies below iSER change while iserd serves, and who is there stays.
func TestReloadSettings(t *testing.T) {
	disk := oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n")
	s := serve(t, disk+"[timers]\nlogin = \"1h\"\n")
	a := attach(t, s.Addr, targetName, "a")
	second := attach(t, s.Addr, targetName, "a")
	s.configure(disk + `[limits]
initiator-sessions = 1
sessions = 9
connections = 20
logins = 30
commands = 5
window = 2
workers = 3
memory = "64MiB"
session-memory = "2MiB"
[timers]
login = "50m"
ping = "40s"
dead = "20s"
logout = "1s"
drain = "10s"
[rdma]
crc = false
max-fpdu = 9000
`)
	out := s.must("reload")
	for _, want := range []string{
		"limits.sessions is 9", "limits.initiator-sessions is 1", "limits.connections is 20", "limits.logins is 30", "limits.commands is 5",
		"limits.window is 2, for sessions from now on", "limits.workers is 3", "limits.memory is 67108864",
		"limits.session-memory is 2097152, for connections from now on",
		"timers.login is 50m0s, for connections from now on", "timers.ping is 40s, for connections from now on",
		"timers.dead is 20s, for connections from now on", "timers.logout is 1s", "timers.drain is 10s",
		"rdma.crc is false, for connections from now on", "rdma.max-fpdu is 9000, for connections from now on",
	} {
		require.Contains(t, out, want+"\n")
	}
	require.Equal(t, 16, strings.Count(out, "\n"), out)
	works(t, a, 0)
	works(t, second, 0)
	_, err := login(t, s.Addr, targetName, "a")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginNoResources, ""))
	works(t, attach(t, s.Addr, targetName, "b"), 0)

	// A session over iSER has 2 commands in progress at most, yet moves all of its data.
	name, data := randomFile(t, 1<<20)
	tool(t, data, "write", s.url("iser", "0"))
	require.Equal(t, string(data), tool(t, nil, "read", s.url("iser", "0")), name)

	// One who says nothing is given up by the new time. Nobody has to log in within that.
	s.configure(disk + "[timers]\nlogin = \"1s\"\n")
	require.Contains(t, s.must("reload"), "timers.login is 1s, for connections from now on\n")
	c, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(bound)))
	_, err = c.Read(make([]byte, 1))
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)

	s.configure(disk)
	require.Contains(t, s.must("reload"), "timers.login is 15s, for connections from now on\n")
	works(t, attach(t, s.Addr, targetName, "a"), 0)
	require.Equal(t, "nothing to change\n", s.must("reload"))
}

// TestReloadRefuses: what a running iserd cannot change is refused with its key and its line, and so is everything else of that file.
func TestReloadRefuses(t *testing.T) {
	disk := "[[target]]\nname = \"" + targetName + "\"\n[[target.lun]]\nstore = \"mem:1MiB\"\n"
	const rdma = "[[portal]]\nlisten = \"127.0.0.1:0\"\nrdma = true\n"
	s := serve(t, onePortal+rdma+disk)
	for text, want := range map[string]string{
		"[rdma]\ndevice = \"verbs:siw0\"\n": "rdma.device cannot become verbs:siw0 while iserd serves with soft",
		"[rdma]\ncrc = false\n":             "rdma.crc cannot change for the portal 127.0.0.1:0 with rdma = true",
		"[rdma]\nmax-fpdu = 9000\n":         "rdma.max-fpdu cannot change for the portal 127.0.0.1:0 with rdma = true",
	} {
		s.configure(onePortal + rdma + disk + "[limits]\nwindow = 2\n" + text)
		r := s.ctl("reload")
		require.Equal(t, 1, r.status)
		require.Contains(t, r.stderr, want)
		require.Contains(t, r.stderr, s.file+":")
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
		require.NotContains(t, s.must("save", "-"), "window = 2")
	}
	s.configure(onePortal + disk + "[rdma]\ncrc = false\n")
	require.Contains(t, s.must("reload"), "rdma.crc is false")
	works(t, attach(t, s.Addr, targetName, "a"), 0)
}

// scraped tells whether there are figures at an address.
func scraped(addr string) bool {
	rsp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return false
	}
	defer func() { _ = rsp.Body.Close() }()
	b, err := io.ReadAll(rsp.Body)
	return err == nil && strings.Contains(string(b), "iserd_sessions")
}

// TestMetricsMove: figures are served elsewhere, nowhere, and again, without a session's noticing.
func TestMetricsMove(t *testing.T) {
	disk := oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n")
	s := serve(t, disk)
	a := attach(t, s.Addr, targetName, "a")
	control := fmt.Sprintf("control = %q\n", filepath.Join(s.dir, "control"))
	at := func(listen string) string { return control + fmt.Sprintf("[metrics]\nlisten = %q\n", listen) }
	old := strings.TrimSuffix(strings.TrimPrefix(s.metrics, "http://"), "/metrics")
	require.True(t, scraped(old))
	_, port, err := net.SplitHostPort(old)
	require.NoError(t, err)

	// The same port on all addresses, in a file with a mistake elsewhere: the old address is back. Without the mistake it is not.
	s.write(at("0.0.0.0:"+port) + disk + "[[portal]]\nlisten = \"192.0.2.99:3260\"\n")
	require.Contains(t, s.ctl("reload").stderr, "192.0.2.99")
	require.True(t, scraped(old))
	s.write(at("0.0.0.0:"+port) + disk)
	require.Contains(t, s.must("reload"), "metrics.listen is ")
	require.True(t, scraped(old))
	s.write(at("127.0.0.2:0") + disk)
	out := s.must("reload")
	at2, ok := strings.CutPrefix(strings.TrimSpace(out), "metrics.listen is ")
	require.True(t, ok, out)
	require.True(t, scraped(at2))
	require.False(t, scraped(old))
	s.write(control + disk)
	require.Contains(t, s.must("reload"), "metrics.listen is closed")
	require.False(t, scraped(at2))
	s.write(at("127.0.0.2:0") + disk)
	require.Contains(t, s.must("reload"), "metrics.listen is 127.0.0.2:")
	works(t, a, 0)
}

// TestControlMoves: the socket of 'iserd ctl' goes elsewhere, and who has asked for that at the old one has the answer.
func TestControlMoves(t *testing.T) {
	disk := oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n")
	s := serve(t, disk)
	there := filepath.Join(s.dir, "elsewhere")
	s.write(fmt.Sprintf("control = %q\n[metrics]\nlisten = \"127.0.0.1:0\"\n", there) + disk)
	require.Equal(t, "control is "+there+"\n", s.must("reload"))
	require.Contains(t, s.ctl("status").stderr, "no iserd answers")
	require.NoFileExists(t, filepath.Join(s.dir, "control"))
	r := run(t, nil, program(t, "iserd"), "ctl", "--socket", there, "status")
	require.Zero(t, r.status, r.stderr)
}

// TestStalledControl: clients that stop in the middle of what they ask lock nobody else out.
func TestStalledControl(t *testing.T) {
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n"))
	for i := range 40 {
		c, err := net.Dial("unix", filepath.Join(s.dir, "control"))
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		if _, _ = io.WriteString(c, `{"version":1,`); i < 8 || runtime.GOOS != "linux" {
			continue
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(bound)))
		b, _ := io.ReadAll(c) // it may end with a reset: what was sent there is not read
		// On a busy machine the first ones may have been given up by now, and this one is in the end.
		require.Regexp(t, "8 requests of process |timeout", string(b))
	}
	require.Contains(t, s.must("status"), "sessions")
	s.must("lun", "resize", "0", "2MiB")
}
