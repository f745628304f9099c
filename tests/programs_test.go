package tests

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bound is how long a program may take before a test gives it up: a guard against hanging, not a measure.
const bound = 2 * time.Minute

const targetName = "iqn.2026-11.com.example:test"

// programs builds the commands once and returns the folder that they are in.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "goiwarp-programs")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/...")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, &buildError{out, err}
	}
	return dir, nil
})

type buildError struct {
	out []byte
	err error
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + string(e.out) }

func TestMain(m *testing.M) {
	status := m.Run()
	if dir, _ := programs(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(status)
}

func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	status         int
}

// run runs a program to its end.
func run(t *testing.T, stdin []byte, path string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	require.NoError(t, ctx.Err(), "%s %v hangs\n%s", path, args, errs.String())
	if err != nil {
		require.IsType(t, (*exec.ExitError)(nil), err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// tool runs iser and expects it to succeed.
func tool(t *testing.T, stdin []byte, args ...string) string {
	t.Helper()
	r := run(t, stdin, program(t, "iser"), args...)
	require.Zero(t, r.status, "iser %v: %s", args, r.stderr)
	return r.stdout
}

// daemon is a running iserd.
type daemon struct {
	cmd  *exec.Cmd
	Addr string // "127.0.0.1:port"
	Name string
	log  *bytes.Buffer
	done chan struct{}

	notices *net.UnixConn // what systemd is told, if a test listens
}

// url names a LUN, or the target if lun is "".
func (d *daemon) url(scheme, lun string) string {
	return strings.TrimSuffix(scheme+"://"+d.Addr+"/"+d.Name+"/"+lun, "/")
}

// startDaemon runs iserd and waits until it is ready.
func startDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{log: new(bytes.Buffer), done: make(chan struct{})}
	d.cmd = exec.Command(program(t, "iserd"), append([]string{"--listen", "127.0.0.1:0", "--target", targetName}, args...)...)
	d.cmd.Stderr = d.log
	out, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	lines := bufio.NewScanner(out)
	ready := lines.Scan()
	says := lines.Text()
	fields := strings.Fields(says)
	go func() {
		for lines.Scan() { // drain, so that Wait can end
		}
		_ = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.done
		if t.Failed() && d.log.Len() > 0 {
			t.Logf("iserd: %s", d.log)
		}
	})
	require.True(t, ready && len(fields) == 4 && fields[0] == "ready:" && fields[2] == "on", "iserd says %q", says)
	d.Name, d.Addr = fields[1], fields[3]
	return d
}

// stop ends iserd by SIGTERM and returns its status.
func (d *daemon) stop(t *testing.T) int {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-d.done:
	case <-time.After(bound):
		t.Fatal("iserd does not end after SIGTERM")
	}
	return d.cmd.ProcessState.ExitCode()
}

// randomFile makes a file of n octets.
func randomFile(t *testing.T, n int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, n)
	seed := sha256.Sum256([]byte(t.Name()))
	_, _ = rand.NewChaCha8(seed).Read(data)
	path = filepath.Join(t.TempDir(), "random")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path, data
}

func TestCopyInAndOut(t *testing.T) {
	img := filepath.Join(t.TempDir(), "disk.img")
	d := startDaemon(t, "--lun", img+",size=16MiB")
	in, data := randomFile(t, 16<<20)
	for _, way := range []struct{ in, out string }{{"iser", "iser"}, {"iser", "iscsi"}, {"iscsi", "iser"}} {
		out := filepath.Join(t.TempDir(), "out")
		tool(t, nil, "cp", "--verify", in, d.url(way.in, "0"))
		tool(t, nil, "cp", d.url(way.out, "0"), out)
		got, err := os.ReadFile(out)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "%v", way)
	}
	require.Zero(t, d.stop(t), "SIGTERM ends it with status 0")
	got, err := os.ReadFile(img)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got), "the file behind the disk")
}

func TestReadAndWriteParts(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:1MiB")
	for _, scheme := range []string{"iser", "iscsi"} {
		// Offsets and lengths that are no multiples of a block keep what is around them.
		tool(t, bytes.Repeat([]byte{'a'}, 4096), "write", d.url(scheme, "0"), "--offset", "8192")
		tool(t, []byte("hello"), "write", d.url(scheme, "0"), "--offset", "8291")
		got := tool(t, nil, "read", d.url(scheme, "0"), "--offset", "8289", "--length", "9")
		assert.Equal(t, "aahelloaa", got, scheme)
		all := tool(t, nil, "read", d.url(scheme, "0"))
		assert.Len(t, all, 1<<20)
		assert.Equal(t, 4096-5, strings.Count(all, "a"))
		tool(t, make([]byte, 1<<20), "write", d.url(scheme, "0"))
	}
}

func TestDiscoverListInform(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:64MiB", "--lun", "null:1TiB", "--lun", "mem:8MiB,ro,block=4096")
	out := tool(t, nil, "discover", d.Addr)
	assert.Contains(t, out, d.Name)
	assert.Contains(t, out, d.Addr+",1")
	for _, scheme := range []string{"iser", "iscsi"} {
		out = tool(t, nil, "ls", d.url(scheme, ""))
		for _, want := range []string{"64 MiB", "1.0 TiB", "8.0 MiB"} {
			assert.Contains(t, out, want, scheme)
		}
		out = tool(t, nil, "info", d.url(scheme, "2"))
		for _, want := range []string{"8.0 MiB", "4096", "read-only", "MaxBurstLength"} {
			assert.Contains(t, out, want, scheme)
		}
	}
	assert.Contains(t, tool(t, nil, "info", d.url("iser", "0")), "crc")
}

func TestReadOnlyRefusesWrites(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:1MiB,ro")
	for _, scheme := range []string{"iser", "iscsi"} {
		r := run(t, make([]byte, 512), program(t, "iser"), "write", d.url(scheme, "0"))
		assert.Equal(t, 1, r.status)
		assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line: %s", r.stderr)
		assert.Contains(t, strings.ToLower(r.stderr), "protect")
	}
}

// TestMistakesGetOneLine lets users err: each mistake has one line that names it, status 1 for what the world
// refuses and 2 for usage, and no stack trace.
func TestMistakesGetOneLine(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:1MiB")
	dir := t.TempDir()
	img := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(img, make([]byte, 1<<20), 0o600))
	held := startDaemon(t, "--lun", img)
	_ = held
	iserd, iserTool := program(t, "iserd"), program(t, "iser")
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"no LUN", []string{iserd}, 2, "--lun"},
		{"missing file without a size", []string{iserd, "--lun", filepath.Join(dir, "none")}, 1, "none"},
		{"bad size", []string{iserd, "--lun", "mem:lots"}, 1, "lots"},
		{"size of an existing file differs", []string{iserd, "--lun", img + ",size=2MiB"}, 1, "disk.img"},
		{"unknown option", []string{iserd, "--lun", "mem:1MiB,colour=red"}, 1, "colour"},
		{"file in use", []string{iserd, "--listen", "127.0.0.1:0", "--lun", img}, 1, "in use"},
		{"port taken", []string{iserd, "--lun", "mem:1MiB", "--listen", d.Addr}, 1, "in use"},
		{"size below a block", []string{iserd, "--listen", "127.0.0.1:0", "--lun", filepath.Join(dir, "small") + ",size=100"}, 1, "no block"},
		{"long alias", []string{iserd, "--listen", "127.0.0.1:0", "--lun", "mem:1MiB", "--alias", strings.Repeat("a", 256)}, 1, "alias"},
		{"bad listen address", []string{iserd, "--lun", "mem:1MiB", "--listen", "nowhere"}, 1, "nowhere"},
		{"bad target name", []string{iserd, "--lun", "mem:1MiB", "--listen", "127.0.0.1:0", "--target", "my disk"}, 1, "my disk"},
		{"unknown flag", []string{iserd, "--frobnicate"}, 2, "frobnicate"},
		{"unknown command", []string{iserTool, "frobnicate"}, 2, "frobnicate"},
		{"unknown shell", []string{iserTool, "completion", "tcsh"}, 2, "tcsh"},
		{"no URL", []string{iserTool, "ls"}, 2, "arg"},
		{"not a URL", []string{iserTool, "ls", "disk"}, 2, "iser://"},
		{"nobody listens", []string{iserTool, "ls", "iser://127.0.0.1:1/" + d.Name}, 1, "127.0.0.1:1"},
		{"no such target", []string{iserTool, "ls", "iscsi://" + d.Addr + "/iqn.2026-11.com.example:other"}, 1, "not found"},
		{"no such LUN", []string{iserTool, "read", d.url("iser", "7")}, 1, "LUN 7"},
		{"no LUN in the URL", []string{iserTool, "read", d.url("iser", "")}, 2, "LUN"},
		{"offset beyond the end", []string{iserTool, "read", d.url("iser", "0"), "--offset", "2MiB"}, 1, "end"},
		{"source does not exist", []string{iserTool, "cp", filepath.Join(dir, "none"), d.url("iser", "0")}, 1, "none"},
		{"source is a directory", []string{iserTool, "cp", dir, d.url("iser", "0")}, 1, "directory"},
		{"nothing to read", []string{iserTool, "read", d.url("iser", "0"), "--length", "0"}, 2, "--length 0"},
		{"no time", []string{iserTool, "--timeout", "0", "ls", d.url("iser", "")}, 2, "--timeout"},
		{"unknown way to hand over", []string{iserTool, "--handover=maybe", "ls", d.url("iser", "")}, 2, "insist"},
		{"source too large", []string{iserTool, "cp", iserd, d.url("iser", "0")}, 1, "larger"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, nil, c.args[0], c.args[1:]...)
			assert.Equal(t, c.status, r.status, r.stderr)
			assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line: %s", r.stderr)
			assert.Contains(t, r.stderr, c.says)
			assert.NotContains(t, r.stderr, "goroutine")
		})
	}
	assert.NoFileExists(t, filepath.Join(dir, "small"), "what cannot be exported is not created")
}

func TestHelpHasExamples(t *testing.T) {
	for _, args := range [][]string{
		{"iserd"},
		{"iser"},
		{"iser", "discover"},
		{"iser", "ls"},
		{"iser", "info"},
		{"iser", "read"},
		{"iser", "write"},
		{"iser", "cp"},
		{"iser", "bench"},
		{"iser", "pr"},
		{"iser", "sg"},
		{"iser", "vpd"},
		{"iser", "monitor"},
		{"iser", "attach"},
		{"iser", "detach"},
		{"iser", "attached"},
		{"iser", "serve-nbd"},
	} {
		r := run(t, nil, program(t, args[0]), append(args[1:], "--help")...)
		assert.Zero(t, r.status)
		assert.Contains(t, r.stdout, "Examples:", "%v", args)
	}
}
