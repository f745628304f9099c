package storetest

import (
	"io"
	"log/slog"
	"sync"

	"goiwarp/iscsi/store"
)

// DelayStore holds operations back until they are let go. Nothing in it waits for time.
type DelayStore struct {
	filter
	arrived chan Op

	mu    sync.Mutex // guards what follows
	kinds []Kind
	step  chan struct{} // nil while nothing is held
	open  chan struct{} // closed by Release
}

// Delay makes a filter that holds nothing yet. It says that it blocks, whatever s says.
func Delay(s store.Store) *DelayStore {
	d := &DelayStore{arrived: make(chan Op, 1024)}
	d.filter = filter{Store: s, around: d.around}
	return d
}

// Info says that operations may wait.
func (d *DelayStore) Info() store.Info {
	info := d.Store.Info()
	info.Blocks = true
	return info
}

// Hold holds back operations of these kinds from now on, or all if none is named.
func (d *DelayStore) Hold(kinds ...Kind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kinds, d.step, d.open = kinds, make(chan struct{}), make(chan struct{})
}

// Arrived tells of each operation that is held back.
func (d *DelayStore) Arrived() <-chan Op { return d.arrived }

// Step lets one operation go and returns once it has been taken.
func (d *DelayStore) Step() {
	d.mu.Lock()
	step := d.step
	d.mu.Unlock()
	step <- struct{}{}
}

// Release lets every operation go and holds none any more.
func (d *DelayStore) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.step != nil {
		close(d.open)
		d.step = nil
	}
}

func (d *DelayStore) around(op Op, _ []byte, do func() error) error {
	d.mu.Lock()
	step, open, held := d.step, d.open, d.step != nil && match(d.kinds, op.Kind)
	d.mu.Unlock()
	if held {
		d.arrived <- op
		select {
		case <-step:
		case <-open:
		}
	}
	return do()
}

// FailStore makes operations fail.
type FailStore struct {
	filter

	mu   sync.Mutex // guards rule
	rule func(Op) error
}

// Fail makes a filter in which rule, called for each operation, gives the error with which it
// fails; nil lets it pass. A read or write that fails with io.ErrShortWrite or io.ErrUnexpectedEOF
// does its first half. rule may be nil.
func Fail(s store.Store, rule func(Op) error) *FailStore {
	f := &FailStore{rule: rule}
	f.filter = filter{Store: s, around: f.around}
	return f
}

// Set changes the rule.
func (f *FailStore) Set(rule func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rule = rule
}

// Next lets the next operation of a kind fail with err, and all others pass.
func (f *FailStore) Next(kind Kind, err error) {
	var once sync.Once
	f.Set(func(op Op) (failure error) {
		if op.Kind == kind {
			once.Do(func() { failure = err })
		}
		return failure
	})
}

// Always lets every operation of a kind fail with err, and all others pass.
func (f *FailStore) Always(kind Kind, err error) {
	f.Set(func(op Op) error {
		if op.Kind == kind {
			return err
		}
		return nil
	})
}

func (f *FailStore) around(op Op, p []byte, do func() error) error {
	f.mu.Lock()
	rule := f.rule
	f.mu.Unlock()
	if rule == nil {
		return do()
	}
	err := rule(op)
	switch err {
	case nil:
		return do()
	case io.ErrShortWrite:
		_, _ = f.Store.WriteAt(p[:len(p)/2], op.Off)
	case io.ErrUnexpectedEOF:
		_, _ = f.Store.ReadAt(p[:len(p)/2], op.Off)
	}
	return err
}

// LogStore writes operations down.
type LogStore struct {
	filter
	log *slog.Logger

	mu  sync.Mutex // guards ops
	ops []Op
}

// Log makes a filter that remembers each operation when it begins, and tells log of it (which may
// be nil) when it ends.
func Log(s store.Store, log *slog.Logger) *LogStore {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &LogStore{log: log}
	l.filter = filter{Store: s, around: l.around}
	return l
}

// Ops are the operations since the last call.
func (l *LogStore) Ops() []Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	ops := l.ops
	l.ops = nil
	return ops
}

func (l *LogStore) around(op Op, _ []byte, do func() error) error {
	l.mu.Lock()
	l.ops = append(l.ops, op)
	l.mu.Unlock()
	err := do()
	l.log.Debug("store", "op", string(op.Kind), "off", op.Off, "n", op.N, "error", err)
	return err
}
