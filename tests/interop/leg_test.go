package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChoose: what runs by default, in full, and by name.
func TestChoose(t *testing.T) {
	names := func(o options) (all []string) {
		legs, err := o.choose()
		require.NoError(t, err)
		for _, l := range legs {
			all = append(all, l.String())
		}
		return all
	}
	for _, name := range names(options{}) {
		require.Contains(t, name, " siw crc mtu 1500", "by default the first setting alone")
		require.NotContains(t, name, "throughput", "a long leg")
	}
	full := names(options{full: true})
	cells := 0
	for _, l := range table {
		cells += 1 + len(l.also)
	}
	require.Len(t, full, cells)
	require.Equal(t, []string{"throughput siw crc mtu 1500"}, names(options{legs: "throughput"}))
	require.Equal(t, []string{"initiator siw rev1 mtu 1500"}, names(options{siw: "rev1"}))
	require.Equal(t, []string{"lio siw crc mtu 65535"}, names(options{siw: "crc", mtu: 65535, legs: "lio"}))
	for _, o := range []options{{legs: "nosuch"}, {siw: "rev1", legs: "kill"}, {mtu: 9000}} {
		_, err := o.choose()
		require.Error(t, err)
	}
}

// TestScripts: each leg has its script.
func TestScripts(t *testing.T) {
	for _, l := range table {
		require.FileExists(t, "legs/"+l.name+".sh")
	}
}
