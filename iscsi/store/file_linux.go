package store

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exclusiveFlag claims a block device for this open alone: the kernel refuses it while the device
// is mounted or otherwise in use.
const exclusiveFlag = unix.O_EXCL

func isBusy(err error) bool { return errors.Is(err, unix.EBUSY) }

func isIOError(err error) bool { return errors.Is(err, unix.EIO) }

// lockFile locks in both of Linux's ways, which do not see each other: flock, for other processes
// like this one, and an open file description lock on the whole file, for virtual machine monitors.
// Where the file system has no such locks there are none.
func lockFile(f *os.File, shared bool) error {
	how, kind := unix.LOCK_EX, int16(unix.F_WRLCK)
	if shared {
		how, kind = unix.LOCK_SH, int16(unix.F_RDLCK)
	}
	fd := int(f.Fd())
	if err := retry(func() error { return unix.Flock(fd, how|unix.LOCK_NB) }); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		if !noLocks(err) {
			return fmt.Errorf("lock: %w", err)
		}
	}
	whole := unix.Flock_t{Type: kind}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return ErrLocked
		}
		if !noLocks(err) {
			return fmt.Errorf("lock: %w", err)
		}
	}
	return nil
}

func noLocks(err error) bool {
	return errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL)
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func fileSize(f *os.File, block bool) (int64, error) {
	if !block {
		fi, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return fi.Size(), nil
	}
	var size uint64
	if err := ioctl(int(f.Fd()), unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0, fmt.Errorf("size of the device: %w", err)
	}
	return int64(size), nil
}

// currentSize is fileSize of a regular file, without garbage.
func currentSize(_ *os.File, fd int) (int64, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd, &st) })
	return st.Size, err
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// probe finds out what the file can do.
func (s *File) probe() {
	var st unix.Stat_t
	if unix.Fstat(s.fd, &st) != nil {
		return
	}
	if s.block {
		if n, err := unix.IoctlGetInt(s.fd, unix.BLKSSZGET); err == nil && n > 0 {
			s.info.Align = n
		}
		s.info.Rotational = queueValue(st.Rdev, "rotational") == 1
		if !s.info.ReadOnly {
			s.info.DiscardGranularity = queueValue(st.Rdev, "discard_granularity")
		}
		return
	}
	if st.Blksize > 0 {
		s.info.Align = int(st.Blksize)
	}
	// A hole beyond the end changes nothing and shows whether the file system can do it.
	if !s.info.ReadOnly && punchHole(s.fd, s.size.Load(), int64(s.info.Align), false) == nil {
		s.info.DiscardGranularity = s.info.Align
		s.info.Anchors = s.anchors()
	}
}

// queueValue reads a number of a block device's queue; 0 if there is none. A partition's queue is
// its disk's.
func queueValue(dev uint64, name string) int {
	base := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(dev), unix.Minor(dev))
	for _, path := range []string{base + "queue/" + name, base + "../queue/" + name} {
		if b, err := os.ReadFile(path); err == nil {
			n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			return n
		}
	}
	return 0
}

func dataSync(f *os.File) error {
	return retry(func() error { return unix.Fdatasync(int(f.Fd())) })
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync directories; there the name is their affair.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBADF) {
		return err
	}
	return nil
}

// writeSync writes with RWF_DSYNC. done is false, without an error, where the kernel or the file
// system does not know it.
func writeSync(fd int, p []byte, off int64) (done bool, err error) {
	for len(p) > 0 {
		n, err := unix.Pwritev2(fd, [][]byte{p}, off, unix.RWF_DSYNC)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOSYS || err == unix.EOPNOTSUPP:
			return false, nil
		case err != nil:
			return true, err
		}
		p, off = p[n:], off+int64(n)
	}
	return true, nil
}

// punchHole deallocates. For a block device this is the kernel's zeroing discard, since a plain
// BLKDISCARD may leave anything behind; a device that cannot do it gets BLKZEROOUT, which always
// reads back as zeros.
func punchHole(fd int, off, n int64, block bool) error {
	err := retry(func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if !unsupported(err) {
		return err
	}
	if block {
		return zeroDevice(fd, off, n)
	}
	return errors.ErrUnsupported
}

// zeroRange writes zeros without data.
func zeroRange(fd int, off, n int64, block bool) error {
	if block {
		return zeroDevice(fd, off, n)
	}
	err := retry(func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if unsupported(err) {
		return errors.ErrUnsupported
	}
	return err
}

func zeroDevice(fd int, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	err := ioctl(fd, unix.BLKZEROOUT, unsafe.Pointer(&r))
	if unsupported(err) || errors.Is(err, unix.EINVAL) { // EINVAL: not in whole blocks of the device
		return errors.ErrUnsupported
	}
	return err
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTTY)
}

// extent asks for the next data and the next hole. Moving the file's offset harms nobody: all I/O
// here names its own.
func extent(fd int, off, most int64) (mapped bool, n int64, err error) {
	if most == 0 {
		return true, 0, nil
	}
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // no data from here to the end
		return false, most, nil
	case errors.Is(err, unix.EINVAL), unsupported(err):
		return true, most, nil
	case err != nil:
		return false, 0, err
	case data > off:
		return false, min(data-off, most), nil
	}
	hole, err := unix.Seek(fd, off, unix.SEEK_HOLE)
	if err != nil || hole <= off { // changed meanwhile
		return true, most, nil
	}
	return true, min(hole-off, most), nil
}
