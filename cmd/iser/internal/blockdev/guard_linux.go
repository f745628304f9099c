package blockdev

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// prctl options (include/uapi/linux/prctl.h).
const (
	prSetIOFlusher = 57
	prGetIOFlusher = 58
)

// Guard keeps a process that serves a block device of its own machine from waiting for that device when memory is short. The kernel must not
// write dirty pages back to the device to make room for the very process that would take them: with PR_SET_IO_FLUSHER it does not, for
// the thread that has it and all that this thread makes. Go's runtime has made threads long before main, so that Guard marks one
// thread and executes the program again, which leaves that one alone; the second time all is in place, and it returns. Neither shall
// the process be chosen when memory has run out (oom_score_adj).
//
// What a process is not allowed is logged, and done without.
func Guard(log *slog.Logger) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		log.Warn("the process may be killed when memory runs out", "error", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if on, err := unix.PrctlRetInt(prGetIOFlusher, 0, 0, 0, 0); err == nil && on == 1 {
		return nil
	}
	if err := unix.Prctl(prSetIOFlusher, 1, 0, 0, 0); err != nil {
		if errors.Is(err, unix.EINVAL) {
			err = errors.New("this kernel has no PR_SET_IO_FLUSHER: it came with Linux 5.6")
		}
		log.Warn("the process may wait for its own device when memory is short", "error", err)
		return nil
	}
	self, err := os.Executable()
	if _, serr := os.Stat(self); err != nil || serr != nil {
		self = "/proc/self/exe" // replaced or deleted meanwhile: the list of processes will show "exe" as its name
	}
	return fmt.Errorf("executing %s again: %w", self, syscall.Exec(self, os.Args, os.Environ()))
}

// LockMemory keeps what the process has in memory, and what it will touch from now on. What is only reserved, of which Go's runtime has much, is not
// made present; the program itself is, so that no page of it has to be read from a disk later.
func LockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("locking memory: %w", err)
	}
	lines("/proc/self/maps", func(f []string) {
		if len(f) < 6 || !strings.HasPrefix(f[5], "/") || !strings.HasPrefix(f[1], "r") {
			return
		}
		from, to, _ := strings.Cut(f[0], "-")
		a, aerr := strconv.ParseUint(from, 16, 64)
		b, berr := strconv.ParseUint(to, 16, 64)
		if aerr == nil && berr == nil && b > a {
			// By numbers, since nothing of it is Go's. Kernels before 5.14 do not know it: there the pages come when they are used.
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(a), uintptr(b-a), unix.MADV_POPULATE_READ)
		}
	})
	return nil
}
