package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/rdma"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi"
)

const defaultListen = "127.0.0.1:3260"

// options are iserd's flags. They make the same configuration that a file does.
type options struct {
	file       string
	sets       []string
	luns       []string
	fabric     rdma.Options
	auth       authOptions
	listen     []string
	listenRDMA []string
	advertise  string
	target     string
	alias      string
	logLevel   string
	control    string
	metrics    string
}

func newOptions() *options {
	return &options{logLevel: "warn", fabric: rdma.Defaults()}
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "TOML `file` with all that is to be served; see docs/admin.md or iserd.toml(5)")
	f.StringArrayVar(&o.sets, "set", nil, "set what a configuration file can set: `KEY=VALUE` in TOML; repeat for more")
	f.StringArrayVar(&o.luns, "lun", nil, "a disk to export (`SPEC` above); repeat for more")
	f.StringArrayVar(&o.listen, "listen", nil, "`address:port` to listen on, or systemd:NAME; ,group=N behind it makes it a portal of that group, ,advertise=ADDRESS:PORT "+
		"says what discovery announces; repeat for more; port 0 picks a free one (default "+defaultListen+")")
	f.StringVar(&o.advertise, "advertise", "", "`address:port` that discovery announces instead of the one that the client used, for portals without one of their own")
	f.StringVar(&o.target, "target", "", "the target's iSCSI `name` (default iqn.2026-11.example.goiwarp:HOSTNAME)")
	f.StringVar(&o.alias, "alias", "", "the target's alias, for people")
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "what to log on standard error: debug, info, warn or error")
	f.StringArrayVar(&o.listenRDMA, "listen-rdma", nil, "`address:port` where the RDMA device itself listens for iSER, with options as --listen has them; repeat for more")
	f.StringVar(&o.control, "control", "", "`path` of a unix socket for 'iserd ctl', for its owner alone (none)")
	f.StringVar(&o.metrics, "metrics", "", "`address:port` for Prometheus, on 127.0.0.1 unless an address is named (none)")
	o.auth.flags(f)
	o.fabric.Flags(f)
}

// run builds the configuration and serves it until ctx ends.
func (o *options) run(ctx context.Context, f *pflag.FlagSet, out, errs io.Writer) error {
	c, err := o.configuration(f)
	if err != nil {
		var all config.Errors
		if errors.As(err, &all) && o.file != "" {
			return tellAll(errs, o.file, err)
		}
		return err
	}
	d := newDaemon(out, errs)
	if o.file != "" {
		d.reread = func() (*config.Config, error) { return o.configuration(f) }
		d.file = absolute(o.file)
	}
	err = d.run(ctx, c)
	if all := config.Errors(nil); o.file != "" && errors.As(err, &all) {
		return tellAll(errs, o.file, err)
	}
	return err
}

// exclusive are flags that describe what a file describes as a whole.
var exclusive = []string{
	"lun", "listen", "listen-rdma", "advertise", "target", "alias", "chap-file", "mutual-chap-file", "discovery-chap-file",
	"allow-initiator", "allow-network", "chap-algorithms",
}

// configuration is what file and flags say together.
func (o *options) configuration(f *pflag.FlagSet) (*config.Config, error) {
	if o.file != "" {
		for _, name := range exclusive {
			if f.Changed(name) {
				return nil, cli.Usagef("--%s does not go with --config: write it into the file, or use --set", name)
			}
		}
	}
	if err := o.fabric.Check(); err != nil {
		return nil, err
	}
	c, err := config.Load(config.Source{File: o.file, Sets: o.sets})
	if err != nil {
		return nil, err
	}
	if f.Changed("log-level") {
		c.LogLevel = o.logLevel
	}
	if f.Changed("control") {
		c.Control = o.control
	}
	if f.Changed("metrics") {
		c.Metrics.Listen = o.metrics
	}
	if f.Changed("rnic") {
		c.RDMA.Device = o.fabric.RNIC
	}
	if f.Changed("crc") {
		c.RDMA.CRC = o.fabric.CRC
	}
	if f.Changed("max-fpdu") {
		c.RDMA.MaxFPDU = o.fabric.MaxFPDU
	}
	if o.file == "" {
		if err := o.describe(c); err != nil {
			return nil, err
		}
	}
	if _, err := cli.Logger(io.Discard, c.LogLevel); err != nil {
		return nil, err
	}
	if errs := c.Check(); len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}

// describe adds what flags alone say: portals, and one target with its disks.
func (o *options) describe(c *config.Config) error {
	if len(o.luns) == 0 && len(c.Targets) == 0 {
		return cli.Usagef("nothing to export: name at least one disk with --lun, or a file with --config; see 'iserd --help'")
	}
	if o.advertise != "" {
		if err := advertised("--advertise", o.advertise); err != nil {
			return err
		}
	}
	for _, spec := range o.listen {
		p, err := o.portal("--listen", spec)
		if err != nil {
			return err
		}
		c.Portals = append(c.Portals, p)
	}
	for _, spec := range o.listenRDMA {
		p, err := o.portal("--listen-rdma", spec)
		if err != nil {
			return err
		}
		p.RDMA = true
		c.Portals = append(c.Portals, p)
	}
	if err := o.auth.fill(c); err != nil {
		return err
	}
	if len(o.luns) == 0 {
		return nil
	}
	name, err := o.targetName()
	if err != nil {
		return err
	}
	t := config.Target{Name: name, Alias: o.alias, Pos: config.Pos{File: "--target"}}
	o.auth.rules(&t.Access)
	for i, spec := range o.luns {
		l, err := config.ParseLUN(spec, i, config.Pos{File: "--lun"})
		if err != nil {
			return fmt.Errorf("--lun %w", err) // it names spec
		}
		t.LUNs = append(t.LUNs, l)
	}
	c.Targets = append(c.Targets, t)
	return nil
}

// portal reads ADDRESS:PORT[,group=N][,advertise=ADDRESS:PORT].
func (o *options) portal(flag, spec string) (config.Portal, error) {
	fields := strings.Split(spec, ",")
	p := config.Portal{Listen: fields[0], Advertise: o.advertise, Pos: config.Pos{File: flag}}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "group":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return p, cli.Usagef("%s %s: a portal group tag is 1 to 65535", flag, spec)
			}
			p.Group = int(n)
		case "advertise":
			if err := advertised(flag+" "+spec+": advertise", value); err != nil {
				return p, err
			}
			p.Advertise = value
		default:
			return p, cli.Usagef("%s %s: unknown option %q: want group=N or advertise=ADDRESS:PORT", flag, spec, name)
		}
	}
	return p, nil
}

// advertised checks an address that discovery is to tell.
func advertised(flag, addr string) error {
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" {
		return cli.Usagef("%s %q: want ADDRESS:PORT, with an IPv6 address in brackets", flag, addr)
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return cli.Usagef("%s %q: the port is a number from 1 to 65535", flag, addr)
	}
	return nil
}

// targetName is the name to serve, checked; it has a default of its own for each host.
func (o *options) targetName() (string, error) {
	name := o.target
	if name == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			host = "localhost"
		}
		host, _, _ = strings.Cut(host, ".")
		name = "iqn.2026-11.example.goiwarp:" + host
	}
	normal, err := iscsi.NormalizeName(name)
	if err != nil {
		return "", fmt.Errorf("target name %q: %w", name, err)
	}
	return normal, nil
}

// tellAll prints each mistake of a configuration on a line of its own, and returns the error that sums them up.
func tellAll(w io.Writer, file string, err error) error {
	var all config.Errors
	if !errors.As(err, &all) {
		return err
	}
	for _, e := range all {
		_, _ = fmt.Fprintln(w, e)
	}
	return fmt.Errorf("%s: %d mistakes, nothing is served", file, len(all))
}
