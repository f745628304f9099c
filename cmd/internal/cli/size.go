package cli

import (
	"strconv"

	"goiwarp/iscsi/store"
)

// SizeHelp says in help texts how sizes are written.
const SizeHelp = `Sizes are octets, or a number with a unit: K, M, G, T (or KiB, MiB, GiB, TiB) count in 1024s, kB, MB, GB, TB in 1000s.
Case does not matter: 4k is 4096, 1M is 1 MiB, 1MB is 1000000.`

// Size is a flag's value in octets, written as store.ParseOctets reads it: the same in every program.
type Size struct{ N uint64 }

func (s *Size) String() string {
	switch {
	case s.N == 0:
		return ""
	case s.N%1024 != 0:
		return strconv.FormatUint(s.N, 10)
	}
	return store.FormatSize(int64(s.N))
}

// Set reads a size.
func (s *Size) Set(v string) error {
	n, err := store.ParseOctets(v)
	if err != nil {
		return err
	}
	s.N = uint64(n)
	return nil
}

// Type names the value in help texts.
func (s *Size) Type() string { return "size" }
