package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iser/internal/blockdev"
)

// attachOptions are attach's own.
type attachOptions struct {
	residentOptions
	persist     bool
	connections int
	memory      cli.Size
	blockSize   int
	ioTimeout   time.Duration
	deadTimeout time.Duration
	guard       bool
}

func attachCommand(c *connectOptions) *cobra.Command {
	o := new(attachOptions)
	cmd := &cobra.Command{
		Use:   "attach URL [/dev/nbdN]",
		Short: "Attach a disk as a block device of this machine (Linux)",
		Long: `attach makes a disk a block device, by the kernel's nbd driver, and serves it until it is told to stop by SIGINT or SIGTERM. It prints
"ready: URL on DEVICE" when the device can be used. Without /dev/nbdN the kernel chooses one that is free.

Requests wait while the connection to the target is lost, for --replacement-timeout; then they fail. With --path the disk is used by several
paths at once, and goes on as long as one of them does. A disk that has grown is found out about every --size-check, and the device grows with it.

When it is told to stop, attach flushes and detaches the device. One that is in use it leaves as it is: requests wait for --dead-timeout until
'iser attach' with the same URL serves the device again. With --persist that is what always happens: the device outlives a restart and an upgrade
of the tool, under a mounted file system too, and only 'iser detach' ends it. Requests that a killed process has left unanswered are sent
again after --io-timeout.

A process that serves a block device of its own machine must not need memory that only writing to that device can free. attach allocates what it
needs when it begins (--memory for each connection), locks it, tells the kernel so (PR_SET_IO_FLUSHER on all of its threads), and is not
chosen when memory runs out. It is for block devices of other machines: a disk that this very machine serves can still bring it to a halt.

It needs root, and the nbd driver: 'modprobe nbd'.`,
		Example: `  iser attach iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser attach --persist iser://192.0.2.10/iqn.2026-11.com.example:store1/0 /dev/nbd0
  iser attach --path iser://198.51.100.10/iqn.2026-11.com.example:store1/0 iser://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd, c, args)
		},
	}
	f := cmd.Flags()
	o.flags(f, 0)
	o.memory.N = 8 << 20
	f.BoolVar(&o.persist, "persist", false, "leave the device attached when the tool ends, for the next 'iser attach' to serve")
	f.IntVar(&o.connections, "connections", 4, "connections between the kernel and the tool: one for each CPU that is to send requests")
	f.Var(&o.memory, "memory", "memory of each connection for requests beyond 16 KiB, and so the longest request")
	f.IntVar(&o.blockSize, "block-size", 0, "refuse a disk whose logical blocks have another size, in `octets`")
	f.DurationVar(&o.ioTimeout, "io-timeout", 30*time.Second, "how long the kernel waits for an answer before it sends a request again on another connection; 0: for ever")
	f.DurationVar(&o.deadTimeout, "dead-timeout", 10*time.Minute, "how long requests wait while nobody serves the device")
	f.BoolVar(&o.guard, "guard", true, "protect the tool from shortness of memory")
	return cmd
}

func (o *attachOptions) check() error {
	switch {
	case o.connections < 1 || o.connections > 64:
		return cli.Usagef("--connections %d: want 1 to 64", o.connections)
	case o.memory.N < 1<<20 || o.memory.N > 32<<20:
		return cli.Usagef("--memory %s: want 1MiB to 32MiB", o.memory.String())
	case o.ioTimeout < 0 || o.deadTimeout < 0:
		return cli.Usagef("--io-timeout and --dead-timeout want 0 or more")
	case o.deadTimeout > 0 && o.replacement > 0 && o.deadTimeout <= o.replacement:
		return cli.Usagef("--dead-timeout %v: want more than --replacement-timeout, which is %v", o.deadTimeout, o.replacement)
	}
	return o.residentOptions.check()
}

func detachCommand(c *connectOptions) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "detach {/dev/nbdN | URL}",
		Short: "Detach a block device that attach has made",
		Long: `detach flushes a device and takes it away. It returns when the device is gone, and the 'iser attach' that served it has ended with status 0. A
device that is mounted or otherwise in use is left alone. With --force it goes all the same, and what was not written is lost: for devices whose
target is gone for good. --timeout bounds how long it may take.`,
		Example: `  iser detach /dev/nbd0
  iser detach iser://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.timeout <= 0 {
				return cli.Usagef("--timeout %s: want a time above 0, for example 30s", c.timeout)
			}
			return detach(cmd.Context(), args[0], force, c.timeout)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if it is in use or cannot be flushed")
	return cmd
}

func attachedCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "attached",
		Short: "List the block devices that attach has made",
		Long: `attached lists devices and the disks behind them. One that is "waiting" has nobody to serve it: 'iser attach' with its URL does again, 'iser
detach' takes it away.`,
		Example: "  iser attached\n  iser attached --json | jq -r '.[].device'",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := attached()
			if err != nil {
				return err
			}
			return printAttached(cmd.OutOrStdout(), list, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printAttached(w io.Writer, list []blockdev.Device, asJSON bool) error {
	if asJSON {
		if list == nil {
			list = []blockdev.Device{}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tSIZE\tBLOCK\tCONNECTIONS\tSTATE\tURL")
	for _, d := range list {
		state := "waiting"
		if d.Served {
			state = fmt.Sprintf("served by %d", d.PID)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", d.Path, humanize.IBytes(uint64(d.Size)), d.BlockSize, d.Connections, state, d.URL)
	}
	return t.Flush()
}
