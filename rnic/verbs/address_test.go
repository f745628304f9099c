//go:build verbs && cgo && linux

package verbs

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAddress: what is resolved reads back.
func TestAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:7174":           "192.0.2.1:7174",
		"[2001:db8::1]:3260":       "[2001:db8::1]:3260",
		"[::ffff:192.0.2.1]:80":    "192.0.2.1:80",
		":3260":                    "0.0.0.0:3260",
		"192.0.2.1:0":              "192.0.2.1:0",
		"192.0.2.1:65535":          "192.0.2.1:65535",
		"[fe80::1%" + loop + "]:1": "[fe80::1%" + loop + "]:1",
	} {
		raw, err := resolve(context.Background(), addr)
		require.NoError(t, err, addr)
		require.Equal(t, want, tcpAddr(raw).String())
	}
	for _, addr := range []string{"", "nonsense", "192.0.2.1", "192.0.2.1:65536", "[fe80::1%nosuch]:1"} {
		_, err := resolve(context.Background(), addr)
		require.Error(t, err, addr)
	}
}

// loop is the name of the loopback interface.
var loop = func() string {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return "lo"
}()
