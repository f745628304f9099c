package scsi

import (
	"crypto/sha256"
	"encoding/hex"
	"math"

	"goiwarp/iscsi/store"
)

// identity is what a logical unit says about itself.
type identity struct {
	vendor, product, revision, serial string
	naa                               []byte
}

// newIdentity takes over what is configured and derives the rest. The derived NAA designator is a
// locally assigned one (3h, SPC-4, section 7.8.6.6.4), since the other kinds need a registered
// company identifier.
func newIdentity(c *LUConfig) identity {
	sum := sha256.Sum256([]byte("goiwarp logical unit\x00" + c.Identity))
	id := identity{vendor: c.Vendor, product: c.Product, revision: c.Revision, serial: c.Serial, naa: c.NAA}
	if id.serial == "" {
		id.serial = hex.EncodeToString(sum[:8])
	}
	if len(id.naa) == 0 {
		id.naa = sum[8:16]
		id.naa[0] = 0x30 | id.naa[0]&0x0f
	}
	return id
}

// maxUnmapDescriptors is how many block descriptors one UNMAP may carry.
const maxUnmapDescriptors = 256

// limits is what the block limits page says, in blocks.
type limits struct {
	transfer         uint32
	optimal          uint32
	granularity      uint16
	compareAndWrite  uint8
	unmap            uint32
	unmapGranularity uint32
	atomic           uint32 // WRITE ATOMIC; 0 if it is not offered
}

func newLimits(c *LUConfig, info store.Info, thin bool) limits {
	bs := int64(c.BlockSize)
	lim := limits{
		transfer: uint32(int64(c.MaxTransfer) / bs),
		optimal:  uint32(min(1<<20, int64(c.MaxTransfer)) / bs),
		// Both halves of the data have to fit into one buffer.
		compareAndWrite: uint8(min(scratchSize/2/bs, 255)),
		atomic:          uint32(min(int64(info.AtomicWrite)/bs, maxAtomicBlocks, int64(c.MaxTransfer)/bs)),
	}
	align := max(int64(info.Align), bs<<c.PhysicalExponent)
	lim.granularity = uint16(min(align/bs, math.MaxUint16))
	if thin {
		lim.unmap = 1 << 20
		lim.unmapGranularity = uint32(max(int64(info.DiscardGranularity)/bs, 1))
	}
	return lim
}
