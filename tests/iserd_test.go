package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/tcp"
)

// service is an iserd with a configuration file, a control socket and figures.
type service struct {
	*daemon
	t       *testing.T
	dir     string
	file    string
	addrs   []string // "ready" lines, in order
	metrics string   // URL
}

// configure writes the configuration: text, behind the sockets that tests need.
func (s *service) configure(text string) {
	s.t.Helper()
	head := fmt.Sprintf("control = %q\n[metrics]\nlisten = \"127.0.0.1:0\"\n", filepath.Join(s.dir, "control"))
	require.NoError(s.t, os.WriteFile(s.file, []byte(head+text), 0o600))
}

const onePortal = "[[portal]]\nlisten = \"127.0.0.1:0\"\n"

// oneTarget is a portal and a target with tables behind it.
func oneTarget(more string) string {
	return onePortal + fmt.Sprintf("[[target]]\nname = %q\n", targetName) + more
}

// serve starts iserd with a configuration and waits for READY=1 as systemd would.
func serve(t *testing.T, text string, more ...string) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "iserd") // the names of unix sockets are short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{daemon: &daemon{log: new(bytes.Buffer), done: make(chan struct{})}, t: t, dir: dir, file: filepath.Join(dir, "iserd.toml")}
	s.configure(text)
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = notify.Close() })
	s.cmd = exec.Command(program(t, "iserd"), append([]string{"--config", s.file}, more...)...)
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "notify"))
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("iserd: %s", s.log)
		}
	})
	lines := bufio.NewScanner(out)
	read := make(chan struct{})
	go func() {
		for lines.Scan() {
			if u, ok := strings.CutPrefix(lines.Text(), "metrics: "); ok {
				s.metrics = u
			}
			if f := strings.Fields(lines.Text()); len(f) == 4 && f[0] == "ready:" {
				s.addrs = append(s.addrs, f[3])
				break
			}
		}
		close(read)
		for lines.Scan() {
		}
		_ = s.cmd.Wait()
		close(s.done)
	}()
	s.notices = notify
	s.notice("READY=1")
	<-read
	require.NotEmpty(t, s.addrs)
	s.Addr, s.Name = s.addrs[0], targetName
	return s
}

// notice waits for a message to systemd that has a line, and returns the whole.
func (d *daemon) notice(line string) string {
	b := make([]byte, 4096)
	for {
		_ = d.notices.SetReadDeadline(time.Now().Add(bound))
		n, err := d.notices.Read(b)
		if err != nil {
			return fmt.Sprintf("no %s: %v", line, err)
		}
		if strings.Contains("\n"+string(b[:n])+"\n", "\n"+line+"\n") {
			return string(b[:n])
		}
	}
}

// ctl runs 'iserd ctl'.
func (s *service) ctl(args ...string) result {
	s.t.Helper()
	return run(s.t, nil, program(s.t, "iserd"), append([]string{"ctl", "--socket", filepath.Join(s.dir, "control")}, args...)...)
}

// must runs 'iserd ctl' and expects it to succeed.
func (s *service) must(args ...string) string {
	s.t.Helper()
	r := s.ctl(args...)
	require.Zero(s.t, r.status, "iserd ctl %v: %s", args, r.stderr)
	return r.stdout
}

// ask runs 'iserd ctl' for JSON.
func ask[T any](s *service, args ...string) (v T) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.must(append(args, "--json")...)), &v))
	return v
}

// login opens a session over TCP.
func login(t *testing.T, addr, target, name string) (*initiator.Session, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	s, err := initiator.Login(ctx, &tcp.Dialer{}, initiator.Config{Addr: addr, TargetName: target, InitiatorName: "iqn.2026-11.com.example:" + name})
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// attach is login that succeeds.
func attach(t *testing.T, addr, target, name string) *initiator.Session {
	t.Helper()
	s, err := login(t, addr, target, name)
	require.NoError(t, err)
	return s
}

// works proves that the session goes on.
func works(t *testing.T, s *initiator.Session, lun uint16) {
	t.Helper()
	b := make([]byte, 4096)
	_, err := s.LUN(lun).ReadAt(b, 0)
	require.NoError(t, err)
	require.NoError(t, s.Err())
}

func luns(t *testing.T, s *initiator.Session) (numbers []int) {
	t.Helper()
	all, err := s.ReportLUNs(t.Context())
	require.NoError(t, err)
	for _, l := range all {
		n, _ := scsi.DecodeLUN(l)
		numbers = append(numbers, n)
	}
	return numbers
}

func TestCheckTellsEveryMistake(t *testing.T) {
	dir := t.TempDir()
	file, img := filepath.Join(dir, "iserd.toml"), filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(
		"%s[limits]\nwindow = 0\n[[target]]\nname = \"x\"\n[[target.lun]]\nstore = %q\nsize = \"1MiB\"\n", onePortal, img)), 0o600))
	for _, args := range [][]string{{"check", file}, {"--config", file}} {
		r := run(t, nil, program(t, "iserd"), args...)
		assert.Equal(t, 1, r.status)
		assert.Contains(t, r.stderr, file+":4: window: 0: want 1 to 65536\n")
		assert.Contains(t, r.stderr, file+":5: target name \"x\"")
		assert.Equal(t, 3, strings.Count(r.stderr, "\n"), r.stderr)
	}
	assert.NoFileExists(t, img)
	require.NoError(t, os.WriteFile(file, []byte(oneTarget("")), 0o600))
	r := run(t, nil, program(t, "iserd"), "check", file)
	assert.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "1 targets, 0 LUNs, 1 portals: good")
	r = run(t, nil, program(t, "iserd"), "--config", file, "--lun", "mem:1MiB")
	assert.Equal(t, 2, r.status)
	assert.Contains(t, r.stderr, "--lun does not go with --config")
}

// TestNothingStartsHalf: if one of two disks is not there, all that is missing is told and nothing stays behind.
func TestNothingStartsHalf(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "iserd.toml")
	require.NoError(t, os.WriteFile(file, []byte(oneTarget(fmt.Sprintf(
		"[[target.lun]]\nstore = %q\n[[target.lun]]\nstore = %q\n[[target.access]]\nchap = %q\n",
		filepath.Join(dir, "none"), filepath.Join(dir, "nor this"), filepath.Join(dir, "secrets")))), 0o600))
	r := run(t, nil, program(t, "iserd"), "--config", file)
	assert.Equal(t, 1, r.status)
	for _, want := range []string{file + ":5: ", file + ":7: ", file + ":9: ", "3 mistakes, nothing is served"} {
		assert.Contains(t, r.stderr, want)
	}
	assert.NotContains(t, r.stdout, "ready")
}

// TestControl uses every verb on a daemon that serves, with a session that none of them may end but those that are about it.
func TestControl(t *testing.T) {
	s := serve(t, oneTarget("alias = \"a disk\"\n[[target.lun]]\nstore = \"mem:1MiB\"\n"))
	img := filepath.Join(s.dir, "disk.img")
	keep := attach(t, s.Addr, targetName, "keep")
	works(t, keep, 0)
	fi, err := os.Stat(filepath.Join(s.dir, "control"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())

	require.Contains(t, s.must("status"), "targets   ")
	st := ask[struct{ Targets, LUNs, Sessions int }](s, "status")
	require.Equal(t, struct{ Targets, LUNs, Sessions int }{1, 1, 1}, st)
	require.Contains(t, s.must("targets"), targetName)
	require.Contains(t, s.must("luns"), "mem:1MiB")

	s.must("lun", "add", img+",size=1MiB")
	require.FileExists(t, img)
	require.Equal(t, []int{0, 1}, luns(t, keep))
	works(t, keep, 1)
	s.must("lun", "resize", "1", "2MiB")
	c, err := keep.LUN(1).Capacity(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4096, c.Blocks)
	r := s.ctl("lun", "resize", "1", "1MiB")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "would lose data")
	s.must("lun", "resize", "1", "1MiB", "--shrink")
	s.must("lun", "read-only", "1", "on")
	_, err = keep.LUN(1).WriteAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, scsi.CodeWriteProtected.Err())
	s.must("lun", "read-only", "1", "off")
	_, err = keep.LUN(1).WriteAt(make([]byte, 512), 0)
	require.NoError(t, err)

	saved := filepath.Join(s.dir, "saved.toml")
	s.must("save", saved)
	r = run(t, nil, program(t, "iserd"), "check", saved)
	require.Zero(t, r.status, r.stderr)
	require.Contains(t, r.stdout, "2 LUNs")
	before, err := os.ReadFile(s.file)
	require.NoError(t, err)
	require.NotContains(t, string(before), "disk.img", "nothing is kept that nobody asked to keep")

	s.must("lun", "remove", "1")
	require.Equal(t, []int{0}, luns(t, keep))
	require.Zero(t, run(t, nil, program(t, "iserd"), "check", saved).status)
	s.must("lun", "add", img, "--lun", "7") // its lock is free again
	require.Equal(t, []int{0, 7}, luns(t, keep))
	s.must("save")
	after, err := os.ReadFile(s.file)
	require.NoError(t, err)
	require.Contains(t, string(after), "disk.img")
	require.FileExists(t, s.file+".old")

	const second = targetName + ".second"
	s.must("target", "add", second)
	s.must("lun", "add", "mem:1MiB", "--target", second)
	other := attach(t, s.Addr, second, "other")
	works(t, other, 0)
	r = s.ctl("lun", "add", "mem:1MiB")
	require.Contains(t, r.stderr, "2 targets: name one")
	s.must("drain", second)
	<-other.Done()
	_, err = login(t, s.Addr, second, "other")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginUnavailable, ""))
	s.must("resume", second)
	works(t, attach(t, s.Addr, second, "other"), 0)
	s.must("target", "remove", second)
	_, err = login(t, s.Addr, second, "other")
	require.Error(t, err)

	type session struct {
		ID         int
		Initiator  string
		Transport  string
		Rates      map[string]float64
		Negotiated map[string]any
	}
	sessions := ask[[]session](s, "sessions", "--interval", "0")
	require.Len(t, sessions, 1)
	require.Equal(t, "tcp", sessions[0].Transport)
	require.NotZero(t, sessions[0].Rates["commands"])
	require.NotZero(t, sessions[0].Negotiated["MaxBurstLength"])
	works(t, keep, 0)
	s.must("disconnect", strconv.Itoa(sessions[0].ID))
	<-keep.Done()
	for _, bad := range [][]string{{"disconnect", "9"}, {"lun", "remove", "9"}, {"lun", "add", "mem:lots"}, {"drain", "iqn.2026-11.com.example:none"}} {
		r := s.ctl(bad...)
		require.Equal(t, 1, r.status, "%v", bad)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
	}
	require.Contains(t, s.must("reload"), "nothing to change")
	require.Zero(t, s.stop(t))
	require.Contains(t, s.ctl("status").stderr, "no iserd answers")
}

// TestControlProtocol: what is not understood is refused, and the daemon goes on.
func TestControlProtocol(t *testing.T) {
	s := serve(t, oneTarget(""))
	for request, want := range map[string]string{
		`{"version":2,"command":"status"}`:                "version 2",
		`{"version":1,"command":"sing"}`:                  "unknown command",
		`{"version":1,"command":"status","args":{"x":1}}`: "unknown field",
		`not json`: "request",
	} {
		c, err := net.Dial("unix", filepath.Join(s.dir, "control"))
		require.NoError(t, err)
		_, err = io.WriteString(c, request+"\n")
		require.NoError(t, err)
		answer, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Contains(t, string(answer), want)
		require.Contains(t, string(answer), `"ok":false`)
		_ = c.Close()
	}
	s.must("status")
}

// TestReload: exactly what differs is changed, by SIGHUP and by 'iserd ctl reload', and sessions that are not concerned go on.
func TestReload(t *testing.T) {
	const second = targetName + ".second"
	base := "[[portal]]\nlisten = \"127.0.0.1:0\"\n"
	target := func(name string, luns ...string) string {
		text := fmt.Sprintf("[[target]]\nname = %q\n", name)
		for _, l := range luns {
			text += fmt.Sprintf("[[target.lun]]\nstore = %q\n", l)
		}
		return text
	}
	s := serve(t, base+target(targetName, "mem:1MiB")+target(second, "mem:1MiB"))
	keep, drop := attach(t, s.Addr, targetName, "keep"), attach(t, s.Addr, second, "drop")
	works(t, keep, 0)
	works(t, drop, 0)

	s.configure(base + "[[portal]]\nlisten = \"[::1]:0\"\n" + target(targetName, "mem:2MiB", "mem:4MiB"))
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	require.Contains(t, s.notice("RELOADING=1"), "MONOTONIC_USEC=")
	s.notice("READY=1")
	<-drop.Done()
	require.Equal(t, []int{0, 1}, luns(t, keep))
	c, err := keep.LUN(0).Capacity(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4096, c.Blocks, "resized")
	works(t, keep, 0)
	st := ask[struct{ Portals []struct{ Address string } }](s, "status")
	require.Len(t, st.Portals, 2)
	works(t, attach(t, st.Portals[1].Address, targetName, "six"), 1)

	s.configure(base + target(targetName, "mem:2MiB") + "[limits]\nwindow = 0\n")
	r := s.ctl("reload")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "window: 0")
	require.Equal(t, []int{0, 1}, luns(t, keep), "a file with a mistake changes nothing")

	s.configure(base + target(targetName, "mem:2MiB") + "[limits]\nwindow = 64\n")
	out := s.must("reload")
	require.Contains(t, out, "LUN 1 removed")
	require.Contains(t, out, "portal [::1]")
	require.Contains(t, out, "limits.window is 64, for sessions from now on")
	require.Equal(t, []int{0}, luns(t, keep))
	works(t, keep, 0)

	s.configure(base + target(targetName, "mem:2MiB") + "[[target.access]]\ninitiators = [\"iqn.2026-11.com.example:other\"]\n")
	require.Contains(t, s.must("reload"), "access changed")
	<-keep.Done()
	_, err = login(t, s.Addr, targetName, "keep")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginForbidden, ""))
	works(t, attach(t, s.Addr, targetName, "other"), 0)
	s.configure("colour = 1\n")
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	s.notice("RELOADING=1")
	s.notice("READY=1")
	works(t, attach(t, s.Addr, targetName, "other"), 0)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Contains(t, s.notice("STOPPING=1"), "STATUS=")
	<-s.done
	require.Zero(t, s.cmd.ProcessState.ExitCode())
}

// TestMasking: each initiator sees the logical units of its rule under the numbers that the rule gives them.
func TestMasking(t *testing.T) {
	s := serve(t, oneTarget(`
[[target.lun]]
store = "mem:1MiB"
[[target.lun]]
store = "mem:2MiB"
[[target.access]]
initiators = ["iqn.2026-11.com.example:a"]
luns = [{lun = 1, as = 0, read-only = true}]
[[target.access]]
initiators = ["iqn.2026-11.com.example:b*"]
networks = ["127.0.0.0/8"]
`))
	a, b := attach(t, s.Addr, targetName, "a"), attach(t, s.Addr, targetName, "bee")
	require.Equal(t, []int{0}, luns(t, a))
	require.Equal(t, []int{0, 1}, luns(t, b))
	c, err := a.LUN(0).Capacity(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4096, c.Blocks)
	_, err = a.LUN(0).WriteAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, scsi.CodeWriteProtected.Err())
	_, err = b.LUN(1).WriteAt(make([]byte, 512), 0)
	require.NoError(t, err)
	_, err = login(t, s.Addr, targetName, "c")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginForbidden, ""))
}

// TestLimits: one session too many of an initiator is refused with the status for it, and counted by it.
func TestLimits(t *testing.T) {
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n[limits]\ninitiator-sessions = 2\nsessions = 3\n"))
	var in []*initiator.Session
	for range 2 {
		in = append(in, attach(t, s.Addr, targetName, "greedy"))
	}
	_, err := login(t, s.Addr, targetName, "greedy")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginNoResources, ""))
	attach(t, s.Addr, targetName, "modest")
	_, err = login(t, s.Addr, targetName, "late")
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginNoResources, ""))
	require.EqualValues(t, 2, s.scrape()[`iserd_logins_refused_total{reason="out of resources"}`])
	for _, i := range in {
		works(t, i, 0)
	}
}

var sample = regexp.MustCompile(`^(iserd_.+) ([0-9.e+-]+)$`)

// scrape reads the figures.
func (s *service) scrape() map[string]float64 {
	s.t.Helper()
	rsp, err := http.Get(s.metrics)
	require.NoError(s.t, err)
	defer func() { _ = rsp.Body.Close() }()
	require.Equal(s.t, http.StatusOK, rsp.StatusCode)
	m := make(map[string]float64)
	for lines := bufio.NewScanner(rsp.Body); lines.Scan(); {
		if f := sample.FindStringSubmatch(lines.Text()); f != nil {
			m[f[1]], err = strconv.ParseFloat(f[2], 64)
			require.NoError(s.t, err)
		}
	}
	return m
}

// TestMetrics compares what is counted with what was done.
func TestMetrics(t *testing.T) {
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n"))
	for _, p := range []string{"healthz", "readyz"} {
		rsp, err := http.Get(strings.Replace(s.metrics, "metrics", p, 1))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, rsp.StatusCode, p)
		_ = rsp.Body.Close()
	}
	a := attach(t, s.Addr, targetName, "a")
	works(t, a, 0)
	before := s.scrape()
	for i := range int64(10) {
		_, err := a.LUN(0).WriteAt(make([]byte, 8192), i*8192)
		require.NoError(t, err)
	}
	for i := range int64(7) {
		_, err := a.LUN(0).ReadAt(make([]byte, 4096), i*4096)
		require.NoError(t, err)
	}
	require.NoError(t, a.LUN(0).Flush(t.Context()))
	_, err := a.LUN(0).Do(t.Context(), []byte{0x28, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0}, make([]byte, 512), nil)
	require.Error(t, err)
	after := s.scrape()
	diff := func(name string) float64 { return after[name] - before[name] }
	lun := fmt.Sprintf(`{lun="0",operation="%%s",target=%q}`, targetName)
	require.EqualValues(t, 10, diff("iserd_lun_command_duration_seconds_count"+fmt.Sprintf(lun, "write")))
	require.EqualValues(t, 10*8192, diff("iserd_lun_bytes_total"+fmt.Sprintf(lun, "write")))
	require.EqualValues(t, 8, diff("iserd_lun_command_duration_seconds_count"+fmt.Sprintf(lun, "read")))
	require.EqualValues(t, 7*4096, diff("iserd_lun_bytes_total"+fmt.Sprintf(lun, "read")))
	require.EqualValues(t, 1, diff("iserd_lun_command_duration_seconds_count"+fmt.Sprintf(lun, "flush")))
	require.EqualValues(t, 1, diff(fmt.Sprintf(`iserd_lun_sense_total{key="ILLEGAL REQUEST",lun="0",target=%q}`, targetName)))
	require.EqualValues(t, 1, after["iserd_sessions"])
	found := false
	for name := range after {
		found = found || strings.HasPrefix(name, "iserd_session_bytes_total") && strings.Contains(name, `initiator="iqn.2026-11.com.example:a"`)
	}
	require.True(t, found, "figures of the session")

	_, data := randomFile(t, 64<<10)
	tool(t, data, "write", s.url("iser", "0"))
	rdma := s.scrape()
	require.NotZero(t, rdma[`iserd_rdma_operations_total{direction="sent",operation="read"}`], "RDMA Reads fetch what is written")
	require.GreaterOrEqual(t, rdma[`iserd_rdma_bytes_total{direction="received"}`], float64(64<<10-8192))
	require.Zero(t, rdma["iserd_mpa_crc_errors_total"])
	require.NotZero(t, rdma[`iserd_memory_bytes{use="iser data held"}`])
}

// TestSocketActivation serves on a socket that systemd has opened.
func TestSocketActivation(t *testing.T) {
	activate, err := exec.LookPath("systemd-socket-activate")
	if err != nil {
		t.Skip("systemd-socket-activate is not installed")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	cmd := exec.Command(activate, "--listen="+addr, program(t, "iserd"), "--target", targetName, "--lun", "mem:1MiB")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	diag, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(diag)
	for lines.Scan() && !strings.Contains(lines.Text(), "Listening on") {
	}
	go func() { _, _ = io.Copy(io.Discard, diag) }()
	s := attach(t, addr, targetName, "a") // the first connection starts iserd
	works(t, s, 0)
	first := bufio.NewScanner(out)
	require.True(t, first.Scan())
	require.Equal(t, "ready: "+targetName+" on "+addr, first.Text())
}

// TestWatchdog: signs of life come as often as systemd wants them.
func TestWatchdog(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "200000")
	s := serve(t, oneTarget(""))
	for range 3 {
		require.Equal(t, "WATCHDOG=1", s.notice("WATCHDOG=1"))
	}
}

// TestIdleSessions: a thousand sessions that do nothing are cheap, and others are served beside them.
func TestIdleSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a thousand sessions")
	}
	s := serve(t, oneTarget("[[target.lun]]\nstore = \"mem:1MiB\"\n[limits]\nsessions = 1024\n"))
	for i := range 1000 {
		attach(t, s.Addr, targetName, fmt.Sprintf("idle%d", i/20))
	}
	works(t, attach(t, s.Addr, targetName, "busy"), 0)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Skip("no /proc")
	}
	f := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, f)
	kib, err := strconv.Atoi(string(f[1]))
	require.NoError(t, err)
	t.Logf("%d MiB resident with 1001 sessions", kib>>10)
	require.Less(t, kib, 512<<10)
}
