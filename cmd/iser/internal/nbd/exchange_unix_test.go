//go:build unix

package nbd

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exchange sends ask and waits for all of answer.
func exchange(f *os.File, ask, answer []byte) error {
	fd := int(f.Fd())
	if err := whole(unix.SYS_WRITE, fd, ask); err != nil {
		return err
	}
	return whole(unix.SYS_READ, fd, answer)
}

// whole moves all of b, as a thread does that is not Go's: the scheduler hears nothing of its waiting.
func whole(call uintptr, fd int, b []byte) error {
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return errno
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			b = b[n:]
		}
	}
	return nil
}
