package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	crcAll  = regexp.MustCompile(`CRC check: .*`)
	crcGood = regexp.MustCompile(`CRC check: .*\(Good CRC32\)`)
)

// dissect has tshark read a leg's captures: no packet may be malformed and no CRC bad. A capture whose name ends in -bad
// holds errors that were made on purpose.
func dissect(ctx context.Context, dir string) []check {
	files, err := filepath.Glob(filepath.Join(dir, "session*.pcap"))
	if err != nil {
		return []check{{false, err.Error()}}
	}
	var checks []check
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		if strings.HasSuffix(name, "-bad") {
			continue
		}
		read := func(args ...string) ([]byte, error) {
			args = append([]string{"-r", file, "-X", "lua_script:../iser_iwarp.lua", "-o", "tcp.desegment_tcp_streams:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE"}, args...)
			cmd := exec.CommandContext(ctx, "tshark", args...)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil && bytes.Contains(errs.Bytes(), []byte("cut short")) {
				return out, nil // the guest was reset in the midst of writing the file
			}
			if err != nil {
				return nil, fmt.Errorf("tshark: %w: %s", err, errs.String())
			}
			return out, nil
		}
		// SCSI tools ask for the first octets of an INQUIRY to learn its length, which tshark's dissector cannot bear.
		bad, err := read("-Y", "_ws.malformed && !(scsi_sbc.opcode == 0x12 && iscsi.datasegmentlength < 36)")
		if err != nil {
			return append(checks, check{false, name + ": " + err.Error()})
		}
		checks = append(checks, check{len(bad) == 0, fmt.Sprintf("%s: no malformed packet for tshark%s", name, quote(bad))})
		verbose, err := read("-V", "-Y", "iwarp_mpa.fpdu")
		if err != nil {
			return append(checks, check{false, name + ": " + err.Error()})
		}
		if all := len(crcAll.FindAll(verbose, -1)); all > 0 {
			good := len(crcGood.FindAll(verbose, -1))
			checks = append(checks, check{good == all, fmt.Sprintf("%s: %d of %d CRCs are good for tshark", name, good, all)})
		}
	}
	return checks
}

// quote is the first lines of what should not be there.
func quote(out []byte) string {
	lines := strings.SplitN(strings.TrimSpace(string(out)), "\n", 4)
	if lines[0] == "" {
		return ""
	}
	return ":\n        " + strings.Join(lines[:min(3, len(lines))], "\n        ")
}
