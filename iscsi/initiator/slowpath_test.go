package initiator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
)

// TestSlowAnswersAboutAPathAreNoFailure: a path that takes longer to tell its state than a login may take is kept, as long as what it is
// asked for comes at all.
func TestSlowAnswersAboutAPathAreNoFailure(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		const begin = 16 << 10 // octets: behind the login and the first look
		s.net.plan = func(_ int, out bool) (faults []fault) {
			for i := range 60 {
				if !out {
					faults = append(faults, fault{at: begin + int64(i)*120, do: delay, wait: 3 * time.Second})
				}
			}
			return faults
		}
		cfg := s.config()
		cfg.Session.PingTimeout = time.Minute // a PDU may suffer several of these delays
		d := s.open(cfg, onePortal...)
		defer d.Close()
		_, err := d.WriteAt(block(7), 0)
		require.NoError(t, err)
		b := make([]byte, 8<<10)
		_, err = d.ReadAt(b, 0)
		require.NoError(t, err)
		<-time.After(4 * initiator.DefaultLoginTimeout)
		_, err = d.ReadAt(b[:512], 0)
		require.NoError(t, err)
		require.Equal(t, block(7), b[:512])
		require.Zero(t, d.Stats().Lost, "%v\n%s", d.Paths(), s.net.story())
	})
}
