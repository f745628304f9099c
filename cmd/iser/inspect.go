package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func discoverCommand(o *connectOptions) *cobra.Command {
	var overISER bool
	cmd := &cobra.Command{
		Use:   "discover HOST[:PORT]",
		Short: "List the targets that a portal offers",
		Long: `discover asks a portal for its targets (SendTargets) and prints, for each of their portals, ADDRESS:PORT,GROUP and the
target's name. It asks over plain iSCSI; with --iser over iSER, as Linux's initiator does, for portals that speak nothing else.`,
		Example: `  iser discover 192.0.2.10
  iser discover --iser '[2001:db8::1]:3260'`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			portal, err := initiator.ParsePortal(args[0])
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			f, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
			defer cancel()
			transport := "iscsi"
			if overISER {
				transport = "iser"
			}
			targets, err := initiator.Discover(ctx, f.dialer(transport), f.config(portal))
			if err != nil {
				return o.unreached(portal, err)
			}
			for _, t := range targets {
				for _, p := range t.Portals {
					if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", p, t.Name); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&overISER, "iser", false, "ask over iSER")
	return cmd
}

func listCommand(o *connectOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "ls URL",
		Short: "List a target's logical units",
		Example: `  iser ls iser://192.0.2.10/iqn.2026-11.com.example:store1
  iser ls iscsi://192.0.2.10/iqn.2026-11.com.example:store1`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withSession(cmd.Context(), args[0], func(ctx context.Context, u initiator.URL, s *initiator.Session) error {
				return list(ctx, cmd.OutOrStdout(), u, s)
			})
		},
	}
}

func list(ctx context.Context, out io.Writer, u initiator.URL, s *initiator.Session) error {
	luns, err := s.ReportLUNs(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LUN\tSIZE\tBLOCK\tVENDOR\tPRODUCT\tURL")
	for _, lun := range luns {
		l := s.LUNOf(lun)
		n, ok := scsi.DecodeLUN(lun)
		if !ok {
			fmt.Fprintf(w, "%016x\t-\t-\t-\t-\t(not a simple number)\n", lun)
			continue
		}
		inq, err := l.Inquiry(ctx)
		if err != nil {
			return fmt.Errorf("LUN %d: %w", n, err)
		}
		size, block := "-", "-"
		if c, err := l.Capacity(ctx); err == nil {
			size, block = humanize.IBytes(uint64(c.Size())), fmt.Sprint(c.BlockSize)
		}
		u.LUN, u.HasLUN = uint16(n), true
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", n, size, block, inq.Vendor, inq.Product, u)
	}
	return w.Flush()
}

func infoCommand(o *connectOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "info URL",
		Short: "Show all about a disk and the session with it",
		Long: `info prints what the disk tells of itself, what the login has negotiated, and what each layer below has agreed on and
done so far.`,
		Example: `  iser info iser://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withDisk(cmd.Context(), args[0], func(ctx context.Context, d *disk) error {
				return inform(ctx, cmd.OutOrStdout(), d)
			})
		},
	}
}

// table prints names and values, aligned, under a title.
type table struct{ *tabwriter.Writer }

func newTable(out io.Writer) table { return table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)} }

func (t table) title(s string)         { fmt.Fprintln(t, s) }
func (t table) row(name string, v any) { fmt.Fprintf(t, "  %s\t%v\n", name, v) }
func (t table) yesNo(name string, v bool) {
	s := "no"
	if v {
		s = "yes"
	}
	t.row(name, s)
}

func inform(ctx context.Context, out io.Writer, d *disk) error {
	inq, err := d.lun.Inquiry(ctx)
	if err != nil {
		return err
	}
	t := newTable(out)
	t.title("disk")
	t.row("url", d.url)
	t.row("vendor, product, revision", fmt.Sprintf("%s, %s, %s", inq.Vendor, inq.Product, inq.Revision))
	t.row("size", fmt.Sprintf("%s (%d octets, %d blocks)", humanize.IBytes(uint64(d.Size())), d.Size(), d.cap.Blocks))
	t.row("block size", fmt.Sprintf("%d logical, %d physical", d.cap.BlockSize, int64(d.cap.BlockSize)<<d.cap.PhysicalExponent))
	t.yesNo("thin", d.cap.Thin)
	d.pages(ctx, t)
	if m, err := d.mode(ctx); err == nil {
		state := "read-write"
		if m.WriteProtected {
			state = "read-only"
		}
		t.row("state", state)
		t.yesNo("DPO and FUA", m.DPOFUA)
		if p := m.Page(scsi.ModePageCaching); len(p) > 2 {
			t.yesNo("write cache", p[2]&4 != 0)
		}
	}
	p := d.session.Params()
	t.title("session")
	printParams(t, p)
	printFacts(t, d.session.Info())
	return t.Flush()
}

// pages prints what the VPD pages tell; a disk need not have them.
func (d *disk) pages(ctx context.Context, t table) {
	if b, err := d.lun.VPD(ctx, scsi.PageSerial); err == nil {
		if s, err := scsi.ParseSerial(b); err == nil {
			t.row("serial", s)
		}
	}
	if b, err := d.lun.VPD(ctx, scsi.PageIdentification); err == nil {
		if ids, err := scsi.ParseIdentification(b); err == nil {
			for _, id := range ids {
				t.row("designator", id)
			}
		}
	}
	if b, err := d.lun.VPD(ctx, scsi.PageBlockLimits); err == nil {
		if l, err := scsi.ParseBlockLimits(b); err == nil {
			t.row("maximum transfer", fmt.Sprintf("%d blocks", l.MaxTransfer))
			t.row("maximum unmap", fmt.Sprintf("%d blocks", l.MaxUnmap))
		}
	}
}

// mode is what MODE SENSE tells, the caching page with it.
func (d *disk) mode(ctx context.Context) (scsi.ModeData, error) {
	cdb := scsi.ModeSense6(scsi.ModePageCaching, 255)
	buf := make([]byte, 255)
	r, err := d.lun.Do(ctx, cdb[:6], buf, nil)
	if err != nil {
		return scsi.ModeData{}, err
	}
	return scsi.ParseModeSense6(buf[:r.In])
}

func printParams(t table, p *iscsi.Params) {
	t.row("InitiatorName", p.InitiatorName)
	t.row("TargetName", p.TargetName)
	t.row("TargetPortalGroupTag", p.PortalGroup)
	t.row("ISID, TSIH", fmt.Sprintf("%x, %d", p.ISID, p.TSIH))
	t.yesNo("HeaderDigest", p.HeaderDigest)
	t.yesNo("DataDigest", p.DataDigest)
	t.yesNo("InitialR2T", p.InitialR2T)
	t.yesNo("ImmediateData", p.ImmediateData)
	t.row("MaxBurstLength", p.MaxBurstLength)
	t.row("FirstBurstLength", p.FirstBurstLength)
	t.row("MaxOutstandingR2T", p.MaxOutstandingR2T)
	t.row("MaxConnections", p.MaxConnections)
	t.row("ErrorRecoveryLevel", p.ErrorRecoveryLevel)
	t.row("TaskReporting", p.TaskReporting)
	if p.RDMAExtensions {
		t.yesNo("RDMAExtensions", p.RDMAExtensions)
		t.row("TargetRecvDataSegmentLength", p.TargetRecvDataSegmentLength)
		t.row("InitiatorRecvDataSegmentLength", p.InitiatorRecvDataSegmentLength)
	} else {
		t.row("MaxRecvDataSegmentLength", fmt.Sprintf("%d ours, %d the target's", p.MaxRecvDataSegment, p.MaxSendDataSegment))
	}
}

// printFacts prints what the Datamover tells, a title for each layer.
func printFacts(t table, info iscsi.DatamoverInfo) {
	t.title("connection")
	t.row("transport", info.Transport)
	t.row("local, remote", fmt.Sprintf("%v, %v", info.LocalAddr, info.RemoteAddr))
	layer := ""
	for _, f := range info.Facts {
		if f.Layer != layer {
			layer = f.Layer
			t.title(layer)
		}
		t.row(f.Name, f.Value)
	}
}
