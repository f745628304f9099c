package store

import (
	"fmt"
	"sync/atomic"
)

// Null is a store without memory, for measurements: it reads zeros and drops what is written.
type Null struct {
	gate gate
	size atomic.Int64
}

// NewNull makes a null store of that many octets.
func NewNull(size int64) (*Null, error) {
	if size <= 0 {
		return nil, fmt.Errorf("store: null: size %d is not positive", size)
	}
	s := new(Null)
	s.size.Store(size)
	return s, nil
}

func (s *Null) check(off, n int64) error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.leave()
	if !inside(off, n, s.size.Load()) {
		return ErrRange
	}
	return nil
}

// ReadAt implements Store: p becomes zeros.
func (s *Null) ReadAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	clear(p)
	return len(p), nil
}

// WriteAt implements Store: it does nothing.
func (s *Null) WriteAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Discard implements Discarder.
func (s *Null) Discard(off, n int64) error { return s.check(off, n) }

// WriteZeroes implements Zeroer.
func (s *Null) WriteZeroes(off, n int64) error { return s.check(off, n) }

// Extent implements Mapper: nothing is mapped.
func (s *Null) Extent(off, most int64) (mapped bool, n int64, err error) {
	return false, most, s.check(off, most)
}

// Resize implements Resizer.
func (s *Null) Resize(size int64) error {
	if size <= 0 {
		return ErrRange
	}
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.leave()
	s.size.Store(size)
	return nil
}

// Size implements Store.
func (s *Null) Size() int64 { return s.size.Load() }

// Flush implements Store: there is nothing to flush.
func (s *Null) Flush() error { return s.check(0, 0) }

// Info implements Store.
func (s *Null) Info() Info {
	return Info{Kind: "null", Name: "null", Align: 1, DiscardGranularity: 1, AtomicWrite: 1 << 20}
}

// Close implements Store.
func (s *Null) Close() error {
	if !s.gate.close() {
		return ErrClosed
	}
	return nil
}
