package storetest

import (
	"sync"

	"goiwarp/iscsi/store"
)

// ForgetStore is a disk with a volatile cache: what was not flushed is lost when it crashes. What
// is durable is in the store under it; the rest is a list of changes on top.
type ForgetStore struct {
	under store.Store

	mu      sync.Mutex // guards what follows, and the order of changes
	changes []change
}

type change struct {
	Op
	data    []byte // nil for zeros
	durable bool   // is in the store under it already
}

// Forget makes a filter over a store that has nothing volatile itself, such as a memory store.
func Forget(s store.Store) *ForgetStore { return &ForgetStore{under: s} }

// Info says that Flush matters.
func (f *ForgetStore) Info() store.Info {
	info := f.under.Info()
	info.Volatile = true
	return info
}

// Size implements store.Store.
func (f *ForgetStore) Size() int64 { return f.under.Size() }

// Close implements store.Store; it flushes nothing.
func (f *ForgetStore) Close() error { return f.under.Close() }

// ReadAt implements store.Store: the newest data.
func (f *ForgetStore) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.under.ReadAt(p, off)
	if err != nil {
		return n, err
	}
	for _, c := range f.changes {
		from, to := max(off, c.Off), min(off+int64(len(p)), c.Off+c.N)
		if from >= to {
			continue
		}
		if c.data == nil {
			clear(p[from-off : to-off])
			continue
		}
		copy(p[from-off:to-off], c.data[from-c.Off:])
	}
	return n, nil
}

// change takes a change over after checking its range.
func (f *ForgetStore) change(c change) error {
	if _, err := f.under.ReadAt(nil, c.Off); err != nil {
		return err
	}
	if c.N < 0 || c.N > f.under.Size()-c.Off {
		return store.ErrRange
	}
	f.changes = append(f.changes, c)
	return nil
}

// WriteAt implements store.Store.
func (f *ForgetStore) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.change(change{Op: Op{Write, off, int64(len(p))}, data: append([]byte{}, p...)}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteFUA implements store.FUAWriter.
func (f *ForgetStore) WriteFUA(p []byte, off int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.under.WriteAt(p, off); err != nil {
		return err
	}
	return f.change(change{Op: Op{FUA, off, int64(len(p))}, data: append([]byte{}, p...), durable: true})
}

// Discard implements store.Discarder; it is as volatile as a write.
func (f *ForgetStore) Discard(off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(change{Op: Op{Discard, off, n}})
}

// WriteZeroes implements store.Zeroer.
func (f *ForgetStore) WriteZeroes(off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(change{Op: Op{Zero, off, n}})
}

// Flush implements store.Store.
func (f *ForgetStore) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settle(func(Op) bool { return true })
}

// Crash is the loss of power: of what was not flushed only the changes survive for which keep says
// so, in their order (a cache writes back when it likes); a nil keep loses all of them.
func (f *ForgetStore) Crash(keep func(Op) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if keep == nil {
		keep = func(Op) bool { return false }
	}
	return f.settle(keep)
}

// Unflushed is how many changes a crash could lose.
func (f *ForgetStore) Unflushed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.changes {
		if !c.durable {
			n++
		}
	}
	return n
}

// settle applies the changes to keep. The durable ones are applied again, in their place among the
// others.
func (f *ForgetStore) settle(keep func(Op) bool) error {
	zeros := make([]byte, 64<<10)
	for _, c := range f.changes {
		if !c.durable && !keep(c.Op) {
			continue
		}
		if c.data != nil {
			if _, err := f.under.WriteAt(c.data, c.Off); err != nil {
				return err
			}
			continue
		}
		if d, ok := f.under.(store.Discarder); ok {
			if err := d.Discard(c.Off, c.N); err != nil {
				return err
			}
			continue
		}
		for off := c.Off; off < c.Off+c.N; off += int64(len(zeros)) {
			if _, err := f.under.WriteAt(zeros[:min(int64(len(zeros)), c.Off+c.N-off)], off); err != nil {
				return err
			}
		}
	}
	f.changes = nil
	return f.under.Flush()
}
