package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/portal"
	"goiwarp/cmd/internal/rdma"
	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
	"goiwarp/iser"
	"goiwarp/rnic"
)

const (
	// iscsiProtocol and iscsiVersion name iSCSI to SCSI: the protocol identifier (SPC-4, section 7.6.1), and the
	// version descriptor, 0960h and the protocol level (RFC 7144, section 6).
	iscsiProtocol = 5
	iscsiVersion  = 0x0960

	portalGroup = 1
	// grace is how long running commands have to end after SIGTERM.
	grace = 30 * time.Second
)

// options are iserd's flags.
type options struct {
	luns       []string
	fabric     rdma.Options
	auth       authOptions
	listen     []string
	listenRDMA []string
	advertise  string
	target     string
	alias      string
	logLevel   string
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context, out, errs io.Writer) (err error) {
	log, err := cli.Logger(errs, o.logLevel)
	if err != nil {
		return err
	}
	if len(o.luns) == 0 {
		return cli.Usagef("nothing to export: name at least one disk with --lun; see 'iserd --help'")
	}
	if err := o.fabric.Check(); err != nil {
		return err
	}
	if o.advertise != "" {
		if host, port, err := net.SplitHostPort(o.advertise); err != nil || host == "" {
			return cli.Usagef("--advertise %q: want ADDRESS:PORT, with an IPv6 address in brackets", o.advertise)
		} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return cli.Usagef("--advertise %q: the port is a number from 1 to 65535", o.advertise)
		}
	}
	name, err := o.targetName()
	if err != nil {
		return err
	}

	access, discovery, err := o.auth.load()
	if err != nil {
		return err
	}
	if access == nil && !loopback(append(o.listen[:len(o.listen):len(o.listen)], o.listenRDMA...)) {
		log.Warn("whoever can connect can read and write the disks: see --chap-file, --allow-initiator and --allow-network")
	}

	disks := &disks{log: log}
	defer func() { err = errors.Join(err, disks.close()) }()
	device := scsi.NewDevice(scsi.Port{
		Name: fmt.Sprintf("%s,t,0x%04x", name, portalGroup), DeviceName: name, Relative: 1,
		Protocol: iscsiProtocol, Version: iscsiVersion,
	})
	for i, spec := range o.luns {
		lu, err := disks.open(spec, fmt.Sprintf("%s/%d", name, i))
		if err != nil {
			return fmt.Errorf("--lun %w", err) // it names spec
		}
		if err := device.Add(i, lu); err != nil {
			return fmt.Errorf("--lun %s: %w", spec, err)
		}
	}

	disks.rescanOnHangup(ctx)

	server, err := target.New(target.Config{
		Targets: []target.Target{{Name: name, Alias: o.alias, PortalGroup: portalGroup, Device: device, Access: access}},

		Discovery: discovery,
		Log:       log,
	})
	if err != nil {
		return err
	}

	var listeners []net.Listener
	for _, addr := range o.listen {
		ln, err := listen(addr)
		if err != nil {
			closeAll(listeners)
			return err
		}
		listeners = append(listeners, ln)
	}
	return o.serve(ctx, out, log, name, server, listeners)
}

// serve runs the listeners until ctx ends or one of them fails, and then ends the sessions in order.
func (o *options) serve(ctx context.Context, out io.Writer, log *slog.Logger, name string, server *target.Server, listeners []net.Listener) (err error) {
	dev, err := o.fabric.Open(log)
	if err != nil {
		closeAll(listeners)
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	domain, err := iser.NewDomain(dev, iser.DomainConfig{Log: log})
	if err != nil {
		closeAll(listeners)
		return err
	}
	defer func() { err = errors.Join(err, domain.Close()) }()
	f := &fabric{dev: dev, domain: domain, link: o.fabric.Link(), server: server, portal: target.PortalInfo{Advertise: o.advertise}, log: log}
	var own []rnic.Listener
	for _, addr := range o.listenRDMA {
		ln, err := f.listen(ctx, addr)
		if err != nil {
			closeAll(listeners)
			closeAll(own)
			return err
		}
		own = append(own, ln)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cfg := portal.Config{
		ISCSI: f.login,
		ISER:  f.upgrade(),
		Serve: f.serve,
		Log:   log,
	}
	ended := make(chan error, len(listeners)+len(own))
	var addrs []net.Addr
	for _, ln := range listeners {
		addrs = append(addrs, ln.Addr())
		go func() { ended <- portal.Serve(ctx, ln, cfg) }()
	}
	for _, ln := range own {
		addrs = append(addrs, ln.Addr())
		go func() { ended <- f.run(ctx, ln) }()
	}
	for _, addr := range addrs {
		if _, err := fmt.Fprintf(out, "ready: %s on %s\n", name, addr); err != nil {
			stop()
		}
	}
	err = nil
	waiting := len(addrs)
	select {
	case <-ctx.Done():
	case err = <-ended: // an accept that cannot go on
		waiting--
	}
	stop()
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err = errors.Join(err, server.Shutdown(graceful))
	for range waiting {
		err = errors.Join(err, <-ended)
	}
	return err
}

// closeAll closes listeners that nobody serves yet.
func closeAll[L io.Closer](ls []L) {
	for _, l := range ls {
		_ = l.Close()
	}
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

// listen opens a TCP listener; its errors say what to do.
func listen(addr string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("--listen %q: want ADDRESS:PORT, with an IPv6 address in brackets", addr)
	}
	ln, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--listen %s: the port is in use by another program; choose another one, or 0 for any", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--listen %s: no interface of this host has that address", addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--listen %s: not permitted; ports below 1024 need privileges", addr)
	}
	return nil, fmt.Errorf("--listen %s: %w", addr, err)
}
