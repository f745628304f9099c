package initiator_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/portaltest"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

func init() { transports["handover"] = serveHandover }

// domain is a software device with its domain, of which nothing may be left at the end.
func domain(t testing.TB, name string) *iser.Domain {
	dev := soft.New(soft.Config{Name: name})
	d, err := iser.NewDomain(dev, iser.DomainConfig{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close(), "everything was given back: %+v", d.Stats())
		require.NoError(t, dev.Close())
	})
	return d
}

func plainTarget(c net.Conn) iscsi.Datamover    { return tcp.NewTarget(c, tcp.Config{}, nil) }
func plainInitiator(c net.Conn) iscsi.Datamover { return tcp.NewInitiator(c, tcp.Config{}) }

// serveHandover serves a site in RFC 7145's order, which plain iSCSI shares the port with.
func serveHandover(t testing.TB, s *site) {
	far := domain(t, "target")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	mover := func(c net.Conn) iscsi.Datamover {
		h, err := iser.NewTargetHandover(c, nil, iser.HandoverConfig{Config: iser.Config{Domain: far}, Plain: plainTarget})
		require.NoError(t, err)
		return h
	}
	wait := portaltest.Streams(ln, mover, s.serve)
	t.Cleanup(func() {
		require.NoError(t, ln.Close())
		wait()
	})
	s.addr = ln.Addr().String()
	s.dialer = &iser.HandoverDialer{Config: iser.HandoverConfig{Config: iser.Config{Domain: domain(t, "initiator")}, Plain: plainInitiator}}
}

// TestHandover: which mode a session ends in, with all keys of RFC 7145 (sections 5.1 and 6).
func TestHandover(t *testing.T) {
	s := newSite(t, serveHandover)
	keys := func(c *initiator.Config) {
		c.Settings.ISERHelloRequired = true
		c.Settings.TaggedBufferForSolicitedDataOnly = true
		c.Settings.UnsolicitedData = true
		c.Settings.InitiatorRecvDataSegment, c.Settings.TargetRecvDataSegment = 4096, 2048
		c.Settings.MaxOutstandingUnexpectedPDUs, c.Settings.MaxAHSLength = 7, 64
		c.Settings.HeaderDigest, c.Settings.DataDigest = []string{"CRC32C", "None"}, []string{"CRC32C", "None"}
		c.Settings.RequireRDMA = true
	}
	for name, change := range map[string]func(*initiator.Config){"defaults": func(*initiator.Config) {}, "all keys": keys} {
		t.Run(name, func(t *testing.T) {
			sess := s.login(t, change)
			p := sess.Params()
			require.True(t, p.RDMAExtensions)
			require.False(t, p.HeaderDigest)
			require.False(t, p.DataDigest)
			info := sess.Info()
			require.Equal(t, "iser", info.Transport)
			require.True(t, info.RDMA)
			require.Contains(t, info.Facts, iscsi.Fact{Layer: "iser", Name: "peer", Value: "no iSER CM header"})
			require.Contains(t, info.Facts, iscsi.Fact{Layer: "link", Name: "mpa role", Value: "initiator"})
			require.Contains(t, info.Facts, iscsi.Fact{Layer: "iser", Name: "write base offset", Value: iser.WriteBaseRFC.String()})
			if name == "all keys" {
				require.Equal(t, 2048, p.TargetRecvDataSegmentLength)
				require.Equal(t, 4096, p.InitiatorRecvDataSegmentLength)
				require.True(t, p.ISERHelloRequired)
				require.True(t, p.TaggedBufferForSolicitedDataOnly)
			}
			roundTrip(t, sess)
			require.NoError(t, sess.Logout(t.Context()))
		})
	}
	t.Run("a plain initiator", func(t *testing.T) {
		plain := *s
		plain.dialer = &tcp.Dialer{}
		sess := plain.login(t, func(c *initiator.Config) { c.Settings.HeaderDigest = []string{"CRC32C"} })
		require.False(t, sess.Params().RDMAExtensions)
		require.True(t, sess.Params().HeaderDigest)
		roundTrip(t, sess)
	})
	t.Run("several connections", func(t *testing.T) { // all in the mode of the first
		sess := s.login(t, func(c *initiator.Config) { c.Settings.MaxConnections, c.Settings.ErrorRecoveryLevel = 3, 2 })
		require.Equal(t, 3, sess.Connections())
		roundTrip(t, sess)
		require.NoError(t, sess.Logout(t.Context()))
	})
	t.Run("discovery stays plain", func(t *testing.T) {
		c := s.config()
		found, err := initiator.Discover(t.Context(), s.dialer, c)
		require.NoError(t, err)
		require.Len(t, found, 1)
	})
}

// TestHandoverRefused: a target without RDMA makes a plain session of it, with the digests and lengths of one, unless the initiator
// insists.
func TestHandoverRefused(t *testing.T) {
	s := newSite(t, serveTCP)
	s.dialer = &iser.HandoverDialer{Config: iser.HandoverConfig{Config: iser.Config{Domain: domain(t, "initiator")}, Plain: plainInitiator}}
	sess := s.login(t, func(c *initiator.Config) {
		c.Settings.DataDigest = []string{"CRC32C"}
		c.Settings.MaxRecvDataSegment = 16384
	})
	require.Equal(t, "tcp", sess.Info().Transport)
	require.False(t, sess.Params().RDMAExtensions)
	require.True(t, sess.Params().DataDigest)
	require.Equal(t, 16384, sess.Params().MaxRecvDataSegment)
	roundTrip(t, sess)

	c := s.config()
	c.Settings.RequireRDMA = true
	_, err := initiator.Login(t.Context(), s.dialer, c)
	require.ErrorIs(t, err, iscsi.ErrNoRDMA)

	s.dialer = &iser.HandoverDialer{Config: iser.HandoverConfig{Config: iser.Config{Domain: domain(t, "insisting")}}}
	_, err = initiator.Login(t.Context(), s.dialer, s.config())
	require.ErrorIs(t, err, iscsi.ErrNoRDMA, "nobody would go on without RDMA")
}

// roundTrip writes and reads a pattern that has immediate, unsolicited and solicited data.
func roundTrip(t *testing.T, sess *initiator.Session) {
	t.Helper()
	lun := sess.LUN(0)
	for i, n := range []int{512, 8192, 66048, 1 << 20} {
		want, got := random(n), make([]byte, n)
		_, err := lun.WriteAtContext(t.Context(), want, 512*int64(i))
		require.NoError(t, err)
		_, err = lun.ReadAtContext(t.Context(), got, 512*int64(i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%d octets", n)
	}
}
