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

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/store"
)

// countedStore counts the writes of each block, and takes its time.
type countedStore struct {
	*store.Memory
	mu     sync.Mutex
	writes map[int64]int
	slow   time.Duration
}

func (s *countedStore) Info() store.Info {
	i := s.Memory.Info()
	i.Blocks = true
	return i
}

func (s *countedStore) pause() {
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	<-time.After(slow)
}

func (s *countedStore) ReadAt(p []byte, off int64) (int, error) {
	s.pause()
	return s.Memory.ReadAt(p, off)
}

func (s *countedStore) WriteAt(p []byte, off int64) (int, error) {
	s.pause()
	s.mu.Lock()
	s.writes[off]++
	s.mu.Unlock()
	return s.Memory.WriteAt(p, off)
}

// cutAll cuts all connections that are there, or the n-th alone.
func (n *simNet) cutAll() {
	n.mu.Lock()
	list := make([]*simConn, 0, len(n.conns))
	for c := range n.conns {
		list = append(list, c)
	}
	n.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// cutOne cuts the oldest connection, or the newest.
func (n *simNet) cutOne(newest bool) {
	n.mu.Lock()
	var found *simConn
	for c := range n.conns {
		if found == nil || (c.id > found.id) == newest {
			found = c
		}
	}
	n.mu.Unlock()
	found.Close()
}

// level2 is a session of a sim that recovers its connections.
func (s *sim) level2(connections int) initiator.Config {
	c := s.config().Session
	c.Addr, c.TargetName = "a:1", nodeName
	c.Settings.ErrorRecoveryLevel, c.Settings.MaxConnections = 2, connections
	c.Settings.UnsolicitedData = true
	c.Settings.MaxRecvDataSegment, c.Settings.FirstBurstLength, c.Settings.MaxBurstLength = 8<<10, 16<<10, 32<<10
	return c
}

// recovering runs f for each transport and for one connection and several.
func recovering(t *testing.T, f func(t *testing.T, s *sim, st *countedStore, connections int)) {
	for _, transport := range []string{"tcp", "iser", "handover"} {
		for _, connections := range []int{1, 3} {
			t.Run(transport+map[int]string{1: "", 3: ", three connections"}[connections], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := prepareSim(t, transport, 8<<20)
					st := &countedStore{Memory: s.store, writes: map[int64]int{}}
					s.disk = st
					s.begin(onePortal)
					defer s.end()
					f(t, s, st, connections)
				})
			})
		}
	}
}

// TestLostConnectionsAreRecovered cuts connections under reads and writes: every command ends well, without a second execution of any write,
// in the session that it was begun in (RFC 7143, sections 7.2.2 and 11.5.6).
func TestLostConnectionsAreRecovered(t *testing.T) {
	recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
		sess, err := initiator.Login(context.Background(), s.dialer, s.level2(connections))
		require.NoError(t, err)
		defer sess.Close()
		require.Equal(t, 2, sess.Params().ErrorRecoveryLevel)
		require.Equal(t, 20, sess.Params().DefaultTime2Retain)
		l := sess.LUN(0)
		require.NoError(t, l.TestUnitReady(context.Background()))
		st.mu.Lock()
		st.slow, st.writes = 300*time.Millisecond, map[int64]int{}
		st.mu.Unlock()
		const clients, each, size = 12, 6, 48 << 10
		var wg sync.WaitGroup
		for w := range clients {
			wg.Go(func() {
				b := make([]byte, size)
				for i := range each {
					off := int64(w*each+i) * size
					want := bytes.Repeat([]byte{byte(w + 1), byte(i + 1)}, size/2)
					if _, err := l.WriteAt(want, off); err != nil {
						t.Errorf("client %d: write %d: %v", w, i, err)
						return
					}
					if _, err := l.ReadAt(b, off); err != nil || !bytes.Equal(want, b) {
						t.Errorf("client %d: read %d: %v", w, i, err)
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for k := 0; ; k++ {
			select {
			case <-done:
			case <-time.After(time.Duration(400+k*37) * time.Millisecond):
				s.net.cutAll()
				<-time.After(6 * time.Second)
				continue
			}
			break
		}
		<-time.After(20 * time.Second)
		require.NoError(t, sess.Err(), s.net.story())
		require.Positive(t, sess.Recovered())
		require.Equal(t, s.iser, sess.Info().RDMA)
		require.Equal(t, connections, sess.Connections())
		require.Len(t, s.node.Load().Status().Sessions, 1)
		st.mu.Lock()
		for off, n := range st.writes {
			if n != 1 {
				t.Errorf("%d writes at %d", n, off)
			}
		}
		st.mu.Unlock()
		require.NoError(t, sess.Logout(context.Background()))
	})
}

// TestTheOtherConnectionsTakeTheTasks cuts one connection of three, the leading one and another: those that are left log it out for recovery and
// take its tasks (RFC 7143, sections 7.1.4.3 and 11.14), and the session gets its third one back.
func TestTheOtherConnectionsTakeTheTasks(t *testing.T) {
	for name, newest := range map[string]bool{"the leading one": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
				if connections == 1 {
					t.Skip("nobody is left")
				}
				var mu sync.Mutex
				logouts := 0
				cfg := s.level2(connections)
				cfg.Hooks.PDU = func(sent bool, p *iscsi.PDU) {
					if sent && p.Opcode() == iscsi.OpLogoutReq && iscsi.LogoutRequest(p.BHS[:]).Reason() == iscsi.LogoutRecovery {
						mu.Lock()
						logouts++
						mu.Unlock()
					}
				}

				sess, err := initiator.Login(context.Background(), s.dialer, cfg)
				require.NoError(t, err)
				defer sess.Close()
				l := sess.LUN(0)
				require.NoError(t, l.TestUnitReady(context.Background()))
				st.mu.Lock()
				st.slow, st.writes = time.Second, map[int64]int{}
				st.mu.Unlock()
				var wg sync.WaitGroup
				for w := range 9 {
					wg.Go(func() {
						b := bytes.Repeat([]byte{byte(w)}, 64<<10)
						_, err := l.WriteAt(b, int64(w)<<16)
						if err == nil {
							_, err = l.ReadAt(b, int64(w)<<16)
						}
						if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(w)}, 64<<10)) {
							t.Errorf("client %d: %v", w, err)
						}
					})
				}
				<-time.After(200 * time.Millisecond)
				s.net.cutOne(newest)
				wg.Wait()
				<-time.After(10 * time.Second)
				require.NoError(t, sess.Ping(context.Background()))
				require.Equal(t, 3, sess.Connections())
				require.EqualValues(t, 1, sess.Recovered())
				mu.Lock()
				require.Equal(t, 1, logouts)
				mu.Unlock()
				for off, n := range st.writes {
					require.Equal(t, 1, n, "writes at %d", off)
				}
				require.NoError(t, sess.Logout(context.Background()))
			})
		})
	}
}

// TestRecoveryHasItsTime: when no connection can be had within Time2Wait and Time2Retain the session ends, with both reasons; a Disk
// goes on with another.
func TestRecoveryHasItsTime(t *testing.T) {
	recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
		cfg := s.level2(connections)
		cfg.Settings.DefaultTime2Wait, cfg.Settings.DefaultTime2Retain = 1, 7
		sess, err := initiator.Login(context.Background(), s.dialer, cfg)
		require.NoError(t, err)
		l := sess.LUN(0)
		require.NoError(t, l.TestUnitReady(context.Background()))
		begun := time.Now()
		s.net.unplug("a:1")
		_, err = l.ReadAt(make([]byte, 512), 0)
		require.ErrorIs(t, err, iscsi.ErrConnection)
		var e *initiator.RecoveryError
		require.ErrorAs(t, err, &e)
		p := sess.Params() // the target asks for a Time2Wait of 2
		require.Equal(t, time.Duration(p.DefaultTime2Wait+p.DefaultTime2Retain)*time.Second, time.Since(begun).Round(time.Second))
		<-sess.Done()
		s.net.plug("a:1")
		require.Zero(t, sess.Recovered())
	})
}

// TestRefusedRecoveryReplacesTheSession: a target that has forgotten the session says no, and a Disk logs in anew at once.
func TestRefusedRecoveryReplacesTheSession(t *testing.T) {
	recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
		cfg := initiator.DiskConfig{Session: s.level2(connections)}
		d := s.open(cfg, onePortal...)
		defer d.Close()
		_, err := d.WriteAt(block(7), 0)
		require.NoError(t, err)
		begun := time.Now()
		s.restart()
		b := make([]byte, 512)
		_, err = d.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, block(7), b)
		require.Less(t, time.Since(begun), 12*time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, d.Stats().Lost)
	})
}

// TestDiskDoesNotHearOfRecovery: a Disk's session is the same after its connection was cut.
func TestDiskDoesNotHearOfRecovery(t *testing.T) {
	recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
		d := s.open(initiator.DiskConfig{Session: s.level2(connections)}, onePortal...)
		defer d.Close()
		for i := range 5 {
			_, err := d.WriteAt(block(byte(i)), 0)
			require.NoError(t, err)
			s.net.cutAll()
			b := make([]byte, 512)
			_, err = d.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, block(byte(i)), b)
		}
		require.Equal(t, initiator.DiskStats{}, d.Stats(), s.net.story())
	})
}

// TestRequestsInRecovery: pings and aborts wait for a connection, memory is lent, and a context ends its command when there is one.
func TestRequestsInRecovery(t *testing.T) {
	recovering(t, func(t *testing.T, s *sim, st *countedStore, connections int) {
		sess, err := initiator.Login(context.Background(), s.dialer, s.level2(connections))
		require.NoError(t, err)
		defer sess.Close()
		l := sess.LUN(0)
		require.NoError(t, l.TestUnitReady(context.Background()))
		st.mu.Lock()
		st.slow = 30 * time.Second
		st.mu.Unlock()
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		wg.Go(func() {
			if _, err := l.ReadAtContext(ctx, make([]byte, 4096), 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
		})
		<-time.After(100 * time.Millisecond)
		s.net.cutAll()
		synctest.Wait()
		require.Zero(t, sess.Connections())
		b, err := sess.Alloc(4096)
		require.NoError(t, err)
		require.Len(t, b.Bytes(), 4096)
		b.Release()
		begun := time.Now()
		require.NoError(t, sess.Ping(context.Background()))
		require.Greater(t, time.Since(begun), time.Second)
		wg.Wait()
		require.Less(t, time.Since(begun), 15*time.Second)
		require.NoError(t, sess.Err())
	})
}
