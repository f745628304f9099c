package nbd

import (
	"io"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// connect makes a client's socket that the runtime's poller does not know: it would be woken by each reply, too, at the server's expense.
func connect(b *testing.B, path string) *os.File {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(b, err)
	f := os.NewFile(uintptr(fd), path) // one that blocks is left out of the poller
	b.Cleanup(func() { _ = f.Close() })
	require.NoError(b, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	return f
}

// exchange sends ask and waits for all of answer, as a thread does that is not Go's: the scheduler hears nothing of its waiting.
func exchange(f *os.File, ask, answer []byte) error {
	fd := f.Fd()
	for len(ask) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&ask[0])), uintptr(len(ask)))
		if errno != 0 {
			return errno
		}
		ask = ask[n:]
	}
	for wait := (unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}); len(answer) > 0; {
		if _, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&wait)), 1, 0, 0, 0, 0); errno == unix.EINTR {
			continue
		} else if errno != 0 {
			return errno
		}
		n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&answer[0])), uintptr(len(answer)))
		switch {
		case errno != 0:
			return errno
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		answer = answer[n:]
	}
	return nil
}
