package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// file is a file, or a block device, as one side of a copy.
type file struct {
	f    *os.File
	size int64
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
	return &file{f: f, size: size}, nil
}

// openDestination opens a file to copy size octets to. It is created if it does not exist; an existing one gets that size.
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
		if info.Mode().IsRegular() {
			err = f.Truncate(size)
		} else {
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
	return &file{f: f, size: size}, nil
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
