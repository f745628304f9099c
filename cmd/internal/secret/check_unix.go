//go:build unix

package secret

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// open opens a file that may be a FIFO without waiting for somebody who writes to it.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// check refuses a file that others than its owner can read or change, or that is not this user's.
func check(info os.FileInfo) error {
	if err := checkRegular(info); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("mode %04o lets others in; take it from them with chmod 600", mode)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("it belongs to another user")
	}
	return nil
}
