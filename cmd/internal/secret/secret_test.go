package secret

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestFile(t *testing.T) {
	for _, text := range []string{"correct horse", "correct horse\n", "correct horse\r\n", "\ufeffcorrect horse\n\n"} {
		s, err := File(write(t, text, 0o600))
		require.NoError(t, err)
		require.Equal(t, "correct horse", s.Reveal(), "%q", text)
		_, err = File(write(t, text, 0o400))
		require.NoError(t, err)
	}
}

// TestFileRefused: each fault is one line that names the file and nothing in it.
func TestFileRefused(t *testing.T) {
	const hidden = "battery staple"
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"", 0o600, "it is empty"},
		{"\n", 0o600, "it is empty"},
		{hidden + "\nsecond", 0o600, "more than one line"},
		{strings.Repeat(hidden, 100), 0o600, "at most 255"},
		{hidden + "\xff", 0o600, "not text"},
		{hidden, 0o640, "mode 0640 lets others in; take it from them with chmod 600"},
		{hidden, 0o604, "mode 0604"},
		{hidden, 0o620, "mode 0620"},
	} {
		path := write(t, c.text, c.mode)
		_, err := File(path)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), hidden)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := File(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
	_, err = File(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestUsers(t *testing.T) {
	users, err := Users(write(t, "# who may\n\nalice correct horse\nbob\t0x31323334\r\n", 0o600))
	require.NoError(t, err)
	require.Len(t, users, 2)
	require.Equal(t, "alice", users[0].User)
	require.Equal(t, "correct horse", users[0].Secret.Reveal())
	require.Equal(t, "bob", users[1].User)
	require.Equal(t, "0x31323334", users[1].Secret.Reveal(), "as it stands")
	for text, want := range map[string]string{
		"":                                     "no user in it",
		"# nobody":                             "no user in it",
		"alice":                                "line 1: want a user, a space and a secret",
		"a b\nalice one\na two":                "line 3: the user is there twice",
		"a b\nbob\x00 swordfish":               "line 2",
		"a " + strings.Repeat("swordfish", 40): "line 1",
	} {
		_, err := Users(write(t, text, 0o600))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "swordfish")
	}
}

func TestCredentialOfSystemd(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chap"), []byte("correct horse"), 0o440))
	s, err := File("cred:chap")
	require.NoError(t, err)
	require.Equal(t, "correct horse", s.Reveal())
	for _, name := range []string{"cred:", "cred:../chap", "cred:.", "cred:..", "cred:a/b"} {
		_, err := File(name)
		require.ErrorContains(t, err, "want cred:NAME", name)
	}
	_, err = File("cred:none")
	require.ErrorIs(t, err, os.ErrNotExist)
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	_, err = File("cred:chap")
	require.ErrorContains(t, err, "systemd gives no credentials here")
}

// TestNothingShows: the error of a bad secret prints nothing of it however it is printed.
func TestNothingShows(t *testing.T) {
	_, err := File(write(t, strings.Repeat("swordfish", 40), 0o600))
	require.ErrorIs(t, err, iscsi.ErrSecret)
	for _, f := range []string{"%v", "%+v", "%#v", "%q"} {
		require.NotContains(t, fmt.Sprintf(f, err), "swordfish")
		require.NotContains(t, fmt.Sprintf(f, errors.Unwrap(err)), "swordfish")
	}
}
