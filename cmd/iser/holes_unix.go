//go:build linux || darwin || freebsd

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileExtent says whether off lies in a hole of a regular file of that size, and how far this holds.
func fileExtent(f *os.File, off, size int64) (zero bool, n int64, err error) {
	fd := int(f.Fd())
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // no data any more
		return true, size - off, nil
	case err != nil:
		return false, size - off, nil // the file system does not tell
	case data > off:
		return true, min(data, size) - off, nil
	}
	hole, err := unix.Seek(fd, off, unix.SEEK_HOLE)
	if err != nil || hole <= off {
		return false, size - off, nil
	}
	return false, min(hole, size) - off, nil
}

// inode names the file behind a path, that another one in its place is noticed.
func inode(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf(", inode %d", s.Ino)
	}
	return ""
}
