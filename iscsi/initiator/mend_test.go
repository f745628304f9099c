package initiator_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
)

// TestDigestErrorsAreMendedWithinTheSession corrupts data in both directions at ErrorRecoveryLevel 1: what arrives broken is asked for, or sent, again,
// and the session lives (RFC 7143, sections 7.8 and 11.16).
func TestDigestErrorsAreMendedWithinTheSession(t *testing.T) {
	for name, unsolicited := range map[string]bool{"immediate and solicited data": false, "unsolicited data": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, "tcp", 1<<20, onePortal...)
				defer s.end()
				s.net.plan = func(int, bool) []fault {
					var list []fault
					for at := int64(5000); at < 8<<20; at += 90_017 {
						list = append(list, fault{at: at, do: corrupt})
					}
					return list
				}
				cfg := s.config()
				cfg.Session.Settings.ErrorRecoveryLevel = 1
				cfg.Session.Settings.UnsolicitedData = unsolicited
				cfg.Session.Settings.FirstBurstLength = 16 << 10
				cfg.Session.Settings.MaxRecvDataSegment = 8 << 10
				var rejects atomic.Int32
				cfg.Session.Hooks.PDU = func(sent bool, p *iscsi.PDU) {
					if p.Opcode() == iscsi.OpReject {
						rejects.Add(1)
					}
				}
				d := s.open(cfg, onePortal...)
				defer d.Close()
				b := make([]byte, 64<<10)
				for i := range 40 {
					want := bytes.Repeat([]byte{byte(i), byte(i >> 1)}, len(b)/2)
					_, err := d.WriteAt(want, int64(i%8)*int64(len(b)))
					require.NoError(t, err)
					_, err = d.ReadAt(b, int64(i%8)*int64(len(b)))
					require.NoError(t, err)
					require.True(t, bytes.Equal(want, b))
				}
				require.Equal(t, initiator.DiskStats{}, d.Stats(), "the disk does not hear of it: %s", s.net.story())
				require.Positive(t, rejects.Load())
				require.Greater(t, strings.Count(s.net.story(), "corrupt"), 30)
			})
		})
	}
}
