package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commandsOf are the commands of a program, as --help lists them, each as the words that call it; the program itself is among them.
func commandsOf(t *testing.T, name string, words ...string) (all [][]string) {
	t.Helper()
	r := run(t, nil, program(t, name), append(words[:len(words):len(words)], "--help")...)
	require.Zero(t, r.status, r.stderr)
	all = append(all, append([]string{name}, words...))
	_, list, _ := strings.Cut(r.stdout, "Available Commands:\n")
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "  ") {
			break
		}
		if sub := strings.Fields(line)[0]; sub != "completion" && sub != "help" {
			all = append(all, commandsOf(t, name, append(words[:len(words):len(words)], sub)...)...)
		}
	}
	return all
}

// TestManualPages: each command of each program has its page, and no reader of manual pages finds fault with one.
func TestManualPages(t *testing.T) {
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Log("mandoc is not installed: pages are not checked by it")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1793577600")
	for name, section := range map[string]string{"iserd": "8", "iser": "1", "iwarp": "1"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := run(t, nil, program(t, name), "man", dir)
			require.Zero(t, r.status, r.stderr)
			pages := map[string]bool{}
			for _, words := range commandsOf(t, name) {
				page := strings.Join(words, "-") + "." + section
				pages[page] = true
				b, err := os.ReadFile(filepath.Join(dir, page))
				if !assert.NoError(t, err) {
					continue
				}
				assert.Contains(t, string(b), "\n.SH SYNOPSIS\n.nf\n"+strings.ReplaceAll(strings.Join(words, " "), "-", "\\-"), page)
				if mandoc != "" {
					out, err := exec.Command(mandoc, "-T", "lint", "-W", "warning", filepath.Join(dir, page)).CombinedOutput()
					assert.NoError(t, err, "%s: %s", page, out)
				}
			}
			written, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, written, len(pages), "and no other pages")
		})
	}
}

// TestShellCompletions: what is put into the package is what the shell can read.
func TestShellCompletions(t *testing.T) {
	for _, name := range []string{"iserd", "iser", "iwarp"} {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			r := run(t, nil, program(t, name), "completion", shell)
			require.Zero(t, r.status, r.stderr)
			require.Contains(t, r.stdout, name)
			path, err := exec.LookPath(shell)
			if err != nil {
				continue
			}
			file := filepath.Join(t.TempDir(), shell)
			require.NoError(t, os.WriteFile(file, []byte(r.stdout), 0o600))
			out, err := exec.Command(path, "-n", file).CombinedOutput()
			require.NoError(t, err, "%s for %s: %s", name, shell, out)
		}
	}
}
