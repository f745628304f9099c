//go:build linux || freebsd

package sock

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxIovec is IOV_MAX of the kernels that this file is built for.
const MaxIovec = 1024

// iovec calls readv and writev with a list that is reused. Short lists lie in the value itself,
// long ones come from a pool, so that an idle connection stays small.
type iovec struct {
	few [8]unix.Iovec
}

var iovecs = sync.Pool{New: func() any { return new([MaxIovec]unix.Iovec) }}

func (v *iovec) readv(fd uintptr, bufs [][]byte) (int, error) {
	return v.call(unix.SYS_READV, fd, bufs)
}

func (v *iovec) writev(fd uintptr, bufs [][]byte) (int, error) {
	return v.call(unix.SYS_WRITEV, fd, bufs)
}

func (v *iovec) call(trap, fd uintptr, bufs [][]byte) (int, error) {
	list := v.few[:]
	if len(bufs) > len(list) {
		many := iovecs.Get().(*[MaxIovec]unix.Iovec)
		defer iovecs.Put(many)
		list = many[:]
	}
	n := 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if n == len(list) {
			break // the rest goes with the next call
		}
		list[n].Base = unsafe.SliceData(b)
		list[n].SetLen(len(b))
		n++
	}
	if n == 0 {
		return 0, unix.EINVAL // readv of nothing would look like the end of the stream
	}
	var done uintptr
	var errno syscall.Errno
	for {
		done, _, errno = syscall.Syscall(trap, fd, uintptr(unsafe.Pointer(&list[0])), uintptr(n))
		if errno != unix.EINTR {
			break
		}
	}
	clear(list[:n]) // hold on to nobody's memory
	switch errno {
	case 0:
		return int(done), nil
	case unix.EAGAIN:
		return 0, errAgain
	}
	return 0, errno
}

// errAgain is EAGAIN as an error value that costs no allocation.
var errAgain error = unix.EAGAIN
