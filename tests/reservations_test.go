package tests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/tcp"
)

// host is one initiator port, logged in to a daemon.
type host struct {
	t  *testing.T
	s  *initiator.Session
	lu *initiator.LUN
}

func (d *daemon) login(t *testing.T, name string, isid byte) *host {
	t.Helper()
	s, err := initiator.Dial(context.Background(), d.url("iscsi", "0"), initiator.WithDialer("iscsi", &tcp.Dialer{}),
		initiator.WithInitiatorName("iqn.2026-11.com.example:"+name), initiator.WithISID([6]byte{0x80, 0, 0, 0, 0, isid}))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return &host{t, s, s.LUN(0)}
}

// do runs a command, again after a unit attention, and gives its status.
func (h *host) do(cdb scsi.CDB, in, out []byte) scsi.Status {
	h.t.Helper()
	for {
		res, err := h.lu.Do(context.Background(), cdb.Bytes(), in, out)
		var e *scsi.Error
		if errors.As(err, &e) && e.UnitAttention() {
			continue
		}
		require.False(h.t, err != nil && e == nil, "%v", err)
		return res.Status
	}
}

func (h *host) reserve(action byte, kind scsi.ReservationType, key, sark uint64, flags byte) scsi.Status {
	list := scsi.AppendReserve(nil, key, sark, flags)
	return h.do(scsi.PersistentReserveOut(action, kind, uint32(len(list))), nil, list)
}

// TestReservationsOutliveCrash: a daemon that is killed and started again knows who is registered with a disk and who holds it, and
// keeps out whom it kept out before (SPC-4, section 5.12.4).
func TestReservationsOutliveCrash(t *testing.T) {
	image := filepath.Join(t.TempDir(), "disk.img")
	args := []string{"--lun", image + ",size=8MiB"}
	d := startDaemon(t, args...)
	a, b := d.login(t, "a", 1), d.login(t, "b", 2)
	require.Equal(t, scsi.StatusGood, a.reserve(scsi.SARegister, 0, 0, 0xa, scsi.APTPL))
	require.Equal(t, scsi.StatusGood, a.reserve(scsi.SAReserve, scsi.WriteExclusive, 0xa, 0, 0))
	block := make([]byte, 512)
	require.Equal(t, scsi.StatusReservationConflict, b.do(scsi.Write(0, 1, 0), nil, block))
	fi, err := os.Stat(image + ".pr")
	require.NoError(t, err)
	require.EqualValues(t, 0o600, fi.Mode().Perm())

	require.NoError(t, d.cmd.Process.Kill())
	<-d.done
	d = startDaemon(t, args...)
	a, b = d.login(t, "a", 1), d.login(t, "b", 2)
	require.Equal(t, scsi.StatusReservationConflict, b.do(scsi.Write(0, 1, 0), nil, block))
	require.Equal(t, scsi.StatusGood, b.do(scsi.Read(0, 1, 0), block, nil))
	require.Equal(t, scsi.StatusGood, a.do(scsi.Write(0, 1, 0), nil, block), "the same name and ISID are the holder")
	require.Equal(t, scsi.StatusReservationConflict, d.login(t, "a", 7).do(scsi.Write(0, 1, 0), nil, block), "another ISID is another port")
	require.Equal(t, scsi.StatusGood, a.reserve(scsi.SAClear, 0, 0xa, 0, 0))
	require.Equal(t, scsi.StatusGood, b.do(scsi.Write(0, 1, 0), nil, block))
	_, err = os.Stat(image + ".pr")
	require.ErrorIs(t, err, os.ErrNotExist, "nothing is left to keep")
	a.s.Close()
	b.s.Close()
	require.Zero(t, d.stop(t))
}

// TestUnreadableReservations: iserd does not serve a disk without the reservations that it should have.
func TestUnreadableReservations(t *testing.T) {
	image := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(image+".pr", []byte("{"), 0o600))
	r := run(t, nil, program(t, "iserd"), "--lun", image+",size=8MiB", "--listen", "127.0.0.1:0")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "remove the file to start without any")
}
