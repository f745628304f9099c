package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// holey is a disk of 16 MiB with data in its second and its tenth MiB, and how clients are to see it.
func holey(t *testing.T) (data []byte, uri string) {
	t.Helper()
	const mib = 1 << 20
	data = make([]byte, 16*mib)
	_, random := randomFile(t, mib)
	copy(data[mib:], random)
	copy(data[9*mib:], random)
	in := filepath.Join(t.TempDir(), "in.img")
	require.NoError(t, os.WriteFile(in, data, 0o600))
	d := startDaemon(t, "--lun", "mem:16MiB,thin=on")
	r := run(t, nil, program(t, "iser"), "cp", "--unmap", in, d.url("iser", "0"))
	require.Zero(t, r.status, r.stderr)
	return data, serveNBD(t, d.url("iser", "0"), "--socket", socketPath(t), "--export-name", "holey").URI
}

// TestServeNBDMapToQemu: qemu-img sees which parts of the disk are mapped, and does not read the others.
func TestServeNBDMapToQemu(t *testing.T) {
	img := needs(t, "qemu-img")
	data, uri := holey(t)
	r := run(t, nil, img, "map", "--output=json", "-f", "raw", uri)
	require.Zero(t, r.status, r.stderr)
	type extent struct {
		Start, Length int64
		Zero, Data    bool
	}
	var list []extent
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list), r.stdout)
	const mib = 1 << 20
	require.Equal(t, []extent{
		{0, mib, true, false}, {mib, mib, false, true}, {2 * mib, 7 * mib, true, false}, {9 * mib, mib, false, true}, {10 * mib, 6 * mib, true, false},
	}, list)

	// A conversion with the target's own zeroes, and back: the map decides what is moved.
	out := filepath.Join(t.TempDir(), "out.img")
	r = run(t, nil, img, "convert", "-f", "raw", "-O", "raw", uri, out)
	require.Zero(t, r.status, r.stderr)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
}

// TestServeNBDToLibnbd: what nbdinfo is told, and a copy by nbdcopy over several connections.
func TestServeNBDToLibnbd(t *testing.T) {
	info, copier := needs(t, "nbdinfo"), needs(t, "nbdcopy")
	data, uri := holey(t)
	r := run(t, nil, info, "--json", uri)
	require.Zero(t, r.status, r.stderr)
	var told struct {
		Exports []struct {
			Contexts       []string
			Size           int64 `json:"export-size"`
			ReadOnly       bool  `json:"is_read_only"`
			CanCache       bool  `json:"can_cache"`
			CanDF          bool  `json:"can_df"`
			CanFastZero    bool  `json:"can_fast_zero"`
			CanFlush       bool  `json:"can_flush"`
			CanFUA         bool  `json:"can_fua"`
			CanMultiConn   bool  `json:"can_multi_conn"`
			CanTrim        bool  `json:"can_trim"`
			CanZero        bool  `json:"can_zero"`
			BlockMinimum   int64 `json:"block_size_minimum"`
			BlockPreferred int64 `json:"block_size_preferred"`
			BlockMaximum   int64 `json:"block_size_maximum"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &told), r.stdout)
	require.Len(t, told.Exports, 1, r.stdout)
	x := told.Exports[0]
	require.Equal(t, []string{"base:allocation"}, x.Contexts)
	require.EqualValues(t, 16<<20, x.Size)
	require.False(t, x.ReadOnly)
	for name, can := range map[string]bool{
		"cache": x.CanCache, "df": x.CanDF, "fast zero": x.CanFastZero, "flush": x.CanFlush, "fua": x.CanFUA, "multi conn": x.CanMultiConn, "trim": x.CanTrim, "zero": x.CanZero,
	} {
		require.True(t, can, "%s, of %s", name, r.stdout)
	}
	require.EqualValues(t, 512, x.BlockMinimum)
	require.EqualValues(t, 32<<20, x.BlockMaximum)

	r = run(t, nil, info, "--map", "--json", uri)
	require.Zero(t, r.status, r.stderr)
	var extents []struct {
		Offset, Length int64
		Type           int
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &extents), r.stdout)
	types := make([]int, 0, len(extents))
	for _, e := range extents {
		types = append(types, e.Type)
	}
	require.Equal(t, []int{3, 0, 3, 0, 3}, types, r.stdout)

	out := filepath.Join(t.TempDir(), "out.img")
	r = run(t, nil, copier, "--connections=4", uri, out)
	require.Zero(t, r.status, r.stderr)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	in, other := randomFile(t, 16<<20)
	r = run(t, nil, copier, "--connections=4", "--flush", in, uri)
	require.Zero(t, r.status, r.stderr)
	require.NoError(t, os.Remove(out))
	r = run(t, nil, copier, uri, out)
	require.Zero(t, r.status, r.stderr)
	got, err = os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(other, got))
}
