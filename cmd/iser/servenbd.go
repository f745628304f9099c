package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iser/internal/nbd"
)

// drainPatience is how long requests under way have to end when a command is told to stop: less than what the process has (cli.Patience).
const drainPatience = 6 * time.Second

// serveOptions are serve-nbd's own.
type serveOptions struct {
	residentOptions
	socket, listen string
	name           string
	connections    int
}

func serveNBDCommand(c *connectOptions) *cobra.Command {
	o := new(serveOptions)
	cmd := &cobra.Command{
		Use:   "serve-nbd URL {--socket PATH | --listen ADDRESS:PORT}",
		Short: "Serve a disk to qemu, nbdcopy, fio and other NBD clients, without root",
		Long: `serve-nbd serves a disk by the NBD protocol until it is told to stop by SIGINT or SIGTERM. It prints "ready: URL on NBD-URI" when clients
can connect. Several may at once, and each may have several connections: a flush on one covers them all.

A lost connection to the target is made again while clients wait, for --replacement-timeout. With --path the disk is used by several paths at
once, and goes on as long as one of them does.

Clients are told which blocks are mapped (base:allocation), where the disk tells it: qemu-img and nbdcopy then leave out the rest.

While requests and answers follow each other within --poll, one or two at a time, it polls for them rather than sleep, as qemu's own I/O threads do:
that is faster, and takes a processor.

The socket is for its owner only. Over TCP whoever can connect can read and write the disk: mind where --listen listens.`,
		Example: `  iser serve-nbd iser://192.0.2.10/iqn.2026-11.com.example:store1/0 --socket /run/user/1000/store1.sock
  qemu-img convert -n vm.qcow2 'nbd+unix:///?socket=/run/user/1000/store1.sock'
  qemu-system-x86_64 -drive 'file=nbd+unix:///?socket=/run/user/1000/store1.sock,format=raw,if=virtio,discard=unmap'
  qemu-img map -f raw 'nbd+unix:///?socket=/run/user/1000/store1.sock'
  nbdcopy 'nbd+unix:///?socket=/run/user/1000/store1.sock' backup.raw
  fio --name=t --ioengine=nbd --uri='nbd+unix:///?socket=/run/user/1000/store1.sock' --rw=randread`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case (o.socket == "") == (o.listen == ""):
				return cli.Usagef("serve-nbd wants --socket PATH or --listen ADDRESS:PORT")
			case o.connections < 1:
				return cli.Usagef("--max-connections %d: want 1 or more", o.connections)
			}
			return o.run(cmd, c, args[0])
		},
	}
	f := cmd.Flags()
	o.flags(f, nbd.DefaultPoll)
	f.StringVar(&o.socket, "socket", "", "`path` of the Unix socket to listen on; one that nobody listens on is replaced")
	f.StringVar(&o.listen, "listen", "", "TCP `address` and port to listen on instead; NBD's port is 10809")
	f.StringVar(&o.name, "export-name", "", "`name` that clients may ask for, besides the empty one")
	f.IntVar(&o.connections, "max-connections", 16, "how many connections are served at once; more wait")
	return cmd
}

func (o *serveOptions) run(cmd *cobra.Command, c *connectOptions, target string) (err error) {
	ctx := cmd.Context()
	r, err := c.openResident(ctx, target, &o.residentOptions, o.connections*(4<<20), [6]byte{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	r.export.Name = o.name
	s, err := nbd.New(r.disk, r.export, nbd.Config{MaxConnections: o.connections, Poller: r.fabric.poller, Log: r.fabric.log})
	if err != nil {
		return err
	}
	defer s.Close()
	ln, uri, err := o.open()
	if err != nil {
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		r.watchSize(watch, o.sizeCheck, func(n int64) {
			if err := s.Resize(n); err == nil {
				r.fabric.log.Info("the disk has another size; clients that connect from now on are told", "octets", n)
			}
		})
	})
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "ready: %s on %s\n", r.url, uri); err != nil {
		return errors.Join(err, ln.Close())
	}
	_, _ = systemd.SdNotify(false, systemd.SdNotifyReady)
	stop := context.AfterFunc(ctx, func() {
		_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping)
		// Clients' requests that the target does not answer now are cut off with their connections, not failed.
		time.AfterFunc(drainPatience, func() {
			s.Abandon()
			_ = r.disk.Close()
		})
	})
	defer stop()
	return s.Listen(ctx, ln)
}

// open begins to listen, and says how clients name the place.
func (o *serveOptions) open() (net.Listener, string, error) {
	if o.listen != "" {
		ln, err := net.Listen("tcp", o.listen)
		if err != nil {
			return nil, "", fmt.Errorf("--listen %s: %w", o.listen, err)
		}
		return ln, "nbd://" + ln.Addr().String(), nil
	}
	uri := url.URL{Scheme: "nbd+unix", Path: "/" + o.name, RawQuery: "socket=" + o.socket}
	ln, err := listenUnix(o.socket)
	if err != nil {
		return nil, "", fmt.Errorf("--socket %s: %w", o.socket, err)
	}
	// Who deletes a socket without asking cuts off another server: only what nobody listens on is replaced.
	return ln, uri.String(), nil
}

// listenUnix listens on a socket of the owner's alone.
func listenUnix(path string) (net.Listener, error) {
	ln, err := privately(func() (net.Listener, error) { return net.Listen("unix", path) })
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if fi, serr := os.Lstat(path); serr != nil || fi.Mode()&os.ModeSocket == 0 {
		return nil, errors.New("there is something else than a socket in that place")
	}
	c, derr := net.Dial("unix", path)
	if derr == nil {
		_ = c.Close()
		return nil, errors.New("somebody listens there already")
	}
	if !errors.Is(derr, syscall.ECONNREFUSED) {
		return nil, derr
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return privately(func() (net.Listener, error) { return net.Listen("unix", path) })
}
