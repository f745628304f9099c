package target

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// halfLogin begins a login and leaves it at that.
func halfLogin(t *testing.T, s *Server, isid byte) *peer {
	t.Helper()
	p := connect(t, s)
	p.isid[5] = isid
	pdu := p.loginRequest(normalKeys()...)
	iscsi.LoginRequest(pdu.BHS[:]).SetTransit(false)
	iscsi.LoginRequest(pdu.BHS[:]).SetNSG(0)
	p.inject(pdu)
	p.pdu(iscsi.OpLoginRsp)
	synctest.Wait()
	return p
}

// TestLoginsCrowd: logins that stop halfway, or do not begin, are dropped, oldest first, for newer ones; nobody is shut out,
// sessions are left alone, and the log is not filled.
func TestLoginsCrowd(t *testing.T) {
	var log bytes.Buffer
	change := func(c *Config) {
		c.Limits.Logins = 3
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	inBubble(t, change, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		first := connect(t, s).disk()
		silent := connect(t, s)
		synctest.Wait()
		var half []*peer
		for i := range 2 {
			half = append(half, halfLogin(t, s, byte(i)))
		}
		require.Equal(t, 3, s.Status().LoggingIn)

		p := connect(t, s)
		require.ErrorIs(t, silent.ended(), ErrLoginCrowded)
		p.isid[5] = 99
		p.login(normalKeys()...)
		synctest.Wait()
		require.Equal(t, 2, s.Status().LoggingIn, "one that is done makes room")
		half = append(half, halfLogin(t, s, 2))
		for i := range 100 {
			half = append(half, halfLogin(t, s, byte(3+i)))
			require.ErrorIs(t, half[i].ended(), ErrLoginCrowded)
			require.Equal(t, 3, s.Status().LoggingIn)
		}
		require.Equal(t, 1, strings.Count(log.String(), "too many logins"), "%s", log.String())
		log.Reset()
		time.Sleep(crowdInterval)
		halfLogin(t, s, 200)
		require.Contains(t, log.String(), "dropped=101")

		require.Len(t, s.Status().Sessions, 2)
		first.leave()
		p.leave()
	})
}

// TestLoginsCrowdSparesTheAgreed: a login that only waits for the end of the session that it reinstates is no longer in the
// crowd, but has a bound as well.
func TestLoginsCrowdSparesTheAgreed(t *testing.T) {
	change := func(c *Config) { c.Limits.Logins, c.Limits.Sessions = 1, 2 }
	synctest.Test(t, func(t *testing.T) {
		slow := storetest.Delay(memory(t, 1<<20))
		s := newServer(t, change, slow)
		old := connect(t, s)
		old.login(normalKeys()...)
		old.settle(0)
		slow.Hold(storetest.Write)
		old.command(cmd{cdb: write10(0, 8), write: pattern(4096, 1)})
		<-slow.Arrived()
		waiting := make([]*peer, 2)
		for i := range waiting {
			waiting[i] = connect(t, s)
			waiting[i].inject(waiting[i].loginRequest(normalKeys()...))
			synctest.Wait()
		}
		require.Equal(t, 2, s.Status().LoggingIn)
		p := connect(t, s)
		require.Equal(t, iscsi.LoginNoResources, p.status(p.loginRequest(normalKeys()...)))
		half := halfLogin(t, s, 9)
		halfLogin(t, s, 10)
		require.ErrorIs(t, half.ended(), ErrLoginCrowded)
		require.Empty(t, waiting[0].sent)

		slow.Release()
		synctest.Wait()
		require.Len(t, s.Status().Sessions, 1)
		require.NoError(t, s.Shutdown(context.Background()))
		synctest.Wait()
		require.Zero(t, s.Status().LoggingIn)
	})
}
