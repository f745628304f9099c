// Package storetest has the suite that every store passes, and filters over stores for tests: Delay
// holds operations back, Fail makes them fail, Forget loses what was not flushed, Log writes them
// down.
//
// Filters stack: each is a store.Store over another one.
//
//	Log -> Fail -> Delay -> Forget -> Memory
package storetest

import (
	"errors"
	"fmt"

	"goiwarp/iscsi/store"
)

// Kind is the kind of an operation on a store.
type Kind string

// The kinds of operations.
const (
	Read    Kind = "read"
	Write   Kind = "write"
	FUA     Kind = "write-fua"
	Flush   Kind = "flush"
	Discard Kind = "discard"
	Anchor  Kind = "anchor"
	Zero    Kind = "zero"
	Resize  Kind = "resize" // Off is the new size
)

// Op is one operation on a store.
type Op struct {
	Kind   Kind
	Off, N int64
}

func (o Op) String() string {
	if o.Kind == Flush {
		return string(o.Kind)
	}
	return fmt.Sprintf("%s %d+%d", o.Kind, o.Off, o.N)
}

// filter passes everything on to the store under it, through around. It has every optional ability;
// what the store under it has not is errors.ErrUnsupported.
type filter struct {
	store.Store
	// around runs an operation by calling do, or does not.
	around func(op Op, p []byte, do func() error) error
}

func (f *filter) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.around(Op{Read, off, int64(len(p))}, p, func() error {
		n, err = f.Store.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *filter) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.around(Op{Write, off, int64(len(p))}, p, func() error {
		n, err = f.Store.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *filter) WriteFUA(p []byte, off int64) error {
	w, ok := f.Store.(store.FUAWriter)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.around(Op{FUA, off, int64(len(p))}, p, func() error { return w.WriteFUA(p, off) })
}

func (f *filter) Flush() error {
	return f.around(Op{Kind: Flush}, nil, f.Store.Flush)
}

func (f *filter) Discard(off, n int64) error {
	d, ok := f.Store.(store.Discarder)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.around(Op{Discard, off, n}, nil, func() error { return d.Discard(off, n) })
}

func (f *filter) WriteZeroes(off, n int64) error {
	z, ok := f.Store.(store.Zeroer)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.around(Op{Zero, off, n}, nil, func() error { return z.WriteZeroes(off, n) })
}

func (f *filter) Resize(size int64) error {
	r, ok := f.Store.(store.Resizer)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.around(Op{Kind: Resize, Off: size}, nil, func() error { return r.Resize(size) })
}

func (f *filter) Extent(off, most int64) (bool, int64, error) {
	m, ok := f.Store.(store.Mapper)
	if !ok {
		return false, 0, errors.ErrUnsupported
	}
	return m.Extent(off, most)
}

func (f *filter) Anchor(off, n int64) error {
	a, ok := f.Store.(store.Anchorer)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.around(Op{Anchor, off, n}, nil, func() error { return a.Anchor(off, n) })
}

func (f *filter) Provisioned(off, most int64) (store.Provision, int64, error) {
	a, ok := f.Store.(store.Anchorer)
	if !ok {
		return store.Mapped, 0, errors.ErrUnsupported
	}
	return a.Provisioned(off, most)
}

func (f *filter) Space() (used, available int64, err error) {
	s, ok := f.Store.(store.Spacer)
	if !ok {
		return 0, 0, errors.ErrUnsupported
	}
	return s.Space()
}

func match(kinds []Kind, k Kind) bool {
	for _, have := range kinds {
		if have == k {
			return true
		}
	}
	return len(kinds) == 0
}
