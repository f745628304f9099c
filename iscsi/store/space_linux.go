package store

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Space implements Spacer for regular files: what the file has of its file system, and what that has left for whoever runs this.
func (s *File) Space() (used, available int64, err error) {
	if s.block {
		return 0, 0, errors.ErrUnsupported
	}
	if err := s.gate.enter(); err != nil {
		return 0, 0, err
	}
	defer s.gate.leave()
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(s.fd, &st) }); err != nil {
		return 0, 0, err
	}
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(s.fd, &fs) }); err != nil {
		return 0, 0, err
	}
	size := s.size.Load()
	used = min(st.Blocks*512, size) // blocks of 512 octets, whatever the file system's are
	left := size - used
	if units := uint64(left) / uint64(max(fs.Bsize, 1)); fs.Bavail < units {
		left = int64(fs.Bavail) * int64(fs.Bsize)
	}
	return used, left, nil
}
