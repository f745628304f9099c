package target

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/store"
)

// TestDigestErrorsAreMended: octets that a network spoils in data segments of both directions cost nothing but time at
// ErrorRecoveryLevel 1: the session stays, every command is answered, and the data is right (RFC 7143, section 7.8).
func TestDigestErrorsAreMended(t *testing.T) {
	m, blocks := memory(t, 16<<20), memory(t, 16<<20)
	s := newServer(t, nil, m, blocking(blocks))
	p := overTCP(t, s)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
	})
	var steps []faultproxy.Step
	for k := range int64(6) { // well within segments of 64 KiB and more, whatever the headers before them take
		steps = append(steps,
			faultproxy.Step{Dir: faultproxy.ToTarget, Offset: 300_000 + k*700_001, Do: faultproxy.Corrupt, Mask: 0x20},
			faultproxy.Step{Dir: faultproxy.FromTarget, Offset: 310_000 + k*650_001, Do: faultproxy.Corrupt, Mask: 0x04})
	}
	proxy := faultproxy.New(t, p.addr, faultproxy.Script{Steps: steps})
	p.addr = proxy.Addr()
	ss := dial(t, p, func(c *initiator.Config) {
		c.Settings.DataDigest = []string{"CRC32C"}
		c.Settings.ErrorRecoveryLevel = 1
		c.Settings.NoImmediateData = true // a command that is spoilt is the initiator's session to send again
	})
	require.Equal(t, 1, ss.Params().ErrorRecoveryLevel)
	require.True(t, ss.Params().DataDigest)
	for lun, st := range map[uint16]store.Store{0: m, 1: blocks} {
		l := ss.LUN(lun)
		for k := range 4 {
			data := random(1<<20, uint64(lun)<<8+uint64(k))
			_, err := l.WriteAt(data, int64(k)<<20)
			require.NoError(t, err)
			there := make([]byte, len(data))
			_, err = st.ReadAt(there, int64(k)<<20)
			require.NoError(t, err)
			require.NoError(t, same(data, there))
			got := make([]byte, len(data))
			_, err = l.ReadAt(got, int64(k)<<20)
			require.NoError(t, err)
			require.NoError(t, same(data, got))
		}
	}
	for i := range steps {
		<-proxy.Reached(i)
	}
	require.Len(t, s.Status().Sessions, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, ss.Logout(ctx))
}
