// Command iser uses disks over iSER and iSCSI from the shell: it discovers and inspects them, and
// reads, writes and copies them.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/man"
	"goiwarp/cmd/internal/rdma"
)

func main() { os.Exit(cli.Main(command(), cli.Patience)) }

func command() *cobra.Command {
	o := &connectOptions{rnic: rdma.Defaults(), logLevel: "error"}
	root := &cobra.Command{
		Use:   "iser",
		Short: "Use disks over iSER and iSCSI",
		Long: `iser discovers, inspects, reads, writes and copies disks over the network.

A disk is named by a URL:

  iser://HOST[:PORT]/TARGET/LUN      iSER over iWARP, in software on this side unless --rnic says otherwise
  iscsi://HOST[:PORT]/TARGET/LUN     plain iSCSI over TCP

HOST is a name, an IPv4 address, or an IPv6 address in brackets. The port is 3260 unless given.

Where the target asks who you are, --chap-user names the user, and --chap-secret-file or --chap-ask gets the secret. It does
not belong into the URL, where everybody could read it in the list of processes. With --mutual-secret-file the target has to
prove that it knows a secret, too: another one than yours.

` + defaultsHelp,
		Example: `  iser discover 192.0.2.10
  iser ls iser://192.0.2.10/iqn.2026-11.com.example:store1
  iser ls --chap-user alice --chap-secret-file ~/.iser-secret iser://192.0.2.10/iqn.2026-11.com.example:store1
  iser cp --verify vm.raw iser://192.0.2.10/iqn.2026-11.com.example:store1/0
  iser info --handover iser://192.0.2.10/iqn.2026-11.com.example:store1/0`,
		Version: cli.Version(),
		Args:    cli.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unknown command %q; see 'iser --help'", args[0])
			}
			return cmd.Help()
		},
	}
	o.flags(root.PersistentFlags())
	var defaults string
	root.PersistentFlags().StringVar(&defaults, "config", "", "`file` with defaults for flags (default ~/.config/goiwarp/iser.toml)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return loadDefaults(cmd, defaults) }
	root.AddCommand(discoverCommand(o), listCommand(o), infoCommand(o), readCommand(o), writeCommand(o), copyCommand(o))
	root.AddCommand(serveNBDCommand(o), attachCommand(o), detachCommand(o), attachedCommand())
	root.AddCommand(benchCommand(o), prCommand(o), sgCommand(o), vpdCommand(o), monitorCommand(o), man.Command(1))
	return root
}
