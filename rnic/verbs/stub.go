//go:build !(verbs && cgo && linux)

package verbs

import (
	"fmt"

	"goiwarp/rnic"
)

// BuiltIn says whether this build has the provider.
const BuiltIn = false

// Open opens a device. In this build it fails with ErrNotBuiltIn.
func Open(cfg Config) (rnic.Device, error) {
	if cfg.Name != "" {
		return nil, fmt.Errorf("%w (device %s was asked for)", ErrNotBuiltIn, cfg.Name)
	}
	return nil, ErrNotBuiltIn
}
