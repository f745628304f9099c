package rdma

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
	"goiwarp/rnic/verbs"
)

// parse reads flags as a program does.
func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o := Defaults()
	f := pflag.NewFlagSet("program", pflag.ContinueOnError)
	o.Flags(f)
	require.NoError(t, f.Parse(args))
	return &o
}

func TestSoftIsTheDefault(t *testing.T) {
	o := parse(t)
	require.NoError(t, o.Check())
	require.Equal(t, &rnic.LinkOptions{}, o.Link())
	dev, err := o.Open(nil)
	require.NoError(t, err)
	require.Equal(t, "soft", dev.Attributes().Provider)
	require.NoError(t, dev.Close())
}

func TestLink(t *testing.T) {
	require.Equal(t, &rnic.LinkOptions{CRC: rnic.Off, MaxFPDU: 9000}, parse(t, "--crc=false", "--max-fpdu", "9000").Link())
}

func TestMistakes(t *testing.T) {
	for _, args := range [][]string{
		{"--rnic", ""}, {"--rnic", "soft:x"}, {"--rnic", "verbs:"}, {"--rnic", "siw0"}, {"--max-fpdu", "-1"}, {"--max-fpdu", "65536"},
	} {
		var usage *cli.UsageError
		require.True(t, errors.As(parse(t, args...).Check(), &usage), "%v", args)
	}
	_, err := parse(t, "--rnic", "hard").Open(nil)
	require.ErrorContains(t, err, `--rnic "hard": want soft, verbs or verbs:NAME`)
}

// TestVerbsThatAreNotThere: a device that nobody has is one clear line, built in or not.
func TestVerbsThatAreNotThere(t *testing.T) {
	o := parse(t, "--rnic", "verbs:nosuch0")
	require.NoError(t, o.Check())
	_, err := o.Open(nil)
	require.ErrorContains(t, err, "--rnic verbs:nosuch0: verbs: ")
	require.NotContains(t, err.Error(), "\n")
	if !verbs.BuiltIn {
		require.ErrorIs(t, err, verbs.ErrNotBuiltIn)
	}
}
