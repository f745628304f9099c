package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	chapSecret = "correct-horse-battery"
	diskSecret = "the-targets-own-proof"
)

// secretFile writes a file that only this user can read.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	return path
}

// TestCHAPOfPrograms: iserd demands CHAP, iser proves itself, over both transports, one-way and mutual; what is wrong is one line
// without a secret in it.
func TestCHAPOfPrograms(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:8MiB", "--chap-file", secretFile(t, "# users\nalice "+chapSecret),
		"--mutual-chap-file", secretFile(t, "disk "+diskSecret), "--discovery-chap-file", secretFile(t, "scout who-goes-there"))
	mine, theirs := secretFile(t, chapSecret), secretFile(t, diskSecret)
	for _, scheme := range []string{"iscsi", "iser"} {
		for _, more := range [][]string{nil, {"--mutual-secret-file", theirs}, {"--mutual-user", "disk", "--mutual-secret-file", theirs}} {
			args := append([]string{"ls", "--chap-user", "alice", "--chap-secret-file", mine}, more...)
			assert.NotEmpty(t, tool(t, nil, append(args, d.url(scheme, ""))...))
		}
	}
	assert.Contains(t, tool(t, nil, "discover", "--chap-user", "scout", "--chap-secret-file", secretFile(t, "who-goes-there"), d.Addr), d.Name)
	wrong, open := secretFile(t, "no-such-secret"), secretFile(t, chapSecret)
	require.NoError(t, os.Chmod(open, 0o644))
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{1, "no credentials are configured", []string{"ls", d.url("iscsi", "")}},
		{1, "no credentials are configured", []string{"discover", d.Addr}},
		{1, "0201 (authentication failure)", []string{"ls", "--chap-user", "alice", "--chap-secret-file", wrong, d.url("iscsi", "")}},
		{1, "0201 (authentication failure)", []string{"ls", "--chap-user", "carol", "--chap-secret-file", mine, d.url("iser", "")}},
		{1, "0201 (authentication failure)", []string{"discover", "--chap-user", "alice", "--chap-secret-file", mine, d.Addr}},
		{1, "does not know its secret", []string{"ls", "--chap-user", "alice", "--chap-secret-file", mine, "--mutual-secret-file", wrong, d.url("iscsi", "")}},
		{1, "same in both directions", []string{"ls", "--chap-user", "alice", "--chap-secret-file", mine, "--mutual-secret-file", mine, d.url("iscsi", "")}},
		{1, "chmod 600", []string{"ls", "--chap-user", "alice", "--chap-secret-file", open, d.url("iscsi", "")}},
		{2, "--chap-secret-file", []string{"ls", "--chap-user", "alice", d.url("iscsi", "")}},
		{2, "need --chap-user", []string{"ls", "--chap-secret-file", mine, d.url("iscsi", "")}},
		{2, "do not belong into a URL", []string{"ls", "iscsi://alice%" + chapSecret + "@" + d.Addr + "/" + d.Name}},
	} {
		r := run(t, nil, program(t, "iser"), c.args...)
		assert.Equal(t, c.status, r.status, "%v: %s", c.args, r.stderr)
		assert.Contains(t, r.stderr, c.want)
		assert.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
		assert.NotContains(t, r.stderr, chapSecret)
	}
	require.Zero(t, d.stop(t))
	assert.NotContains(t, d.log.String(), chapSecret)
	assert.NotContains(t, d.log.String(), "no-such-secret")
}

// TestAccessOfDaemon: names and networks that are not let in are refused, and see nothing.
func TestAccessOfDaemon(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:8MiB", "--allow-initiator", "iqn.2026-11.com.example:host*", "--allow-network", "127.0.0.0/8")
	tool(t, nil, "ls", "--initiator-name", "IQN.2026-11.com.example:Host7", d.url("iscsi", ""))
	r := run(t, nil, program(t, "iser"), "ls", "--initiator-name", "iqn.2026-11.com.example:guest", d.url("iser", ""))
	assert.Equal(t, 1, r.status)
	assert.Contains(t, r.stderr, "0202 (authorization failure)")
	assert.Empty(t, tool(t, nil, "discover", "--initiator-name", "iqn.2026-11.com.example:guest", d.Addr))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"network", []string{"--allow-network", "192.0.2.1/24"}},
		{"network", []string{"--allow-network", "here"}},
		{"not an iSCSI name", []string{"--allow-initiator", "host"}},
		{"CHAP algorithm", []string{"--chap-algorithms", "md4"}},
		{"needs --chap-file", []string{"--mutual-chap-file", secretFile(t, "a b")}},
		{"no user in it", []string{"--chap-file", secretFile(t, "")}},
		{"secret that the target proves itself with", []string{"--chap-file", secretFile(t, "a same-old-secret"), "--mutual-chap-file", secretFile(t, "b same-old-secret")}},
	} {
		r := run(t, nil, program(t, "iserd"), append([]string{"--lun", "mem:1MiB", "--listen", "127.0.0.1:0"}, c.args...)...)
		assert.NotZero(t, r.status)
		assert.Contains(t, r.stderr, c.want)
		assert.NotContains(t, r.stderr, "same-old-secret")
	}
}

// TestLibiscsiAuthenticates: libiscsi's tools log in by CHAP, one-way and mutual, and are refused without.
func TestLibiscsiAuthenticates(t *testing.T) {
	ls, inq := need(t, "iscsi-ls", "libiscsi-bin"), need(t, "iscsi-inq", "libiscsi-bin")
	// With credentials libiscsi wants them asked for in discovery as well: answered None, it begins its login anew on the same connection.
	users := secretFile(t, "alice "+chapSecret)
	d := startDaemon(t, "--lun", "mem:8MiB", "--chap-file", users, "--discovery-chap-file", users,
		"--mutual-chap-file", secretFile(t, "disk "+diskSecret))
	with := func(path, url string, env ...string) (string, int) {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		args := []string{url}
		if path == ls {
			args = []string{"-s", url}
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, ctx.Err(), "%s hangs", path)
		if err != nil {
			require.IsType(t, (*exec.ExitError)(nil), err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	user := []string{"LIBISCSI_CHAP_USERNAME=alice", "LIBISCSI_CHAP_PASSWORD=" + chapSecret}
	mutual := append(user[:2:2], "LIBISCSI_CHAP_TARGET_USERNAME=disk", "LIBISCSI_CHAP_TARGET_PASSWORD="+diskSecret)
	for _, env := range [][]string{user, mutual} {
		out, status := with(inq, d.url("iscsi", "0"), env...)
		assert.Zero(t, status, out)
		assert.Contains(t, out, "DIRECT_ACCESS")
		out, status = with(ls, "iscsi://"+d.Addr, env...)
		assert.Zero(t, status, out)
		assert.Contains(t, out, "Lun:0")
	}
	out, status := with(inq, "iscsi://alice%"+chapSecret+"@"+d.Addr+"/"+d.Name+"/0")
	assert.Zero(t, status, out)
	_, status = with(inq, d.url("iscsi", "0"), "LIBISCSI_CHAP_USERNAME=alice", "LIBISCSI_CHAP_PASSWORD=no-such-secret")
	assert.NotZero(t, status)
	_, status = with(inq, d.url("iscsi", "0"))
	assert.NotZero(t, status)
	_, status = with(inq, d.url("iscsi", "0"), append(user[:2:2], "LIBISCSI_CHAP_TARGET_USERNAME=disk", "LIBISCSI_CHAP_TARGET_PASSWORD=not-its-secret")...)
	assert.NotZero(t, status)
}
