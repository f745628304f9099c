package iser_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/datamovertest"
	"goiwarp/iser"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// patience bounds waits that end at once when the code is right.
const patience = 30 * time.Second

// world is a device at each end, with a domain each.
type world struct {
	net              *cutter
	iDev, gDev       *soft.Device
	iDom, gDom       *iser.Domain
	ln               rnic.Listener
	iConfig, gConfig iser.Config
	link             *rnic.LinkOptions
}

// setup varies a world.
type setup struct {
	without          rnic.Capability // of both devices
	iWithout         rnic.Capability
	domain           iser.DomainConfig
	iConfig, gConfig iser.Config
	maxIRD, maxORD   int
	link             *rnic.LinkOptions
}

func newWorld(t testing.TB, s setup) *world {
	t.Helper()
	w := &world{net: &cutter{}, link: s.link}
	w.iDev = soft.New(soft.Config{Name: "initiator", Network: w.net, Without: s.without | s.iWithout, MaxIRD: s.maxIRD})
	w.gDev = soft.New(soft.Config{Name: "target", Without: s.without, MaxORD: s.maxORD})
	var err error
	w.iDom, err = iser.NewDomain(w.iDev, s.domain)
	require.NoError(t, err)
	w.gDom, err = iser.NewDomain(w.gDev, s.domain)
	require.NoError(t, err)
	w.iConfig, w.gConfig = s.iConfig, s.gConfig
	w.iConfig.Domain, w.gConfig.Domain = w.iDom, w.gDom
	w.iConfig.Link = s.link
	w.ln, err = w.gDev.Listen(t.Context(), "127.0.0.1:0", s.link)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.ln.Close())
		for _, d := range []*iser.Domain{w.iDom, w.gDom} {
			require.NoError(t, d.Close(), "everything was given back: %+v", d.Stats())
			s := d.Stats()
			require.Zero(t, s.Connections)
			require.Zero(t, s.BuffersLent)
			require.Zero(t, s.ReceivesHeld)
			require.Zero(t, s.SendsHeld)
			require.Zero(t, s.CreditsGiven)
		}
		require.NoError(t, w.iDev.Close())
		require.NoError(t, w.gDev.Close())
	})
	return w
}

// accept takes the next connection.
func (w *world) accept(ctx context.Context) (*iser.Datamover, error) {
	req, err := w.ln.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return iser.Accept(ctx, req, w.gConfig)
}

// connect makes a pair.
func (w *world) connect(t testing.TB) (i, g *iser.Datamover) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	var err error
	done := make(chan error, 1)
	go func() {
		var err error
		g, err = w.accept(ctx)
		done <- err
	}()
	i, err = iser.Dial(ctx, w.iDev, w.ln.Addr().String(), w.iConfig)
	require.NoError(t, err)
	require.NoError(t, <-done)
	return i, g
}

// pair is connect for the shared suite.
func (w *world) pair(t testing.TB) datamovertest.Pair {
	i, g := w.connect(t)
	return datamovertest.Pair{
		Initiator: i, Target: g,
		Lent: func() int { return w.iDom.Stats().BuffersLent + w.gDom.Stats().BuffersLent },
		Cut:  w.net.cut,
	}
}

// cutter is the network of TCP with a switch that breaks its connections.
type cutter struct {
	soft.TCP
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.TCP.Dial(ctx, addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		t := conn.(*net.TCPConn)
		_ = t.SetLinger(0)
		// Shutting down both halves breaks the connection without taking the socket from its owner.
		_ = t.CloseWrite()
		_ = t.CloseRead()
	}
	c.conns = nil
}

var _ iscsi.Datamover = (*iser.Datamover)(nil)

// TestDatamover runs the suite of all Datamovers over devices of every make.
func TestDatamover(t *testing.T) {
	for _, c := range []struct {
		name string
		s    setup
	}{
		{"all capabilities", setup{}},
		{"like siw from user space", setup{without: rnic.CapWindows | rnic.CapAnyMemory | rnic.CapLocalInvalidate | rnic.CapImmediate | rnic.CapAtomics | rnic.CapZeroBased | rnic.CapWindowSGE | rnic.CapStreamUpgrade}},
		{"own receive queues, nothing inline", setup{without: rnic.CapSRQ | rnic.CapInline}},
		{"zero-based", setup{iConfig: iser.Config{ZeroBased: true}, gConfig: iser.Config{ZeroBased: true}}},
		{"windows over registered memory only", setup{without: rnic.CapAnyMemory}},
		{"no Send with Invalidate, RFC write base, one Read at a time", setup{
			iConfig: iser.Config{NoSendInvalidate: true, WriteBase: iser.WriteBaseRFC},
			gConfig: iser.Config{WriteBase: iser.WriteBaseRFC, ORD: 1, SendDepth: 4},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			datamovertest.Run(t, func(t testing.TB) datamovertest.Pair { return newWorld(t, c.s).pair(t) })
		})
	}
}
