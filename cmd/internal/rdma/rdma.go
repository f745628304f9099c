// Package rdma opens the RDMA device that a program's user named, and reads the flags that say
// what lies below it. It is the one place of the programs that knows the providers.
package rdma

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/internal/sock"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
	"goiwarp/rnic/verbs"
)

// Options are the flags of a program that uses an RDMA device.
type Options struct {
	// RNIC is the device: "soft", or "verbs" with an optional device name behind a colon.
	RNIC string
	// CRC is false if MPA's CRC may be off where the peer agrees.
	CRC bool
	// MaxFPDU lets frames grow beyond the TCP segment; in octets.
	MaxFPDU int
}

// Defaults are the options without any flag.
func Defaults() Options { return Options{RNIC: "soft", CRC: true} }

// Flags adds the flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.RNIC, "rnic", o.RNIC, "the RDMA `device`: soft (iWARP in software), or verbs[:NAME] (hardware, siw, rxe)")
	f.BoolVar(&o.CRC, "crc", o.CRC, "MPA CRC32c over iWARP; with --crc=false it is off where the peer agrees (soft only)")
	f.IntVar(&o.MaxFPDU, "max-fpdu", o.MaxFPDU, "let frames grow to this many `octets` beyond the TCP segment, for peers in software (at most 65535; soft only)")
}

// Check finds mistakes in the flags before anything is opened.
func (o *Options) Check() error {
	if o.MaxFPDU < 0 || o.MaxFPDU > 65535 {
		return cli.Usagef("--max-fpdu %d: want 0 to 65535 octets", o.MaxFPDU)
	}
	_, _, err := o.parse()
	return err
}

// Link is what the flags say about connections.
func (o *Options) Link() *rnic.LinkOptions {
	link := &rnic.LinkOptions{MaxFPDU: o.MaxFPDU}
	if !o.CRC {
		link.CRC = rnic.Off
	}
	return link
}

// Soft tells whether the device is the one in software.
func (o *Options) Soft() bool { return o.RNIC == "soft" }

// parse splits the device's name.
func (o *Options) parse() (provider, name string, err error) {
	provider, name, named := strings.Cut(o.RNIC, ":")
	switch {
	case provider == "soft" && !named, provider == "verbs" && (!named || name != ""):
		return provider, name, nil
	}
	return "", "", cli.Usagef("--rnic %q: want soft, verbs or verbs:NAME", o.RNIC)
}

// Open opens the device.
func (o *Options) Open(log *slog.Logger) (rnic.Device, error) { return o.OpenPolled(log, nil) }

// OpenPolled opens the device. The connections that one in software makes are led by poller, if that is not nil.
func (o *Options) OpenPolled(log *slog.Logger, poller *sock.Poller) (rnic.Device, error) {
	provider, name, err := o.parse()
	if err != nil {
		return nil, err
	}
	if provider == "soft" {
		return soft.New(soft.Config{Log: log, Network: Polled(poller)}), nil
	}
	dev, err := verbs.Open(verbs.Config{Name: name, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--rnic %s: %w", o.RNIC, err)
	}
	return dev, nil
}
