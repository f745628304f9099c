package store

import (
	"fmt"
	"io"
	"syscall"
)

// lost is the range of a file that went away when somebody made the file shorter than the store's
// size. It stays lost though the file may become longer again, for it reads as zeros then.
type lost struct {
	from, to int64
	err      error // wraps ErrShrunk
}

// intact refuses an access to what the file has lost. The file's size is asked for each time: a
// write past the end would not fail, but bring the lost range back as zeros.
func (s *File) intact(off, n int64) error {
	if s.block {
		return nil
	}
	size, err := currentSize(s.f, s.fd)
	if err != nil {
		return err
	}
	if size < s.size.Load() {
		s.noteEnd(size)
	}
	return s.kept(off, n)
}

// kept is intact as far as is known already.
func (s *File) kept(off, n int64) error {
	if l := s.lost.Load(); l != nil && n > 0 && off < l.to && off+n > l.from {
		return l.err
	}
	return nil
}

// noteEnd records that the file was seen to end at that offset.
func (s *File) noteEnd(end int64) {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	if size, err := currentSize(s.f, s.fd); err == nil {
		end = min(end, size)
	}
	size := s.size.Load()
	if end >= size { // the store has taken over the new size meanwhile
		return
	}
	s.lose(end, size)
}

// lose adds to what is lost. resizing is held.
func (s *File) lose(from, to int64) {
	if l := s.lost.Load(); l != nil {
		if l.from <= from && to <= l.to {
			return
		}
		from, to = min(from, l.from), max(to, l.to)
	}
	s.lost.Store(&lost{from, to, fmt.Errorf("%w: %s: octets %d to %d are lost: %w", ErrShrunk, s.name, from, to-1, syscall.EIO)})
}

// adopt takes over a size. What lies behind it is no part of the store any more; if that becomes
// longer later, there is nothing to miss in what it gains. resizing is held.
func (s *File) adopt(size int64) {
	s.size.Store(size)
	l := s.lost.Load()
	if l == nil || l.to <= size {
		return
	}
	s.lost.Store(nil)
	if l.from < size {
		s.lose(l.from, size)
	}
}

// shortRead is the error of a read that met the end of the file at off.
func (s *File) shortRead(p []byte, start, off int64) error {
	if !s.block {
		s.noteEnd(off)
		if err := s.kept(start, int64(len(p))); err != nil {
			return err
		}
	}
	return io.ErrUnexpectedEOF
}
