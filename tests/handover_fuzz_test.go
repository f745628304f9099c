package tests

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iser"
)

// FuzzTargetHandover throws octets at a target in place of what an initiator says at a stage of the handover. Whatever they are, the
// connection comes to its end and leaves nothing behind.
func FuzzTargetHandover(f *testing.F) {
	talk := toTarget(true)
	for n := 0; n < len(talk); n += 2 {
		f.Add(uint8(n), talk[n].what)
		f.Add(uint8(n), append(append([]byte(nil), talk[n].what...), mpaRequest...))
	}
	f.Fuzz(func(t *testing.T, stage uint8, b []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t, iser.DomainConfig{})
			near, far := w.pipe(t)
			s, result := w.serve(t, far)
			play(t, near, until(talk, int(stage)%len(talk)&^1), 'I', 0, false)
			say(near, b)
			select {
			case <-result:
			case <-time.After(time.Minute):
				t.Error("the connection does not end")
			}
			require.NoError(t, s.Shutdown(context.Background()))
			w.end()
		})
	})
}

// FuzzInitiatorHandover does the same to an initiator.
func FuzzInitiatorHandover(f *testing.F) {
	talk := toInitiator(true)
	for n := 1; n < len(talk); n += 2 {
		f.Add(uint8(n), talk[n].what)
		f.Add(uint8(n), append(append([]byte(nil), talk[n].what...), mpaReply...))
	}
	f.Fuzz(func(t *testing.T, stage uint8, b []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t, iser.DomainConfig{})
			near, far := w.pipe(t)
			go func() {
				play(t, far, until(talk, int(stage)%len(talk)|1), 'T', 0, false)
				say(far, b)
			}()
			cfg := wireConfig()
			cfg.Settings.ISERHelloRequired = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if s, err := initiator.Login(ctx, dialed{near, w.config()}, cfg); err == nil {
				s.Close()
			}
			synctest.Wait()
			w.end()
		})
	})
}

// say writes b, hears whatever comes meanwhile, and hangs up.
func say(conn io.ReadWriteCloser, b []byte) {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		_, _ = io.Copy(io.Discard, conn)
	}()
	_, _ = io.Copy(conn, bytes.NewReader(b))
	_ = conn.Close()
	<-heard
}
