package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
)

func TestCommandsSpreadOverTheConnectionsOfASession(t *testing.T) { // RFC 7143, sections 4.2.5 and 6.3.3
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		cfg := s.config()
		cfg.Session.Addr, cfg.Session.TargetName = "a:1", nodeName
		cfg.Session.Settings.MaxConnections = 4
		cfg.Session.PingInterval = -1
		sess, err := initiator.Login(context.Background(), s.dialer, cfg.Session)
		require.NoError(t, err)
		defer sess.Close()
		require.Equal(t, 4, sess.Connections())
		require.Len(t, s.node.Load().Status().Sessions, 1)
		l := sess.LUN(0)
		require.NoError(t, l.TestUnitReady(context.Background()))
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				b := make([]byte, 16<<10)
				for i := range 20 {
					want := bytes.Repeat([]byte{byte(w), byte(i)}, len(b)/2)
					_, err := l.WriteAt(want, int64(w)*int64(len(b)))
					if err == nil {
						_, err = l.ReadAt(b, int64(w)*int64(len(b)))
					}
					if err != nil || !bytes.Equal(want, b) {
						t.Errorf("client %d: %v", w, err)
						return
					}
				}
			})
		}
		wg.Wait()
		for i := range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*10*time.Microsecond)
			_, err := l.ReadAtContext(ctx, make([]byte, 64<<10), 0)
			cancel()
			require.True(t, err == nil || errors.Is(err, context.DeadlineExceeded), "%v", err)
		}
		// The target pings each connection when it is silent.
		<-time.After(2 * time.Minute)
		require.NoError(t, l.TestUnitReady(context.Background()))
		require.NoError(t, sess.Logout(context.Background()))
	})
}

func TestDiskWithSeveralConnectionsPerSession(t *testing.T) {
	simulated(t, onePortal, func(t *testing.T, s *sim) {
		cfg := s.config()
		cfg.Session.Settings.MaxConnections = 3
		d := s.open(cfg, onePortal...)
		defer d.Close()
		for i := range 10 {
			_, err := d.WriteAt(block(byte(i)), 0)
			require.NoError(t, err)
			synctest.Wait()
			s.net.mu.Lock()
			require.Len(t, s.net.conns, 3)
			var one *simConn
			for c := range s.net.conns { // any of them
				one = c
			}
			s.net.mu.Unlock()
			one.Close()
			b := make([]byte, 512)
			_, err = d.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, block(byte(i)), b)
			synctest.Wait()
		}
	})
}
