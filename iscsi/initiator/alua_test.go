package initiator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func TestAccessStatesDecideWhichPathIsUsed(t *testing.T) {
	simulated(t, twoPortals, func(t *testing.T, s *sim) {
		d := s.open(s.config(), twoPortals...)
		defer d.Close()
		write := func(v byte) {
			t.Helper()
			_, err := d.WriteAt(block(v), 0)
			require.NoError(t, err)
			b := make([]byte, 512)
			_, err = d.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, block(v), b)
		}
		onlyActive := func(want ...int) {
			t.Helper()
			var got []int
			for _, p := range d.Paths() {
				require.True(t, p.Up, p.String())
				if p.Active {
					got = append(got, p.Index)
				}
			}
			require.Equal(t, want, got)
		}
		settle := func() { <-time.After(initiator.DefaultPathCheck + time.Second) }
		settle()
		onlyActive(0, 1)
		groups, err := d.PortGroups(t.Context())
		require.NoError(t, err)
		require.Len(t, groups, 2)

		s.lu.SetAccessState(1, scsi.Standby)
		write(1) // at once, whatever is known yet
		write(2)
		settle()
		onlyActive(1)
		s.lu.SetAccessState(1, scsi.ActiveNonOptimized)
		settle()
		onlyActive(1)
		s.lu.SetAccessState(2, scsi.Unavailable)
		write(3)
		settle()
		onlyActive(0)
		s.lu.SetAccessState(1, scsi.ActiveOptimized)
		s.lu.SetAccessState(2, scsi.ActiveOptimized)
		settle()
		onlyActive(0, 1)

		s.lu.SetAccessState(1, scsi.Transitioning)
		s.lu.SetAccessState(2, scsi.Transitioning)
		time.AfterFunc(10*time.Second, func() { s.lu.SetAccessState(2, scsi.ActiveOptimized) })
		write(4)
		s.lu.SetAccessState(1, scsi.Standby)
		s.lu.SetAccessState(2, scsi.Standby)
		begun := time.Now()
		write(5) // the target is asked to let a port serve
		require.Less(t, time.Since(begun), 10*time.Second)
	})
}
