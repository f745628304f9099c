package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// memory is a buffer for one piece of a copy.
type memory interface {
	Bytes() []byte
	Release()
}

// endpoint is one side of a copy: a file, or a logical unit.
type endpoint interface {
	// Size is in octets.
	Size() int64
	// Alloc lends memory in which the endpoint's data moves without a copy; nil if it does not care.
	Alloc(n int) (memory, error)
	// Read fills m from off on, Write stores its first n octets.
	Read(ctx context.Context, m memory, n int, off int64) error
	Write(ctx context.Context, m memory, n int, off int64) error
	// Begin prepares a destination of which the first keep octets are there already.
	Begin(keep int64) error
	// Extent tells whether the octets from off on are known to read as zeros without being read; n is how far that holds.
	Extent(ctx context.Context, off int64) (zero bool, n int64, err error)
	// Zero lets n octets read as zeros; unmap lets it give their room back. Both offset and length are multiples of Grain.
	Zero(ctx context.Context, off, n int64, unmap bool) error
	// Grain is what Zero and Write want offsets and lengths to be multiples of.
	Grain() int64
	// Identity is a text that tells it from others, and for a source from a later state of itself where that can be told.
	Identity(ctx context.Context, source bool) (string, error)
	// Flush makes what was written durable.
	Flush(ctx context.Context) error
	Close() error
	String() string
}

// plain is memory of the Go heap, for copies between files.
type plain []byte

func (p plain) Bytes() []byte { return p }
func (p plain) Release()      {}

const (
	// pieceSize is how much one request moves, and pieces how many are under way at once: together
	// enough to keep a connection full, and no more than a target lends.
	pieceSize = 1 << 20
	pieces    = 8
	// holeLeast is the shortest range of zeros that is not read, and holeMost the longest that is handled at once.
	holeLeast = 64 << 10
	holeMost  = 256 << 20
)

// copyOptions say how to copy.
type copyOptions struct {
	verify bool
	sparse bool   // do not read what the source says is zeros
	unmap  bool   // let the destination give the room of zeros back
	state  string // file that progress is kept in; "" is none
	every  int64  // octets between two notes in it
}

// copier copies size octets between two endpoints, several pieces at a time.
type copier struct {
	copyOptions
	src, dst endpoint
	size     int64
	from     int64 // what lies below was copied by an earlier run
	progress func(n int)
	note     func(done int64) error // keeps progress; nil: nobody does

	zeros atomic.Int64 // octets that were not moved, because they are zeros

	mu    sync.Mutex // guards what follows
	next  int64      // where the next piece begins
	queue []*piece   // handed out, in the order of their offsets; the first one is not done
	noted int64
	plan  []*piece // all of them, for verify
}

// piece is a part of a copy.
type piece struct {
	off, n int64
	zero   bool              // the source says that it reads as zeros
	sum    [sha256.Size]byte // of what was copied, if it is to be verified and is not zero
	done   bool
}

// run copies everything from c.from on and flushes.
func (c *copier) run(ctx context.Context) error {
	c.next, c.noted = c.from, c.from
	if err := c.dst.Begin(c.from); err != nil {
		return err
	}
	if err := c.each(ctx, c.take, c.move); err != nil {
		return err
	}
	return c.dst.Flush(ctx)
}

// take finds the next piece: a range of zeros, or at most pieceSize octets of data. nil is the end.
func (c *copier) take(ctx context.Context) (*piece, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next >= c.size {
		return nil, nil
	}
	p := &piece{off: c.next, n: min(pieceSize-c.next%pieceSize, c.size-c.next)}
	for at := p.off; c.sparse && at < p.off+p.n; {
		zero, n, err := c.src.Extent(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("asking what %s has mapped at %d: %w", c.src, at, err)
		}
		end := min(at+max(n, 1), c.size)
		// Zeros count in whole grains of both sides, that what is beside them stays.
		g := max(c.src.Grain(), c.dst.Grain())
		lo, hi := (at+g-1)/g*g, end/g*g
		switch {
		case !zero || hi-lo < holeLeast:
		case lo == p.off:
			p.zero, p.n = true, min(hi-lo, holeMost/g*g)
		default:
			p.n = min(p.n, lo-p.off)
		}
		if p.zero {
			break
		}
		at = end
	}
	c.next = p.off + p.n
	c.queue = append(c.queue, p)
	if c.verify {
		c.plan = append(c.plan, p)
	}
	return p, nil
}

// move copies a piece.
func (c *copier) move(ctx context.Context, m memory, p *piece) error {
	n := int(p.n)
	if !p.zero {
		if err := c.src.Read(ctx, m, n, p.off); err != nil {
			return fmt.Errorf("reading %s at %d: %w", c.src, p.off, err)
		}
		if c.verify {
			p.sum = sha256.Sum256(m.Bytes()[:n])
		}
	}
	var err error
	switch g := c.dst.Grain(); {
	case p.zero:
		err = c.zero(ctx, p)
	case c.unmap && p.off%g == 0 && p.n%g == 0 && allZero(m.Bytes()[:n]):
		err = c.zero(ctx, p)
	default:
		err = c.dst.Write(ctx, m, n, p.off)
	}
	if err != nil {
		return fmt.Errorf("writing %s at %d: %w", c.dst, p.off, err)
	}
	return c.finished(ctx, p)
}

// zero lets a piece of the destination read as zeros, but for what does already.
func (c *copier) zero(ctx context.Context, p *piece) error {
	c.zeros.Add(p.n)
	for off, end := p.off, p.off+p.n; off < end; {
		zero, n, err := c.dst.Extent(ctx, off)
		if err != nil {
			return err
		}
		n = min(max(n, 1), end-off)
		if g := c.dst.Grain(); n%g != 0 {
			n = min((n/g+1)*g, end-off)
			zero = false
		}
		if !zero {
			if err := c.dst.Zero(ctx, off, n, c.unmap); err != nil {
				return err
			}
		}
		off += n
	}
	return nil
}

// finished counts a piece, and notes how far everything is done now and then. Meanwhile nobody begins another piece, so that a slow
// flush does not let the note fall behind.
func (c *copier) finished(ctx context.Context, p *piece) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.done = true
	for len(c.queue) > 0 && c.queue[0].done {
		c.queue = c.queue[1:]
	}
	done := c.next
	if len(c.queue) > 0 {
		done = c.queue[0].off
	}
	if c.note == nil || done-c.noted < c.every {
		return nil
	}
	// What is noted has to be there after a crash of the destination.
	if err := c.dst.Flush(ctx); err != nil {
		return fmt.Errorf("flushing %s: %w", c.dst, err)
	}
	c.noted = done
	return c.note(done)
}

// check reads the destination back and compares it with what was copied; what an earlier run copied, with the source.
func (c *copier) check(ctx context.Context) error {
	i := 0
	var at int64
	other := make(chan memory, pieces) // for what is compared with the source
	for range pieces {
		other <- plain(make([]byte, pieceSize))
	}
	take := func(context.Context) (*piece, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if at < c.from {
			p := &piece{off: at, n: min(pieceSize, c.from-at)}
			at += p.n
			return p, nil
		}
		if i == len(c.plan) {
			return nil, nil
		}
		i++
		return c.plan[i-1], nil
	}
	return c.each(ctx, take, func(ctx context.Context, m memory, p *piece) error {
		if p.zero {
			return c.checkZero(ctx, m, p)
		}
		n := int(p.n)
		if err := c.dst.Read(ctx, m, n, p.off); err != nil {
			return fmt.Errorf("reading %s back at %d: %w", c.dst, p.off, err)
		}
		same := sha256.Sum256(m.Bytes()[:n]) == p.sum
		if p.off < c.from {
			o := <-other
			defer func() { other <- o }()
			if err := c.src.Read(ctx, o, n, p.off); err != nil {
				return fmt.Errorf("reading %s at %d: %w", c.src, p.off, err)
			}
			same = bytes.Equal(m.Bytes()[:n], o.Bytes()[:n])
		}
		if !same {
			return fmt.Errorf("%s differs from what was written, within the %d octets at %d", c.dst, p.n, p.off)
		}
		return nil
	})
}

// checkZero reads what has to be zeros; what the destination says is zeros it need not read.
func (c *copier) checkZero(ctx context.Context, m memory, p *piece) error {
	for off, end := p.off, p.off+p.n; off < end; {
		zero, n, err := c.dst.Extent(ctx, off)
		if err != nil {
			return err
		}
		n = min(max(n, 1), end-off)
		if !zero {
			n = min(n, pieceSize)
			if err := c.dst.Read(ctx, m, int(n), off); err != nil {
				return fmt.Errorf("reading %s back at %d: %w", c.dst, off, err)
			}
			if !allZero(m.Bytes()[:n]) {
				return fmt.Errorf("%s differs from what was written, within the %d octets at %d, which have to be zeros", c.dst, n, off)
			}
		}
		off += n
	}
	return nil
}

// allZero says whether b has nothing but zeros.
func allZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// each calls f for every piece that take gives, on several goroutines, until one fails.
func (c *copier) each(ctx context.Context, take func(context.Context) (*piece, error), f func(ctx context.Context, m memory, p *piece) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range min(pieces, (c.size+pieceSize-1)/pieceSize) {
		workers.Go(func() {
			m, err := c.alloc()
			if err != nil {
				cancel(err)
				return
			}
			defer m.Release()
			for ctx.Err() == nil {
				p, err := take(ctx)
				if p == nil && err == nil {
					return
				}
				if err == nil {
					err = f(ctx, m, p)
				}
				if err != nil {
					if errors.Is(err, context.Canceled) && ctx.Err() != nil {
						return // somebody else's failure, or the user's wish
					}
					cancel(err)
					return
				}
				c.progress(int(p.n))
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// alloc lends a piece's memory from the side that gains by it.
func (c *copier) alloc() (memory, error) {
	for _, e := range []endpoint{c.src, c.dst} {
		if m, err := e.Alloc(pieceSize); m != nil || err != nil {
			return m, err
		}
	}
	return plain(make([]byte, pieceSize)), nil
}
