package target

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// TestConfig: what cannot be meant is refused by New, in one line.
func TestConfig(t *testing.T) {
	d := scsi.NewDevice(scsi.Port{})
	good := func() Config { return Config{Targets: []Target{{Name: targetName, Device: d}}} }
	for name, change := range map[string]func(*Config){
		"no name":           func(c *Config) { c.Targets[0].Name = "" },
		"no iSCSI name":     func(c *Config) { c.Targets[0].Name = "disk" },
		"long alias":        func(c *Config) { c.Targets[0].Alias = strings.Repeat("a", 256) },
		"two aliases":       func(c *Config) { c.Targets[0].Alias = "a\x00InitialR2T=No" },
		"no device":         func(c *Config) { c.Targets[0].Device = nil },
		"negative timeout":  func(c *Config) { c.LoginTimeout = -time.Second },
		"window":            func(c *Config) { c.Limits.Window = -1 },
		"immediate":         func(c *Config) { c.Limits.Immediate = -1 },
		"sessions":          func(c *Config) { c.Limits.Sessions = 1 << 20 },
		"chunk":             func(c *Config) { c.Limits.Chunk = 100 },
		"segment":           func(c *Config) { c.Limits.RecvDataSegment = 100 },
		"first above burst": func(c *Config) { c.Limits.MaxBurst, c.Limits.FirstBurst = 1024, 2048 },
	} {
		c := good()
		change(&c)
		_, err := New(c)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "\n")
	}
	s, err := New(good())
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Status().Targets[0].PortalGroup)
}
