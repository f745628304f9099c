package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/scsi"
)

const (
	sgMaxCDB  = 260
	sgMaxData = 32 << 20
)

func sgCommand(o *connectOptions) *cobra.Command {
	var in cli.Size
	var out string
	var raw bool
	cmd := &cobra.Command{
		Use:   "sg URL CDB...",
		Short: "Send any SCSI command",
		Long: `sg sends a command descriptor block as it is, once, and prints the data that comes back as a hex dump, or with --raw as it is. The CDB is
written in hexadecimal, 6 to 260 octets, in as many arguments as you like. Its last octets may be left out if they are zero, as far as 16. A TEST UNIT READY
goes first, and takes the unit attention that the login has caused.

A command that the disk does not end with GOOD is an error (status 1) that tells the SCSI status, the sense key and the additional sense code
by name. Nothing keeps you from sending a FORMAT UNIT.`,
		Example: `  iser sg iser://192.0.2.10/iqn.2026-11.com.example:store1/0 12 00 00 00 60 00 --in 96        # INQUIRY
  iser sg iser://192.0.2.10/iqn.2026-11.com.example:store1/0 9e10000000000000000000000020 --in 32  # READ CAPACITY(16)
  iser sg iser://192.0.2.10/iqn.2026-11.com.example:store1/0 28 00 00000000 00 0001 00 --in 512 --raw > block
  iser sg iser://192.0.2.10/iqn.2026-11.com.example:store1/0 2a 00 00000000 00 0001 00 --out block`,
		Args: cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cdb, err := parseCDB(args[1:])
			if err != nil {
				return err
			}
			if in.N > sgMaxData {
				return cli.Usagef("--in %d: want at most %s", in.N, octets(sgMaxData))
			}
			var data []byte
			if out != "" {
				if data, err = sgData(cmd.InOrStdin(), out); err != nil {
					return err
				}
			}
			return o.withDiskUnopened(cmd.Context(), args[0], func(ctx context.Context, d *disk) error {
				return sg(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), d, cdb, make([]byte, in.N), data, raw)
			})
		},
	}
	cmd.Flags().Var(&in, "in", "how many octets of data may come back")
	cmd.Flags().StringVar(&out, "out", "", "`file` with the data to send; - is standard input")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the data as it is")
	return cmd
}

// parseCDB reads hexadecimal arguments. The CDB is filled up to the length that its operation code's group has (SPC-4, section 4.2.5.1).
func parseCDB(args []string) ([]byte, error) {
	text := strings.Join(args, "")
	text = strings.NewReplacer(" ", "", ":", "", ",", "", "0x", "", "0X", "").Replace(text)
	cdb, err := hex.DecodeString(text)
	switch {
	case err != nil:
		return nil, cli.Usagef("CDB %q: want octets of two hexadecimal digits, as in 12 00 00 00 60 00", strings.Join(args, " "))
	case len(cdb) == 0 || len(cdb) > sgMaxCDB:
		return nil, cli.Usagef("CDB of %d octets: want 6 to %d", len(cdb), sgMaxCDB)
	}
	want := 16
	switch cdb[0] >> 5 {
	case 0:
		want = 6
	case 1, 2:
		want = 10
	case 5:
		want = 12
	}
	for len(cdb) < want {
		cdb = append(cdb, 0)
	}
	return cdb, nil
}

// sgData reads the data to be sent.
func sgData(stdin io.Reader, path string) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, sgMaxData+1))
	if err == nil && len(b) > sgMaxData {
		err = fmt.Errorf("--out %s: more than %s", path, octets(sgMaxData))
	}
	return b, err
}

// sg sends one command, after a TEST UNIT READY that takes the unit attention of the new session. What was moved of data is printed even if the command failed.
func sg(ctx context.Context, out, errs io.Writer, d *disk, cdb, in, data []byte, raw bool) error {
	_ = d.lun.TestUnitReady(ctx) // whether it is ready, the command itself will tell
	r, err := d.lun.Do(ctx, cdb, in, data)
	got := in[:min(r.In, len(in))]
	var werr error
	switch {
	case len(got) == 0:
	case raw:
		_, werr = out.Write(got)
	default:
		_, werr = io.WriteString(out, hex.Dump(got))
	}
	if r.Overflow {
		fmt.Fprintf(errs, "iser: the disk has %d octets more than fit into what the command allows\n", r.Residual)
	}
	var e *scsi.Error
	if errors.As(err, &e) && e.HasSense {
		err = fmt.Errorf("%w, %s, sense key %Xh", err, e.Status, byte(e.Sense.Key))
	}
	return errors.Join(err, werr)
}

func vpdCommand(o *connectOptions) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "vpd URL [PAGE]",
		Short: "Show a disk's vital product data",
		Long:  `vpd lists the pages of vital product data that a disk has, or dumps the one whose number, in hexadecimal, is given (SPC-4, section 7.8).`,
		Example: `  iser vpd iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser vpd iser://192.0.2.10/iqn.2026-11.com.example:store1/0 83
  iser vpd iser://192.0.2.10/iqn.2026-11.com.example:store1/0 b0 --raw > limits.bin`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			page := uint64(0)
			if len(args) == 2 {
				var err error
				if page, err = strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(strings.ToLower(args[1]), "0x"), "h"), 16, 8); err != nil {
					return cli.Usagef("page %q: want two hexadecimal digits, such as 83", args[1])
				}
			}
			return o.withDiskUnopened(cmd.Context(), args[0], func(ctx context.Context, d *disk) error {
				if len(args) == 1 {
					return listVPD(ctx, cmd.OutOrStdout(), d)
				}
				b, err := d.lun.VPD(ctx, byte(page))
				if errors.Is(err, scsi.KeyIllegalRequest.Err()) {
					return fmt.Errorf("%s has no page %02Xh; 'iser vpd %s' lists what it has", d, page, args[0])
				}
				if err != nil {
					return err
				}
				if raw {
					_, err = cmd.OutOrStdout().Write(b)
				} else {
					_, err = io.WriteString(cmd.OutOrStdout(), hex.Dump(b))
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the page as it is")
	return cmd
}

// vpdNames are the pages that a disk may have.
var vpdNames = map[byte]string{
	0x00: "supported pages", 0x80: "unit serial number", 0x83: "device identification", 0x85: "management network addresses", 0x86: "extended INQUIRY data",
	0x87: "mode page policy", 0x88: "SCSI ports", 0x89: "ATA information", 0x8a: "power condition", 0x8f: "third-party copy",
	0xb0: "block limits", 0xb1: "block device characteristics", 0xb2: "logical block provisioning", 0xb3: "referrals",
}

func listVPD(ctx context.Context, out io.Writer, d *disk) error {
	pages, err := d.lun.VPDPages(ctx)
	if err != nil {
		return err
	}
	for _, p := range pages {
		if _, err := fmt.Fprintf(out, "%02x  %s\n", p, vpdNames[p]); err != nil {
			return err
		}
	}
	return nil
}
