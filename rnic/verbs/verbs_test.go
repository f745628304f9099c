//go:build verbs && cgo && linux

package verbs_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/rnic"
	"goiwarp/rnic/rnictest"
	"goiwarp/rnic/soft"
	"goiwarp/rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// address is where a device can listen; the environment names both: VERBS_DEVICE=siw0 VERBS_ADDR=192.0.2.1:0.
func address(t testing.TB) (device, addr string) {
	t.Helper()
	device, addr = os.Getenv("VERBS_DEVICE"), os.Getenv("VERBS_ADDR")
	if device == "" || addr == "" {
		t.Skip("no RDMA device: name one with VERBS_DEVICE, and an address of its interface with VERBS_ADDR=ADDRESS:0")
	}
	return device, addr
}

// newDevice opens the device; the test's end closes it.
func newDevice(t testing.TB) rnic.Device {
	t.Helper()
	name, _ := address(t)
	d, err := verbs.Open(verbs.Config{Name: name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// isIWARP says whether the device speaks iWARP.
func isIWARP(d rnic.Device) bool { return d.Attributes().Caps.Has(rnic.CapReadSinkNeedsRemoteWrite) }

// deviations are what the verbs, or the devices that are known here, cannot do as the suite asks.
func deviations(p *rnictest.Provider, d rnic.Device) {
	// The kernel keeps siw's Terminate Messages to itself; on RoCE the side that refuses is told nothing.
	p.SilentTerminate = true
	p.Deviations = map[string]string{
		"Send/Solicited": "completions of the verbs do not tell whether a message asked for an event",
	}
	if isIWARP(d) {
		p.Deviations["Memory/RemoteRights/read/without"] = "siw checks a Read Request against the region's bounds, not against its rights"
		p.Deviations["Connect/IRDAndORD"] = "siw raises its IRD to the peer's ORD"
	} else {
		p.Deviations["Send/TooLong"] = "rxe tells the receiver of an operation error, not of a length error"
	}
}

func TestConformance(t *testing.T) {
	_, addr := address(t)
	rnictest.Run(t, func(t *testing.T) rnictest.Provider {
		d := newDevice(t)
		p := rnictest.Provider{Client: d, Server: d, Addr: addr}
		deviations(&p, d)
		if !isIWARP(d) {
			// InfiniBand's connection manager opens both directions by itself.
			p.Options = &rnic.LinkOptions{PeerToPeer: rnic.On}
		}
		return p
	})
}

// TestBesideSoft lets this provider's device and the one in software talk to each other.
func TestBesideSoft(t *testing.T) {
	_, addr := address(t)
	for _, c := range []struct {
		name   string
		client bool // the device under test dials
	}{{"soft dials", false}, {"soft listens", true}} {
		t.Run(c.name, func(t *testing.T) {
			rnictest.Run(t, func(t *testing.T) rnictest.Provider {
				d := newDevice(t)
				if !isIWARP(d) {
					t.Skip("the device does not speak iWARP")
				}
				s := soft.New(soft.Config{Without: rnic.CapWindows | rnic.CapLocalInvalidate | rnic.CapImmediate | rnic.CapAtomics | rnic.CapZeroBased | rnic.CapAnyMemory | rnic.CapWindowSGE})
				t.Cleanup(func() { require.NoError(t, s.Close()) })
				p := rnictest.Provider{Client: s, Server: d, Addr: addr}
				deviations(&p, d)
				if c.client {
					p.Client, p.Server = d, s
				}
				return p
			})
		})
	}
}

// TestSendInvalidate sends to a device that has windows, with payload of every kind.
func TestSendInvalidate(t *testing.T) {
	_, addr := address(t)
	d := newDevice(t)
	if !isIWARP(d) || !d.Attributes().Caps.Has(rnic.CapSendInvalidate) {
		t.Skip("the device does not send with invalidate over iWARP")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := soft.New(soft.Config{})
	defer s.Close()
	type side struct {
		pd rnic.PD
		cq rnic.CQ
		mr rnic.MR
		qp rnic.QP
	}
	newSide := func(d rnic.Device) *side {
		var e side
		var err error
		e.pd, err = d.AllocPD()
		require.NoError(t, err)
		e.cq, err = d.CreateCQ(rnic.CQConfig{})
		require.NoError(t, err)
		e.mr, err = e.pd.AllocMR(4096, rnic.LocalWrite)
		require.NoError(t, err)
		return &e
	}
	from, to := newSide(d), newSide(s)
	next := func(e *side) rnic.Completion {
		var wc [1]rnic.Completion
		for {
			n, err := e.cq.Poll(wc[:])
			require.NoError(t, err)
			if n == 1 {
				require.NoError(t, wc[0].Err)
				return wc[0]
			}
			require.NoError(t, e.cq.Wait(ctx))
		}
	}
	ln, err := s.Listen(ctx, addr, nil)
	require.NoError(t, err)
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			if to.qp, err = req.CreateQP(rnic.QPConfig{PD: to.pd, SendCQ: to.cq, RecvCQ: to.cq}); err == nil {
				err = req.Accept(ctx, rnic.ConnParams{})
			}
		}
		served <- err
	}()
	k, err := d.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	from.qp, err = k.CreateQP(rnic.QPConfig{PD: from.pd, SendCQ: from.cq, RecvCQ: from.cq})
	require.NoError(t, err)
	_, err = k.Connect(ctx, rnic.ConnParams{})
	require.NoError(t, err)
	require.NoError(t, <-served)

	copy(from.mr.Bytes(), "the quick brown fox")
	w, err := to.pd.AllocWindow()
	require.NoError(t, err)
	for name, wr := range map[string]rnic.SendWR{
		"gathered": {SGE: []rnic.SGE{{MR: from.mr, Len: 9}, {MR: from.mr, Off: 9, Len: 10}, {MR: from.mr, Off: 30}}},
		"inline":   {Inline: []byte("the quick brown fox")},
		"empty":    {Inline: []byte{}},
		"nothing":  {},
	} {
		stag, err := w.Bind(to.mr, 1000, 100, rnic.RemoteWrite)
		require.NoError(t, err)
		require.NoError(t, to.qp.PostRecv(&rnic.RecvWR{SGE: []rnic.SGE{{MR: to.mr, Len: 100}}}))
		wr.Op, wr.Flags, wr.RemoteSTag = rnic.OpSendInvalidate, rnic.Signaled, stag
		require.NoError(t, from.qp.PostSend(&wr))
		next(from)
		c := next(to)
		require.Equal(t, stag, c.InvalidatedSTag, name)
		require.Zero(t, w.STag(), name)
		require.Equal(t, "the quick brown fox"[:c.Len], string(to.mr.Bytes()[:c.Len]), name)
		if name == "gathered" || name == "inline" {
			require.Equal(t, 19, c.Len, name)
		}
	}
	require.EqualValues(t, 4, from.qp.Stats().InvalidatesSent)
	require.NoError(t, from.qp.Close())
	require.NoError(t, to.qp.Close())
}

// TestOpenMistakes: each is one line that says what there is, or what to do.
func TestOpenMistakes(t *testing.T) {
	_, err := verbs.Open(verbs.Config{Name: "nosuch0"})
	require.Error(t, err)
	require.Regexp(t, "no RDMA devices|there is no device nosuch0; there are ", err.Error())
	require.NotContains(t, err.Error(), "\n")
}
