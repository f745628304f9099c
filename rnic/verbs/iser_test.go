//go:build verbs && cgo && linux

package verbs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/datamovertest"
	"goiwarp/iser"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// patience bounds waits that end at once when the code is right.
const patience = time.Minute

// TestDatamover runs iSER over the device, and between it and the one in software: from pooled and registered buffers,
// since user space has no windows.
func TestDatamover(t *testing.T) {
	_, addr := address(t)
	inSoftware := func(t testing.TB) rnic.Device {
		d := soft.New(soft.Config{})
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return d
	}
	for _, c := range []struct {
		name              string
		initiator, target func(testing.TB) rnic.Device
		mixed             bool
	}{
		{"both", newDevice, newDevice, false},
		{"soft initiator", inSoftware, newDevice, true},
		{"soft target", newDevice, inSoftware, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mixed && !isIWARP(newDevice(t)) {
				t.Skip("the device does not speak iWARP")
			}
			datamovertest.Run(t, func(t testing.TB) datamovertest.Pair {
				return datamoverPair(t, c.initiator(t), c.target(t), addr)
			})
		})
	}
}

// datamoverPair connects two Datamovers.
func datamoverPair(t testing.TB, iDev, gDev rnic.Device, addr string) datamovertest.Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	domain := func(d rnic.Device) *iser.Domain {
		dom, err := iser.NewDomain(d, iser.DomainConfig{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dom.Close(), "everything was given back: %+v", dom.Stats()) })
		return dom
	}
	iDom, gDom := domain(iDev), domain(gDev)
	ln, err := gDev.Listen(ctx, addr, nil)
	require.NoError(t, err)
	defer ln.Close()
	type accepted struct {
		dm  *iser.Datamover
		err error
	}
	done := make(chan accepted, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err != nil {
			done <- accepted{nil, err}
			return
		}
		dm, err := iser.Accept(ctx, req, iser.Config{Domain: gDom})
		done <- accepted{dm, err}
	}()
	i, err := iser.Dial(ctx, iDev, ln.Addr().String(), iser.Config{Domain: iDom})
	require.NoError(t, err)
	g := <-done
	require.NoError(t, g.err)
	return datamovertest.Pair{
		Initiator: i, Target: g.dm,
		Lent: func() int { return iDom.Stats().BuffersLent + gDom.Stats().BuffersLent },
	}
}
