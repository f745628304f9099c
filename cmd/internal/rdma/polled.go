package rdma

import (
	"context"
	"net"

	"goiwarp/internal/sock"
	"goiwarp/rnic/soft"
)

// polled is TCP whose dialled connections a poller leads.
type polled struct {
	soft.TCP
	poller *sock.Poller
}

// Polled is the host's network; the connections that it dials are led by poller, if that is not nil.
func Polled(poller *sock.Poller) soft.Network { return polled{poller: poller} }

// Dial implements soft.Network.
func (n polled) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.TCP.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return n.poller.Lead(c), nil
}
