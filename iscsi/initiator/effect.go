package initiator

import (
	"encoding/binary"

	"goiwarp/iscsi/scsi"
)

// effect is what a command does, as far as sending it once more is concerned.
type effect uint8

const (
	// once: it must not be executed twice, or nobody knows. A lost answer leaves it open whether it was executed.
	once effect = iota
	// reads changes nothing: it can be executed any number of times.
	reads
	// writes changes blocks, and the same blocks to the same contents when executed again.
	writes
)

// extent is a range of blocks that a command changes; none if end is 0.
type extent struct{ lba, end uint64 }

func (e extent) overlaps(f extent) bool { return e.lba < f.end && f.lba < e.end }

var allBlocks = extent{0, 1<<64 - 1}

// blocksFrom is the extent of n blocks.
func blocksFrom(lba, n uint64) extent {
	if n == 0 || lba+n < lba {
		return extent{lba, 1<<64 - 1}
	}
	return extent{lba, lba + n}
}

// effectOf tells what r does. A command that is not known is one for once, and changes who knows what.
func effectOf(r *Request) (effect, extent) {
	c := r.command()
	if len(c) < 6 {
		return once, extent{}
	}
	u32 := func(at int) uint64 {
		if len(c) < at+4 {
			return 0
		}
		return uint64(binary.BigEndian.Uint32(c[at:]))
	}
	switch c[0] {
	case scsi.OpRead6, scsi.OpRead10, scsi.OpRead12, scsi.OpRead16, scsi.OpVerify10, scsi.OpVerify12, scsi.OpVerify16, scsi.OpPreFetch10,
		scsi.OpPreFetch16, scsi.OpSynchronizeCache10, scsi.OpSynchronizeCache16, scsi.OpTestUnitReady, scsi.OpRequestSense, scsi.OpInquiry,
		scsi.OpModeSense6, scsi.OpModeSense10, scsi.OpReadCapacity10, scsi.OpServiceActionIn16, scsi.OpReportLUNs, scsi.OpMaintenanceIn,
		scsi.OpPersistentReserveIn, scsi.OpLogSense:
		return reads, extent{}
	case scsi.OpWrite10, scsi.OpWriteSame10, scsi.OpWriteAndVerify10:
		if len(c) < 10 {
			return writes, allBlocks
		}
		return writes, blocksFrom(u32(2), uint64(binary.BigEndian.Uint16(c[7:])))
	case scsi.OpWrite12, scsi.OpWriteAndVerify12:
		return writes, blocksFrom(u32(2), u32(6))
	case scsi.OpWrite16, scsi.OpWriteSame16, scsi.OpWriteAndVerify16:
		return writes, blocksFrom(u32(2)<<32|u32(6), u32(10))
	case scsi.OpWrite6:
		n := uint64(c[4])
		if n == 0 {
			n = 256
		}
		return writes, blocksFrom(u32(0)&0x1fffff, n)
	case scsi.OpUnmap:
		return writes, unmapExtent(r)
	case scsi.OpCompareAndWrite:
		if len(c) < 16 {
			return once, allBlocks
		}
		return once, blocksFrom(u32(2)<<32|u32(6), uint64(c[13]))
	}
	return once, extent{}
}

// unmapExtent is the range that holds all of an UNMAP's.
func unmapExtent(r *Request) extent {
	if r.Out == nil {
		return allBlocks
	}
	b := r.Out.Bytes()
	b = b[:min(len(b), r.OutLen)]
	if len(b) < 8 {
		return extent{}
	}
	b = b[8:min(len(b), 8+int(binary.BigEndian.Uint16(b[2:])))]
	var e extent
	for ; len(b) >= 16; b = b[16:] {
		n := uint64(binary.BigEndian.Uint32(b[8:]))
		if n == 0 {
			continue
		}
		f := blocksFrom(binary.BigEndian.Uint64(b), n)
		if e.end == 0 {
			e = f
			continue
		}
		e.lba, e.end = min(e.lba, f.lba), max(e.end, f.end)
	}
	return e
}

// fua tells whether a write is on stable storage once it is answered.
func (r *Request) fua() bool {
	c := r.command()
	switch c[0] {
	case scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16, scsi.OpCompareAndWrite:
		return c[1]&scsi.FUA != 0
	}
	return false
}
