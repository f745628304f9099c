package rawpeer

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait of a script. It is long, since it only matters where something fails.
const patience = 30 * time.Second

const (
	targetName    = "iqn.2026-11.example.rawpeer:target"
	initiatorName = "iqn.2026-11.example.rawpeer:initiator"
)

var bin string

var built = flag.String("programs", "", "directory with iserd and iser, instead of building them")

// TestMain builds the two programs as a user would.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if *built != "" {
			bin = *built
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "rawpeer")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-o", dir, "../../cmd/iserd", "../../cmd/iser")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building the programs:", err)
			return 1
		}
		bin = dir
		return m.Run()
	}())
}

var readyLine = regexp.MustCompile(`^ready: \S+ on (\S+)$`)

// serve runs iserd with one disk of 1 MiB in memory, and returns its address.
func serve(t *testing.T, flags ...string) string {
	t.Helper()
	args := append([]string{"--lun", "mem:1MiB,serial=RAW1,naa=3000000000000001", "--listen", "127.0.0.1:0", "--target", targetName}, flags...)
	cmd := exec.Command(filepath.Join(bin, "iserd"), args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		go func() {
			for range lines {
			}
		}()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("iserd ends: %v\n%s", err, log.String())
		}
		require.NoError(t, err, "iserd has to survive what it was sent, and to end in order: %s", log.String())
	})
	limit := time.After(patience)
	for {
		select {
		case l, ok := <-lines:
			require.True(t, ok, "iserd ended: %s", log.String())
			if m := readyLine.FindStringSubmatch(l); m != nil {
				return m[1]
			}
		case <-limit:
			t.Fatal("iserd is not ready")
		}
	}
}

// client runs iser against a scripted target and returns what it said, when the script is done.
func client(t *testing.T, args ...string) func() (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "iser"), append(args, "--initiator-name", initiatorName)...)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	require.NoError(t, cmd.Start())
	var waited bool
	wait := func() (string, string, error) {
		waited = true
		err := cmd.Wait()
		cancel()
		return out.String(), log.String(), err
	}
	t.Cleanup(func() {
		if !waited {
			cmd.Process.Kill()
			o, l, err := wait()
			t.Logf("iser: %v\n%s%s", err, o, l)
		}
	})
	return wait
}

// listen opens the port of a scripted target.
func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}
