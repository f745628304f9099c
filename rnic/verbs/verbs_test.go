//go:build verbs && cgo && linux

package verbs_test

import (
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
