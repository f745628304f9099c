package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/cmd/iserd/internal/ctl"
	"goiwarp/iscsi/store"
)

// defaultControl is the socket of the packaged service.
const defaultControl = "/run/iserd/control"

// client is 'iserd ctl'.
type client struct {
	socket string
	json   bool
	out    io.Writer
}

// ctlCommand is 'iserd ctl' with its verbs.
func ctlCommand() *cobra.Command {
	c := &client{}
	cmd := &cobra.Command{
		Use:   "ctl",
		Short: "Look at a running iserd, and change what it serves",
		Long: `ctl speaks with a running iserd over the unix socket that its --control (or control = in its file) names. Whoever may open the
socket, its owner and root, may do everything.

Changes are in effect at once and last until iserd ends; 'iserd ctl save' writes them into the configuration file.`,
		Example: `  iserd ctl status
  iserd ctl sessions --json
  iserd ctl lun add /srv/new.img,size=10GiB --target iqn.2026-11.com.example:store1
  iserd ctl lun resize 1 20GiB && iserd ctl save`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			c.out = cmd.OutOrStdout()
		},
	}
	cmd.PersistentFlags().StringVar(&c.socket, "socket", defaultControl, "`path` of the control socket")
	cmd.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON, for programs")
	cmd.AddCommand(c.status(), c.sessions(), c.targets(), c.luns(), c.target(), c.lun(), c.alua(), c.drain(), c.resume(), c.disconnect(), c.reload(), c.save())
	return cmd
}

func (c *client) call(ctx context.Context, verb string, args, result any) error {
	return ctl.Call(ctx, c.socket, verb, args, result)
}

// show prints v as JSON, or as f does.
func (c *client) show(v any, f func(w *tabwriter.Writer)) error {
	if c.json {
		e := json.NewEncoder(c.out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(c.out, 0, 8, 2, ' ', 0)
	f(w)
	return w.Flush()
}

// change asks for a change and prints what was done.
func (c *client) change(ctx context.Context, verb string, args any) error {
	var r report
	if err := c.call(ctx, verb, args, &r); err != nil {
		return err
	}
	return c.show(r, func(w *tabwriter.Writer) { _, _ = fmt.Fprint(w, r.String()) })
}

func (c *client) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show what is served, in a few lines", Example: "  iserd ctl status", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r statusReply
			if err := c.call(cmd.Context(), "status", nil, &r); err != nil {
				return err
			}
			return c.show(r, func(w *tabwriter.Writer) {
				row := func(k string, v any) { _, _ = fmt.Fprintf(w, "%s\t%v\n", k, v) }
				row("version", r.Version)
				row("running for", time.Since(r.Since).Round(time.Second))
				if r.Config != "" {
					row("configuration", r.Config)
				}
				for _, p := range r.Portals {
					kind := "iSCSI and iSER"
					if p.RDMA {
						kind = "iSER on the RDMA device"
					}
					row("portal", fmt.Sprintf("%s, group %d, %s", p.Address, p.Group, kind))
				}
				row("targets", r.Targets)
				row("LUNs", r.LUNs)
				row("sessions", fmt.Sprintf("%d (%d connections, %d logging in)", r.Sessions, r.Connections, r.LoggingIn))
				held := int64(0)
				for k, n := range r.Memory {
					if k != "tcp data lent" {
						held += n
					}
				}
				row("memory for data", humanize.IBytes(uint64(held)))
				if r.Changing {
					row("being changed", "yes: a reload, or a command of 'iserd ctl', is under way")
				}
			})
		},
	}
}

func (c *client) sessions() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "sessions", Short: "Show who is logged in, and how fast",
		Long: `sessions shows each session: who, over which transport, and its rates over --interval. With --json there is also what the two sides
have negotiated.`,
		Example: "  iserd ctl sessions\n  iserd ctl sessions --interval 10s --json", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			var before, now []sessionReply
			if interval < 0 {
				return cli.Usagef("--interval %s: want 0 or more", interval)
			}
			if interval > 0 {
				if err := c.call(ctx, "sessions", nil, &before); err != nil {
					return err
				}
				select {
				case <-time.After(interval):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			if err := c.call(ctx, "sessions", nil, &now); err != nil {
				return err
			}
			for i := range now {
				now[i].rate(before, interval)
			}
			return c.show(now, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintln(w, "ID\tINITIATOR\tTARGET\tVIA\tFROM\tDEPTH\tCMD/S\tREAD/S\tWRITE/S\tCOMMANDS")
				for _, s := range now {
					target := s.Target
					if s.Discovery {
						target = "(discovery)"
					}
					_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%d\t%.0f\t%s\t%s\t%d\n", s.ID, s.Initiator, target, s.Transport, s.Remote, s.InFlight,
						s.Rates.Commands, humanize.IBytes(uint64(s.Rates.Read)), humanize.IBytes(uint64(s.Rates.Written)), s.Commands)
				}
			})
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "`time` over which rates are taken; 0: since the login")
	return cmd
}

// rate fills in the rates since an earlier look, or since the login.
func (s *sessionReply) rate(before []sessionReply, over time.Duration) {
	var was sessionReply
	seconds := time.Since(s.Since).Seconds()
	for _, b := range before {
		if b.ID == s.ID && b.Since.Equal(s.Since) {
			was, seconds = b, over.Seconds()
		}
	}
	seconds = max(seconds, 1e-3)
	s.Rates = &rates{
		float64(s.Commands-was.Commands) / seconds, float64(s.OctetsIn-was.OctetsIn) / seconds, float64(s.OctetsOut-was.OctetsOut) / seconds,
	}
}

func (c *client) targets() *cobra.Command {
	return &cobra.Command{
		Use: "targets", Short: "Show the targets", Example: "  iserd ctl targets", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r []targetReply
			if err := c.call(cmd.Context(), "targets", nil, &r); err != nil {
				return err
			}
			return c.show(r, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintln(w, "TARGET\tLUNS\tSESSIONS\tACCESS\tSTATE")
				for _, t := range r {
					state := "serving"
					if t.Draining {
						state = "drained"
					}
					_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", t.Name, t.LUNs, t.Sessions, t.Access, state)
				}
			})
		},
	}
}

func (c *client) luns() *cobra.Command {
	return &cobra.Command{
		Use: "luns", Short: "Show the logical units", Example: "  iserd ctl luns", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r []lunReply
			if err := c.call(cmd.Context(), "luns", nil, &r); err != nil {
				return err
			}
			return c.show(r, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintln(w, "TARGET\tLUN\tSIZE\tBLOCK\tSTATE\tSTORE")
				for _, l := range r {
					state := "read-write"
					if l.ReadOnly {
						state = "read-only"
					}
					if l.Thin {
						state += ", thin"
					}
					if l.IOPS > 0 || l.Bandwidth > 0 {
						state += ", " + rateLimits{l.IOPS, l.Bandwidth}.String()
					}
					if !l.Cache {
						state += ", write-through"
					}
					_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\n", l.Target, l.LUN, humanize.IBytes(uint64(l.Size)), l.BlockSize, state, l.Spec)
				}
			})
		},
	}
}

func (c *client) target() *cobra.Command {
	cmd := &cobra.Command{
		Use: "target", Short: "Add or remove a target", Example: "  iserd ctl target add iqn.2026-11.com.example:store2", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var a targetArgs
	add := &cobra.Command{
		Use: "add NAME", Short: "Add a target without LUNs, for everybody to log in to",
		Example: "  iserd ctl target add iqn.2026-11.com.example:store2", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.Target = args[0]
			return c.change(cmd.Context(), "target.add", a)
		},
	}
	add.Flags().StringVar(&a.Alias, "alias", "", "the target's alias, for people")
	remove := &cobra.Command{
		Use: "remove NAME", Short: "End a target's sessions in order and take it away",
		Example: "  iserd ctl target remove iqn.2026-11.com.example:store2", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.change(cmd.Context(), "target.remove", targetArgs{Target: args[0]})
		},
	}
	cmd.AddCommand(add, remove)
	return cmd
}

func (c *client) lun() *cobra.Command {
	cmd := &cobra.Command{
		Use: "lun", Short: "Add, remove, resize, limit or protect a logical unit while it is served",
		Example: "  iserd ctl lun add /srv/new.img,size=10GiB\n  iserd ctl lun resize 1 20GiB", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var a lunArgs
	cmd.PersistentFlags().StringVar(&a.Target, "target", "", "the target's `name`; may be left out if there is one")
	number := func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return cli.Usagef("%q is no LUN: want a number", s)
		}
		a.LUN = &n
		return nil
	}
	var at int
	add := &cobra.Command{
		Use: "add SPEC", Short: "Add a disk; SPEC is as for iserd --lun",
		Example: "  iserd ctl lun add /srv/new.img,size=10GiB --lun 4", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.Spec = args[0]; cmd.Flags().Changed("lun") {
				a.LUN = &at
			}
			if l, err := config.ParseLUN(a.Spec, 0, config.Pos{}); err != nil {
				return err
			} else if spec, _, err := l.Parse(); err == nil && spec.Kind == "file" && !filepath.IsAbs(spec.Path) {
				abs, err := filepath.Abs(spec.Path)
				if err != nil {
					return err
				}
				l.Store = abs // relative to where the user is, not to where the daemon is
				a.Spec = l.Spec()
			}
			return c.change(cmd.Context(), "lun.add", a)
		},
	}
	add.Flags().IntVar(&at, "lun", 0, "the LUN's `number` (the first free one)")
	remove := &cobra.Command{
		Use: "remove LUN", Short: "Take a disk away once its commands have ended", Example: "  iserd ctl lun remove 1", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := number(args[0]); err != nil {
				return err
			}
			return c.change(cmd.Context(), "lun.remove", a)
		},
	}
	resize := &cobra.Command{
		Use: "resize LUN SIZE", Short: "Make a disk larger, or smaller with --shrink, and tell its initiators",
		Example: "  iserd ctl lun resize 1 20GiB", Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := number(args[0]); err != nil {
				return err
			}
			if a.Size, err = store.ParseSize(args[1]); err != nil {
				return cli.Usagef("%v", err)
			}
			return c.change(cmd.Context(), "lun.resize", a)
		},
	}
	resize.Flags().BoolVar(&a.Shrink, "shrink", false, "allow that what lies behind the new end is lost")
	protect := &cobra.Command{
		Use: "read-only LUN on|off", Short: "Have a disk refuse writes, or take them again", Example: "  iserd ctl lun read-only 1 on",
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := number(args[0]); err != nil {
				return err
			}
			if a.On = args[1] == "on"; !a.On && args[1] != "off" {
				return cli.Usagef("%q: want on or off", args[1])
			}
			return c.change(cmd.Context(), "lun.read-only", a)
		},
	}
	var iops, bandwidth string
	limit := &cobra.Command{
		Use: "limit LUN", Short: "Bound how many commands and octets per second a disk takes",
		Example: "  iserd ctl lun limit 1 --iops 2000 --bw 100MiB\n  iserd ctl lun limit 1 --iops none", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := number(args[0]); err != nil {
				return err
			}
			var err error
			if a.IOPS, err = rateOf("iops", iops, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }); err != nil {
				return err
			}
			if a.Bandwidth, err = rateOf("bw", bandwidth, func(s string) (int64, error) { return store.ParseSize(strings.TrimSuffix(s, "/s")) }); err != nil {
				return err
			}
			if a.IOPS == nil && a.Bandwidth == nil {
				return cli.Usagef("which limit? --iops N, --bw SIZE, or none for either")
			}
			return c.change(cmd.Context(), "lun.limit", a)
		},
	}
	limit.Flags().StringVar(&iops, "iops", "", "most `commands` per second, or none")
	limit.Flags().StringVar(&bandwidth, "bw", "", "most `octets` per second, such as 100MiB, or none")
	cmd.AddCommand(add, remove, resize, protect, limit)
	return cmd
}

// rateOf reads a rate: nil if it is not given, 0 for none.
func rateOf(flag, text string, parse func(string) (int64, error)) (*int64, error) {
	switch text {
	case "":
		return nil, nil
	case "none":
		return new(int64), nil
	}
	n, err := parse(text)
	if err != nil || n <= 0 {
		return nil, cli.Usagef("--%s %q: want a rate above 0, or none", flag, text)
	}
	return &n, nil
}

func (c *client) drain() *cobra.Command {
	var a targetArgs
	cmd := &cobra.Command{
		Use: "drain [TARGET]", Short: "End a target's sessions in order, and take no new ones until resume",
		Example: "  iserd ctl drain iqn.2026-11.com.example:store1 --timeout 1m", Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				a.Target = args[0]
			}
			return c.change(cmd.Context(), "drain", a)
		},
	}
	cmd.Flags().StringVar(&a.Timeout, "timeout", "", "`time` after which what is left is aborted (timers.drain)")
	return cmd
}

func (c *client) resume() *cobra.Command {
	return &cobra.Command{
		Use: "resume [TARGET]", Short: "Take sessions again after drain", Example: "  iserd ctl resume", Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var a targetArgs
			if len(args) > 0 {
				a.Target = args[0]
			}
			return c.change(cmd.Context(), "resume", a)
		},
	}
}

func (c *client) disconnect() *cobra.Command {
	return &cobra.Command{
		Use: "disconnect SESSION", Short: "End one session in order; its initiator may come back", Example: "  iserd ctl disconnect 3",
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 16)
			if err != nil {
				return cli.Usagef("%q is no session: want the ID that 'iserd ctl sessions' shows", args[0])
			}
			return c.change(cmd.Context(), "disconnect", sessionArgs{uint16(n)})
		},
	}
}

func (c *client) reload() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Read the configuration file again and change exactly what differs",
		Long: `reload has iserd read its file again, as SIGHUP does. With a mistake in the file nothing changes, and the mistakes are told. What was
changed by 'iserd ctl' and not saved goes back to what the file says.`,
		Example: "  iserd check /etc/iserd/iserd.toml && iserd ctl reload", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.change(cmd.Context(), "reload", nil) },
	}
}

func (c *client) save() *cobra.Command {
	return &cobra.Command{
		Use: "save [FILE]", Short: "Write what is served now into the configuration file",
		Long: `save writes the configuration that is in effect into FILE, or the one that iserd was started with; - is standard output. It is written
by this program, with your rights. A file that is replaced is kept beside it with .old at its end: comments are not carried over.`,
		Example: "  iserd ctl save\n  iserd ctl save -", Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r configReply
			if err := c.call(cmd.Context(), "config", nil, &r); err != nil {
				return err
			}
			file := r.File
			if len(args) > 0 {
				file = args[0]
			}
			switch file {
			case "":
				return cli.Usagef("iserd was started without a file: name one")
			case "-":
				_, err := io.WriteString(c.out, r.Text)
				return err
			}
			if err := replaceFile(file, []byte(r.Text)); err != nil {
				return err
			}
			done := report{Changes: []string{"saved to " + file}}
			return c.show(done, func(w *tabwriter.Writer) { _, _ = fmt.Fprint(w, done.String()) })
		},
	}
}

// replaceFile writes a file so that either the old or the new one is there whatever happens, and keeps the old one beside it.
func replaceFile(path string, text []byte) error {
	mode := os.FileMode(0o640)
	old, err := os.ReadFile(path)
	switch fi, statErr := os.Stat(path); {
	case err == nil && statErr == nil:
		mode = fi.Mode().Perm()
		if err := os.WriteFile(path+".old", old, mode); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return store.ReplaceFile(path, text, mode)
}
