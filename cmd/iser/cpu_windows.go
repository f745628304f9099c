package main

import (
	"time"

	"golang.org/x/sys/windows"
)

// cpuTime is what this process has used of the CPU so far, in user space and in the kernel.
func cpuTime() (user, system time.Duration, ok bool) {
	var created, exited, k, u windows.Filetime
	if windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &k, &u) != nil {
		return 0, 0, false
	}
	span := func(t windows.Filetime) time.Duration {
		return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100 // a span, in 100 ns, and no date
	}
	return span(u), span(k), true
}
