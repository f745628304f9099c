// Command iwarp has tools for the RDMA layer below iSER: a ping, measurements, and the RDMA links
// of this host.
package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/man"
	"goiwarp/cmd/internal/rdma"
)

func main() { os.Exit(cli.Main(command(), cli.Patience)) }

// common are the flags of all commands that use a device.
type common struct {
	fabric   rdma.Options
	logLevel string
}

func newCommon() common { return common{fabric: rdma.Defaults(), logLevel: "error"} }

func (o *common) flags(f *pflag.FlagSet) {
	o.fabric.Flags(f)
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "what to log on standard error: debug, info, warn or error")
}

// logger checks the flags and makes the logger that they ask for.
func (o *common) logger(w io.Writer) (*slog.Logger, error) {
	if err := o.fabric.Check(); err != nil {
		return nil, err
	}
	return cli.Logger(w, o.logLevel)
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "iwarp",
		Short: "Tools for the RDMA layer",
		Long: `iwarp tests, measures and shows the RDMA layer, without any storage on top.

  rping      checks that two hosts can Send, Read and Write; speaks with librdmacm's rping
  perf       measures bandwidth and latency; prints perftest's columns
  links      shows, adds and deletes the RDMA links of this host (Linux)

rping and perf use iWARP in software unless --rnic names another device.`,
		Example: `  iwarp rping -s -a 192.0.2.10
  iwarp rping -c -a 192.0.2.10 -C 10 -V
  iwarp perf write
  iwarp links add siw0 --type siw --netdev eth0`,
		Version: cli.Version(),
		Args:    cli.Args(cobra.ArbitraryArgs),
		RunE:    help,
	}
	root.AddCommand(rpingCommand(), perfCommand(), linksCommand(), man.Command(1))
	return root
}

// help is what a command that only groups others does.
func help(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.Usagef("unknown command %q; see '%s --help'", args[0], cmd.CommandPath())
	}
	return cmd.Help()
}
