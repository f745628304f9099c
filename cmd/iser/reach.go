package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"goiwarp/iscsi/initiator"
)

// unreached is err of a connection or a login, as one line that names the portal once and says what to do where that is plain.
func (o *connectOptions) unreached(portal initiator.Portal, err error) error {
	var dial *net.OpError
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %v; is the address right, and does --timeout leave enough time?", portal, o.timeout)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("%s: no host has that name", portal)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: connection refused: nobody listens there; does the target run, and is this its port?", portal)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%s: no way to this host from here", portal)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%s: %w", portal, dial.Err)
	case strings.Contains(err.Error(), portal.String()):
		return err
	}
	return fmt.Errorf("%s: %w", portal, err)
}
