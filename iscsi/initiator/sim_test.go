package initiator_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// deed is what a network does to a connection at an octet.
type deed int

const (
	cut     deed = iota // both ends lose it
	swallow             // everything from here on, in both directions
	corrupt             // the octet
	delay               // the octet, and all behind it
	late                // what is sent from here on comes when the connection has long been given up
)

func (d deed) String() string { return [...]string{"cut", "swallow", "corrupt", "delay", "late"}[d] }

// fault is one deed, at an octet of one direction.
type fault struct {
	at   int64
	do   deed
	wait time.Duration
}

// plan gives the faults of a connection's direction, in order; the connections of a network are numbered as they are dialed.
type plan func(conn int, out bool) []fault

// simNet is a network in memory with faults.
type simNet struct {
	*soft.MemNetwork
	begun time.Time

	mu    sync.Mutex
	plan  plan
	conns map[*simConn]bool
	count int
	cutOf map[string]bool // addresses that nobody answers at
	trace []string
	wg    sync.WaitGroup // of what is late
}

func newSimNet() *simNet {
	return &simNet{MemNetwork: soft.NewMemNetwork(soft.MemConfig{}), begun: time.Now(), conns: map[*simConn]bool{}, cutOf: map[string]bool{}}
}

func (n *simNet) log(format string, args ...any) {
	n.mu.Lock()
	n.trace = append(n.trace, fmt.Sprintf("%12v  ", time.Since(n.begun))+fmt.Sprintf(format, args...))
	n.mu.Unlock()
}

func (n *simNet) story() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.trace, "\n")
}

func (n *simNet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	gone := n.cutOf[addr]
	n.mu.Unlock()
	if gone {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: fmt.Errorf("%s is unreachable", addr)}
	}
	c, err := n.MemNetwork.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &simConn{Conn: c, n: n, id: n.count, addr: addr, closed: make(chan struct{})}
	n.count++
	if n.plan != nil {
		s.out.faults, s.in.faults = n.plan(s.id, true), n.plan(s.id, false)
	}
	n.conns[s] = true
	return s, nil
}

// unplug cuts all connections to addr, and lets nobody connect until plug.
func (n *simNet) unplug(addr string) {
	n.mu.Lock()
	n.cutOf[addr] = true
	var list []*simConn
	for c := range n.conns {
		if c.addr == addr {
			list = append(list, c)
		}
	}
	n.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

func (n *simNet) plug(addr string) {
	n.mu.Lock()
	delete(n.cutOf, addr)
	n.mu.Unlock()
}

// linger lets what is sent to addr from now on arrive after wait, even if the connection was given up long before.
func (n *simNet) linger(addr string, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.addr == addr {
			c.linger(wait)
		}
	}
}

// swallow lets all that is sent to and from addr vanish, until the connections are closed.
func (n *simNet) swallow(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.addr == addr {
			c.mu.Lock()
			c.hole = true
			c.mu.Unlock()
		}
	}
}

// simConn is the initiator's end of a connection.
type simConn struct {
	net.Conn
	n      *simNet
	id     int
	addr   string
	closed chan struct{}
	once   sync.Once
	in     half // used by the reader
	out    half // used by the writer

	mu   sync.Mutex
	hole bool
	late []byte        // sent, and under way for long
	lost chan struct{} // closed when late has arrived; nil if there is none
}

type half struct {
	passed int64
	faults []fault
}

func (c *simConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.n.mu.Lock()
		delete(c.n.conns, c)
		c.n.mu.Unlock()
	})
	c.mu.Lock()
	late := c.lost != nil
	c.mu.Unlock()
	if late {
		return nil
	}
	return c.Conn.Close()
}

// linger lets what is sent from now on arrive after wait, whatever this end does, and the connection end then.
func (c *simConn) linger(wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hole, c.lost = true, make(chan struct{})
	c.n.wg.Go(func() {
		defer close(c.lost)
		<-time.After(wait)
		c.mu.Lock()
		b := c.late
		c.late = nil
		c.mu.Unlock()
		c.n.log("connection %d to %s: %d octets arrive late", c.id, c.addr, len(b))
		c.n.wg.Go(func() { _, _ = io.Copy(io.Discard, c.Conn) })
		_, _ = c.Conn.Write(b)
		<-time.After(wait)
		_ = c.Conn.Close()
	})
}

func (c *simConn) CloseWrite() error { return c.Close() }

func (c *simConn) swallows() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hole
}

// next does what is due at the next octet, and tells how many may pass before the next fault.
func (c *simConn) next(h *half, b []byte, dir string) (int, error) {
	for len(h.faults) > 0 {
		f := h.faults[0]
		if n := f.at - h.passed; n > 0 {
			return int(min(n, int64(len(b)))), nil
		}
		h.faults = h.faults[1:]
		c.n.log("connection %d to %s, %s octet %d: %v", c.id, c.addr, dir, h.passed, f.do)
		switch f.do {
		case cut:
			c.Close()
			return 0, net.ErrClosed
		case swallow:
			c.mu.Lock()
			c.hole = true
			c.mu.Unlock()
		case late:
			c.linger(f.wait)
		case corrupt:
			b[0] ^= 0x20
			return 1, nil
		case delay:
			select {
			case <-time.After(f.wait):
			case <-c.closed:
				return 0, net.ErrClosed
			}
		}
	}
	return len(b), nil
}

func (c *simConn) Write(b []byte) (int, error) {
	b, total := append([]byte(nil), b...), len(b) // not to corrupt what is not its own
	for len(b) > 0 {
		n, err := c.next(&c.out, b, "out")
		if err != nil {
			return total - len(b), err
		}
		if c.swallows() {
			c.mu.Lock()
			if c.lost != nil {
				c.late = append(c.late, b[:n]...)
			}
			c.mu.Unlock()
		} else {
			if m, err := c.Conn.Write(b[:n]); err != nil {
				return total - len(b) + m, err
			}
		}
		c.out.passed += int64(n)
		b = b[n:]
	}
	return total, nil
}

func (c *simConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		switch {
		case c.swallows():
			if err != nil {
				return 0, err
			}
			continue
		case n == 0:
			return n, err
		}
		for got := b[:n]; len(got) > 0; {
			m, ferr := c.next(&c.in, got, "in")
			if ferr != nil {
				return n - len(got), ferr
			}
			if c.swallows() {
				if n -= len(got); n > 0 {
					return n, nil
				}
				break
			}
			c.in.passed += int64(m)
			got = got[m:]
		}
		if n > 0 {
			return n, err
		}
	}
}

// sim is targets and initiators on one simNet.
type sim struct {
	t     testing.TB
	net   *simNet
	store *store.Memory
	lu    *scsi.LU
	node  atomic.Pointer[target.Server]
	iser  bool
	order bool        // RFC 7145's: login in the byte stream, then iSER
	tag   uint16      // of all portals; 0: each has its own
	disk  store.Store // over store

	dialer   iscsi.Dialer
	cleanups []func()
}

// newSim makes a site in the bubble of a test; its end is to be deferred.
func newSim(t testing.TB, transport string, size int64, portals ...string) *sim {
	s := prepareSim(t, transport, size)
	s.begin(portals)
	return s
}

// prepareSim is newSim without its begin.
func prepareSim(t testing.TB, transport string, size int64) *sim {
	s := &sim{t: t, net: newSimNet(), iser: transport != "tcp", order: transport == "handover"}
	var err error
	s.store, err = store.NewMemory(size)
	require.NoError(t, err)
	s.disk = s.store
	return s
}

// begin starts target and portals.
func (s *sim) begin(portals []string) {
	t := s.t
	var far *iser.Domain
	var farDev *soft.Device
	if s.iser {
		near := soft.New(soft.Config{Name: "initiator", Network: s.net})
		farDev = soft.New(soft.Config{Name: "target", Network: s.net.MemNetwork})
		nearDomain, err := iser.NewDomain(near, iser.DomainConfig{})
		require.NoError(t, err)
		far, err = iser.NewDomain(farDev, iser.DomainConfig{})
		require.NoError(t, err)
		s.cleanup(func() {
			require.NoError(t, nearDomain.Close())
			require.NoError(t, far.Close())
			require.NoError(t, near.Close())
			require.NoError(t, farDev.Close())
		})
		s.dialer = &iser.Dialer{Domain: nearDomain}
		if s.order {
			s.dialer = simHandover{s.net, nearDomain}
		}
	} else {
		s.dialer = simDialer{s.net}
	}
	s.serve()
	for i, addr := range portals {
		info := target.PortalInfo{Tag: s.tag}
		if s.tag == 0 {
			info.Tag = uint16(i + 1)
		}
		if s.order {
			s.listenHandover(far, addr, info)
		} else if s.iser {
			s.listenISER(farDev, far, addr, info)
		} else {
			s.listenTCP(addr, info)
		}
	}
}

func (s *sim) cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *sim) end() {
	s.net.wg.Wait()
	require.NoError(s.t, s.node.Load().Shutdown(context.Background()))
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// serve makes a target node, as one that has just been started.
func (s *sim) serve(change ...func(*scsi.LUConfig)) {
	cfg := scsi.LUConfig{BlockSize: 512, Serial: "sim-0001"}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	s.lu, err = scsi.NewLU(s.disk, cfg)
	require.NoError(s.t, err)
	dev := scsi.NewDevice(scsi.Port{Name: nodeName + ",t,0x0001", DeviceName: nodeName, Relative: 1, Group: 1, Protocol: 5})
	require.NoError(s.t, dev.Add(0, s.lu))
	node, err := target.New(target.Config{Targets: []target.Target{{Name: nodeName, Device: dev}}, LogoutWait: 100 * time.Millisecond})
	require.NoError(s.t, err)
	s.node.Store(node)
}

// restart ends the target node and starts another.
func (s *sim) restart(change ...func(*scsi.LUConfig)) {
	s.net.mu.Lock()
	var list []*simConn
	for c := range s.net.conns {
		list = append(list, c)
	}
	s.net.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
	require.NoError(s.t, s.node.Load().Shutdown(context.Background()))
	s.serve(change...)
}

func (s *sim) listenTCP(addr string, info target.PortalInfo) {
	s.listen(addr, info, func(c net.Conn) iscsi.Datamover { return tcp.NewTarget(c, tcp.Config{}, nil) })
}

func (s *sim) listenHandover(domain *iser.Domain, addr string, info target.PortalInfo) {
	s.listen(addr, info, func(c net.Conn) iscsi.Datamover {
		h, err := iser.NewTargetHandover(c, nil, iser.HandoverConfig{Config: iser.Config{Domain: domain}, Plain: plainTarget})
		require.NoError(s.t, err)
		return h
	})
}

// listen serves what mover makes of connections.
func (s *sim) listen(addr string, info target.PortalInfo, mover func(net.Conn) iscsi.Datamover) {
	ln, err := s.net.Listen(context.Background(), addr)
	require.NoError(s.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			node := s.node.Load()
			wg.Go(func() { _ = node.Serve(mover(c), info) })
		}
	})
	s.cleanup(func() {
		require.NoError(s.t, ln.Close())
		wg.Wait()
	})
}

func (s *sim) listenISER(dev *soft.Device, domain *iser.Domain, addr string, info target.PortalInfo) {
	ctx, cancel := context.WithCancel(context.Background())
	ln, err := dev.Listen(ctx, addr, nil)
	require.NoError(s.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			node := s.node.Load()
			wg.Go(func() {
				if dm, err := iser.Accept(ctx, req, iser.Config{Domain: domain}); err == nil {
					_ = node.Serve(dm, info)
				}
			})
		}
	})
	s.cleanup(func() {
		cancel()
		require.NoError(s.t, ln.Close())
		wg.Wait()
	})
}

// simDialer is plain iSCSI on a simNet.
type simDialer struct{ n *simNet }

func (d simDialer) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	c, err := d.n.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return tcp.NewInitiator(c, tcp.Config{}), nil
}

// simHandover is RFC 7145's order on a simNet.
type simHandover struct {
	n *simNet
	d *iser.Domain
}

func (h simHandover) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	c, err := h.n.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return iser.NewInitiatorHandover(c, iser.HandoverConfig{Config: iser.Config{Domain: h.d}})
}

// config is what disks of a sim have in common: an ISID that does not change, and digests.
func (s *sim) config() initiator.DiskConfig {
	c := initiator.DiskConfig{Session: initiator.Config{ISID: [6]byte{0x80, 1, 2, 3}, InitiatorName: "iqn.2026-11.com.example:host"}}
	c.Session.Settings.HeaderDigest, c.Session.Settings.DataDigest = []string{"CRC32C"}, []string{"CRC32C"}
	return c
}

// open opens the disk by the portals.
func (s *sim) open(cfg initiator.DiskConfig, portals ...string) *initiator.Disk {
	var paths []initiator.PathConfig
	for _, addr := range portals {
		paths = append(paths, initiator.PathConfig{Dialer: s.dialer, Addr: addr, TargetName: nodeName})
	}
	d, err := initiator.OpenDisk(context.Background(), cfg, paths...)
	require.NoError(s.t, err)
	return d
}
