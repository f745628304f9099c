package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// Unreached is err of connecting to addr, as one line that names addr once and says what to do where that is plain.
func Unreached(addr string, err error) error {
	var dial *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("%s: no host has that name", addr)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: connection refused: nobody listens there; does the other side run, and is this its port?", addr)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%s: no way to this host from here", addr)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%s: %w", addr, dial.Err)
	case strings.Contains(err.Error(), addr):
		return err
	}
	return fmt.Errorf("%s: %w", addr, err)
}
