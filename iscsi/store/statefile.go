package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxState is the most that a StateFile reads, in octets.
const maxState = 4 << 20

// StateFile keeps a few octets of state in a file of that path, each time anew and all or none: what Save returned for is
// there after a crash of the machine.
type StateFile string

// Load gives what was saved last; nothing if there is no such file.
func (f StateFile) Load() ([]byte, error) {
	file, err := os.Open(string(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxState+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxState:
		return nil, fmt.Errorf("%s has more than %s", string(f), FormatSize(maxState))
	}
	return data, nil
}

// Save replaces the file by one with that content, readable by its owner only, and returns once it is on stable storage.
// Nothing to save removes the file.
func (f StateFile) Save(state []byte) error {
	if len(state) == 0 {
		if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return syncDir(filepath.Dir(string(f)))
	}
	return ReplaceFile(string(f), state, 0o600)
}

// ReplaceFile makes data the content of a file with that mode, and returns once it is on stable storage: a crash leaves the
// old file or the new one, whole.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil && mode != 0o600 { // the mode that it was made with
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return syncDir(filepath.Dir(path))
}
