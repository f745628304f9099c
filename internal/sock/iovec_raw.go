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
	return v.call(unix.SYS_READV, unix.SYS_RECVFROM, quickRead, fd, bufs)
}

func (v *iovec) writev(fd uintptr, bufs [][]byte) (int, error) {
	return v.call(unix.SYS_WRITEV, unix.SYS_SENDTO, quickWrite, fd, bufs)
}

// Up to so many octets a call is made without telling the scheduler: the socket does not block, and copying so little
// takes no longer than the scheduler's bookkeeping is worth.
const (
	quickRead  = 128 << 10
	quickWrite = 16 << 10
)

// call makes the vectored call, or for a single piece the plain one, which costs the kernel less.
func (v *iovec) call(vector, plain uintptr, quick uint64, fd uintptr, bufs [][]byte) (int, error) {
	list := v.few[:]
	if len(bufs) > len(list) {
		many := iovecs.Get().(*[MaxIovec]unix.Iovec)
		defer iovecs.Put(many)
		list = many[:]
	}
	n, octets := 0, uint64(0)
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if n == len(list) {
			break // the rest goes with the next call
		}
		list[n].Base = unsafe.SliceData(b)
		list[n].SetLen(len(b))
		octets += uint64(len(b))
		n++
	}
	if n == 0 {
		return 0, unix.EINVAL // readv of nothing would look like the end of the stream
	}
	var done uintptr
	var errno syscall.Errno
	for {
		switch {
		case octets > quick:
			done, _, errno = syscall.Syscall(vector, fd, uintptr(unsafe.Pointer(&list[0])), uintptr(n))
		case n == 1:
			done, _, errno = syscall.RawSyscall6(plain, fd, uintptr(unsafe.Pointer(list[0].Base)), uintptr(octets), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		default:
			done, _, errno = syscall.RawSyscall(vector, fd, uintptr(unsafe.Pointer(&list[0])), uintptr(n))
		}
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
