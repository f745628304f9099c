package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDefaults: a file gives flags their values, those of the command line win, and every mistake is told with file and line.
func TestDefaults(t *testing.T) {
	s := newTestSite(t, 1<<20)
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	path := filepath.Join(dir, "goiwarp", "iser.toml")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	put := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }

	put("initiator-name = \"iqn.2026-11.com.example:file\"\ntimeout = \"5s\"\n\n[bench]\nbs = \"8k\"\niodepth = 1_6\nsize = \"64k\"\njson = true\n[pr]\njson = true\n")
	r := parseJSON[benchResult](t, mustRun(t, "bench", s.url("0")))
	require.Equal(t, 8192, r.BS)
	require.Equal(t, 16, r.IODepth)
	require.Equal(t, 4096, parseJSON[benchResult](t, mustRun(t, "bench", s.url("0"), "--bs", "4k")).BS, "the command line wins")
	require.Contains(t, mustRun(t, "info", s.url("0")), "iqn.2026-11.com.example:file")

	other := writeFile(t, "other.toml", []byte("initiator-name = \"iqn.2026-11.com.example:other\"\n"))
	require.Contains(t, mustRun(t, "info", s.url("0"), "--config", other), "iqn.2026-11.com.example:other")
	refused(t, false, "no such file", "info", s.url("0"), "--config", other+".none")

	for text, want := range map[string]string{
		"timeout = \n":                         ":1: ",
		"timeout = \"5s\"\ntimeout = \"6s\"\n": ":2: ",
		"\ncolour = \"red\"\n":                 ":2: colour: no flag of iser has that name; see 'iser --help'",
		"[bench]\nbs = \"lots\"\n":             `:2: bs: bad size "lots" (for example 1GiB)`,
		"[bench]\n\nallow-overwrite = true\n":  ":3: allow-overwrite: has to be given on the command line",
		"[frob]\n":                             ":1: frob: no command has that name",
		"[bench]\nrw = [\"read\"]\n":           ":2: rw: want text, a number, true or false",
		"chap-secret = \"sesame\"\n":           ":1: chap-secret: no flag of iser has that name",
		"bench.bs = \"4k\"\n":                  ":1: bench.bs: want NAME = VALUE",
	} {
		put(text)
		refused(t, false, want, "bench", s.url("0"))
		require.Contains(t, iserTool(t.Context(), "bench", s.url("0")).err.Error(), path)
	}
	put("")
	mustRun(t, "ls", s.url("0"))
}

// TestDefaultsSecret: a prompt asked for on the command line takes the place of the file's secret.
func TestDefaultsSecret(t *testing.T) {
	cmd := command()
	require.NoError(t, cmd.ParseFlags([]string{"--chap-ask"}))
	require.NoError(t, applyDefaults(cmd, "x", []byte("chap-user = \"alice\"\nchap-secret-file = \"/nowhere\"\n")))
	require.Empty(t, cmd.Flags().Lookup("chap-secret-file").Value.String())
	require.Equal(t, "alice", cmd.Flags().Lookup("chap-user").Value.String())
}
