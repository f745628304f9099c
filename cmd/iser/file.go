package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// file is a file, or a block device, as one side of a copy.
type file struct {
	f       *os.File
	size    int64
	regular bool
}

// openSource opens a file to copy from. What has no size is refused before it is opened, because opening a
// named pipe waits for its other end.
func openSource(path string) (*file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return nil, fmt.Errorf("%s is a directory", path)
	case !mode.IsRegular() && (mode&os.ModeDevice == 0 || mode&os.ModeCharDevice != 0):
		return nil, fmt.Errorf("%s: its size is unknown; pipe it into 'iser write' instead", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &file{f: f, size: size, regular: regular(path)}, nil
}

// openDestination opens a file to copy size octets to. It is created if it does not exist; an existing one
// is left as it is until Begin.
func openDestination(path string, size int64) (*file, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s: a pipe cannot be written at several places; use 'iser read' instead", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if !info.Mode().IsRegular() {
			var has int64
			if has, err = f.Seek(0, io.SeekEnd); err == nil && has < size {
				err = fmt.Errorf("%s: has %d octets, and the source is larger: %d", path, has, size)
			}
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &file{f: f, size: size, regular: info.Mode().IsRegular()}, nil
}

// regular says whether path is a regular file.
func regular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// sameFile says whether both paths are one file.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// Begin lets a regular file keep its first octets, and read as zeros from there up to its new size.
func (e *file) Begin(keep int64) error {
	if !e.regular {
		return nil
	}
	info, err := e.f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < keep {
		return fmt.Errorf("%s has %d octets, and %d had been copied: somebody made it shorter", e, info.Size(), keep)
	}
	if err := e.f.Truncate(keep); err != nil {
		return err
	}
	return e.f.Truncate(e.size)
}

// Grain is more than any block of a file system or a disk needs to be whole.
func (e *file) Grain() int64 { return 4096 }

// Extent finds holes, where the file system tells.
func (e *file) Extent(_ context.Context, off int64) (zero bool, n int64, err error) {
	if !e.regular {
		return false, e.size - off, nil
	}
	return fileExtent(e.f, off, e.size)
}

// Zero writes zeros. A hole need not be made: a regular file's Extent tells of those that are there already, which are all but what somebody wrote.
func (e *file) Zero(_ context.Context, off, n int64, _ bool) error {
	for zeros := make([]byte, min(n, pieceSize)); n > 0; {
		m := min(n, pieceSize)
		if _, err := e.f.WriteAt(zeros[:m], off); err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}

// Identity is the path and the file behind it; of a source, which nobody should have changed meanwhile, also when it was changed.
func (e *file) Identity(_ context.Context, source bool) (string, error) {
	path, err := filepath.Abs(e.f.Name())
	if err != nil {
		return "", err
	}
	info, err := e.f.Stat()
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("%s, %d octets%s", path, e.size, inode(info))
	if source && e.regular {
		id += ", changed " + info.ModTime().UTC().Format(time.RFC3339Nano)
	}
	return id, nil
}

func (e *file) String() string              { return e.f.Name() }
func (e *file) Size() int64                 { return e.size }
func (e *file) Alloc(int) (memory, error)   { return nil, nil }
func (e *file) Flush(context.Context) error { return e.f.Sync() }
func (e *file) Close() error                { return e.f.Close() }

func (e *file) Read(_ context.Context, m memory, n int, off int64) error {
	_, err := io.ReadFull(io.NewSectionReader(e.f, off, int64(n)), m.Bytes()[:n])
	return err
}

func (e *file) Write(_ context.Context, m memory, n int, off int64) error {
	_, err := e.f.WriteAt(m.Bytes()[:n], off)
	return err
}
