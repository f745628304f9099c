package store

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fiemap is struct fiemap with room for one extent (include/uapi/linux/fiemap.h).
type fiemap struct {
	start, length uint64
	flags         uint32
	mapped        uint32 // how many extents there are, out
	count         uint32 // how many there is room for
	_             uint32
	extent        struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
}

const (
	fsExtentFlag            = 0x00080000 // FS_EXTENT_FL
	fsIocFiemap             = 0xc020660b
	fiemapExtentUnwritten   = 0x0800
	fiemapExtentNotResolved = 0x0002 | 0x0004 // location unknown, delayed allocation
)

// holeProvision tells whether the beginning of a range that holds no data has extents, and how far that goes.
func holeProvision(fd int, off, n int64) (Provision, int64, error) {
	m := fiemap{start: uint64(off), length: uint64(n), count: 1}
	err := ioctl(fd, fsIocFiemap, unsafe.Pointer(&m))
	runtime.KeepAlive(&m)
	if err != nil {
		return Mapped, 0, err
	}
	e := &m.extent
	switch {
	case m.mapped == 0 || e.logical >= uint64(off+n):
		return Deallocated, n, nil
	case e.logical > uint64(off):
		return Deallocated, int64(e.logical) - off, nil
	}
	size := min(int64(e.logical+e.length)-off, n)
	switch {
	case size <= 0: // changed meanwhile
		return Deallocated, n, nil
	case e.flags&fiemapExtentNotResolved != 0 || e.flags&fiemapExtentUnwritten == 0: // written meanwhile
		return Mapped, size, nil
	}
	return Anchored, size, nil
}

// anchors finds out whether the file system keeps unwritten extents and tells of them. Only those are believed that take a write to such an
// extent in place, whatever else there is: btrfs, for one, may need new space if the extent is shared.
func (s *File) anchors() bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(s.fd, &fs) != nil || fs.Type != unix.EXT4_SUPER_MAGIC && fs.Type != unix.XFS_SUPER_MAGIC {
		return false
	}
	if _, _, err := holeProvision(s.fd, 0, 1); err != nil {
		return false
	}
	if fs.Type == unix.XFS_SUPER_MAGIC {
		return true
	}
	// A file of ext3 that was taken over has block lists instead of extents, which know no unwritten ones.
	flags, err := unix.IoctlGetUint32(s.fd, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&fsExtentFlag != 0
}
