package nbd

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/rdma"
	"goiwarp/internal/sock"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

const benchTarget = "iqn.2026-11.com.example:nbd"

// serveDisk serves a disk in memory on the software RNIC, and says where. The function that it returns ends that.
func serveDisk(name string) (addr string, end func() error, err error) {
	m, err := store.NewMemory(16 << 20)
	if err != nil {
		return "", nil, err
	}
	lu, err := scsi.NewLU(m, scsi.LUConfig{BlockSize: blockSize})
	if err != nil {
		return "", nil, err
	}
	dev := scsi.NewDevice(scsi.Port{})
	if err := dev.Add(0, lu); err != nil {
		return "", nil, err
	}
	server, err := target.New(target.Config{Targets: []target.Target{{Name: benchTarget, Device: dev}}})
	if err != nil {
		return "", nil, err
	}
	far := soft.New(soft.Config{Name: name})
	domain, err := iser.NewDomain(far, iser.DomainConfig{})
	if err != nil {
		return "", nil, err
	}
	ln, err := far.Listen(context.Background(), "127.0.0.1:0", nil)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	wait := portaltest.Requests(ctx, ln, iser.Config{Domain: domain}, func(dm iscsi.Datamover) { _ = server.Serve(dm, target.PortalInfo{}) })
	return ln.Addr().String(), func() error {
		err := server.Shutdown(context.Background())
		if errors.Is(err, target.ErrClosed) {
			err = nil
		}
		cancel()
		err = errors.Join(err, ln.Close())
		wait()
		return errors.Join(err, domain.Close(), far.Close())
	}, nil
}

// openDisk opens the disk of serveDisk. The function that it returns closes it.
func openDisk(addr string, poller *sock.Poller) (*initiator.Disk, func() error, error) {
	near := soft.New(soft.Config{Name: "initiator", Network: rdma.Polled(poller)})
	domain, err := iser.NewDomain(near, iser.DomainConfig{})
	if err != nil {
		return nil, nil, err
	}
	d, err := initiator.OpenDisk(context.Background(), initiator.DiskConfig{}, initiator.PathConfig{
		Dialer: &iser.Dialer{Domain: domain, Config: iser.Config{BufferMemory: 64 << 20}}, Addr: addr, TargetName: benchTarget, LUN: scsi.EncodeLUN(0),
	})
	if err != nil {
		return nil, nil, err
	}
	return d, func() error { return errors.Join(d.Close(), domain.Close(), near.Close()) }, nil
}

// overISER opens a disk in memory of a target in this process, over iSER on the software RNIC.
func overISER(t testing.TB) *initiator.Disk {
	addr, end, err := serveDisk("target")
	require.NoError(t, err)
	d, closeDisk, err := openDisk(addr, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, closeDisk())
		require.NoError(t, end())
	})
	return d
}

// TestOverISER: the whole way, from an NBD client to a disk behind a target.
func TestOverISER(t *testing.T) {
	d := overISER(t)
	x, err := Describe(t.Context(), d.LUN)
	require.NoError(t, err)
	require.Equal(t, Export{
		Size: 16 << 20, BlockSize: blockSize, FUA: x.FUA, Cache: x.Cache, Unmap: x.Unmap, UnmapSame: x.UnmapSame,
		MaxTransfer: x.MaxTransfer, Preferred: x.Preferred, Rotational: x.Rotational, Map: x.Map, ReadsZeros: x.ReadsZeros, Prefetch: true,
	}, x)
	s, err := New(d, x, Config{Prepare: 1, Memory: 4 << 20})
	require.NoError(t, err)
	defer s.Close()
	c, end := transmit(t, s)
	defer end()
	for _, n := range []int{512, 4096, 100 << 10, 4 << 20} {
		b := random(n, uint64(n))
		_, e := c.do(CmdWrite, cmdFlagFUA, 8192, uint32(n), b)
		require.Zero(t, e)
		got, e := c.do(CmdRead, 0, 8192, uint32(n), nil)
		require.Zero(t, e)
		require.True(t, slices.Equal(b, got), "%d octets", n)
	}
	_, e := c.do(CmdWriteZeroes, 0, 8192, 1<<20, nil)
	require.Zero(t, e)
	got, e := c.do(CmdRead, 0, 8192, 1<<20, nil)
	require.Zero(t, e)
	require.Equal(t, make([]byte, 1<<20), got)
	_, e = c.do(CmdFlush, 0, 0, 0, nil)
	require.Zero(t, e)
	if x.Unmap {
		_, e = c.do(CmdTrim, 0, 0, 16<<20, nil)
		require.Zero(t, e)
	}
}

// transmit begins a connection.
func transmit(t testing.TB, s *Server) (*client, func()) {
	near, far := pair(t, "unix")
	done := make(chan error, 1)
	go func() { done <- s.Transmit(context.Background(), far) }()
	return &client{t, near}, func() {
		require.NoError(t, near.Close())
		require.ErrorIs(t, <-done, io.EOF)
	}
}
