package blockdev

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// guarded is the environment variable that makes the test's program a guarded one.
const guarded = "BLOCKDEV_TEST_GUARDED"

// noIO is PF_MEMALLOC_NOIO in a thread's flags (proc(5), stat, field 9; include/linux/sched.h).
const noIO = 0x00080000

// TestGuardHoldsForAllThreads: also those that are made later, from whatever thread.
func TestGuardHoldsForAllThreads(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestGuarded$", "-test.v")
	cmd.Env = append(os.Environ(), guarded+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip("needs CAP_SYS_RESOURCE and CAP_IPC_LOCK")
	}
	require.Contains(t, string(out), "guarded: ")
}

// TestGuarded is what TestGuardHoldsForAllThreads runs in a process of its own.
func TestGuarded(t *testing.T) {
	if os.Getenv(guarded) == "" {
		t.Skip("run by TestGuardHoldsForAllThreads")
	}
	require.NoError(t, Guard(slog.New(slog.DiscardHandler))) // executes the program again
	if err := LockMemory(); err != nil {
		t.Skip(err)
	}
	if on, err := unix.PrctlRetInt(prGetIOFlusher, 0, 0, 0, 0); err != nil || on != 1 {
		t.Skip("not allowed")
	}
	const more = 20
	ready, done := make(chan bool), make(chan bool)
	for range more {
		go func() {
			runtime.LockOSThread()
			ready <- true
			<-done
			runtime.UnlockOSThread()
		}()
	}
	for range more {
		<-ready
	}
	tasks, err := filepath.Glob("/proc/self/task/*/stat")
	require.NoError(t, err)
	require.Greater(t, len(tasks), more)
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(b), ") ")
		flags, err := strconv.ParseUint(strings.Fields(rest)[6], 10, 64)
		require.NoError(t, err)
		require.NotZero(t, flags&noIO, path)
	}
	close(done)
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for _, l := range strings.Split(string(status), "\n") {
		if k, v, _ := strings.Cut(l, ":"); k == "VmLck" {
			require.NotEqual(t, "0 kB", strings.TrimSpace(v))
			fmt.Println("guarded: locked", strings.TrimSpace(v))
		} else if k == "VmRSS" {
			fmt.Println("guarded: resident", strings.TrimSpace(v))
		}
	}
	require.Equal(t, "-1000", text("/proc/self/oom_score_adj"))
}
