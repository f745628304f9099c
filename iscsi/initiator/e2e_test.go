package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

const (
	nodeName = "iqn.2026-11.com.example:e2e"
	diskSize = 16 << 20
)

// site is a target with two disks in memory, at a portal of one transport.
type site struct {
	addr   string
	dialer iscsi.Dialer
	server *target.Server
}

// transports are the ways to a site.
var transports = map[string]func(testing.TB, *site){"tcp": serveTCP, "iser": serveISER}

// everywhere runs f against the real target, over both Datamovers.
func everywhere(t *testing.T, f func(t *testing.T, s *site)) {
	for name, serve := range transports {
		t.Run(name, func(t *testing.T) { f(t, newSite(t, serve)) })
	}
}

func newSite(t testing.TB, serve func(testing.TB, *site)) *site {
	dev := scsi.NewDevice(scsi.Port{})
	s := new(site)
	for lun, blockSize := range map[int]int{0: 512, 300: 4096} {
		m, err := store.NewMemory(diskSize)
		require.NoError(t, err)
		lu, err := scsi.NewLU(m, scsi.LUConfig{BlockSize: blockSize})
		require.NoError(t, err)
		require.NoError(t, dev.Add(lun, lu))
	}
	var err error
	s.server, err = target.New(target.Config{Targets: []target.Target{{Name: nodeName, Device: dev}}, LogoutWait: 100 * time.Millisecond})
	require.NoError(t, err)
	serve(t, s)
	t.Cleanup(func() {
		if err := s.server.Shutdown(context.Background()); !errors.Is(err, target.ErrClosed) {
			require.NoError(t, err)
		}
	})
	return s
}

func (s *site) serve(dm iscsi.Datamover) { _ = s.server.Serve(dm, target.PortalInfo{}) }

func serveTCP(t testing.TB, s *site) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	wait := portaltest.Streams(ln, plainTarget, s.serve)
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		wait()
	})
	s.addr, s.dialer = ln.Addr().String(), &tcp.Dialer{}
}

func serveISER(t testing.TB, s *site) {
	near, far := soft.New(soft.Config{Name: "initiator"}), soft.New(soft.Config{Name: "target"})
	nearDomain, err := iser.NewDomain(near, iser.DomainConfig{})
	require.NoError(t, err)
	farDomain, err := iser.NewDomain(far, iser.DomainConfig{})
	require.NoError(t, err)
	ln, err := far.Listen(context.Background(), "127.0.0.1:0", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	wait := portaltest.Requests(ctx, ln, iser.Config{Domain: farDomain}, s.serve)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, ln.Close())
		wait()
		require.NoError(t, nearDomain.Close(), "everything was given back: %+v", nearDomain.Stats())
		require.NoError(t, farDomain.Close(), "everything was given back: %+v", farDomain.Stats())
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
	s.addr, s.dialer = ln.Addr().String(), &iser.Dialer{Domain: nearDomain}
}

func (s *site) config() initiator.Config {
	return initiator.Config{Addr: s.addr, TargetName: nodeName}
}

func (s *site) login(t testing.TB, change ...func(*initiator.Config)) *initiator.Session {
	t.Helper()
	c := s.config()
	for _, f := range change {
		f(&c)
	}
	sess, err := initiator.Login(t.Context(), s.dialer, c)
	require.NoError(t, err)
	t.Cleanup(sess.Close)
	return sess
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestDiskReadsBackWhatWasWritten(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for name, change := range map[string]func(*initiator.Config){
			"defaults":    func(*initiator.Config) {},
			"no imm":      func(c *initiator.Config) { c.Settings.NoImmediateData = true },
			"unsolicited": func(c *initiator.Config) { c.Settings.UnsolicitedData = true },
			"digests": func(c *initiator.Config) {
				c.Settings.HeaderDigest, c.Settings.DataDigest = []string{"CRC32C"}, []string{"CRC32C"}
			},
			"small": func(c *initiator.Config) {
				c.Settings = iscsi.Settings{MaxRecvDataSegment: 512, MaxBurstLength: 1024, FirstBurstLength: 512, TargetRecvDataSegment: 512, UnsolicitedData: true, MaxOutstandingR2T: 1}
			},
		} {
			t.Run(name, func(t *testing.T) {
				sess := s.login(t, change)
				for lun, bs := range map[uint16]int{0: 512, 300: 4096} {
					l := sess.LUN(lun)
					got, err := l.BlockSize(t.Context())
					require.NoError(t, err)
					require.Equal(t, bs, got)
					for _, n := range []int{1, bs, 3*bs + 17, 70000, 1<<20 + 512} {
						want := random(n)
						_, err := l.WriteAt(want, 12345)
						require.NoError(t, err)
						b := make([]byte, n)
						_, err = l.ReadAt(b, 12345)
						require.NoError(t, err)
						require.True(t, bytes.Equal(want, b), "%d octets at LUN %d", n, lun)
					}
					require.NoError(t, l.Flush(t.Context()))
				}
				require.NoError(t, sess.Logout(t.Context()))
			})
		}
	})
}

func TestRegisteredBuffers(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t)
		l := sess.LUN(0)
		buf, err := sess.Alloc(64 << 10)
		require.NoError(t, err)
		defer buf.Release()
		want := random(64 << 10)
		copy(buf.Bytes(), want)
		require.NoError(t, l.WriteBuf(t.Context(), 100, 128, buf))
		clear(buf.Bytes())
		require.NoError(t, l.ReadBuf(t.Context(), 100, 128, buf))
		require.True(t, bytes.Equal(want, buf.Bytes()))
	})
}

func TestManyCommandsAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t)
		l := sess.LUN(0)
		_, err := l.WriteAt(random(4<<20), 0)
		require.NoError(t, err)
		const n = 500 // more than the window
		reqs := make([]*initiator.Request, n)
		bufs := make([]iscsi.Buffer, n)
		done := make(chan *initiator.Request, n)
		for i := range reqs {
			bufs[i], err = sess.Alloc(4096)
			require.NoError(t, err)
			reqs[i] = &initiator.Request{Context: i, Done: func(r *initiator.Request) { done <- r }}
			l.PrepareRead(reqs[i], uint64(i*8), 8, 512, bufs[i])
		}
		require.NoError(t, l.TestUnitReady(t.Context()))
		require.NoError(t, l.Submit(reqs...))
		want := random(4 << 20)
		for range reqs {
			r := <-done
			require.NoError(t, r.Err)
			i := r.Context.(int)
			require.True(t, bytes.Equal(want[i*4096:][:4096], bufs[i].Bytes()), "command %d", i)
			bufs[i].Release()
		}
	})
}

func TestWhatTheTargetIs(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t, func(c *initiator.Config) { c.CheckPortalGroup, c.PortalGroup = true, 1 })
		luns, err := sess.ReportLUNs(t.Context())
		require.NoError(t, err)
		require.Equal(t, []uint64{scsi.EncodeLUN(0), scsi.EncodeLUN(300)}, luns)
		l := sess.LUNOf(luns[1])
		inq, err := l.Inquiry(t.Context())
		require.NoError(t, err)
		require.Zero(t, inq.Type)
		page, err := l.VPD(t.Context(), scsi.PageIdentification)
		require.NoError(t, err)
		ids, err := scsi.ParseIdentification(page)
		require.NoError(t, err)
		require.NotEmpty(t, ids)
		c, err := l.Capacity(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, diskSize, c.Size())
		require.NoError(t, l.Reset(t.Context()))
		require.NoError(t, l.TestUnitReady(t.Context()))
		require.NoError(t, sess.Ping(t.Context()))
		_, err = sess.LUN(7).Capacity(t.Context())
		require.ErrorIs(t, err, scsi.CodeLUNotSupported.Err())
		_, err = l.ReadAt(make([]byte, 1), diskSize)
		require.Equal(t, io.EOF, err)
		cdb := scsi.Read(1<<20, 1, 0)
		_, err = l.Do(t.Context(), cdb[:], make([]byte, 4096), nil)
		require.ErrorIs(t, err, scsi.CodeLBAOutOfRange.Err())
		cap10 := scsi.ReadCapacity10()
		res, err := l.Do(t.Context(), cap10[:], make([]byte, 32), nil)
		require.NoError(t, err)
		require.Equal(t, initiator.Result{In: 8, Residual: 24}, res)
	})
}

func TestDiscovery(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		got, err := initiator.Discover(t.Context(), s.dialer, initiator.Config{Addr: s.addr})
		require.NoError(t, err)
		require.Equal(t, []iscsi.TargetInfo{{Name: nodeName, Portals: []iscsi.Portal{{Addr: s.addr, Group: 1, HasGroup: true}}}}, got)
	})
}

func TestRefusals(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		c := s.config()
		c.TargetName = "iqn.2026-11.com.example:nothing"
		_, err := initiator.Login(t.Context(), s.dialer, c)
		require.ErrorIs(t, err, &iscsi.LoginError{Class: 2, Detail: 3})
		c = s.config()
		c.CheckPortalGroup, c.PortalGroup = true, 2
		_, err = initiator.Login(t.Context(), s.dialer, c)
		require.ErrorContains(t, err, "target portal group 1, discovery told 2")
		c = s.config()
		c.TargetName = "IQN.2026-11.com.example:E2E"
		sess, err := initiator.Login(t.Context(), s.dialer, c)
		require.NoError(t, err, "names do not know case")
		require.NoError(t, sess.Logout(t.Context()))
	})
}

func TestReinstatementEndsTheOldSession(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		old := s.login(t, func(c *initiator.Config) { c.ISID = [6]byte{0x80, 1} })
		fresh := s.login(t, func(c *initiator.Config) { c.ISID = [6]byte{0x80, 1} })
		<-old.Done()
		require.ErrorIs(t, old.Err(), iscsi.ErrConnection)
		require.NoError(t, fresh.LUN(0).TestUnitReady(t.Context()))
	})
}

func TestServerShutdownAsksForALogout(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t)
		require.NoError(t, sess.LUN(0).TestUnitReady(t.Context()))
		require.NoError(t, s.server.Shutdown(t.Context()))
		<-sess.Done()
		require.True(t, errors.Is(sess.Err(), initiator.ErrLogoutRequested) || errors.Is(sess.Err(), iscsi.ErrConnection))
	})
}

func TestContextsEndAtAnyMoment(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t)
		l := sess.LUN(0)
		want := random(2 << 20)
		_, err := l.WriteAt(want, 0)
		require.NoError(t, err)
		b := make([]byte, len(want))
		for i := range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
			n, err := l.ReadAtContext(ctx, b, 0)
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.True(t, bytes.Equal(want[:n], b[:n]))
			clear(b) // nothing may be placed any more: the race detector watches
		}
		require.NoError(t, l.TestUnitReady(t.Context()))
		_, err = l.ReadAt(b, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, b))
	})
}

func BenchmarkRead(b *testing.B) {
	for name, serve := range transports {
		for _, size := range []int{4 << 10, 512 << 10} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				s := newSite(b, serve)
				sess := s.login(b)
				l := sess.LUN(0)
				buf, err := sess.Alloc(size)
				require.NoError(b, err)
				defer buf.Release()
				require.NoError(b, l.ReadBuf(b.Context(), 0, uint32(size/512), buf))
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := l.ReadBuf(b.Context(), 0, uint32(size/512), buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
