package initiator_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// stoppable is a target's end that can fall silent with its connection up, as a stopped process does.
type stoppable struct {
	iscsi.Datamover
	iscsi.Notifier
	stopped *atomic.Bool
}

func (s *stoppable) Start(n iscsi.Notifier) {
	s.Notifier = n
	s.Datamover.Start(s)
}

func (s *stoppable) ControlNotify(p *iscsi.PDU) {
	if s.stopped.Load() {
		p.Release()
		return
	}
	s.Notifier.ControlNotify(p)
}

// dialFunc is an iscsi.Dialer.
type dialFunc func(ctx context.Context, addr string) (iscsi.Datamover, error)

func (f dialFunc) Dial(ctx context.Context, addr string) (iscsi.Datamover, error) {
	return f(ctx, addr)
}

// inMemory are ways to a target over a network in memory, for virtual time. They give the target's end to serve, and close
// what they have opened in the end.
var inMemory = map[string]func(t *testing.T, network *soft.MemNetwork, serve func(iscsi.Datamover)) (iscsi.Dialer, func()){
	"tcp": func(t *testing.T, network *soft.MemNetwork, serve func(iscsi.Datamover)) (iscsi.Dialer, func()) {
		ln, err := network.Listen(t.Context(), "target:3260")
		require.NoError(t, err)
		go func() {
			var c net.Conn
			if c, err = ln.Accept(); err == nil {
				serve(tcp.NewTarget(c, tcp.Config{}, nil))
			}
		}()
		return dialFunc(func(ctx context.Context, addr string) (iscsi.Datamover, error) {
			c, err := network.Dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return tcp.NewInitiator(c, tcp.Config{}), nil
		}), func() { require.NoError(t, ln.Close()) }
	},
	"iser": func(t *testing.T, network *soft.MemNetwork, serve func(iscsi.Datamover)) (iscsi.Dialer, func()) {
		near, far := soft.New(soft.Config{Network: network}), soft.New(soft.Config{Network: network})
		nearDomain, err := iser.NewDomain(near, iser.DomainConfig{})
		require.NoError(t, err)
		farDomain, err := iser.NewDomain(far, iser.DomainConfig{})
		require.NoError(t, err)
		ln, err := far.Listen(t.Context(), "target:3260", nil)
		require.NoError(t, err)
		go func() {
			req, err := ln.Accept(t.Context())
			if err != nil {
				return
			}
			if dm, err := iser.Accept(t.Context(), req, iser.Config{Domain: farDomain}); err == nil {
				serve(dm)
			}
		}()
		return &iser.Dialer{Domain: nearDomain}, func() {
			require.NoError(t, ln.Close())
			require.NoError(t, nearDomain.Close())
			require.NoError(t, farDomain.Close())
			require.NoError(t, near.Close())
			require.NoError(t, far.Close())
		}
	},
}

// TestStoppedTargetIsNoticed: with either Datamover, a target that answers pings is kept for as long as one likes, and one that is stopped
// fails the command under way.
func TestStoppedTargetIsNoticed(t *testing.T) {
	for name, open := range inMemory {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stopped atomic.Bool
				site := newSite(t, func(testing.TB, *site) {})
				served := make(chan struct{})
				dialer, closeAll := open(t, soft.NewMemNetwork(soft.MemConfig{}), func(dm iscsi.Datamover) {
					_ = site.server.Serve(&stoppable{Datamover: dm, stopped: &stopped}, target.PortalInfo{})
					close(served)
				})
				s, err := initiator.Login(t.Context(), dialer, initiator.Config{Addr: "target:3260", TargetName: nodeName})
				require.NoError(t, err)
				lun := s.LUN(0)
				_, err = lun.WriteAt(random(1<<20), 0)
				require.NoError(t, err)
				time.Sleep(time.Hour)
				require.NoError(t, lun.TestUnitReady(t.Context()))
				stopped.Store(true)
				began := time.Now()
				_, err = lun.ReadAt(make([]byte, 1<<20), 0)
				require.ErrorIs(t, err, initiator.ErrDeadTarget)
				require.LessOrEqual(t, time.Since(began), 2*initiator.DefaultPingInterval+initiator.DefaultPingTimeout)
				<-s.Done()
				<-served
				closeAll()
			})
		})
	}
}
