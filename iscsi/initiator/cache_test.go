package initiator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func TestLostCacheIsToldByTheNextFlush(t *testing.T) {
	for name, through := range map[string]bool{"write back": false, "write through": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, onePortal, func(t *testing.T, s *sim) {
				cfg := s.config()
				cfg.WriteThrough = through
				d := s.open(cfg, onePortal...)
				defer d.Close()
				cached, err := d.WriteCache(t.Context())
				require.NoError(t, err)
				require.True(t, cached)
				_, err = d.WriteAt(block(1), 0)
				require.NoError(t, err)
				require.NoError(t, d.Flush(t.Context()))
				s.lu.Attention(scsi.CodePowerOn, nil)
				require.NoError(t, d.Flush(t.Context()), "all was flushed")
				_, err = d.WriteAt(block(2), 0)
				require.NoError(t, err)
				s.lu.Attention(scsi.CodePowerOn, nil)
				if err := d.Flush(t.Context()); through {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, initiator.ErrCacheLost)
				}
				require.NoError(t, d.Flush(t.Context()), "it is told once")
			})
		})
	}
}
