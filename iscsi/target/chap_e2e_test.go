package target

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/store"
)

func tryLogin(p portal, change func(*initiator.Config)) (*initiator.Session, error) {
	cfg := initiator.Config{Addr: p.addr, TargetName: targetName, InitiatorName: initiatorName}
	change(&cfg)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return initiator.Login(ctx, p.dialer, cfg)
}

// TestCHAPEndToEnd logs the initiator of this module in over both transports: one-way, mutual, with each algorithm, and with
// what is wrong.
func TestCHAPEndToEnd(t *testing.T) {
	transports(t, func(t *testing.T, s *Server, p portal, _ *store.Memory) {
		require.NoError(t, s.SetAccess(targetName, &Access{Rules: []AccessRule{aliceRule(t)}}))
		alice, disk := credentials(t, "alice", aliceSecret), credentials(t, "disk", diskSecret)
		for _, mutual := range []iscsi.Credentials{{}, disk, {Secret: disk.Secret}} {
			for _, a := range iscsi.CHAPAlgorithms() {
				ss, err := tryLogin(p, func(c *initiator.Config) {
					c.CHAP = iscsi.CHAPInitiatorConfig{Credentials: alice, Mutual: mutual, Algorithms: []iscsi.CHAPAlgorithm{a}}
				})
				require.NoError(t, err)
				_, err = ss.ReportLUNs(context.Background())
				require.NoError(t, err)
				require.NoError(t, ss.Logout(context.Background()))
			}
		}
		for want, chap := range map[string]iscsi.CHAPInitiatorConfig{
			"no credentials are configured": {},
			"0201 (authentication failure)": {Credentials: credentials(t, "alice", "a wrong guess")},
			"does not know its secret":      {Credentials: alice, Mutual: credentials(t, "disk", "another secret")},
			"is \"disk\", not \"tape\"":     {Credentials: alice, Mutual: iscsi.Credentials{User: "tape", Secret: disk.Secret}},
			"one in both directions":        {Credentials: alice, Mutual: iscsi.Credentials{User: "disk", Secret: alice.Secret}},
		} {
			_, err := tryLogin(p, func(c *initiator.Config) { c.CHAP = chap })
			if want == "one in both directions" {
				require.ErrorIs(t, err, iscsi.ErrSecret)
				continue
			}
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), aliceSecret)
		}
		// A target that asks for nothing is not gone along with, unless that was said.
		require.NoError(t, s.SetAccess(targetName, nil))
		_, err := tryLogin(p, func(c *initiator.Config) { c.CHAP.Credentials = alice })
		require.ErrorIs(t, err, &iscsi.LoginError{Class: 2, Detail: 1})
		ss, err := tryLogin(p, func(c *initiator.Config) { c.CHAP.Credentials, c.AllowNone = alice, true })
		require.NoError(t, err)
		require.NoError(t, ss.Logout(context.Background()))
	})
}

// TestAccessOverBothTransports runs one matrix of names and addresses over TCP and over iSER: the same verdict and status.
func TestAccessOverBothTransports(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")
	transports(t, func(t *testing.T, s *Server, p portal, _ *store.Memory) {
		for name, c := range map[string]struct {
			rules []AccessRule
			want  bool
		}{
			"none":          {nil, false},
			"any":           {[]AccessRule{{}}, true},
			"name":          {[]AccessRule{{Initiators: []string{initiatorName}}}, true},
			"wrong name":    {[]AccessRule{{Initiators: []string{otherName}}}, false},
			"address":       {[]AccessRule{{Networks: []netip.Prefix{v4}}}, true},
			"wrong address": {[]AccessRule{{Networks: []netip.Prefix{v6}}}, false},
			"both":          {[]AccessRule{{Initiators: []string{"*:host"}, Networks: []netip.Prefix{v6, v4}}}, true},
		} {
			require.NoError(t, s.SetAccess(targetName, &Access{Rules: c.rules}))
			ss, err := tryLogin(p, func(*initiator.Config) {})
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			found, derr := initiator.Discover(ctx, p.dialer, initiator.Config{Addr: p.addr, InitiatorName: initiatorName})
			cancel()
			require.NoError(t, derr)
			if !c.want {
				require.ErrorIs(t, err, &iscsi.LoginError{Class: 2, Detail: 2}, name)
				require.Empty(t, found, name)
				continue
			}
			require.NoError(t, err, name)
			require.Len(t, found, 1, name)
			require.NoError(t, ss.Logout(context.Background()))
		}
	})
}

// TestRedirectionEndToEnd: the initiator follows to the other portal, and gives up where two send it to each other.
func TestRedirectionEndToEnd(t *testing.T) {
	newOne := func() (*Server, portal) {
		s := newServer(t, func(c *Config) { c.LogoutWait = 10 * time.Millisecond }, memory(t, 1<<20))
		p := overTCP(t, s)
		t.Cleanup(func() { require.NoError(t, s.Shutdown(context.Background())) })
		return s, p
	}
	a, pa := newOne()
	b, pb := newOne()
	require.NoError(t, a.SetRedirect(targetName, &Redirect{Address: pb.addr}))
	ss, err := tryLogin(pa, func(*initiator.Config) {})
	require.NoError(t, err)
	require.Len(t, b.Status().Sessions, 1)
	require.Empty(t, a.Status().Sessions)
	require.NoError(t, ss.Logout(context.Background()))
	require.NoError(t, b.SetRedirect(targetName, &Redirect{Address: pa.addr, Permanent: true}))
	_, err = tryLogin(pa, func(*initiator.Config) {})
	require.ErrorContains(t, err, "redirections")

	// A login that the target's own name for itself would send in a circle is taken where it came in.
	_, port, err := net.SplitHostPort(pa.addr)
	require.NoError(t, err)
	require.NoError(t, a.SetRedirect(targetName, &Redirect{Address: "127.0.0.1:" + port}))
	ss, err = tryLogin(pa, func(*initiator.Config) {})
	require.NoError(t, err)
	require.NoError(t, ss.Logout(context.Background()))
}
