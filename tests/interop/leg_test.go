package main

import (
	"strings"
	"testing"
	"time"

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

// TestSummary: a line for each leg, and what was not run says so.
func TestSummary(t *testing.T) {
	var out strings.Builder
	legs := []leg{{name: "lio", setting: first}, {name: "kill", setting: plainJumbo}, {name: "reset", setting: first}}
	summarize(&out, "6.1", legs, []ending{{22, 0, 90 * time.Second, time.Minute}, {19, 1, time.Hour, time.Minute}, {}})
	require.Equal(t, [][]string{
		{"kernel", "6.1", "siw", "MTU", "passed", "failed", "time", "processor"},
		{"lio", "crc", "1500", "passed", "22", "0", "1m30s", "1m0s"},
		{"kill", "plain", "65535", "failed", "19", "1", "1h0m0s", "1m0s"},
		{"reset", "crc", "1500", "not", "run", "0", "0", "0s", "0s"},
	}, fields(out.String()))
}

func fields(s string) (lines [][]string) {
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}
