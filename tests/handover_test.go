package tests

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCopyByHandover copies in RFC 7145's order, with and without the Hello exchange, beside the other two ways in on one port.
func TestCopyByHandover(t *testing.T) {
	img := filepath.Join(t.TempDir(), "disk.img")
	d := startDaemon(t, "--lun", img+",size=16MiB")
	for i, args := range [][]string{{"--handover"}, {"--handover", "--hello"}, {"--handover=fallback", "--crc=false"}} {
		in, data := randomFile(t, 16<<20-i*4096)
		tool(t, nil, append(args, "cp", "--verify", in, d.url("iser", "0"))...)
		for _, way := range []struct {
			scheme string
			args   []string
		}{{"iser", args}, {"iser", nil}, {"iscsi", nil}} {
			out := filepath.Join(t.TempDir(), "out")
			tool(t, nil, append(way.args, "cp", d.url(way.scheme, "0"), out)...)
			got, err := os.ReadFile(out)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got[:len(data)]), "%v, %v", args, way)
		}
	}
	out := tool(t, nil, "--handover", "--hello", "info", d.url("iser", "0"))
	for _, want := range []string{"no iSER CM header", "start of all data (RFC 7145)", "RDMAExtensions", "mpa role"} {
		assert.Contains(t, out, want)
	}
	assert.Contains(t, tool(t, nil, "--handover", "discover", "--iser", d.Addr), d.Name, "discovery stays in the byte stream")
	require.Zero(t, d.stop(t))
}

// TestTsharkReadsOurHandover has another implementation's dissectors read a connection that changes its protocol on the way.
func TestTsharkReadsOurHandover(t *testing.T) {
	tshark := need(t, "tshark", "tshark")
	d := startDaemon(t, "--lun", "mem:4MiB")
	_, port, _ := strings.Cut(d.Addr, ":")
	in, _ := randomFile(t, 256<<10)
	file := record(t, port, func() {
		tool(t, nil, "--handover", "--hello", "cp", "--verify", in, d.url("iser", "0"))
	})
	read := func(args ...string) string {
		args = append([]string{"-r", file, "-X", "lua_script:iser_iwarp.lua", "-o", "tcp.desegment_tcp_streams:TRUE"}, args...)
		r := run(t, nil, tshark, args...)
		require.Zero(t, r.status, r.stderr)
		return r.stdout
	}
	login := read("-d", "tcp.port=="+port+",iscsi", "-Y", "iscsi.opcode == 0x23 && !iwarp_mpa", "-T", "fields", "-e", "iscsi.login.status")
	assert.Equal(t, "0x0000", strings.TrimSpace(login), "one Login Response, in the byte stream")
	tree := read("-q", "-z", "io,phs")
	for _, p := range []string{"iwarp_mpa", "iwarp_ddp_rdmap", "iser_iwarp", "iscsi", "scsi"} {
		assert.Regexp(t, `\b`+p+` +frames:[1-9]`, tree)
	}
	assert.Len(t, strings.Fields(read("-Y", "iwarp_mpa.req", "-T", "fields", "-e", "frame.number")), 1)
	assert.Len(t, strings.Fields(read("-Y", "iwarp_mpa.rep", "-T", "fields", "-e", "frame.number")), 1)
	assert.Empty(t, read("-Y", "_ws.malformed && iwarp_mpa"), "malformed packets")
	verbose := read("-V", "-Y", "iwarp_mpa.fpdu")
	good := regexp.MustCompile(`CRC check: .*\(Good CRC32\)`).FindAllString(verbose, -1)
	assert.NotEmpty(t, good)
	assert.Len(t, good, len(regexp.MustCompile(`CRC check: .*`).FindAllString(verbose, -1)), "every CRC is good")
}

// TestHandoverBehindAuthentication: the security stage comes first, and who fails it never gets as far as iSER (RFC 7145, section 5.1.2).
func TestHandoverBehindAuthentication(t *testing.T) {
	d := startDaemon(t, "--lun", "mem:8MiB", "--chap-file", secretFile(t, "alice "+chapSecret), "--mutual-chap-file", secretFile(t, "disk "+diskSecret))
	mine, theirs := secretFile(t, chapSecret), secretFile(t, diskSecret)
	auth := []string{"--handover", "--hello", "--chap-user", "alice", "--chap-secret-file"}
	args := append(append([]string(nil), auth...), mine, "--mutual-user", "disk", "--mutual-secret-file", theirs, "info", d.url("iser", "0"))
	assert.Contains(t, tool(t, nil, args...), "start of all data (RFC 7145)")
	r := run(t, nil, program(t, "iser"), append(append([]string(nil), auth...), theirs, "ls", d.url("iser", ""))...)
	assert.Equal(t, 1, r.status)
	assert.Contains(t, r.stderr, "0201 (authentication failure)")
	require.Zero(t, d.stop(t))
}
