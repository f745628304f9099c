package target

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// patience bounds waits that end at once when the code is right.
const patience = 60 * time.Second

// portal is a server behind a real socket: where it listens and how to reach it.
type portal struct {
	addr   string
	dialer iscsi.Dialer
}

// serving is what a portal does with its connections.
func serving(s *Server) func(iscsi.Datamover) {
	return func(dm iscsi.Datamover) { _ = s.Serve(dm, PortalInfo{}) }
}

// overTCP serves s over plain iSCSI.
func overTCP(t *testing.T, s *Server) portal {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	pool := tcp.NewPool(64 << 20)
	mover := func(c net.Conn) iscsi.Datamover {
		return tcp.NewTarget(c, tcp.Config{Pool: pool, Memory: 1 << 20}, nil)
	}
	wait := portaltest.Streams(ln, mover, serving(s))
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		wait()
	})
	return portal{addr: ln.Addr().String(), dialer: &tcp.Dialer{}}
}

// overISER serves s over iSER on the software RNIC.
func overISER(t *testing.T, s *Server) portal {
	near, far := soft.New(soft.Config{Name: "initiator"}), soft.New(soft.Config{Name: "target"})
	nearDomain, err := iser.NewDomain(near, iser.DomainConfig{})
	require.NoError(t, err)
	farDomain, err := iser.NewDomain(far, iser.DomainConfig{})
	require.NoError(t, err)
	ln, err := far.Listen(context.Background(), "127.0.0.1:0", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	wait := portaltest.Requests(ctx, ln, iser.Config{Domain: farDomain}, serving(s))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, ln.Close())
		wait()
		require.NoError(t, nearDomain.Close(), "everything was given back: %+v", nearDomain.Stats())
		require.NoError(t, farDomain.Close(), "everything was given back: %+v", farDomain.Stats())
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
	return portal{addr: ln.Addr().String(), dialer: &iser.Dialer{Domain: nearDomain}}
}

// transports runs f over both Datamovers. The server is shut down before its portal.
func transports(t *testing.T, f func(t *testing.T, s *Server, p portal, m *store.Memory)) {
	for name, serve := range map[string]func(*testing.T, *Server) portal{"tcp": overTCP, "iser": overISER, "handover": overHandover} {
		t.Run(name, func(t *testing.T) {
			m := memory(t, 64<<20)
			s := newServer(t, func(c *Config) { c.LogoutWait = 10 * time.Millisecond }, m, blocking(m))
			p := serve(t, s)
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				require.NoError(t, s.Shutdown(ctx))
			})
			f(t, s, p, m)
		})
	}
}

func dial(t *testing.T, p portal, change func(*initiator.Config)) *initiator.Session {
	t.Helper()
	cfg := initiator.Config{Addr: p.addr, TargetName: targetName, InitiatorName: initiatorName}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := initiator.Login(ctx, p.dialer, cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// TestThroughPieces: octets that arrive a few at a time make the same data, on both transports.
func TestThroughPieces(t *testing.T) {
	transports(t, func(t *testing.T, _ *Server, p portal, _ *store.Memory) {
		for _, chunk := range []int{1, 3, 7} {
			proxy := faultproxy.New(t, p.addr, faultproxy.Script{Chunk: chunk})
			q := p
			q.addr = proxy.Addr()
			ss := dial(t, q, func(c *initiator.Config) { c.Settings.UnsolicitedData = chunk == 3 })
			lun := ss.LUN(uint16(chunk % 2))
			data := random(32<<10, uint64(chunk))
			_, err := lun.WriteAt(data, 512*7)
			require.NoError(t, err)
			got := make([]byte, len(data))
			_, err = lun.ReadAt(got, 512*7)
			require.NoError(t, err)
			require.Equal(t, sha256.Sum256(data), sha256.Sum256(got))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			require.NoError(t, ss.Logout(ctx))
			cancel()
			proxy.Close()
		}
	})
}

// TestConcurrentLoad: readers and writers of all sizes on both kinds of execution, with digests, more at once than there is memory for.
func TestConcurrentLoad(t *testing.T) {
	transports(t, func(t *testing.T, s *Server, p portal, _ *store.Memory) {
		ss := dial(t, p, func(c *initiator.Config) {
			c.Settings.UnsolicitedData = true
			if !byRDMA(p) { // over RDMA the connection's own CRC takes their place
				c.Settings.HeaderDigest = []string{"CRC32C"}
				c.Settings.DataDigest = []string{"CRC32C"}
			}
		})
		var wg sync.WaitGroup
		errs := make(chan error, 16)
		for g := range 8 {
			wg.Go(func() {
				lun := ss.LUN(uint16(g % 2))
				base := int64(g) << 22
				for i, n := range []int{512, 4096, 70000, 1 << 20, 3<<20 + 513} {
					data := random(n, uint64(g*100+i))
					if _, err := lun.WriteAt(data, base+int64(i)); err != nil {
						errs <- fmt.Errorf("write of %d: %w", n, err)
						return
					}
					got := make([]byte, n)
					if _, err := lun.ReadAt(got, base+int64(i)); err != nil {
						errs <- fmt.Errorf("read of %d: %w", n, err)
						return
					}
					if !bytes.Equal(data, got) {
						errs <- fmt.Errorf("%d octets differ", n)
						return
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		st := s.Status()
		require.Len(t, st.Sessions, 1)
		require.NotZero(t, st.Sessions[0].Counters.Inline)
		require.Contains(t, st.Sessions[0].String(), initiatorName)
	})
}

func byRDMA(p portal) bool { _, ok := p.dialer.(*iser.Dialer); return ok }

// TestCutUnderLoad: a link that breaks in the midst of I/O, again and again, leaves no session, no goroutine and no buffer behind;
// what was acknowledged before is there.
func TestCutUnderLoad(t *testing.T) {
	transports(t, func(t *testing.T, s *Server, p portal, m *store.Memory) {
		for round := range 10 {
			proxy := faultproxy.New(t, p.addr, faultproxy.Script{Steps: []faultproxy.Step{
				{Dir: faultproxy.Direction(round % 2), Offset: int64(50_000 + 41_777*round), Do: faultproxy.Cut},
			}})
			q := p
			q.addr = proxy.Addr()
			ss := dial(t, q, func(c *initiator.Config) { c.ISID = [6]byte{0x80, 9, 9, 9, 9, 9} })
			lun := ss.LUN(uint16(round % 2))
			var mu sync.Mutex
			acked := map[int64][]byte{}
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 1000 {
						off := int64(g)<<20 + int64(i%16)<<16
						data := random(20000/512*512, uint64(round*100000+g*1000+i))
						mu.Lock()
						delete(acked, off)
						mu.Unlock()
						if _, err := lun.WriteAt(data, off); err != nil {
							return
						}
						mu.Lock()
						acked[off] = data
						mu.Unlock()
						if _, err := lun.ReadAt(make([]byte, 8192), off); err != nil {
							return
						}
					}
				})
			}
			wg.Wait()
			<-ss.Done()
			require.True(t, errors.Is(ss.Err(), iscsi.ErrConnection), "%v", ss.Err())
			for off, want := range acked {
				got := make([]byte, len(want))
				_, err := m.ReadAt(got, off)
				require.NoError(t, err)
				require.NoError(t, same(want, got), "acknowledged at %d", off)
			}
			proxy.Close()
		}
		ss := dial(t, p, func(c *initiator.Config) { c.ISID = [6]byte{0x80, 9, 9, 9, 9, 9} })
		require.Len(t, s.Status().Sessions, 1, "reinstated, or ended by itself")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, ss.Logout(ctx))
	})
}

// TestDiscoverAndManage over both transports, with the initiator of this module.
func TestDiscoverAndManage(t *testing.T) {
	transports(t, func(t *testing.T, _ *Server, p portal, _ *store.Memory) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		targets, err := initiator.Discover(ctx, p.dialer, initiator.Config{Addr: p.addr, InitiatorName: initiatorName})
		require.NoError(t, err)
		require.Len(t, targets, 1)
		require.Equal(t, targetName, targets[0].Name)
		require.Equal(t, p.addr, targets[0].Portals[0].Addr)
		ss := dial(t, p, func(c *initiator.Config) { c.PortalGroup, c.CheckPortalGroup = targets[0].Portals[0].Group, true })
		require.NoError(t, ss.Ping(ctx))
		luns, err := ss.ReportLUNs(ctx)
		require.NoError(t, err)
		require.Len(t, luns, 2)
		require.NoError(t, ss.LUN(0).Reset(ctx))
		require.NoError(t, ss.LUN(1).Flush(ctx))
		require.NoError(t, ss.Logout(ctx))
	})
}
