package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// FileOptions says how OpenFile opens.
type FileOptions struct {
	// ReadOnly opens for reading and refuses writes. Read-only openers share a file with each
	// other.
	ReadOnly bool
}

// File is a store in a regular file or a block device.
//
// Data goes through the page cache and is durable after Flush (fdatasync) or WriteFUA. The file is
// never mapped: an I/O error in a mapping, or a hole that a full disk cannot fill, would be a fatal
// signal instead of an error. It is locked, so that no second writer opens it.
//
// A lock is advice, and somebody may make a regular file shorter all the same. What is lost then is
// ErrShrunk to every access from the first one on that meets the file's end there, and every write
// looks for the end first. It stays so even if the file becomes longer again: nothing in the lost
// range is ever read as zeros or written until it is given up, by Size taking over a shorter size or
// by Resize. Not seen are a file that is made shorter and longer again between two accesses, and one
// that is made shorter in the instant between a write's look and the write.
type File struct {
	gate  gate
	f     *os.File
	fd    int
	name  string
	info  Info
	block bool        // a block device
	key   os.FileInfo // identity, for the registry of what this process has open
	size  atomic.Int64

	resizing sync.Mutex // held to change lost, and size after the opening
	lost     atomic.Pointer[lost]

	// syncing is held shared by write-throughs and exclusively by flushes, because the operating
	// system tells of a lost write only once: whoever is told has set broken before it lets go, so
	// that the other one sees it.
	syncing sync.RWMutex
	broken  atomic.Pointer[error]
}

// openFiles are the files that this process has open. The operating system's locks do not tell two
// openers within one process apart everywhere.
var openFiles struct {
	mu   sync.Mutex
	list []*File
}

// claim enters s unless the file is open already.
func (s *File) claim() error {
	openFiles.mu.Lock()
	defer openFiles.mu.Unlock()
	for _, o := range openFiles.list {
		if os.SameFile(o.key, s.key) && !(o.info.ReadOnly && s.info.ReadOnly) {
			return ErrLocked
		}
	}
	openFiles.list = append(openFiles.list, s)
	return nil
}

func (s *File) unclaim() {
	openFiles.mu.Lock()
	defer openFiles.mu.Unlock()
	for i, o := range openFiles.list {
		if o == s {
			openFiles.list = append(openFiles.list[:i], openFiles.list[i+1:]...)
			return
		}
	}
}

// OpenFile opens an existing regular file or block device. It is ErrLocked if somebody else has it
// open as a store (or, for a block device, has mounted it).
func OpenFile(path string, o FileOptions) (*File, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	block := fi.Mode()&os.ModeDevice != 0 && fi.Mode()&os.ModeCharDevice == 0
	if !block && !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("store: %s: neither a regular file nor a block device", path)
	}
	flag := os.O_RDWR
	if o.ReadOnly {
		flag = os.O_RDONLY
	} else if block {
		flag |= exclusiveFlag
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		if block && isBusy(err) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("store: open %s: %w", path, unwrapPath(err))
	}
	s, err := newFile(f, o)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("store: open %s: %w", path, err)
	}
	return s, nil
}

// CreateFile makes a sparse file of that many octets, which must not exist, and opens it.
func CreateFile(path string, size int64) (s *File, err error) {
	if size <= 0 {
		return nil, fmt.Errorf("store: create %s: size %d is not positive", path, size)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: create %s: %w", path, unwrapPath(err))
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(path)
			err = fmt.Errorf("store: create %s: %w", path, unwrapPath(err))
		}
	}()
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	// The name has to last as well as the file.
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return newFile(f, FileOptions{})
}

// unwrapPath takes the path off an error that is going to be told with it.
func unwrapPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// newFile takes f over if it succeeds.
func newFile(f *os.File, o FileOptions) (*File, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s := &File{f: f, fd: int(f.Fd()), name: f.Name(), key: fi}
	s.info = Info{Kind: "file", Name: s.name, Blocks: true, Volatile: true, ReadOnly: o.ReadOnly, Align: 1}
	if s.block = fi.Mode()&os.ModeDevice != 0; s.block {
		s.info.Kind = "block"
	}
	if err := s.claim(); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		s.unclaim()
		return nil, err
	}
	return s, nil
}

func (s *File) open() error {
	if err := lockFile(s.f, s.info.ReadOnly); err != nil {
		return err
	}
	size, err := fileSize(s.f, s.block)
	if err != nil {
		return err
	}
	s.size.Store(size)
	s.probe()
	return nil
}

// begin enters the gate for an access to a range.
func (s *File) begin(off, n int64, write bool) error {
	if write && s.info.ReadOnly {
		return ErrReadOnly
	}
	if err := s.gate.enter(); err != nil {
		return err
	}
	err := error(nil)
	switch {
	case !inside(off, n, s.size.Load()):
		err = ErrRange
	case write:
		err = s.intact(off, n)
	default:
		err = s.kept(off, n) // a read tells by itself that the file ends
	}
	if err != nil {
		s.gate.leave()
	}
	return err
}

// ReadAt implements Store.
func (s *File) ReadAt(p []byte, off int64) (int, error) {
	if err := s.begin(off, int64(len(p)), false); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	n, err := s.f.ReadAt(p, off)
	if err == io.EOF {
		err = s.shortRead(p, off, off+int64(n))
	}
	return n, err
}

// WriteAt implements Store.
func (s *File) WriteAt(p []byte, off int64) (int, error) {
	if err := s.begin(off, int64(len(p)), true); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	return s.f.WriteAt(p, off)
}

// WriteFUA implements FUAWriter. An error that wraps ErrFlush may be about other data, too.
func (s *File) WriteFUA(p []byte, off int64) error {
	if err := s.begin(off, int64(len(p)), true); err != nil {
		return err
	}
	defer s.gate.leave()
	done, err := s.writeThrough(p, off)
	if done || err != nil {
		return err
	}
	if _, err := s.f.WriteAt(p, off); err != nil {
		return err
	}
	return s.flush()
}

// writeThrough writes synchronously where the operating system can; done is false where it cannot.
func (s *File) writeThrough(p []byte, off int64) (done bool, err error) {
	s.syncing.RLock()
	defer s.syncing.RUnlock()
	if err := s.failed(); err != nil {
		return false, err
	}
	done, err = writeSync(s.fd, p, off)
	if err == nil || !done {
		return done, err
	}
	// Was it the write that failed, or making it durable? The plain write tells, except after an
	// I/O error: that one may be about any earlier data, and has been told for the last time.
	if _, plain := s.f.WriteAt(p, off); plain != nil && !isIOError(err) {
		return false, plain
	}
	return false, s.fail(err)
}

// Flush implements Store. Once a flush has failed, every later one does: the operating system may
// have dropped what it could not write, and would find nothing to do.
func (s *File) Flush() error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.leave()
	return s.flush()
}

func (s *File) flush() error {
	if s.info.ReadOnly {
		return nil
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.failed(); err != nil {
		return err
	}
	if err := dataSync(s.f); err != nil {
		return s.fail(err)
	}
	return nil
}

// failed is the error of the flush that failed, if one has.
func (s *File) failed() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fail records that data may have been lost. The caller holds syncing in either way.
func (s *File) fail(cause error) error {
	err := fmt.Errorf("%w: %s: %w", ErrFlush, s.name, cause)
	s.broken.CompareAndSwap(nil, &err)
	return s.failed()
}

// zeroBlock is what zeros are written from where the operating system has no better way.
var zeroBlock [64 << 10]byte

// writeZeros writes zeros the plain way.
func (s *File) writeZeros(off, n int64) error {
	for n > 0 {
		p := zeroBlock[:min(n, int64(len(zeroBlock)))]
		if _, err := s.f.WriteAt(p, off); err != nil {
			return err
		}
		off, n = off+int64(len(p)), n-int64(len(p))
	}
	return nil
}

// Discard implements Discarder: a hole is punched. Where that cannot be done zeros are written.
func (s *File) Discard(off, n int64) error {
	if err := s.begin(off, n, true); err != nil {
		return err
	}
	defer s.gate.leave()
	if n == 0 {
		return nil
	}
	err := punchHole(s.fd, off, n, s.block)
	if errors.Is(err, errors.ErrUnsupported) {
		return s.writeZeros(off, n)
	}
	return err
}

// WriteZeroes implements Zeroer: the range stays allocated where the file system can do so.
func (s *File) WriteZeroes(off, n int64) error {
	if err := s.begin(off, n, true); err != nil {
		return err
	}
	defer s.gate.leave()
	if n == 0 {
		return nil
	}
	err := zeroRange(s.fd, off, n, s.block)
	if errors.Is(err, errors.ErrUnsupported) {
		return s.writeZeros(off, n)
	}
	return err
}

// Extent implements Mapper.
func (s *File) Extent(off, most int64) (mapped bool, n int64, err error) {
	if err := s.begin(off, most, false); err != nil {
		return false, 0, err
	}
	defer s.gate.leave()
	if s.block {
		return true, most, nil
	}
	if err := s.intact(off, most); err != nil {
		return false, 0, err
	}
	return extent(s.fd, off, most)
}

// Resize implements Resizer for regular files. The new size is durable.
func (s *File) Resize(size int64) error {
	switch {
	case s.block:
		return fmt.Errorf("store: %s: %w: a block device's size is its own", s.name, errors.ErrUnsupported)
	case s.info.ReadOnly:
		return ErrReadOnly
	case size <= 0:
		return ErrRange
	}
	if err := s.resize(size); err != nil {
		return err
	}
	return s.Flush()
}

// resize has the file to itself: a write that began before it must not make the file longer again.
func (s *File) resize(size int64) error {
	if err := s.gate.enterAlone(); err != nil {
		return err
	}
	defer s.gate.leaveAlone()
	if now, err := currentSize(s.f, s.fd); err != nil {
		return err
	} else if now < s.size.Load() {
		s.noteEnd(now)
	}
	if err := s.f.Truncate(size); err != nil {
		return err
	}
	s.resizing.Lock()
	defer s.resizing.Unlock()
	s.adopt(size)
	return nil
}

// Size implements Store. It asks the operating system, so that a file that was made longer by
// somebody else, or a device that grew, is seen; and one that was made shorter: the store has that
// size from then on.
func (s *File) Size() int64 {
	if s.gate.enter() == nil {
		s.resizing.Lock()
		if size, err := fileSize(s.f, s.block); err == nil {
			s.adopt(size)
		}
		s.resizing.Unlock()
		s.gate.leave()
	}
	return s.size.Load()
}

// Info implements Store.
func (s *File) Info() Info { return s.info }

// Close implements Store. The lock goes with the file.
func (s *File) Close() error {
	if !s.gate.close() {
		return ErrClosed
	}
	err := s.f.Close()
	s.unclaim()
	return err
}
