package store

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// pageSize is the unit in which memory is taken and given back.
const pageSize = 64 << 10

// Memory is a store in memory, which takes memory only for what was written. Everything is lost
// with the process.
type Memory struct {
	gate gate
	size atomic.Int64

	mu    sync.RWMutex // guards pages, not what is in them
	pages map[int64]*page
}

type page struct {
	mu   sync.RWMutex
	data [pageSize]byte
}

// NewMemory makes a memory store of that many octets, all zeros.
func NewMemory(size int64) (*Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("store: memory: size %d is not positive", size)
	}
	s := &Memory{pages: make(map[int64]*page)}
	s.size.Store(size)
	return s, nil
}

func (s *Memory) page(i int64) *page {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pages[i]
}

func (s *Memory) makePage(i int64) *page {
	if p := s.page(i); p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[i]
	if p == nil {
		p = new(page)
		s.pages[i] = p
	}
	return p
}

// begin enters the gate for an access to a range.
func (s *Memory) begin(off, n int64) error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	if !inside(off, n, s.size.Load()) {
		s.gate.leave()
		return ErrRange
	}
	return nil
}

// ReadAt implements Store.
func (s *Memory) ReadAt(p []byte, off int64) (int, error) {
	if err := s.begin(off, int64(len(p))); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	for done := 0; done < len(p); {
		at := off + int64(done)
		in := at % pageSize
		part := p[done:min(len(p), done+int(pageSize-in))]
		if pg := s.page(at / pageSize); pg != nil {
			pg.mu.RLock()
			copy(part, pg.data[in:])
			pg.mu.RUnlock()
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(p), nil
}

// WriteAt implements Store.
func (s *Memory) WriteAt(p []byte, off int64) (int, error) {
	if err := s.begin(off, int64(len(p))); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	for done := 0; done < len(p); {
		at := off + int64(done)
		in := at % pageSize
		pg := s.makePage(at / pageSize)
		pg.mu.Lock()
		n := copy(pg.data[in:], p[done:])
		pg.mu.Unlock()
		done += n
	}
	return len(p), nil
}

// Discard implements Discarder. Whole pages are given back.
func (s *Memory) Discard(off, n int64) error {
	if err := s.begin(off, n); err != nil {
		return err
	}
	defer s.gate.leave()
	s.drop(off, n)
	return nil
}

// WriteZeroes implements Zeroer. Memory is not kept for zeros.
func (s *Memory) WriteZeroes(off, n int64) error { return s.Discard(off, n) }

// drop makes a range zeros. A page that a write holds while it is given back loses that write, as
// if the discard came after it.
func (s *Memory) drop(off, n int64) {
	end := off + n
	first, last := (off+pageSize-1)/pageSize, end/pageSize // whole pages
	if first > last {                                      // within one page
		s.clear(off, n)
		return
	}
	s.clear(off, first*pageSize-off)
	s.clear(last*pageSize, end-last*pageSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	if last-first < int64(len(s.pages)) {
		for i := first; i < last; i++ {
			delete(s.pages, i)
		}
		return
	}
	for i := range s.pages {
		if i >= first && i < last {
			delete(s.pages, i)
		}
	}
}

// clear writes zeros within one page.
func (s *Memory) clear(off, n int64) {
	if n <= 0 {
		return
	}
	if pg := s.page(off / pageSize); pg != nil {
		in := off % pageSize
		pg.mu.Lock()
		clear(pg.data[in : in+n])
		pg.mu.Unlock()
	}
}

// Extent implements Mapper.
func (s *Memory) Extent(off, most int64) (mapped bool, n int64, err error) {
	if err := s.begin(off, most); err != nil {
		return false, 0, err
	}
	defer s.gate.leave()
	s.mu.RLock()
	defer s.mu.RUnlock()
	end := off + most
	at := off / pageSize
	_, mapped = s.pages[at]
	if !mapped && most/pageSize > int64(len(s.pages)) {
		// A hole that may be much longer than there are pages: look at the pages.
		next := end
		for i := range s.pages {
			if i*pageSize > off {
				next = min(next, i*pageSize)
			}
		}
		return false, next - off, nil
	}
	for at++; at*pageSize < end; at++ {
		if _, ok := s.pages[at]; ok != mapped {
			return mapped, at*pageSize - off, nil
		}
	}
	return mapped, most, nil
}

// Resize implements Resizer.
func (s *Memory) Resize(size int64) error {
	if size <= 0 {
		return ErrRange
	}
	// No access may run while the end moves: what lies beyond it has to be gone for good.
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if s.gate.closed {
		return ErrClosed
	}
	if old := s.size.Load(); size < old {
		s.drop(size, old-size)
	}
	s.size.Store(size)
	return nil
}

// Size implements Store.
func (s *Memory) Size() int64 { return s.size.Load() }

// Flush implements Store: memory is as durable as it gets.
func (s *Memory) Flush() error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	s.gate.leave()
	return nil
}

// Info implements Store.
func (s *Memory) Info() Info {
	// What takes the memory takes all of it: no write is ever there in part.
	return Info{Kind: "memory", Name: "memory", Align: 1, DiscardGranularity: pageSize, AtomicWrite: 1 << 20}
}

// Close implements Store and gives the memory back.
func (s *Memory) Close() error {
	if !s.gate.close() {
		return ErrClosed
	}
	s.mu.Lock()
	s.pages = nil
	s.mu.Unlock()
	return nil
}
