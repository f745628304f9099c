package main

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/rnic"
	"goiwarp/rnic/verbs"
)

// linkDriver is a kind of RDMA device that the kernel makes in software, on top of a network interface.
type linkDriver struct {
	name   string // as the kernel's netlink knows it
	module string
	config string // the kernel's build option
	node   string // what the device calls itself in sysfs
	can    string
}

var linkDrivers = []linkDriver{
	{"siw", "siw", "CONFIG_RDMA_SIW", "Software iWARP stack", "iWARP over TCP: Send, Write, Read; from user space no invalidation, windows, immediate data, atomics"},
	{"rxe", "rdma_rxe", "CONFIG_RDMA_RXE", "rxe", "RoCE v2 over UDP: Send, Write, Read, atomics; does not speak with iWARP"},
}

// transports are what a device that is not one of linkDrivers can do, by its node type.
var transports = map[string]string{
	"RNIC": "iWARP in hardware",
	"CA":   "InfiniBand or RoCE in hardware",
}

func linksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "links",
		Short: "Show, add and delete the RDMA links of this host (Linux)",
		Long: `links shows the RDMA devices of this host with what each can do, and whether this kernel can make devices
in software: siw (iWARP over TCP) and rxe (RoCE over UDP). Adding and deleting needs CAP_NET_ADMIN.

No link is needed for --rnic soft, which is iWARP in this program.`,
		Example: `  iwarp links
  iwarp links add siw0 --type siw --netdev eth0
  iwarp links del siw0`,
		Args: cli.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return help(cmd, args)
			}
			k, err := openKernel()
			if err != nil {
				return err
			}
			defer k.close()
			return showLinks(cmd.OutOrStdout(), k)
		},
	}
	var kind, netdev string
	add := &cobra.Command{
		Use:     "add NAME --type siw|rxe --netdev IF",
		Short:   "Make an RDMA device in software on a network interface",
		Example: "  iwarp links add siw0 --type siw --netdev eth0",
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := checkLink(args[0], kind, netdev)
			if err != nil {
				return err
			}
			k, err := openKernel()
			if err != nil {
				return err
			}
			defer k.close()
			if err := k.add(args[0], d.name, netdev); err != nil {
				return fmt.Errorf("links add %s: %w", args[0], explainAdd(err, k, d, netdev))
			}
			return nil
		},
	}
	add.Flags().StringVar(&kind, "type", "", "siw or rxe")
	add.Flags().StringVar(&netdev, "netdev", "", "the network `interface`")
	del := &cobra.Command{
		Use:     "del NAME",
		Short:   "Delete an RDMA device in software",
		Example: "  iwarp links del siw0",
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			k, err := openKernel()
			if err != nil {
				return err
			}
			defer k.close()
			if err := k.del(args[0]); err != nil {
				return fmt.Errorf("links del %s: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.AddCommand(add, del)
	return cmd
}

// checkLink finds mistakes in what was asked for before the kernel answers "invalid argument".
func checkLink(name, kind, netdev string) (linkDriver, error) {
	const longest = 63 // IB_DEVICE_NAME_MAX, with its zero
	i := slices.IndexFunc(linkDrivers, func(d linkDriver) bool { return d.name == kind })
	switch {
	case name == "" || len(name) > longest || strings.ContainsAny(name, "/% \t\n"):
		return linkDriver{}, cli.Usagef("%q is no name for a device: want at most %d characters, none of them a space, / or %%", name, longest)
	case i < 0:
		return linkDriver{}, cli.Usagef("--type %q: want siw or rxe", kind)
	case netdev == "":
		return linkDriver{}, cli.Usagef("name the network interface with --netdev")
	}
	return linkDrivers[i], nil
}

// kernel is what the commands need of the operating system.
type kernel interface {
	list() ([]string, error) // names of RDMA devices
	add(name, kind, netdev string) error
	del(name string) error
	release() string // of the kernel
	root() fs.FS     // the file system, for /sys and /lib/modules
	close()
}

// availability says whether a kernel can make devices of a kind.
type availability int

const (
	absent availability = iota
	loadable
	loaded
)

func (a availability) String() string {
	return [...]string{"not available", "available, not loaded", "available"}[a]
}

// available looks for the driver: running or built in, or as a module file.
func available(k kernel, d linkDriver) availability {
	if _, err := fs.Stat(k.root(), path.Join("sys/module", d.module)); err == nil {
		return loaded
	}
	for _, dir := range []string{"lib/modules", "usr/lib/modules"} {
		for _, list := range []string{"modules.dep", "modules.builtin"} {
			b, err := fs.ReadFile(k.root(), path.Join(dir, k.release(), list))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
				base, _, _ := strings.Cut(path.Base(file), ".ko")
				if strings.ReplaceAll(base, "-", "_") == d.module {
					return loadable
				}
			}
		}
	}
	return absent
}

// advice says what to do where a driver is not available.
func advice(k kernel, d linkDriver) string {
	s := fmt.Sprintf("kernel %s was built without it (%s)", k.release(), d.config)
	if d.name == "siw" {
		s += "; use --rnic soft, which needs no kernel module, or build siw.ko from the sources of this very kernel"
	}
	return s
}

// explainAdd gives the kernel's answer a reason where one can be found.
func explainAdd(err error, k kernel, d linkDriver, netdev string) error {
	if _, e := fs.Stat(k.root(), path.Join("sys/class/net", netdev)); e != nil {
		return fmt.Errorf("there is no network interface %s: %w", netdev, err)
	}
	if available(k, d) == absent {
		return fmt.Errorf("%s: %s: %w", d.name, advice(k, d), err)
	}
	return err
}

// link is an RDMA device as sysfs shows it.
type link struct {
	name, kind, node, state, netdev, can string
}

// readLink reads a device's description. What sysfs does not tell stays "-".
func readLink(root fs.FS, name string) link {
	dir := path.Join("sys/class/infiniband", name)
	read := func(file string) string {
		b, err := fs.ReadFile(root, path.Join(dir, file))
		s := strings.TrimSpace(string(b))
		if err != nil || s == "" {
			return "-"
		}
		if _, after, numbered := strings.Cut(s, ": "); numbered { // "4: ACTIVE"
			s = after
		}
		return s
	}
	l := link{name: name, node: read("node_type"), state: read("ports/1/state"), netdev: read("ports/1/gid_attrs/ndevs/0")}
	if l.netdev == "-" {
		l.netdev = interfaceOf(root, read("ports/1/gids/0"))
	}
	l.kind = "hardware"
	l.can = transports[l.node]
	for _, d := range linkDrivers {
		if read("node_desc") == d.node {
			l.kind, l.can = d.name, d.can
		}
	}
	return l
}

// interfaceOf finds the network interface whose hardware address begins a device's first GID, as an iWARP device's does;
// the kernel lists no interface for those.
func interfaceOf(root fs.FS, gid string) string {
	digits := strings.ReplaceAll(gid, ":", "")
	nets, _ := fs.ReadDir(root, "sys/class/net")
	for _, n := range nets {
		mac, err := fs.ReadFile(root, path.Join("sys/class/net", n.Name(), "address"))
		m := strings.ReplaceAll(strings.TrimSpace(string(mac)), ":", "")
		if err == nil && len(m) == 12 && strings.Trim(m, "0") != "" && strings.HasPrefix(digits, m) {
			return n.Name()
		}
	}
	return "-"
}

// showLinks prints the devices and what this kernel can make.
func showLinks(w io.Writer, k kernel) error {
	names, err := k.list()
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	slices.Sort(names)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if len(names) > 0 {
		fmt.Fprintln(t, "NAME\tKIND\tSTATE\tNETDEV\tWHAT IT CAN DO")
	}
	for _, n := range names {
		l := readLink(k.root(), n)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", l.name, l.kind, l.state, l.netdev, l.can)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range names {
		if s := reported(n); s != "" {
			fmt.Fprintf(w, "%s reports: %s\n", n, s)
		}
	}
	if len(names) == 0 {
		fmt.Fprintln(w, "no RDMA devices")
	}
	for _, d := range linkDrivers {
		a := available(k, d)
		line := fmt.Sprintf("%s: %s", d.name, a)
		if a == absent {
			line += ": " + advice(k, d)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// capabilityNames are for people, in the order of rnic.Capability's bits.
var capabilityNames = []string{
	"local invalidate", "Send with Invalidate", "windows", "immediate data", "atomics", "inline", "zero-based regions",
	"shared receive queues", "stream upgrade", "windows over any memory", "Read sinks need remote write", "windows as Read sinks",
}

// reported is what the device itself says through verbs, in a build that can ask.
func reported(name string) string {
	if !verbs.BuiltIn {
		return ""
	}
	dev, err := verbs.Open(verbs.Config{Name: name})
	if err != nil {
		return cli.OneLine(err)
	}
	defer func() { _ = dev.Close() }()
	return describe(dev.Attributes())
}

func describe(a rnic.Attributes) string {
	var caps []string
	for i, n := range capabilityNames {
		if a.Caps.Has(1 << i) {
			caps = append(caps, n)
		}
	}
	return fmt.Sprintf("%s; IRD %d, ORD %d, %d work requests, %d elements (%d for a Read), %d octets inline, %d of private data",
		strings.Join(caps, ", "), a.MaxIRD, a.MaxORD, a.MaxQPWR, a.MaxSendSGE, a.MaxReadSGE, a.MaxInline, a.MaxPrivate)
}
