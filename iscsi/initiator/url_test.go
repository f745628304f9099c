package initiator

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParsePortal(t *testing.T) {
	for in, want := range map[string]string{
		"localhost":      "localhost:3260",
		"localhost:3261": "localhost:3261",
		"192.0.2.1":      "192.0.2.1:3260",
		"::1":            "[::1]:3260",
		"[::1]":          "[::1]:3260",
		"[::1]:860":      "[::1]:860",
		"fe80::1%lo":     "[fe80::1%lo]:3260",
		"[fe80::1%lo]:1": "[fe80::1%lo]:1",
	} {
		p, err := ParsePortal(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, p.String(), in)
	}
	for _, in := range []string{"", ":3260", "[::1", "[::1]3260", "host:", "host:0", "host:65536", "host:x", "[host]:1", "a/b", "a b"} {
		_, err := ParsePortal(in)
		assert.Error(t, err, in)
	}
}

func TestParseURL(t *testing.T) {
	u, err := ParseURL("iser://[::1]:3261/IQN.2026-11.com.example:Disk/7")
	require.NoError(t, err)
	assert.Equal(t, URL{"iser", Portal{"::1", 3261}, "iqn.2026-11.com.example:disk", 7, true}, u, "names are the same in any case")
	assert.Equal(t, "iser://[::1]:3261/iqn.2026-11.com.example:disk/7", u.String())

	u, err = ParseURL("iscsi://host/iqn.2026-11.com.example:disk")
	require.NoError(t, err)
	assert.False(t, u.HasLUN)
	assert.Equal(t, "iscsi", u.Transport)

	const name = "iqn.2026-11.com.example:disk"
	for _, in := range []string{
		"", "file", "http://h/t/0", "iser://", "iser://h", "iser://h/", "iser:///t/0", "iser://h/t/x",
		"iser://h//", "iser://h//0", "iser://h/disk/0",
		"iser://h/" + name + "/16384", "iser://h/" + name + "/-1", "iser://h/" + name + "/0/1", "iser://h/" + name + "/x",
	} {
		_, err := ParseURL(in)
		assert.Error(t, err, in)
	}
}

func TestParseURLKeepsSecretsOutOfErrors(t *testing.T) {
	_, err := ParseURL("iscsi://user%hunter2@host/iqn/0")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "hunter2")
}

func FuzzParseURL(f *testing.F) {
	f.Add("iser://[::1]:3261/iqn.2026-11.com.example:disk/7")
	f.Add("iscsi://h/eui.0123456789abcdef")
	f.Add("iser://0//")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		again, err := ParseURL(u.String())
		require.NoError(t, err)
		require.Equal(t, u, again)
	})
}
