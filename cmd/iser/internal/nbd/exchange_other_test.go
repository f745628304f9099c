//go:build !unix

package nbd

import (
	"io"
	"os"
)

// exchange sends ask and waits for all of answer.
func exchange(f *os.File, ask, answer []byte) error {
	if _, err := f.Write(ask); err != nil {
		return err
	}
	_, err := io.ReadFull(f, answer)
	return err
}
