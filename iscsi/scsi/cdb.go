package scsi

import "encoding/binary"

// CDB is a command descriptor block as iSCSI and others carry it: in 16 octets, whatever its own
// length is. It is a value, so that building one allocates nothing.
type CDB [16]byte

// Len is the CDB's own length in octets, as the operation code's group gives it (SPC-4, section
// 4.3.5.1).
func (c *CDB) Len() int {
	switch c[0] >> 5 {
	case 0:
		return 6
	case 1, 2:
		return 10
	case 5:
		return 12
	}
	return 16
}

// Bytes is the CDB in its own length. It lies within c.
func (c *CDB) Bytes() []byte { return c[:c.Len()] }

// Append appends the CDB in its own length.
func (c CDB) Append(dst []byte) []byte { return append(dst, c.Bytes()...) }

// Flags of READ, WRITE and others.
const (
	FUA = 0x08 // force unit access: write through to the medium
	DPO = 0x10 // disable page out: do not cache
)

// fits10 tells that a range can be named in a 10 octet CDB.
func fits10(lba uint64, blocks uint32) bool { return lba <= 0xffffffff && blocks <= 0xffff }

// ranged builds a CDB of the READ(10) or READ(16) kind.
func ranged(op10, op16 byte, lba uint64, blocks uint32, bits byte) CDB {
	if !fits10(lba, blocks) {
		return ranged16(op16, lba, blocks, bits)
	}
	c := CDB{op10, bits}
	binary.BigEndian.PutUint32(c[2:], uint32(lba))
	binary.BigEndian.PutUint16(c[7:], uint16(blocks))
	return c
}

func ranged16(op byte, lba uint64, blocks uint32, bits byte) CDB {
	c := CDB{op, bits}
	binary.BigEndian.PutUint64(c[2:], lba)
	binary.BigEndian.PutUint32(c[10:], blocks)
	return c
}

// Read is READ(10), or READ(16) if the range needs it. flags are FUA and DPO.
func Read(lba uint64, blocks uint32, flags byte) CDB {
	return ranged(OpRead10, OpRead16, lba, blocks, flags)
}

// Read16 is READ(16), which thin and large disks prefer throughout.
func Read16(lba uint64, blocks uint32, flags byte) CDB {
	return ranged16(OpRead16, lba, blocks, flags)
}

// Write is WRITE(10), or WRITE(16) if the range needs it. flags are FUA and DPO.
func Write(lba uint64, blocks uint32, flags byte) CDB {
	return ranged(OpWrite10, OpWrite16, lba, blocks, flags)
}

// Write16 is WRITE(16).
func Write16(lba uint64, blocks uint32, flags byte) CDB {
	return ranged16(OpWrite16, lba, blocks, flags)
}

// VerifyMode is the BYTCHK field of VERIFY.
type VerifyMode byte

// The modes of VERIFY.
const (
	VerifyMedium VerifyMode = 0 // read only, no data-out
	VerifyData   VerifyMode = 1 // compare with as many blocks of data-out
	VerifySame   VerifyMode = 3 // compare every block with one block of data-out
)

// Verify is VERIFY(10), or VERIFY(16) if the range needs it.
func Verify(lba uint64, blocks uint32, mode VerifyMode) CDB {
	return ranged(OpVerify10, OpVerify16, lba, blocks, byte(mode)<<1)
}

// SynchronizeCache is SYNCHRONIZE CACHE(10), or (16) if the range needs it; 0 blocks are all from
// lba on.
func SynchronizeCache(lba uint64, blocks uint32) CDB {
	return ranged(OpSynchronizeCache10, OpSynchronizeCache16, lba, blocks, 0)
}

// PreFetch is PRE-FETCH(10), or PRE-FETCH(16) if the range needs it; 0 blocks are all from lba on. immed asks for the status before the
// blocks are in the cache.
func PreFetch(lba uint64, blocks uint32, immed bool) CDB {
	bits := byte(0)
	if immed {
		bits = 0x02
	}
	return ranged(OpPreFetch10, OpPreFetch16, lba, blocks, bits)
}

// WriteSame is WRITE SAME(16) with one block of data-out; unmap asks to unmap blocks where the data
// is zeros.
func WriteSame(lba uint64, blocks uint32, unmap bool) CDB {
	bits := byte(0)
	if unmap {
		bits = 0x08
	}
	return ranged16(OpWriteSame16, lba, blocks, bits)
}

// WriteZeroes is WRITE SAME(16) without data-out (NDOB). Older devices do not know it: WriteSame
// with a block of zeros does the same there.
func WriteZeroes(lba uint64, blocks uint32, unmap bool) CDB {
	c := WriteSame(lba, blocks, unmap)
	c[1] |= 0x01
	return c
}

// CompareAndWrite is COMPARE AND WRITE; its data-out is the blocks to compare with and then those
// to write.
func CompareAndWrite(lba uint64, blocks uint8, flags byte) CDB {
	c := CDB{OpCompareAndWrite, flags}
	binary.BigEndian.PutUint64(c[2:], lba)
	c[13] = blocks
	return c
}

// Extent is a range of logical blocks.
type Extent struct {
	LBA    uint64
	Blocks uint32
}

// Unmap is UNMAP with a parameter list of that many extents, as AppendUnmap writes it.
func Unmap(extents int) CDB {
	c := CDB{OpUnmap}
	binary.BigEndian.PutUint16(c[7:], uint16(8+16*extents))
	return c
}

// AppendUnmap appends UNMAP's parameter list; at most 4095 extents fit.
func AppendUnmap(dst []byte, extents []Extent) []byte {
	n := 16 * len(extents)
	dst = binary.BigEndian.AppendUint16(dst, uint16(n+6))
	dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	dst = append(dst, 0, 0, 0, 0)
	for _, e := range extents {
		dst = binary.BigEndian.AppendUint64(dst, e.LBA)
		dst = binary.BigEndian.AppendUint32(dst, e.Blocks)
		dst = append(dst, 0, 0, 0, 0)
	}
	return dst
}

// TestUnitReady is TEST UNIT READY.
func TestUnitReady() CDB { return CDB{OpTestUnitReady} }

// RequestSense is REQUEST SENSE in fixed format.
func RequestSense(allocation uint8) CDB { return CDB{OpRequestSense, 4: allocation} }

// Inquiry is INQUIRY for the standard data.
func Inquiry(allocation uint16) CDB {
	c := CDB{OpInquiry}
	binary.BigEndian.PutUint16(c[3:], allocation)
	return c
}

// InquiryVPD is INQUIRY for a vital product data page.
func InquiryVPD(page byte, allocation uint16) CDB {
	c := Inquiry(allocation)
	c[1], c[2] = 0x01, page
	return c
}

// ReportLUNs is REPORT LUNS; allocation is at least 16.
func ReportLUNs(allocation uint32) CDB {
	c := CDB{OpReportLUNs}
	binary.BigEndian.PutUint32(c[6:], allocation)
	return c
}

// ReadCapacity10 is READ CAPACITY(10), whose answer has 8 octets.
func ReadCapacity10() CDB { return CDB{OpReadCapacity10} }

// ReadCapacity16 is READ CAPACITY(16), whose answer has 32 octets.
func ReadCapacity16() CDB { return CDB{OpServiceActionIn16, SAReadCapacity16, 13: 32} }

// GetLBAStatus is GET LBA STATUS.
func GetLBAStatus(lba uint64, allocation uint32) CDB {
	return ranged16(OpServiceActionIn16, lba, allocation, SAGetLBAStatus)
}

// ModeSense6 is MODE SENSE(6) for current values, with the block descriptor.
func ModeSense6(page byte, allocation uint8) CDB {
	return CDB{OpModeSense6, 2: page & 0x3f, 4: allocation}
}

// ModeSense10 is MODE SENSE(10) for current values, with the block descriptor.
func ModeSense10(page byte, allocation uint16) CDB {
	c := CDB{OpModeSense10, 2: page & 0x3f}
	binary.BigEndian.PutUint16(c[7:], allocation)
	return c
}

// ModeSelect6 is MODE SELECT(6) of pages in the standard's format.
func ModeSelect6(length uint8) CDB { return CDB{OpModeSelect6, 0x10, 4: length} }

// StartStop is START STOP UNIT.
func StartStop(start bool) CDB {
	c := CDB{OpStartStopUnit}
	if start {
		c[4] = 0x01
	}
	return c
}

// ReportSupportedOpcodes is REPORT SUPPORTED OPERATION CODES for all of them.
func ReportSupportedOpcodes(allocation uint32) CDB {
	c := CDB{OpMaintenanceIn, SAReportSupportedOpcode}
	binary.BigEndian.PutUint32(c[6:], allocation)
	return c
}

// Reserve6 is RESERVE(6) of the whole logical unit.
func Reserve6() CDB { return CDB{OpReserve6} }

// Release6 is RELEASE(6).
func Release6() CDB { return CDB{OpRelease6} }
