package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/scsi"
	backing "goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

const siteTarget = "iqn.2026-11.com.example:tools"

// countingStore counts what reaches the medium, and may do something on the way.
type countingStore struct {
	*backing.Memory
	read, written, discarded atomic.Int64 // octets
	onWrite                  func(p []byte, off int64) error
}

func (s *countingStore) ReadAt(p []byte, off int64) (int, error) {
	s.read.Add(int64(len(p)))
	return s.Memory.ReadAt(p, off)
}

func (s *countingStore) WriteAt(p []byte, off int64) (int, error) {
	if s.onWrite != nil {
		if err := s.onWrite(p, off); err != nil {
			return 0, err
		}
	}
	s.written.Add(int64(len(p)))
	return s.Memory.WriteAt(p, off)
}

func (s *countingStore) Discard(off, n int64) error {
	s.discarded.Add(n)
	return s.Memory.Discard(off, n)
}

func (s *countingStore) reset() { s.read.Store(0); s.written.Store(0); s.discarded.Store(0) }

// contents are n octets from off on, uncounted.
func (s *countingStore) contents(t testing.TB, off, n int64) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := s.Memory.ReadAt(b, off)
	require.NoError(t, err)
	return b
}

// testSite is a target in this process with disks in memory, at one portal for TCP and one for iSER.
type testSite struct {
	tcp, iser string // host:port
	device    *scsi.Device
	disks     []*countingStore
}

// newTestSite serves a disk of each size, LUN 0 first. Sessions have ended when the test has.
func newTestSite(t testing.TB, sizes ...int64) *testSite {
	t.Helper()
	s := &testSite{device: scsi.NewDevice(scsi.Port{})}
	for i, size := range sizes {
		m, err := backing.NewMemory(size)
		require.NoError(t, err)
		c := &countingStore{Memory: m}
		lu, err := scsi.NewLU(c, scsi.LUConfig{BlockSize: 512, Serial: "tools-" + string(rune('0'+i)), Provisioning: scsi.ProvisionThin})
		require.NoError(t, err)
		require.NoError(t, s.device.Add(i, lu))
		s.disks = append(s.disks, c)
	}
	srv, err := target.New(target.Config{Targets: []target.Target{{Name: siteTarget, Device: s.device}}, LogoutWait: 100 * time.Millisecond})
	require.NoError(t, err)
	far := soft.New(soft.Config{Name: "target"})
	domain, err := iser.NewDomain(far, iser.DomainConfig{})
	require.NoError(t, err)
	rdma, err := far.Listen(t.Context(), "127.0.0.1:0", nil)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.tcp, s.iser = ln.Addr().String(), rdma.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	serve := func(dm iscsi.Datamover) { _ = srv.Serve(dm, target.PortalInfo{}) }
	plain := func(c net.Conn) iscsi.Datamover { return tcp.NewTarget(c, tcp.Config{}, nil) }
	waitTCP := portaltest.Streams(ln, plain, serve)
	waitRDMA := portaltest.Requests(ctx, rdma, iser.Config{Domain: domain}, serve)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, errors.Join(ln.Close(), rdma.Close()))
		if err := srv.Shutdown(context.Background()); !errors.Is(err, target.ErrClosed) {
			require.NoError(t, err)
		}
		waitTCP()
		waitRDMA()
		require.NoError(t, errors.Join(domain.Close(), far.Close()))
	})
	return s
}

// url names a LUN over TCP, isers over iSER.
func (s *testSite) url(lun string) string { return "iscsi://" + s.tcp + "/" + siteTarget + "/" + lun }

func (s *testSite) isers(lun string) string { return "iser://" + s.iser + "/" + siteTarget + "/" + lun }

// outcome is how a command line ended.
type outcome struct {
	out, errs string
	err       error
}

// iserTool runs a command line in this process, with no configuration but what the test has put there.
func iserTool(ctx context.Context, args ...string) outcome {
	cmd := command()
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usagef("%w", err) }) // as cli.Main does
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetIn(bytes.NewReader(nil))
	err := cmd.ExecuteContext(ctx)
	return outcome{out.String(), errs.String(), err}
}

// mustRun runs a command line that has to succeed.
func mustRun(t testing.TB, args ...string) string {
	t.Helper()
	r := iserTool(t.Context(), args...)
	require.NoError(t, r.err, "iser %v", args)
	return r.out
}

// usage says whether an error is one that ends the program with status 2.
func usage(err error) bool {
	var u *cli.UsageError
	return errors.As(err, &u)
}

// refused runs a command line that has to fail with one line that says want.
func refused(t testing.TB, isUsage bool, want string, args ...string) {
	t.Helper()
	r := iserTool(t.Context(), args...)
	require.ErrorContains(t, r.err, want, "iser %v", args)
	require.NotContains(t, r.err.Error(), "\n")
	require.Equal(t, isUsage, usage(r.err), "iser %v: %v", args, r.err)
}

func parseJSON[T any](t testing.TB, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

func randomBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func writeFile(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}
