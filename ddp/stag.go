package ddp

import "fmt"

// STag names a buffer on the wire: a 24-bit index that the table chooses and an 8-bit key that
// changes with every binding (RFC 5040, section 1.2 leaves the split to the implementation; this one is that of
// the verbs). No valid STag has index 0, so that the value 0 means "none".
type STag uint32

// Limits of an STag's parts.
const (
	indexBits = 24
	maxIndex  = 1<<indexBits - 1
)

// Index is the upper 24 bits.
func (s STag) Index() uint32 { return uint32(s) >> 8 }

// Key is the low octet.
func (s STag) Key() uint8 { return uint8(s) }

func (s STag) String() string { return fmt.Sprintf("STag 0x%08x", uint32(s)) }

func makeSTag(index uint32, key uint8) STag { return STag(index<<8 | uint32(key)) }

// keySequence walks through all 256 keys in an order that a peer who has seen some of them cannot
// continue: a four-round Feistel permutation of a counter under a secret. A key comes back
// only after all others, so that a stale STag stays invalid for as long as can be.
type keySequence struct {
	secret uint64
	n      uint8
}

// next returns the key after the last one; secret replaces the permutation once it is used up.
func (k *keySequence) next(secret func() uint64) uint8 {
	if k.n == 0 {
		k.secret = secret()
	}
	l, r := k.n>>4, k.n&15
	k.n++
	for i := range 4 {
		// The round function is the nibble of the secret that r selects: 16 nibbles, rotated
		// by a quarter of the word in each round.
		f := uint8(k.secret>>(4*((int(r)+4*i)&15))) & 15
		l, r = r, l^f
	}
	return l<<4 | r
}

// Access is the set of rights that a region grants (RFC 5040, section 3.2).
type Access uint32

// Rights. A region can always be the source of what its owner sends.
const (
	// LocalWrite lets receives and the sinks of local RDMA Reads use the region.
	LocalWrite Access = 1 << iota
	// RemoteWrite lets the peer's tagged messages write it.
	RemoteWrite
	// RemoteRead lets the peer's RDMA Reads read it.
	RemoteRead
	// RemoteAtomic lets the peer's atomics change it (RFC 7306).
	RemoteAtomic
	// EarlyPlacement lets octets be placed before the CRC that covers them was checked.
	EarlyPlacement
	// ClaimOnUse makes the region belong to the first stream whose peer uses it; the others find it not
	// associated. It is what makes a region that is bound for one operation, without naming a stream,
	// safe to invalidate remotely (RFC 5040, section 8.1.1, rules 2 and 7).
	ClaimOnUse
)

const remoteRights = RemoteWrite | RemoteRead | RemoteAtomic

// Has says whether all of want is granted.
func (a Access) Has(want Access) bool { return a&want == want }

// StreamID names one RDMAP stream of a process; 0 is no stream. A region that carries one can
// be used by that stream's peer alone.
type StreamID uint64
