// Command iserd exports files, block devices and memory as disks over iSER and iSCSI.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/rdma"
)

func main() { os.Exit(cli.Main(command(), 0)) }

func command() *cobra.Command {
	o := options{listen: []string{"127.0.0.1:3260"}, logLevel: "warn", fabric: rdma.Defaults()}
	cmd := &cobra.Command{
		Use:   "iserd --lun SPEC [--lun SPEC ...]",
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
  reservations=FILE|off   where persistent reservations are kept that outlive a restart (DISK.pr for a file; block devices and
                          memory have no place by themselves, and then refuse to keep any)

The first LUN has the number 0, the next one 1, and so on.

With --rnic verbs the kernel's RDMA device carries iSER. It listens by itself, on --listen-rdma, an address and
port apart from those of --listen, which then serve plain iSCSI alone.

iserd listens on 127.0.0.1 unless told otherwise, because without the flags below whoever can connect can read and write the
disks. --chap-file has initiators prove who they are (CHAP), --allow-initiator and --allow-network say whose names and addresses
are let in; an initiator that is not let in does not see the target in discovery either. Data is not encrypted.

It prints "ready: TARGET on ADDRESS" for each listener once it serves. SIGTERM or
SIGINT ends it: it finishes what it has accepted, flushes, and exits with status 0. SIGHUP has it look at the sizes of its
disks again, and tell initiators of what has grown.`,
		Example: `  iserd --lun disk.img,size=1GiB
  iserd --lun disk.img --lun mem:64MiB --listen 192.0.2.10:3260 --target iqn.2026-11.com.example:store1
  iserd --lun disk.img,serial=A17,iops=2000,bw=100MiB
  iserd --lun disk.img --rnic verbs:siw0 --listen-rdma 192.0.2.10:3261
  iserd --lun disk.img --listen 192.0.2.10:3260 --chap-file /etc/iserd/users --allow-network 192.0.2.0/24
  iserd --lun /dev/vg0/lv0,wce=off --listen '[::1]:3260' --log-level info`,
		Version: cli.Version(),
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.luns, "lun", nil, "a disk to export (SPEC above); repeat for more")
	f.StringArrayVar(&o.listen, "listen", o.listen, "`address:port` to listen on; repeat for more; port 0 picks a free one")
	f.StringVar(&o.advertise, "advertise", "", "`address:port` that discovery announces instead of the one that the client used")
	f.StringVar(&o.target, "target", "", "the target's iSCSI `name` (default iqn.2026-11.example.goiwarp:HOSTNAME)")
	f.StringVar(&o.alias, "alias", "", "the target's alias, for people")
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "what to log on standard error: debug, info, warn or error")
	f.StringArrayVar(&o.listenRDMA, "listen-rdma", nil, "`address:port` where the RDMA device itself listens for iSER; repeat for more")
	o.auth.flags(f)
	o.fabric.Flags(f)
	return cmd
}
