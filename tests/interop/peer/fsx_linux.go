package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// punchHole lets a range of a file read as zeros, and be no more on the disk.
func punchHole(f *os.File, off, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// forget drops a file's clean pages.
func forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
