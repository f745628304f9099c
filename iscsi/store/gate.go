package store

import "sync"

// gate counts the operations that run, so that Close can wait for them and refuse new ones.
type gate struct {
	mu     sync.RWMutex // held shared by each operation
	closed bool
}

// enter begins an operation; leave ends it.
func (g *gate) enter() error {
	g.mu.RLock()
	if g.closed {
		g.mu.RUnlock()
		return ErrClosed
	}
	return nil
}

func (g *gate) leave() { g.mu.RUnlock() }

// enterAlone begins an operation once no other one runs, and keeps others out until leaveAlone.
func (g *gate) enterAlone() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrClosed
	}
	return nil
}

func (g *gate) leaveAlone() { g.mu.Unlock() }

// close waits for the operations that run. It reports whether this call was the first.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.closed
	g.closed = true
	return first
}

// inside tells whether [off, off+n) lies within a size.
func inside(off, n, size int64) bool { return off >= 0 && n >= 0 && off <= size && n <= size-off }
