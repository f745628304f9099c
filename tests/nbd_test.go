package tests

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// nbdServer is a running 'iser serve-nbd'.
type nbdServer struct {
	cmd  *exec.Cmd
	URI  string
	log  *bytes.Buffer
	done chan struct{}
}

// serveNBD runs 'iser serve-nbd' and waits until it is ready.
func serveNBD(t *testing.T, args ...string) *nbdServer {
	t.Helper()
	s := &nbdServer{log: new(bytes.Buffer), done: make(chan struct{})}
	s.cmd = exec.Command(program(t, "iser"), append([]string{"serve-nbd"}, args...)...)
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	lines := bufio.NewScanner(out)
	ready := lines.Scan()
	fields := strings.Fields(lines.Text())
	go func() {
		for lines.Scan() {
		}
		_ = s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("iser serve-nbd: %s", s.log)
		}
	})
	require.True(t, ready && len(fields) == 4 && fields[0] == "ready:", "serve-nbd says %q, %s", fields, s.log)
	s.URI = fields[3]
	return s
}

// stop ends it by SIGTERM and returns its status.
func (s *nbdServer) stop(t *testing.T) int {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	<-s.done
	return s.cmd.ProcessState.ExitCode()
}

// needs skips the test where a program is not installed.
func needs(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// socketPath is short enough for a Unix socket's address, which t.TempDir may not be.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestServeNBDToQemu(t *testing.T) {
	img, qio := needs(t, "qemu-img"), needs(t, "qemu-io")
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "disk.img")
			d := startDaemon(t, "--lun", file+",size=16MiB", "--lun", "mem:8MiB,block=4096", "--lun", "mem:8MiB,ro")
			in, data := randomFile(t, 16<<20)
			s := serveNBD(t, d.url(scheme, "0"), "--socket", socketPath(t))

			r := run(t, nil, img, "convert", "-n", "-f", "raw", "-O", "raw", "-W", in, s.URI)
			require.Zero(t, r.status, r.stderr)
			r = run(t, nil, img, "compare", "-f", "raw", "-F", "raw", in, s.URI)
			require.Zero(t, r.status, r.stdout+r.stderr)
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got), "the file behind the disk")

			r = run(t, nil, qio, "-f", "raw", "-c", "write -P 0xa5 -f 64k 128k", "-c", "read -P 0xa5 64k 128k", "-c", "write -z -u 96k 32k", "-c", "read -P 0 96k 32k",
				"-c", "read -P 0xa5 128k 64k", "-c", "discard 1M 1M", "-c", "write -P 7 0 8M", "-c", "read -P 7 0 8M", "-c", "flush", s.URI)
			require.Zero(t, r.status, r.stdout+r.stderr)
			require.NotContains(t, r.stdout, "Pattern verification failed")
			require.Zero(t, s.stop(t), s.log)

			s = serveNBD(t, d.url(scheme, "1"), "--listen", "127.0.0.1:0")
			r = run(t, nil, qio, "-f", "raw", "-c", "write -P 1 512 1024", "-c", "read -P 1 512 1024", "-c", "read -P 0 0 512", s.URI)
			require.Zero(t, r.status, r.stdout+r.stderr)
			require.NotContains(t, r.stdout, "Pattern verification failed")
			require.Zero(t, s.stop(t))

			s = serveNBD(t, d.url(scheme, "2"), "--socket", socketPath(t))
			r = run(t, nil, qio, "-f", "raw", "-c", "write 0 512", s.URI)
			require.NotZero(t, r.status, "a write to a disk that is write protected")
			r = run(t, nil, qio, "-r", "-f", "raw", "-c", "read -P 0 0 512", s.URI)
			require.Zero(t, r.status, r.stdout+r.stderr)
		})
	}
}

// TestServeNBDOutlivesItsTarget: the target is killed and started again while qemu writes, and qemu sees nothing of it.
func TestServeNBDOutlivesItsTarget(t *testing.T) {
	qio := needs(t, "qemu-io")
	file := filepath.Join(t.TempDir(), "disk.img")
	d := startDaemon(t, "--lun", file+",size=16MiB")
	s := serveNBD(t, d.url("iser", "0"), "--socket", socketPath(t))
	client := exec.Command(qio, "-f", "raw", s.URI)
	in, err := client.StdinPipe()
	require.NoError(t, err)
	out, err := client.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	lines := bufio.NewScanner(out)
	do := func(command, want string) {
		t.Helper()
		_, err := in.Write([]byte(command + "\n"))
		require.NoError(t, err)
		for lines.Scan() {
			require.NotContains(t, lines.Text(), "failed")
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatal("qemu-io has ended")
	}
	do("write -P 1 -f 0 1M", "wrote 1048576/1048576")
	require.NoError(t, d.cmd.Process.Kill())
	<-d.done
	startDaemon(t, "--lun", file, "--listen", d.Addr) // besides a port of its own
	do("write -P 2 -f 1M 1M", "wrote 1048576/1048576")
	do("read -P 1 0 1M", "read 1048576/1048576")
	do("read -P 2 1M 1M", "read 1048576/1048576")
	do("quit", "")
	_ = in.Close()
	for lines.Scan() {
	}
	_ = client.Wait()
	require.Zero(t, s.stop(t))
}

func TestServeNBDSockets(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:1MiB")
	path := socketPath(t)
	s := serveNBD(t, d.url("iser", "0"), "--socket", path)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	r := run(t, nil, program(t, "iser"), "serve-nbd", d.url("iser", "0"), "--socket", path)
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "somebody listens there already")
	require.NoError(t, s.cmd.Process.Kill())
	<-s.done
	s = serveNBD(t, d.url("iser", "0"), "--socket", path) // what the killed one has left is replaced
	require.Zero(t, s.stop(t))
	require.NoFileExists(t, path)
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	r = run(t, nil, program(t, "iser"), "serve-nbd", d.url("iser", "0"), "--socket", path)
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "something else than a socket")
	require.FileExists(t, path)
	for _, args := range [][]string{{}, {"--socket", path, "--listen", ":0"}, {"--socket", path, "--replacement-timeout", "0s"}, {"--socket", path, "--max-connections", "0"}, {"--socket", path, "--poll", "-1us"}, {"--socket", path, "--poll", "1s"}} {
		r = run(t, nil, program(t, "iser"), append([]string{"serve-nbd", d.url("iser", "0")}, args...)...)
		require.Equal(t, 2, r.status, args)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
	}
}
