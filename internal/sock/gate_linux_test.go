package sock

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestGateThatCannotWait: where the runtime's poller does not take a gate there is none, so that the connection stays as it was.
func TestGateThatCannotWait(t *testing.T) {
	var chain []int // epoll instances, each in the next, as deep as the kernel allows
	t.Cleanup(func() {
		for _, fd := range chain {
			_ = unix.Close(fd)
		}
	})
	for {
		ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		require.NoError(t, err)
		chain = append(chain, ep)
		if n := len(chain); n > 1 {
			if unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, chain[n-2], &unix.EpollEvent{Events: unix.EPOLLIN}) != nil {
				break
			}
		}
		require.Less(t, len(chain), 100)
	}
	before := descriptors(t)
	_, err := newGate(chain[len(chain)-3], unix.EPOLLIN)
	require.Error(t, err)
	require.Equal(t, before, descriptors(t))
}
