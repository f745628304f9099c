package soft_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/rnic"
	"goiwarp/rnic/rnictest"
	"goiwarp/rnic/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDevice makes a device that the test's end closes.
func newDevice(t testing.TB, cfg soft.Config) *soft.Device {
	d := soft.New(cfg)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestConformance runs the suite of all providers over the networks and link options that change
// how octets travel.
func TestConformance(t *testing.T) {
	mem := func(cfg soft.MemConfig) func() soft.Config {
		return func() soft.Config { return soft.Config{Network: soft.NewMemNetwork(cfg)} }
	}
	for _, c := range []struct {
		name string
		cfg  func() soft.Config
		opts *rnic.LinkOptions
	}{
		{"tcp", func() soft.Config { return soft.Config{} }, nil},
		{"tcp with small buffers", func() soft.Config {
			return soft.Config{Network: soft.TCP{ReadBuffer: 4 << 10, WriteBuffer: 4 << 10}}
		}, nil},
		{"tcp without CRC, large FPDUs", func() soft.Config { return soft.Config{} }, &rnic.LinkOptions{CRC: rnic.Off, MaxFPDU: 65535}},
		{"memory", mem(soft.MemConfig{}), nil},
		{"memory with small buffers", mem(soft.MemConfig{Buffer: 1000}), nil},
		{"memory with markers", mem(soft.MemConfig{EMSS: 1460}), &rnic.LinkOptions{Markers: rnic.On}},
		{"memory without CRC", mem(soft.MemConfig{}), &rnic.LinkOptions{CRC: rnic.Off}},
		{"peer to peer", mem(soft.MemConfig{}), &rnic.LinkOptions{PeerToPeer: rnic.On, RTR: rnic.RTRWrite}},
		{"a device that offers little", func() soft.Config {
			return soft.Config{
				Network: soft.NewMemNetwork(soft.MemConfig{}), MaxReadSGE: 1, MaxIRD: 8, MaxORD: 8,
				Without: rnic.CapLocalInvalidate | rnic.CapSendInvalidate | rnic.CapWindows | rnic.CapImmediate | rnic.CapAtomics |
					rnic.CapInline | rnic.CapZeroBased | rnic.CapSRQ | rnic.CapStreamUpgrade | rnic.CapAnyMemory,
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rnictest.Run(t, func(t *testing.T) rnictest.Provider {
				cfg := c.cfg()
				return rnictest.Provider{Client: newDevice(t, cfg), Server: newDevice(t, cfg), Options: c.opts}
			})
		})
	}
}
