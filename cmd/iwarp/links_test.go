package main

import (
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
)

// fakeKernel is a kernel of files and answers.
type fakeKernel struct {
	names []string
	err   error
	files fstest.MapFS
}

func (k *fakeKernel) list() ([]string, error)  { return k.names, k.err }
func (k *fakeKernel) add(_, _, _ string) error { return k.err }
func (k *fakeKernel) del(string) error         { return k.err }
func (k *fakeKernel) release() string          { return "6.1.0-test" }
func (k *fakeKernel) root() fs.FS              { return k.files }
func (k *fakeKernel) close()                   {}
func file(s string) *fstest.MapFile            { return &fstest.MapFile{Data: []byte(s)} }

func testKernel() *fakeKernel {
	return &fakeKernel{
		names: []string{"siw0", "mlx5_0", "rxe0", "gone0"},
		files: fstest.MapFS{
			"sys/class/infiniband/siw0/node_type":                 file("4: RNIC\n"),
			"sys/class/infiniband/siw0/node_desc":                 file("Software iWARP stack\n"),
			"sys/class/infiniband/siw0/ports/1/state":             file("4: ACTIVE\n"),
			"sys/class/infiniband/siw0/ports/1/gids/0":            file("5254:0012:3456:0000:0000:0000:0000:0000\n"),
			"sys/class/net/lo/address":                            file("00:00:00:00:00:00\n"),
			"sys/class/net/eth0/address":                          file("52:54:00:12:34:56\n"),
			"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": file("eth1\n"),
			"sys/class/infiniband/rxe0/node_type":                 file("1: CA\n"),
			"sys/class/infiniband/rxe0/node_desc":                 file("rxe\n"),
			"sys/class/infiniband/rxe0/ports/1/state":             file("1: DOWN\n"),
			"sys/class/infiniband/mlx5_0/node_type":               file("1: CA\n"),
			"sys/class/infiniband/mlx5_0/node_desc":               file("host HCA-1\n"),
			"sys/module/siw":                                      &fstest.MapFile{Mode: fs.ModeDir},
			"lib/modules/6.1.0-test/modules.dep":                  file("kernel/a/rdma_rxe.ko.xz: kernel/b/ib_core.ko.xz\n"),
		},
	}
}

func TestShowLinks(t *testing.T) {
	var out strings.Builder
	k := testKernel()
	require.NoError(t, showLinks(&out, k))
	require.Regexp(t, `(?m)^siw0 +siw +ACTIVE +eth0 +iWARP over TCP`, out.String())
	require.Regexp(t, `(?m)^rxe0 +rxe +DOWN +eth1 +RoCE v2`, out.String())
	require.Regexp(t, `(?m)^mlx5_0 +hardware +- +- +InfiniBand or RoCE in hardware`, out.String())
	require.Regexp(t, `(?m)^gone0 +hardware +- +- +$`, out.String())
	require.Contains(t, out.String(), "siw: available\n")
	require.Contains(t, out.String(), "rxe: available, not loaded\n")

	out.Reset()
	k = &fakeKernel{files: fstest.MapFS{}}
	require.NoError(t, showLinks(&out, k))
	require.Contains(t, out.String(), "no RDMA devices\n")
	require.Contains(t, out.String(), "siw: not available: kernel 6.1.0-test was built without it (CONFIG_RDMA_SIW); use --rnic soft")
	k.err = errors.New("no answer")
	require.ErrorContains(t, showLinks(&out, k), "links: no answer")
}

func TestAvailable(t *testing.T) {
	siw := linkDrivers[0]
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  availability
	}{
		"nothing":   {fstest.MapFS{}, absent},
		"loaded":    {fstest.MapFS{"sys/module/siw": &fstest.MapFile{Mode: fs.ModeDir}}, loaded},
		"module":    {fstest.MapFS{"usr/lib/modules/6.1.0-test/modules.dep": file("a/b.ko: c\nextra/siw.ko:\n")}, loadable},
		"built in":  {fstest.MapFS{"lib/modules/6.1.0-test/modules.builtin": file("kernel/drivers/siw.ko\n")}, loadable},
		"dependent": {fstest.MapFS{"lib/modules/6.1.0-test/modules.dep": file("a/siwx.ko: extra/siw.ko\n")}, absent},
		"other":     {fstest.MapFS{"lib/modules/6.2.0/modules.dep": file("extra/siw.ko:\n")}, absent},
	} {
		require.Equal(t, c.want, available(&fakeKernel{files: c.files}, siw), name)
	}
}

func TestExplainAdd(t *testing.T) {
	invalid := errors.New("invalid argument")
	k := testKernel()
	siw, rxe := linkDrivers[0], linkDrivers[1]
	require.Equal(t, invalid, explainAdd(invalid, k, siw, "eth0"))
	require.ErrorContains(t, explainAdd(invalid, k, rxe, "eth1"), "no network interface eth1")
	delete(k.files, "sys/module/siw")
	err := explainAdd(invalid, k, siw, "eth0")
	require.ErrorContains(t, err, "CONFIG_RDMA_SIW")
	require.ErrorIs(t, err, invalid)
}

func TestLinksUsage(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"accepts 1 arg", []string{"add"}},
		{"is no name", []string{"add", "a/b", "--type", "siw", "--netdev", "eth0"}},
		{"is no name", []string{"add", strings.Repeat("x", 64), "--type", "siw", "--netdev", "eth0"}},
		{"want siw or rxe", []string{"add", "siw0", "--netdev", "eth0"}},
		{"want siw or rxe", []string{"add", "siw0", "--type", "mlx5", "--netdev", "eth0"}},
		{"--netdev", []string{"add", "siw0", "--type", "siw"}},
		{"accepts 1 arg", []string{"del"}},
		{"unknown command", []string{"what"}},
	} {
		wantUsage(t, c.want, append([]string{"links"}, c.args...)...)
	}
}

// TestLinksHere asks the kernel that the test runs on, whatever it has.
func TestLinksHere(t *testing.T) {
	out, err := iwarp(t, "links")
	var usage *cli.UsageError
	switch {
	case err == nil:
		require.Contains(t, out, "siw: ")
	case errors.As(err, &usage):
		t.Fatal(err)
	default:
		require.Contains(t, err.Error(), "--rnic soft needs none")
		require.NotContains(t, err.Error(), "\n")
	}
	if runtime.GOOS != "linux" {
		require.Error(t, err)
	}
}

func TestDescribe(t *testing.T) {
	s := describe(rnic.Attributes{Caps: rnic.CapSendInvalidate | rnic.CapWindowSGE, MaxIRD: 3, MaxInline: 80})
	require.True(t, strings.HasPrefix(s, "Send with Invalidate, windows as Read sinks; IRD 3, "), s)
	require.Contains(t, s, "80 octets inline")
}
