// Command iserd exports files, block devices and memory as disks over iSER and iSCSI.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/man"
	"goiwarp/cmd/iserd/internal/config"
)

func main() { os.Exit(cli.Main(command(), 0)) }

func command() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "iserd {--lun SPEC [--lun SPEC ...] | --config FILE}",
		Short: "Export disks over iSER and iSCSI",
		Long: `iserd exports files, block devices and memory as disks. One port serves iSER (over iWARP, in software)
and plain iSCSI; the first octets of a connection tell which.

A LUN's SPEC is a path, or a kind with its size, and options behind commas:

  disk.img,size=1GiB      a file; it is created, sparse, if it does not exist, and never shrunk or overwritten
  /dev/sdb                a block device
  mem:64MiB               memory, gone when iserd ends
  null:1TiB               reads zeros, forgets what is written: for measuring

  size=SIZE               size of a file that is to be created; an existing one must have it
  ro                      read-only
  block=512|4096          logical block size (512)
  physical=SIZE           physical block size that initiators are told, up to 128 blocks (the block size)
  wce=on|off              write cache (on: a write is durable after SYNCHRONIZE CACHE or with FUA)
  thin=on|off             whether initiators may unmap blocks (on where the store can free them)
  vendor=, product=, serial=, naa=
                          identification: at most 8, 16 and 36 characters, and 16 or 32 hexadecimal digits. Serial number and
                          NAA derive from the target's name and the LUN, and stay the same, if they are not given
  rotational=on|off|RPM   a rotating disk, and its revolutions per minute (as the device says)
  removable               a medium that initiators can eject and load
  iops=N, bw=SIZE         at most N commands, and SIZE octets, per second (no limit)
  threshold=SIZE          warn in the log, and the initiators, when a thin disk's file system has no more left for it (no warning)
  reservations=FILE|off   where persistent reservations are kept that outlive a restart (DISK.pr for a file; block devices and
                          memory have no place by themselves, and then refuse to keep any)
  sanitize=FILE|off       where it is kept that a SANITIZE is under way, which goes on after a restart (DISK.sanitize for a file)
  max-transfer=SIZE       most octets of one command (32MiB)

The first LUN has the number 0, the next one 1, and so on.

--config names a TOML file instead, which can have several targets, portal groups, access rules and more, and is read again on
SIGHUP: exactly what differs is changed, and no session ends that is not concerned. 'iserd check FILE' finds its mistakes. --set KEY=VALUE sets
anything that a file can, with or without one; it may be repeated. 'iserd ctl' speaks with a running iserd that has a --control socket.

With --rnic verbs the kernel's RDMA device carries iSER. It listens by itself, on --listen-rdma, an address and
port apart from those of --listen, which then serve plain iSCSI alone.

iserd listens on 127.0.0.1 unless told otherwise, because without the flags below whoever can connect can read and write the
disks. --chap-file has initiators prove who they are (CHAP), --allow-initiator and --allow-network say whose names and addresses
are let in; an initiator that is not let in does not see the target in discovery either. Data is not encrypted.

With a portal group for each path (--listen ADDRESS:PORT,group=N) initiators have a SCSI port for each: 'iserd ctl alua' says which of
them they should use.

Sockets that systemd passes are taken with --listen systemd:NAME, or without --listen.

It prints "ready: TARGET on ADDRESS" for each target and listener once it serves, and tells systemd where that has started it. SIGTERM or
SIGINT ends it: it finishes what it has accepted, flushes, and exits with status 0. SIGHUP has it read its file again, look at the
sizes of its disks, and tell initiators of what has grown.`,
		Example: `  iserd --lun disk.img,size=1GiB
  iserd --lun disk.img --lun mem:64MiB --listen 192.0.2.10:3260 --target iqn.2026-11.com.example:store1
  iserd --lun disk.img,serial=A17,iops=2000,bw=100MiB
  iserd --lun disk.img --rnic verbs:siw0 --listen-rdma 192.0.2.10:3261
  iserd --lun disk.img --listen 192.0.2.10:3260 --chap-file /etc/iserd/users --allow-network 192.0.2.0/24
  iserd --lun disk.img --listen 192.0.2.10:3260,group=1 --listen 198.51.100.10:3260,group=2
  iserd --lun /dev/vg0/lv0,wce=off --listen '[::1]:3260' --log-level info
  iserd --config /etc/iserd/iserd.toml --set limits.window=64
  iserd --lun disk.img --control /tmp/iserd.sock --metrics 127.0.0.1:9860`,
		Version: cli.Version(),
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.flags(cmd.Flags())
	cmd.AddCommand(checkCommand(), ctlCommand(), man.Command(8))
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// checkCommand is 'iserd check'.
func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Find the mistakes in a configuration file",
		Long: `check reads a configuration file as 'iserd --config FILE' does, and prints every mistake with its line. It opens no disk and no
port: whether those are there is found when iserd starts. Secrets files are read.`,
		Example: `  iserd check /etc/iserd/iserd.toml`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(config.Source{File: args[0]})
			var unseen []string
			if err == nil {
				unseen, err = checkAccess(c)
			}
			if err != nil {
				return tellAll(cmd.ErrOrStderr(), args[0], err)
			}
			for _, s := range unseen {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is not looked into: systemd gives it to the service alone\n", args[0], s); err != nil {
					return err
				}
			}
			luns := 0
			for i := range c.Targets {
				luns += len(c.Targets[i].LUNs)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d targets, %d LUNs, %d portals: good\n", args[0], len(c.Targets), luns, len(c.Portals))
			return err
		},
	}
}
