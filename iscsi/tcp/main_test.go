package tcp

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
	"goiwarp/iscsi/datamovertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns the two ends of a loopback connection.
func connect(t testing.TB) (initiator, target net.Conn) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	initiator, err = new(net.Dialer).DialContext(context.Background(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	target, err = ln.Accept()
	require.NoError(t, err)
	return initiator, target
}

// pairOf makes the suite's pair of two Datamovers.
func pairOf(t testing.TB, i, g *Datamover, headerDigest, dataDigest bool) datamovertest.Pair {
	t.Cleanup(func() {
		for _, d := range []*Datamover{i, g} {
			d.ConnectionTerminate(false)
			<-d.Done()
		}
	})
	return datamovertest.Pair{
		Initiator: i, Target: g,
		Lent: func() int { return i.Lent() + g.Lent() },
		Params: func(p *iscsi.Params, _ bool) {
			p.HeaderDigest, p.DataDigest = headerDigest, dataDigest
		},
	}
}

var suiteConfig = Config{Memory: 4 << 20}

// overTCP makes pairs on loopback.
func overTCP(headerDigest, dataDigest bool) datamovertest.Maker {
	return func(t testing.TB) datamovertest.Pair {
		a, b := connect(t)
		i, g := NewInitiator(a, suiteConfig), NewTarget(b, suiteConfig, nil)
		p := pairOf(t, i, g, headerDigest, dataDigest)
		p.Cut = func() {
			_ = a.(*net.TCPConn).SetLinger(0)
			_ = a.Close()
		}
		return p
	}
}

// overPipe makes pairs on a stream in memory that holds size octets each way.
func overPipe(size int, headerDigest, dataDigest bool) datamovertest.Maker {
	return func(t testing.TB) datamovertest.Pair {
		a, b := sock.MemPipe(size)
		i, g := newOnSocket(a, suiteConfig, false, nil), newOnSocket(b, suiteConfig, true, nil)
		p := pairOf(t, i, g, headerDigest, dataDigest)
		p.Cut = func() { _ = a.Close() }
		return p
	}
}

// plainConn hides everything of a connection but net.Conn.
type plainConn struct{ net.Conn }

// overConn makes pairs on connections that can do no more than a net.Conn.
func overConn(t testing.TB) datamovertest.Pair {
	a, b := connect(t)
	return pairOf(t, NewInitiator(plainConn{a}, suiteConfig), NewTarget(plainConn{b}, suiteConfig, nil), true, true)
}

// overPolled is overTCP with connections that pollers lead.
func overPolled(t testing.TB) datamovertest.Pair {
	a, b := connect(t)
	a, b = sock.NewPoller(time.Millisecond).Lead(a), sock.NewPoller(time.Millisecond).Lead(b)
	p := pairOf(t, NewInitiator(a, suiteConfig), NewTarget(b, suiteConfig, nil), true, true)
	p.Cut = func() {
		_ = a.(interface{ SetLinger(sec int) error }).SetLinger(0)
		_ = a.Close()
	}
	return p
}

func TestDatamover(t *testing.T) {
	t.Run("TCP", func(t *testing.T) { datamovertest.Run(t, overTCP(false, false)) })
	t.Run("TCPWithDigests", func(t *testing.T) { datamovertest.Run(t, overTCP(true, true)) })
	t.Run("Pipe", func(t *testing.T) { datamovertest.Run(t, overPipe(64<<10, false, true)) })
	t.Run("TinyPipe", func(t *testing.T) { datamovertest.Run(t, overPipe(1500, true, false)) })
	t.Run("Polled", func(t *testing.T) { datamovertest.Run(t, overPolled) })
	t.Run("AnyConn", func(t *testing.T) { datamovertest.Run(t, overConn) })
}
