//go:build !linux

package nbd

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// connect makes a client's socket.
func connect(b *testing.B, path string) *os.File {
	c, err := net.Dial("unix", path)
	require.NoError(b, err)
	f, err := c.(*net.UnixConn).File() // of its own
	require.NoError(b, err)
	require.NoError(b, c.Close())
	b.Cleanup(func() { _ = f.Close() })
	return f
}

// exchange sends ask and waits for all of answer.
func exchange(f *os.File, ask, answer []byte) error {
	if _, err := f.Write(ask); err != nil {
		return err
	}
	_, err := io.ReadFull(f, answer)
	return err
}
