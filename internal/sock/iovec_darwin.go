package sock

import (
	"golang.org/x/sys/unix"
)

const MaxIovec = 1024

// iovec calls readv and writev through libSystem, the only stable interface of this system.
type iovec struct{}

func (iovec) readv(fd uintptr, bufs [][]byte) (int, error) {
	return retry(fd, bufs, unix.Readv)
}

func (iovec) writev(fd uintptr, bufs [][]byte) (int, error) {
	return retry(fd, bufs, unix.Writev)
}

func retry(fd uintptr, bufs [][]byte, call func(int, [][]byte) (int, error)) (int, error) {
	for {
		n, err := call(int(fd), bufs[:min(len(bufs), MaxIovec)])
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}
