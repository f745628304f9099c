//go:build !linux

package store

import (
	"errors"
	"io"
	"os"
)

const exclusiveFlag = 0

func isBusy(error) bool { return false }

func isIOError(error) bool { return true }

func fileSize(f *os.File, block bool) (int64, error) {
	if block {
		return f.Seek(0, io.SeekEnd) // all I/O here names its own offset
	}
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// currentSize is fileSize of a regular file, without garbage.
func currentSize(f *os.File, _ int) (int64, error) {
	return f.Seek(0, io.SeekEnd) // all I/O here names its own offset
}

// probe has nothing to find: zeros are written, and nothing is discarded.
func (s *File) probe() {}

func dataSync(f *os.File) error { return f.Sync() }

func writeSync(int, []byte, int64) (done bool, err error) { return false, nil }

func punchHole(int, int64, int64, bool) error { return errors.ErrUnsupported }

func zeroRange(int, int64, int64, bool) error { return errors.ErrUnsupported }

func extent(_ int, _, most int64) (mapped bool, n int64, err error) { return true, most, nil }

func holeProvision(_ int, _, n int64) (Provision, int64, error) { return Deallocated, n, nil }
