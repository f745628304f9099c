// Package store holds the backing stores of logical units: where a LUN's octets live.
//
// A Store is a flat range of octets. The SCSI layer above speaks in blocks and decides what an
// acknowledgement means; a store promises just this:
//
//	WriteAt returned      later reads see the data; it may still be lost with the machine
//	Flush returned nil    everything whose WriteAt returned before Flush began is on stable storage
//	Flush returned error  what was not flushed before may be lost, now or already: the caller must
//	                      not believe a later Flush of the same data
//
// Optional abilities are further interfaces that a store may have (Discarder, Zeroer, FUAWriter,
// Mapper, Anchorer, Spacer, Resizer); a store that has the method but not the ability, as a filter over another store
// may, returns errors.ErrUnsupported from it. Package storetest has the suite that every store
// passes, and filters that delay, fail, forget and log.
package store

import (
	"errors"
	"io"
)

// Store is the backing of one logical unit. All methods may be called by many goroutines at once.
// Offsets and lengths are in octets and need no alignment unless Info says so. An access outside
// [0, Size) is ErrRange and touches nothing.
type Store interface {
	// ReadAt fills p entirely or fails. It never keeps p.
	io.ReaderAt
	// WriteAt writes p entirely or fails (it may then have written a part). It never keeps p.
	io.WriterAt
	// Size is the current size in octets.
	Size() int64
	// Flush makes earlier writes durable.
	Flush() error
	// Info says what the store is and can do. It does not change.
	Info() Info
	// Close flushes nothing by itself; it returns once no operation is running.
	Close() error
}

// Info says what kind of store it is.
type Info struct {
	Kind string // "file", "block", "memory", "null"
	Name string // for people: the path, or a description
	// Blocks tells that calls may wait for a device, so that they must not run on a goroutine that
	// reads a connection.
	Blocks bool
	// Volatile tells that Flush does something: written data is not durable before it.
	Volatile bool
	ReadOnly bool
	// Align is the granularity in octets below which offsets and lengths are slow or, for a block
	// device, refused; 1 for none.
	Align int
	// DiscardGranularity in octets, 0 if the store cannot discard.
	DiscardGranularity int
	Rotational         bool
	// AtomicWrite is the largest WriteAt, in octets, of which after any failure, a loss of power
	// included, either all is there or nothing; 0 if the store promises it for none.
	AtomicWrite int
	// Anchors tells that Anchor works, and that Provisioned can tell what is anchored.
	Anchors bool
}

// Discarder frees ranges; afterwards they read as zeros.
type Discarder interface {
	Discard(off, n int64) error
}

// Zeroer writes zeros without a buffer, keeping the range allocated where it can.
type Zeroer interface {
	WriteZeroes(off, n int64) error
}

// FUAWriter writes through to stable storage: it returns once p is durable.
type FUAWriter interface {
	WriteFUA(p []byte, off int64) error
}

// Mapper tells what is allocated: starting at off, the next n octets (n <= max) are all mapped or
// all not.
type Mapper interface {
	Extent(off, max int64) (mapped bool, n int64, err error)
}

// Provision says what space a range has.
type Provision uint8

const (
	Mapped      Provision = iota // it holds data, or may
	Anchored                     // reads as zeros, and has its space: a write needs none
	Deallocated                  // reads as zeros, and a write needs space
)

// Anchorer reserves the space of ranges that hold nothing. A store that has it says so in Info.Anchors.
type Anchorer interface {
	// Anchor makes the range read as zeros, with all the space that later writes need. Without that space it is ENOSPC, and some of the range
	// may read as zeros already.
	Anchor(off, n int64) error
	// Provisioned tells what space there is: starting at off, the next n octets (n <= max) have all the same.
	Provisioned(off, max int64) (p Provision, n int64, err error)
}

// Spacer tells of the space of a store that takes it as it is written.
type Spacer interface {
	// Space is how many octets it has taken, and how many of the rest it could take now. Those others may take, too.
	Space() (used, available int64, err error)
}

// Resizer changes the size.
type Resizer interface {
	Resize(size int64) error
}

// Errors of stores; implementations wrap them. The causes of the operating system (ENOSPC, EIO,
// EROFS, ...) are found by errors.Is as well.
var (
	ErrRange    = errors.New("store: beyond the end")
	ErrReadOnly = errors.New("store: read-only")
	ErrLocked   = errors.New("store: in use by another process")
	ErrClosed   = errors.New("store: closed")
	// ErrFlush is wrapped by every error of Flush, and by one of WriteFUA that may have cost
	// earlier writes too: the operating system may have dropped what it could not write, whoever
	// wrote it.
	ErrFlush = errors.New("store: flush failed")
	// ErrShrunk is an access to what was lost when somebody made the backing file shorter than the
	// store; it comes with syscall.EIO.
	ErrShrunk = errors.New("store: file became shorter than it was")
)
