package main

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReservations: each pr is a session of its own, and all are one I_T nexus, unlike another host's.
func TestReservations(t *testing.T) {
	s := newTestSite(t, 1<<20)
	u := s.url("0")
	other := []string{"--initiator-name", "iqn.2026-11.com.example:other"}
	show := func() reservations { return parseJSON[reservations](t, mustRun(t, "pr", u, "show", "--json")) }
	require.Empty(t, show().Registrations)

	mustRun(t, "pr", u, "register", "--key", "abc123")
	mustRun(t, append([]string{"pr", u, "register", "--key", "0xdead"}, other...)...)
	mustRun(t, "pr", u, "reserve", "--key", "abc123", "--type", "write-exclusive")
	r := show()
	assert.Equal(t, "write-exclusive", r.Type)
	assert.Equal(t, "0xabc123", r.HolderKey)
	require.Len(t, r.Registrations, 2)
	holders := map[string]bool{}
	for _, g := range r.Registrations {
		holders[g.Key] = g.Holder
		assert.Contains(t, g.Initiator, "iqn.")
	}
	assert.Equal(t, map[string]bool{"0xabc123": true, "0xdead": false}, holders)
	assert.Regexp(t, `(?s)reservation +write-exclusive, held by 0xabc123.*key 0xdead +iqn\.2026-11\.com\.example:other`, mustRun(t, "pr", u, "show"))

	refused(t, false, "others hold the disk", append([]string{"pr", u, "reserve", "--key", "dead", "--type", "write-exclusive"}, other...)...)
	block := writeFile(t, "block", randomBytes(1, 512))
	refused(t, false, "RESERVATION CONFLICT", append([]string{"write", u, block}, other...)...)
	refused(t, false, "RESERVATION CONFLICT", "write", u, block) // another ISID is another nexus
	id, err := (&isidOptions{ownISID: true}).base("")
	require.NoError(t, err)
	mustRun(t, "write", u, block, "--isid", hex.EncodeToString(id[:]))

	mustRun(t, append([]string{"pr", u, "preempt", "--key", "dead", "--victim", "abc123", "--type", "exclusive-access", "--abort"}, other...)...)
	r = show()
	assert.Equal(t, "exclusive-access", r.Type)
	assert.Equal(t, "0xdead", r.HolderKey)
	mustRun(t, append([]string{"pr", u, "release", "--key", "dead", "--type", "3"}, other...)...)
	require.Empty(t, show().Type)
	mustRun(t, append([]string{"pr", u, "register", "--key", "dead", "--new-key", "beef"}, other...)...)
	mustRun(t, append([]string{"pr", u, "unregister", "--key", "beef"}, other...)...)
	require.Empty(t, show().Registrations)
	mustRun(t, "pr", u, "register", "--key", "1", "--ignore")
	mustRun(t, "pr", u, "clear", "--key", "1")
	require.Empty(t, show().Registrations)
	refused(t, false, "try without --persist", "pr", u, "register", "--key", "1", "--persist") // a disk in memory

	for want, args := range map[string][]string{
		`pr knows no "steal": want show, register`: {u, "steal"},
		"pr reserve needs --key and --type":        {u, "reserve", "--key", "1"},
		"pr show has no use for --key":             {u, "show", "--key", "1"},
		`"xyz" is no key`:                          {u, "register", "--key", "xyz"},
		"--type mine: want write-exclusive":        {u, "reserve", "--key", "1", "--type", "mine"},
		"key 0 means that there is none":           {u, "register", "--key", "0"},
		"--isid 12: want 12 hexadecimal digits":    {u, "show", "--isid", "12"},
		"received 1":                               {u},
	} {
		refused(t, true, want, append([]string{"pr"}, args...)...)
	}
}

func TestSGSendsAnyCommand(t *testing.T) {
	s := newTestSite(t, 1<<20)
	u := s.isers("0")
	block := randomBytes(9, 512)
	require.Empty(t, mustRun(t, "sg", u, "2a", "00", "00000003", "00", "0001", "00", "--out", writeFile(t, "b", block)))
	require.Equal(t, block, s.disks[0].contents(t, 3*512, 512))
	require.Equal(t, string(block), mustRun(t, "sg", u, "28000000000300000100", "--in", "512", "--raw"))
	require.Regexp(t, `^00000000  00 00 00 00 00 00 07 ff  00 00 02 00 .*\|\n`, mustRun(t, "sg", u, "9e10", "00000000 00000000 00000020", "--in", "32"), "a dump")
	require.Empty(t, mustRun(t, "sg", u, "00"), "TEST UNIT READY, filled up")

	refused(t, false, "scsi: READ(10): ILLEGAL REQUEST: logical block address out of range (21/00)", "sg", u, "28 00 7fffffff 00 0001 00", "--in", "512")
	refused(t, false, "(20/00), CHECK CONDITION, sense key 5h", "sg", u, "c1")
	r := iserTool(t.Context(), "sg", u, "12 00 00 00 60 00", "--in", "4")
	require.NoError(t, r.err)
	require.Contains(t, r.errs, "more than fit")
	for want, args := range map[string][]string{
		`CDB "12 0": want octets of two`: {u, "12", "0"},
		`CDB "hello": want octets`:       {u, "hello"},
		"--in 67108864: want at most":    {u, "00", "--in", "64M"},
		"received 1":                     {u},
	} {
		refused(t, true, want, append([]string{"sg"}, args...)...)
	}
	refused(t, false, "no such file", "sg", u, "2a", "--out", "/nonexistent/file")
}

func TestParseCDB(t *testing.T) {
	for text, want := range map[string]string{"00": "000000000000", "28": "28000000000000000000", "a0": "a00000000000000000000000", "9e 10": "9e100000000000000000000000000000", "0x12,00:00 00 60 00": "120000006000"} {
		b, err := parseCDB([]string{text})
		require.NoError(t, err)
		require.Equal(t, want, hex.EncodeToString(b))
	}
	_, err := parseCDB([]string{hex.EncodeToString(make([]byte, 261))})
	require.ErrorContains(t, err, "CDB of 261 octets")
}

func TestVPD(t *testing.T) {
	s := newTestSite(t, 1<<20)
	require.Regexp(t, `(?m)^00  supported pages\n(.*\n)*83  device identification\n(.*\n)*b0  block limits$`, mustRun(t, "vpd", s.url("0")))
	require.Regexp(t, `^00000000  00 80 00 07 74 6f 6f 6c  73 2d 30 .*\|\.\.\.\.tools-0\|`, mustRun(t, "vpd", s.url("0"), "80"))
	require.Equal(t, "\x00\x80\x00\x07tools-0", mustRun(t, "vpd", s.url("0"), "0x80", "--raw"))
	refused(t, false, "has no page 89h; 'iser vpd "+s.url("0")+"' lists", "vpd", s.url("0"), "89")
	refused(t, true, `page "name"`, "vpd", s.url("0"), "name")
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, mustRun(t, "completion", shell), "iser")
	}
	require.Contains(t, mustRun(t, "__complete", "pr", "iser://x/iqn.2026-11.com.example:x/0", "re"), "reserve\n")
	require.Contains(t, mustRun(t, "__complete", "bench", "--rw", ""), "randread\n")
	require.Contains(t, mustRun(t, "__complete", ""), "monitor\t")
}
