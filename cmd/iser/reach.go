package main

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
)

// unreached is err of a connection or a login, for the user.
func (o *connectOptions) unreached(portal initiator.Portal, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: no answer within %v; is the address right, and does --timeout leave enough time?", portal, o.timeout)
	}
	return cli.Unreached(portal.String(), err)
}
