package main

import (
	"context"
	"crypto/sha256"
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
)

// copier copies size octets between two endpoints, several pieces at a time.
type copier struct {
	src, dst endpoint
	size     int64
	progress func(n int)
	sums     [][sha256.Size]byte // of each piece, if it is to be verified
}

// run copies everything and flushes.
func (c *copier) run(ctx context.Context, verify bool) error {
	if verify {
		c.sums = make([][sha256.Size]byte, (c.size+pieceSize-1)/pieceSize)
	}
	if err := c.each(ctx, c.move); err != nil {
		return err
	}
	return c.dst.Flush(ctx)
}

// verify reads the destination back and compares it with what was copied.
func (c *copier) verify(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, m memory, n int, off int64) error {
		if err := c.dst.Read(ctx, m, n, off); err != nil {
			return fmt.Errorf("reading %s back at %d: %w", c.dst, off, err)
		}
		if sha256.Sum256(m.Bytes()[:n]) != c.sums[off/pieceSize] {
			return fmt.Errorf("%s differs from what was written, within the %d octets at %d", c.dst, n, off)
		}
		return nil
	})
}

func (c *copier) move(ctx context.Context, m memory, n int, off int64) error {
	if err := c.src.Read(ctx, m, n, off); err != nil {
		return fmt.Errorf("reading %s at %d: %w", c.src, off, err)
	}
	if c.sums != nil {
		c.sums[off/pieceSize] = sha256.Sum256(m.Bytes()[:n])
	}
	if err := c.dst.Write(ctx, m, n, off); err != nil {
		return fmt.Errorf("writing %s at %d: %w", c.dst, off, err)
	}
	return nil
}

// each calls f for every piece, on several goroutines, until one fails.
func (c *copier) each(ctx context.Context, f func(ctx context.Context, m memory, n int, off int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(pieces, (c.size+pieceSize-1)/pieceSize) {
		workers.Go(func() {
			m, err := c.alloc()
			if err != nil {
				cancel(err)
				return
			}
			defer m.Release()
			for {
				off := next.Add(pieceSize) - pieceSize
				if off >= c.size || ctx.Err() != nil {
					return
				}
				n := int(min(pieceSize, c.size-off))
				if err := f(ctx, m, n, off); err != nil {
					if errors.Is(err, context.Canceled) && ctx.Err() != nil {
						return // somebody else's failure, or the user's wish
					}
					cancel(err)
					return
				}
				c.progress(n)
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
