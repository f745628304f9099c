package soft_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// TestUpgrade turns a stream that has carried something else into a connection, as RFC 7145's login
// (section 5.1.2) and a port that iSCSI shares do. The responder has read the beginning of the
// Request already when it finds out.
func TestUpgrade(t *testing.T) {
	pipe := func(t *testing.T) (net.Conn, net.Conn) { // a net.Conn that is nothing else
		a, b := net.Pipe()
		return a, b
	}
	dialled := func(n soft.Network) func(t *testing.T) (net.Conn, net.Conn) {
		return func(t *testing.T) (net.Conn, net.Conn) {
			ln, err := n.Listen(context.Background(), "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			a, err := n.Dial(context.Background(), ln.Addr().String())
			require.NoError(t, err)
			b, err := ln.Accept()
			require.NoError(t, err)
			return a, b
		}
	}
	for name, connect := range map[string]func(t *testing.T) (net.Conn, net.Conn){
		"tcp":      dialled(soft.TCP{}),
		"memory":   dialled(soft.NewMemNetwork(soft.MemConfig{})),
		"net.Pipe": pipe,
	} {
		for _, ahead := range []int{0, 1, 16, 20} {
			t.Run(name, func(t *testing.T) {
				dev := newDevice(t, soft.Config{})
				a, b := connect(t)
				wrote := make(chan error, 1)
				go func() {
					_, err := a.Write([]byte("login"))
					wrote <- err
				}()
				greeting := make([]byte, 5)
				_, err := io.ReadFull(b, greeting)
				require.NoError(t, err)
				require.Equal(t, "login", string(greeting))
				require.NoError(t, <-wrote) // the stream is nobody else's from here on

				client, server := newParty(t, dev), newParty(t, dev)
				k, err := dev.UpgradeConnector(t.Context(), a, nil)
				require.NoError(t, err)
				client.qp, err = k.CreateQP(client.config())
				require.NoError(t, err)
				client.receives()
				depths := rnic.ConnParams{IRD: 4, ORD: 4, PrivateData: []byte("hello")}
				connected := make(chan error, 1)
				go func() {
					_, err := k.Connect(t.Context(), depths)
					connected <- err
				}()
				read := make([]byte, ahead)
				_, err = io.ReadFull(b, read)
				require.NoError(t, err)
				r, err := dev.UpgradeRequest(t.Context(), b, read, nil)
				require.NoError(t, err)
				require.Equal(t, "hello", string(r.Info().PrivateData))
				server.qp, err = r.CreateQP(server.config())
				require.NoError(t, err)
				server.receives()
				require.NoError(t, r.Accept(t.Context(), depths))
				require.NoError(t, <-connected)
				f := &faulty{client: client, server: server}
				f.exercise(t, nil)
				require.Len(t, client.ok, load+load/4)
				require.Len(t, server.ok, load+load/4)
			})
		}
	}
}

// TestUpgradeRefusesOtherProtocols: what does not begin with an MPA Request is closed.
func TestUpgradeRefusesOtherProtocols(t *testing.T) {
	dev := newDevice(t, soft.Config{})
	a, b := net.Pipe()
	go a.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	_, err := dev.UpgradeRequest(t.Context(), b, nil, nil)
	require.Error(t, err)
	_, err = a.Write([]byte("x"))
	require.Error(t, err, "the connection is closed")

	few := newDevice(t, soft.Config{Without: rnic.CapStreamUpgrade})
	a, b = net.Pipe()
	defer a.Close()
	var u *rnic.UnsupportedError
	_, err = few.UpgradeRequest(t.Context(), b, nil, nil)
	require.ErrorAs(t, err, &u)
	_, err = few.UpgradeConnector(t.Context(), a, nil)
	require.ErrorAs(t, err, &u)
}

// TestLinkFacts: what was agreed is told, in stable order.
func TestLinkFacts(t *testing.T) {
	network := soft.NewMemNetwork(soft.MemConfig{})
	f := connectThrough(t, network, noFault, &rnic.LinkOptions{PeerToPeer: rnic.On, RTR: rnic.RTRWrite, Markers: rnic.On})
	require.NoError(t, f.connectErr)
	want := []rnic.LinkFact{
		{Name: "mpa role", Value: "initiator"},
		{Name: "mpa revision", Value: "2"},
		{Name: "enhanced", Value: "yes"},
		{Name: "crc", Value: "yes"},
		{Name: "markers in", Value: "yes"},
		{Name: "markers out", Value: "yes"},
		{Name: "peer to peer", Value: "yes"},
		{Name: "rtr", Value: "Write"},
		{Name: "emss", Value: "1460"},
		{Name: "mulpdu", Value: "1442"},
		{Name: "ird", Value: "4"},
		{Name: "ord", Value: "4"},
	}
	require.Equal(t, want, f.client.qp.Info().Link)
	want[0].Value = "responder"
	require.Equal(t, want, f.server.qp.Info().Link)
	f.exercise(t, nil)
}

// TestOptionsAreChecked where they enter.
func TestOptionsAreChecked(t *testing.T) {
	dev := newDevice(t, soft.Config{Network: soft.NewMemNetwork(soft.MemConfig{})})
	for name, o := range map[string]*rnic.LinkOptions{
		"revision":                      {Revision: 3},
		"FPDU too large":                {MaxFPDU: 65536},
		"FPDU negative":                 {MaxFPDU: -1},
		"unknown RTR":                   {RTR: 8},
		"enhanced revision 1":           {Revision: 1, Enhanced: rnic.On},
		"peer to peer revision 1":       {Revision: 1, PeerToPeer: rnic.On},
		"peer to peer but not enhanced": {Enhanced: rnic.Off, PeerToPeer: rnic.On},
	} {
		_, err := dev.Listen(t.Context(), "x:1", o)
		require.ErrorIs(t, err, rnic.ErrBadWR, name)
		_, err = dev.Dial(t.Context(), "x:1", o)
		require.ErrorIs(t, err, rnic.ErrBadWR, name)
	}
}

// TestRevision1: without the enhanced startup the depths are what each consumer says.
func TestRevision1(t *testing.T) {
	f := connectThrough(t, soft.NewMemNetwork(soft.MemConfig{}), noFault, &rnic.LinkOptions{Revision: 1})
	require.NoError(t, f.connectErr)
	require.Contains(t, f.client.qp.Info().Link, rnic.LinkFact{Name: "mpa revision", Value: "1"})
	require.Contains(t, f.client.qp.Info().Link, rnic.LinkFact{Name: "enhanced", Value: "no"})
	f.exercise(t, nil)
	require.Len(t, f.client.ok, load+load/4)
}

// TestMemNetwork: connections are net.Conns with deadlines and half closes, and refuse like TCP does.
func TestMemNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		n := soft.NewMemNetwork(soft.MemConfig{Buffer: 4})
		_, err := n.Dial(ctx, "nobody:1")
		require.ErrorContains(t, err, "refused")
		ln, err := n.Listen(ctx, "here:1")
		require.NoError(t, err)
		_, err = n.Listen(ctx, "here:1")
		require.ErrorContains(t, err, "in use")
		a, err := n.Dial(ctx, "here:1")
		require.NoError(t, err)
		b, err := ln.Accept()
		require.NoError(t, err)
		require.Equal(t, a.LocalAddr(), b.RemoteAddr())
		require.Equal(t, "here:1", a.RemoteAddr().String())
		require.Equal(t, "mem", a.RemoteAddr().Network())

		go func() {
			a.Write([]byte("more than the buffer takes"))
			a.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "more than the buffer takes", string(got))
		begin := time.Now()
		require.NoError(t, b.SetDeadline(begin.Add(time.Second)))
		_, err = b.Write([]byte("nobody reads this"))
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())
		require.Equal(t, time.Second, time.Since(begin))

		waits, err := n.Dial(ctx, "here:1") // in the backlog
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		require.NoError(t, ln.Close())
		_, err = waits.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, err = ln.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = n.Dial(ctx, "here:1")
		require.ErrorContains(t, err, "refused")
		a.Close()
		b.Close()
		waits.Close()
	})
}
