package main

import (
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
)

// TestRefusedAtOnce: what cannot work is refused in words before anything listens.
func TestRefusedAtOnce(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img") + ",size=1MiB"
	for _, c := range []struct {
		want  string
		usage bool
		args  []string
	}{
		{"1 to 65535", true, []string{"--lun", "mem:1MiB", "--advertise", "192.0.2.1:0"}},
		{"1 to 65535", true, []string{"--lun", "mem:1MiB", "--advertise", "192.0.2.1:65536"}},
		{"1 to 65535", true, []string{"--lun", "mem:1MiB", "--advertise", "192.0.2.1:iscsi"}},
		{"want ADDRESS:PORT", true, []string{"--lun", "mem:1MiB", "--advertise", ":3260"}},
		{"want ADDRESS:PORT", true, []string{"--lun", "mem:1MiB", "--advertise", "2001:db8::1"}},
		{"--lun mem:7EiB: no memory holds", false, []string{"--lun", "mem:7EiB"}},
		{"--lun " + disk + ": the same file is named twice", false, []string{"--lun", disk, "--lun", disk}},
	} {
		cmd := command()
		cmd.SetArgs(append(c.args, "--listen", "127.0.0.1:0"))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		require.ErrorContains(t, err, c.want)
		var usage *cli.UsageError
		require.Equal(t, c.usage, errors.As(err, &usage), "%v", err)
	}
}
