//go:build unix

package portal

import (
	"math"

	"golang.org/x/sys/unix"
)

// maxDescriptors is how many file descriptors this process may have open.
func maxDescriptors() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || uint64(l.Cur) > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(l.Cur)
}
