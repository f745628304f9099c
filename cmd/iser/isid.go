package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
)

// isidOptions choose the session identifiers. With the initiator name an ISID makes the initiator port, to which reservations belong, and a login with
// that of a living session ends it (RFC 7143, section 6.3.5).
type isidOptions struct {
	isid    string // hexadecimal; "" is random
	ownISID bool   // derive it from the initiator name instead of a random one
}

func (o *isidOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.isid, "isid", "", "session identifier, 12 hexadecimal `digits`, to which reservations belong (default random; with pr derived from the initiator's name)")
}

// base is the ISID of a program's first session; zero if it is random.
func (o *isidOptions) base(initiatorName string) (id [6]byte, err error) {
	switch {
	case o.isid != "":
		b, err := hex.DecodeString(strings.TrimPrefix(o.isid, "0x"))
		if err != nil || len(b) != len(id) {
			return id, cli.Usagef("--isid %s: want 12 hexadecimal digits", o.isid)
		}
		return [6]byte(b), nil
	case !o.ownISID:
		return id, nil
	}
	if initiatorName == "" {
		initiatorName = initiator.DefaultName()
	}
	if n, err := iscsi.NormalizeName(initiatorName); err == nil { // what is wrong with it, the login tells
		initiatorName = n
	}
	sum := sha256.Sum256([]byte(initiatorName))
	id[0] = 0x80 // the random kind (RFC 7143, section 11.12.5): 24 bits of it, and a qualifier
	copy(id[1:4], sum[:3])
	return id, nil
}

// isidOf is the ISID of session n: its qualifier counts, that none ends another.
func isidOf(base [6]byte, n uint16) [6]byte {
	if base != [6]byte{} {
		binary.BigEndian.PutUint16(base[4:], binary.BigEndian.Uint16(base[4:])+n)
	}
	return base
}
