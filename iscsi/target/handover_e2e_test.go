package target

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// softDomain is a software device with its domain, of which nothing may be left at the end.
func softDomain(t testing.TB, name string, cfg iser.DomainConfig) *iser.Domain {
	dev := soft.New(soft.Config{Name: name})
	d, err := iser.NewDomain(dev, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close(), "everything was given back: %+v", d.Stats())
		require.Zero(t, d.Stats().CreditsGiven)
		require.NoError(t, dev.Close())
	})
	return d
}

// serveHandover serves s on ln in RFC 7145's order.
func serveHandover(t *testing.T, s *Server, ln net.Listener, cfg iser.HandoverConfig) {
	mover := func(c net.Conn) iscsi.Datamover {
		h, err := iser.NewTargetHandover(c, nil, cfg)
		require.NoError(t, err)
		return h
	}
	wait := portaltest.Streams(ln, mover, serving(s))
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		wait()
	})
}

// overHandover serves s in RFC 7145's order: the login in the byte stream, then iSER on the same connection.
func overHandover(t *testing.T, s *Server) portal {
	near, far := softDomain(t, "initiator", iser.DomainConfig{}), softDomain(t, "target", iser.DomainConfig{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	plain := func(c net.Conn) iscsi.Datamover { return tcp.NewTarget(c, tcp.Config{}, nil) }
	serveHandover(t, s, ln, iser.HandoverConfig{Config: iser.Config{Domain: far}, Plain: plain})
	return portal{addr: ln.Addr().String(), dialer: &iser.HandoverDialer{Config: iser.HandoverConfig{
		Config: iser.Config{Domain: near},
		Plain:  func(c net.Conn) iscsi.Datamover { return tcp.NewInitiator(c, tcp.Config{}) }, // for discovery
	}}}
}
