package main

import (
	"net"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// handoverOptions are the flags that choose the order in which an iSER connection comes about.
type handoverOptions struct {
	mode  string // "", handoverInsist or handoverFallback
	hello bool
}

const (
	handoverInsist   = "insist"
	handoverFallback = "fallback"
)

func (o *handoverOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.mode, "handover", "", `log in over TCP and then turn that connection into iSER (RFC 7145's order) instead of RDMA first
(Linux's order), for iser:// URLs; a target that declines is an error, or with --handover=`+handoverFallback+` served as plain iSCSI`)
	f.Lookup("handover").NoOptDefVal = handoverInsist
	f.BoolVar(&o.hello, "hello", false, "ask for iSER's Hello exchange (iSERHelloRequired)")
}

// check finds mistakes.
func (o *handoverOptions) check() error {
	switch o.mode {
	case "", handoverInsist, handoverFallback:
		return nil
	}
	return cli.Usagef("--handover=%s: want %s or %s", o.mode, handoverInsist, handoverFallback)
}

// settings puts the flags into a session's.
func (o *handoverOptions) settings(cfg *initiator.Config) {
	cfg.Settings.RequireRDMA = o.mode == handoverInsist
	cfg.Settings.ISERHelloRequired = o.hello
}

// handover dials in RFC 7145's order.
func (f *fabric) handover() iscsi.Dialer {
	return &iser.HandoverDialer{Config: iser.HandoverConfig{
		Config: iser.Config{Domain: f.domain, Link: f.opts.link(), Log: f.log},
		Plain:  func(conn net.Conn) iscsi.Datamover { return tcp.NewInitiator(conn, tcp.Config{Log: f.log}) },
	}}
}

// checkHandover says what a device cannot do before anything is dialled.
func (o *connectOptions) checkHandover(dev rnic.Device) error {
	if o.handover.mode != "" && !dev.Attributes().Caps.Has(rnic.CapStreamUpgrade) {
		return cli.Usagef("--handover: device %s cannot take over a TCP connection; use --rnic soft", dev.Attributes().Name)
	}
	return nil
}
