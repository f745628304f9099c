package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// need returns the path of somebody else's program, and skips the test where it is not installed.
func need(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: %s)", name, pkg)
	}
	return path
}

// TestLibiscsiReadsTheLUN points libiscsi's tools at iserd over plain iSCSI.
func TestLibiscsiReadsTheLUN(t *testing.T) {
	inq := need(t, "iscsi-inq", "libiscsi-bin")
	ls := need(t, "iscsi-ls", "libiscsi-bin")
	capacity := need(t, "iscsi-readcapacity16", "libiscsi-bin")
	d := startDaemon(t, "--lun", "mem:64MiB", "--lun", "mem:8MiB,block=4096")

	r := run(t, nil, ls, "-s", "iscsi://"+d.Addr)
	require.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "Target:"+d.Name)
	assert.Contains(t, r.stdout, "Lun:0")
	assert.Contains(t, r.stdout, "Lun:1")

	r = run(t, nil, inq, d.url("iscsi", "0"))
	require.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "DIRECT_ACCESS")
	for _, page := range []string{"0x00", "0x80", "0x83", "0x88", "0xb0", "0xb1", "0xb2"} {
		r = run(t, nil, inq, "-e", "1", "-c", page, d.url("iscsi", "0"))
		require.Zero(t, r.status, "VPD page %s: %s%s", page, r.stdout, r.stderr)
	}

	r = run(t, nil, capacity, d.url("iscsi", "0"))
	require.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "RETURNED LOGICAL BLOCK ADDRESS:131071")
	assert.Contains(t, r.stdout, "LOGICAL BLOCK LENGTH IN BYTES:512")
	assert.Contains(t, r.stdout, "Total size:67108864")
	r = run(t, nil, capacity, d.url("iscsi", "1"))
	require.Zero(t, r.status, r.stderr)
	assert.Contains(t, r.stdout, "LOGICAL BLOCK LENGTH IN BYTES:4096")
}

// TestQemuImgConverts copies a disk in and out with qemu's iSCSI driver.
func TestQemuImgConverts(t *testing.T) {
	qemu := need(t, "qemu-img", "qemu-utils")
	d := startDaemon(t, "--lun", "mem:16MiB")
	url := d.url("iscsi", "0")
	if r := run(t, nil, qemu, "info", "-f", "raw", url); strings.Contains(r.stderr, "Unknown protocol") || strings.Contains(r.stderr, "Unknown driver") {
		t.Skip("qemu's iSCSI driver is not installed (Debian: qemu-block-extra)")
	}
	in, data := randomFile(t, 16<<20)
	clear(data[4<<20 : 9<<20]) // a hole, so that it unmaps or writes zeros
	require.NoError(t, os.WriteFile(in, data, 0o600))
	r := run(t, nil, qemu, "convert", "-n", "-f", "raw", "-O", "raw", in, url)
	require.Zero(t, r.status, r.stderr)
	out := filepath.Join(t.TempDir(), "out")
	r = run(t, nil, qemu, "convert", "-f", "raw", "-O", "raw", url, out)
	require.Zero(t, r.status, r.stderr)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	// The same disk through our own iSER.
	require.Equal(t, string(data), tool(t, nil, "read", d.url("iser", "0")))
}

// record captures what f moves over a port. A stalled machine has TCP send a segment twice, or dumpcap miss one, and tshark cannot put such a stream
// together: f runs again then.
func record(t *testing.T, port string, f func()) string {
	t.Helper()
	const attempts = 5
	for i := 1; ; i++ {
		file := recordOnce(t, port, f)
		r := run(t, nil, need(t, "tshark", "tshark"), "-r", file, "-Y",
			"tcp.analysis.retransmission || tcp.analysis.out_of_order || tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment")
		require.Zero(t, r.status, r.stderr)
		if strings.TrimSpace(r.stdout) == "" || i == attempts {
			return file
		}
		t.Logf("the capture is not whole:\n%s", r.stdout)
	}
}

// recordOnce captures loopback traffic of a port into a file while f runs, and returns the file. It needs the
// right to capture.
func recordOnce(t *testing.T, port string, f func()) string {
	t.Helper()
	dumpcap := need(t, "dumpcap", "tshark")
	file := filepath.Join(t.TempDir(), "session.pcap")
	// -P: the old pcap format. The buffer is large, so that a slow disk loses nothing.
	cmd := exec.Command(dumpcap, "-q", "-i", "lo", "-B", "64", "-P", "-s", "0", "-f", "tcp port "+port, "-w", file)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	// It names its file once it captures.
	var said []byte
	buf := make([]byte, 512)
	for !bytes.Contains(said, []byte("File: ")) {
		n, err := errs.Read(buf)
		said = append(said, buf[:n]...)
		if err != nil {
			_ = cmd.Wait()
			if bytes.Contains(said, []byte("ermission")) {
				t.Skipf("may not capture on lo: %s", said)
			}
			t.Fatalf("dumpcap: %s", said)
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for err := error(nil); err == nil; {
			_, err = errs.Read(buf)
		}
	}()
	f()
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	<-drained
	require.NoError(t, cmd.Wait())
	return file
}

// TestTsharkReadsOurSession has another implementation's dissectors read what we send: a whole session over iSER and one
// over iSCSI, from startup to logout, without a malformed packet and without a bad CRC.
func TestTsharkReadsOurSession(t *testing.T) {
	tshark := need(t, "tshark", "tshark")
	d := startDaemon(t, "--lun", "mem:4MiB")
	_, port, _ := strings.Cut(d.Addr, ":")
	in, _ := randomFile(t, 4<<20)
	for _, c := range []struct {
		scheme    string
		protocols []string
	}{
		{"iser", []string{"iwarp_mpa", "iwarp_ddp_rdmap", "iser_iwarp", "iscsi", "scsi"}},
		{"iscsi", []string{"iscsi", "scsi"}},
	} {
		t.Run(c.scheme, func(t *testing.T) {
			file := record(t, port, func() {
				tool(t, nil, "cp", "--verify", in, d.url(c.scheme, "0"))
			})
			read := func(args ...string) string {
				args = append([]string{"-r", file, "-X", "lua_script:iser_iwarp.lua", "-d", "tcp.port==" + port + ",iscsi", "-o", "tcp.desegment_tcp_streams:TRUE"}, args...)
				if c.scheme == "iser" {
					args = append(args[:4], args[6:]...) // MPA is found by its startup
				}
				r := run(t, nil, tshark, args...)
				require.Zero(t, r.status, r.stderr)
				return r.stdout
			}
			tree := read("-q", "-z", "io,phs")
			for _, p := range c.protocols {
				assert.Regexp(t, `\b`+p+` +frames:[1-9]`, tree)
			}
			assert.Empty(t, read("-Y", "_ws.malformed"), "malformed packets")
			if c.scheme == "iser" {
				checks := read("-T", "fields", "-e", "iwarp_mpa.crc_check", "-Y", "iwarp_mpa.crc_check")
				assert.NotEmpty(t, checks, "CRCs are on")
				verbose := read("-V", "-Y", "iwarp_mpa.fpdu")
				good := regexp.MustCompile(`CRC check: .*\(Good CRC32\)`).FindAllString(verbose, -1)
				all := regexp.MustCompile(`CRC check: .*`).FindAllString(verbose, -1)
				assert.NotEmpty(t, good)
				assert.Len(t, good, len(all), "every CRC is good")
			}
		})
	}
}
