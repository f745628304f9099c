//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used of the CPU so far, in user space and in the kernel.
func cpuTime() (user, system time.Duration, ok bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0, false
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano()), true
}
