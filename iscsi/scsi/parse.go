package scsi

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// InquiryData is standard INQUIRY data (SPC-4, section 6.6.2).
type InquiryData struct {
	Qualifier byte // 0: there is a device; 3: there can be none
	Type      byte // 0: direct access block device
	Removable bool
	Version   byte // 6 is SPC-4
	Protect   bool
	CmdQueue  bool
	Vendor    string
	Product   string
	Revision  string
	Versions  []uint16 // version descriptors
}

// ParseInquiry reads standard INQUIRY data.
func ParseInquiry(b []byte) (InquiryData, error) {
	if len(b) < 5 {
		return InquiryData{}, short("INQUIRY data", len(b), 5)
	}
	b = b[:min(len(b), 5+int(b[4]))]
	if len(b) < 36 {
		return InquiryData{}, short("INQUIRY data", len(b), 36)
	}
	d := InquiryData{
		Qualifier: b[0] >> 5, Type: b[0] & 0x1f, Removable: b[1]&0x80 != 0, Version: b[2],
		Protect: b[5]&0x01 != 0, CmdQueue: b[7]&0x02 != 0,
		Vendor: text(b[8:16]), Product: text(b[16:32]), Revision: text(b[32:36]),
	}
	for at := 58; at+2 <= len(b) && at < 74; at += 2 {
		if v := binary.BigEndian.Uint16(b[at:]); v != 0 {
			d.Versions = append(d.Versions, v)
		}
	}
	return d, nil
}

// text is an ASCII field without its padding; what a peer puts in that cannot be printed becomes a
// question mark.
func text(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, strings.TrimRight(string(b), " \x00")))
}

// vpd checks a page's header and gives its body.
func vpd(b []byte, page byte, need int) ([]byte, error) {
	what := fmt.Sprintf("VPD page %02xh", page)
	if len(b) < 4 {
		return nil, short(what, len(b), 4)
	}
	if b[1] != page {
		return nil, &DataError{what, fmt.Sprintf("is page %02xh", b[1])}
	}
	b = b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]
	if len(b) < need {
		return nil, short(what, len(b)+4, need+4)
	}
	return b, nil
}

// ParseSupportedPages reads VPD page 00h.
func ParseSupportedPages(b []byte) ([]byte, error) { return vpd(b, PageSupported, 0) }

// ParseSerial reads VPD page 80h.
func ParseSerial(b []byte) (string, error) {
	b, err := vpd(b, PageSerial, 0)
	return text(b), err
}

// Designator is one entry of VPD page 83h (SPC-4, section 7.8.6.1).
type Designator struct {
	Protocol    byte // meaningful if it is of the port or the device
	CodeSet     byte // 1 binary, 2 ASCII, 3 UTF-8
	Association byte // 0 logical unit, 1 target port, 2 target device
	Type        byte // 1 T10 vendor, 2 EUI-64, 3 NAA, 4 relative port, 8 SCSI name string
	Data        []byte
}

// String shows the designator as tools do, for example "naa.3a1b...".
func (d Designator) String() string {
	value := fmt.Sprintf("%x", d.Data)
	if d.CodeSet == codeSetASCII || d.CodeSet == codeSetUTF8 {
		value = text(d.Data)
	}
	switch d.Type {
	case designatorT10:
		return "t10." + value
	case 2:
		return "eui." + value
	case designatorNAA:
		return "naa." + value
	case designatorName:
		return value
	}
	return fmt.Sprintf("type %d: %s", d.Type, value)
}

// ParseIdentification reads VPD page 83h. The designators lie within b; one that is cut short is
// left out.
func ParseIdentification(b []byte) ([]Designator, error) {
	b, err := vpd(b, PageIdentification, 0)
	if err != nil {
		return nil, err
	}
	var list []Designator
	for len(b) >= 4 {
		n := 4 + int(b[3])
		if n > len(b) {
			break
		}
		list = append(list, Designator{
			Protocol: b[0] >> 4, CodeSet: b[0] & 0xf, Association: b[1] >> 4 & 3, Type: b[1] & 0xf, Data: b[4:n],
		})
		b = b[n:]
	}
	return list, nil
}

// BlockLimits is VPD page B0h (SBC-3, section 6.5.3), in blocks; 0 is "no limit told".
type BlockLimits struct {
	WriteSameNonZero       bool // WRITE SAME of 0 blocks is refused
	MaxCompareAndWrite     uint8
	OptimalGranularity     uint16
	MaxTransfer            uint32
	OptimalTransfer        uint32
	MaxUnmap               uint32
	MaxUnmapDescriptors    uint32
	UnmapGranularity       uint32
	UnmapAlignment         uint32
	UnmapAlignmentReported bool
	MaxWriteSame           uint64
}

// ParseBlockLimits reads VPD page B0h; older devices send less of it.
func ParseBlockLimits(b []byte) (BlockLimits, error) {
	body, err := vpd(b, PageBlockLimits, 12)
	if err != nil {
		return BlockLimits{}, err
	}
	var full [60]byte
	copy(full[:], body)
	at := func(octet int) []byte { return full[octet-4:] }
	u32 := func(octet int) uint32 { return binary.BigEndian.Uint32(at(octet)) }
	return BlockLimits{
		WriteSameNonZero:       full[0]&0x01 != 0,
		MaxCompareAndWrite:     full[1],
		OptimalGranularity:     binary.BigEndian.Uint16(at(6)),
		MaxTransfer:            u32(8),
		OptimalTransfer:        u32(12),
		MaxUnmap:               u32(20),
		MaxUnmapDescriptors:    u32(24),
		UnmapGranularity:       u32(28),
		UnmapAlignment:         u32(32) &^ 0x80000000,
		UnmapAlignmentReported: u32(32)&0x80000000 != 0,
		MaxWriteSame:           binary.BigEndian.Uint64(at(36)),
	}, nil
}

// ParseCharacteristics reads the medium rotation rate of VPD page B1h: 0 is not reported, 1
// non-rotating, else revolutions a minute.
func ParseCharacteristics(b []byte) (rotation uint16, err error) {
	b, err = vpd(b, PageCharacteristic, 2)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint16(b), nil
}

// ProvisioningData is VPD page B2h (SBC-3, section 6.5.5).
type ProvisioningData struct {
	Unmap, WriteSame16, WriteSame10 bool // LBPU, LBPWS, LBPWS10
	ReadsZeros                      bool // LBPRZ
	Type                            byte // 0 full or not told, 1 resource, 2 thin
}

// ParseProvisioning reads VPD page B2h.
func ParseProvisioning(b []byte) (ProvisioningData, error) {
	b, err := vpd(b, PageProvisioning, 4)
	if err != nil {
		return ProvisioningData{}, err
	}
	return ProvisioningData{
		Unmap: b[1]&0x80 != 0, WriteSame16: b[1]&0x40 != 0, WriteSame10: b[1]&0x20 != 0,
		ReadsZeros: b[1]>>2&7 == 1, Type: b[2] & 7,
	}, nil
}

// Capacity is what READ CAPACITY tells.
type Capacity struct {
	// Blocks is the number of logical blocks; 0 if READ CAPACITY(10) cannot tell and (16) must be
	// asked.
	Blocks    uint64
	BlockSize uint32
	// The rest comes from READ CAPACITY(16) only.
	PhysicalExponent uint8
	LowestAligned    uint16
	Thin             bool // LBPME
	ReadsZeros       bool // LBPRZ
	Protection       bool
}

// Size is the capacity in octets.
func (c Capacity) Size() int64 { return int64(c.Blocks) * int64(c.BlockSize) }

// checkCapacity refuses what no arithmetic should be done with.
func checkCapacity(what string, c Capacity) (Capacity, error) {
	if c.BlockSize == 0 || c.BlockSize > 1<<24 {
		return Capacity{}, &DataError{what, fmt.Sprintf("block size %d", c.BlockSize)}
	}
	if c.Blocks > (1<<63-1)/uint64(c.BlockSize) {
		return Capacity{}, &DataError{what, fmt.Sprintf("%d blocks of %d octets are beyond 63 bits", c.Blocks, c.BlockSize)}
	}
	return c, nil
}

// ParseReadCapacity10 reads READ CAPACITY(10)'s data.
func ParseReadCapacity10(b []byte) (Capacity, error) {
	const what = "READ CAPACITY(10) data"
	if len(b) < 8 {
		return Capacity{}, short(what, len(b), 8)
	}
	// The last block's address is told, not their number; FFFFFFFFh becomes 0 on purpose.
	last := binary.BigEndian.Uint32(b)
	return checkCapacity(what, Capacity{Blocks: uint64(last+1) & 0xffffffff, BlockSize: binary.BigEndian.Uint32(b[4:])})
}

// ParseReadCapacity16 reads READ CAPACITY(16)'s data.
func ParseReadCapacity16(b []byte) (Capacity, error) {
	const what = "READ CAPACITY(16) data"
	if len(b) < 12 {
		return Capacity{}, short(what, len(b), 12)
	}
	last := binary.BigEndian.Uint64(b)
	if last == 1<<64-1 {
		return Capacity{}, &DataError{what, "last block address of all ones"}
	}
	c := Capacity{Blocks: last + 1, BlockSize: binary.BigEndian.Uint32(b[8:])}
	if len(b) >= 16 {
		c.Protection = b[12]&0x01 != 0
		c.PhysicalExponent = b[13] & 0xf
		c.Thin, c.ReadsZeros = b[14]&0x80 != 0, b[14]&0x40 != 0
		c.LowestAligned = binary.BigEndian.Uint16(b[14:]) & 0x3fff
	}
	return checkCapacity(what, c)
}

// ParseReportLUNs reads REPORT LUNS' data: the LUNs that came, each as DecodeLUN takes it, and how
// many there are, which is more if the allocation length was too small.
func ParseReportLUNs(b []byte) (luns []uint64, total int, err error) {
	if len(b) < 8 {
		return nil, 0, short("REPORT LUNS data", len(b), 8)
	}
	n := binary.BigEndian.Uint32(b)
	b = b[8:min(uint64(len(b)), 8+uint64(n))]
	for ; len(b) >= 8; b = b[8:] {
		luns = append(luns, binary.BigEndian.Uint64(b))
	}
	return luns, int(n / 8), nil
}

// ModeData is what MODE SENSE tells.
type ModeData struct {
	WriteProtected bool
	DPOFUA         bool // DPO and FUA are understood
	// Blocks and BlockSize come from the block descriptor; 0 if there is none.
	Blocks    uint64
	BlockSize uint32
	// Pages has the mode pages one after the other; they lie within the data. Page finds one.
	Pages []byte
}

// ParseModeSense6 reads MODE SENSE(6)'s data, which may have been cut short.
func ParseModeSense6(b []byte) (ModeData, error) {
	if len(b) < 4 {
		return ModeData{}, short("MODE SENSE(6) data", len(b), 4)
	}
	return parseMode(b[:min(len(b), 1+int(b[0]))], 4, b[2], int(b[3]), false)
}

// ParseModeSense10 reads MODE SENSE(10)'s data, which may have been cut short.
func ParseModeSense10(b []byte) (ModeData, error) {
	if len(b) < 8 {
		return ModeData{}, short("MODE SENSE(10) data", len(b), 8)
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	return parseMode(b[:min(len(b), n)], 8, b[3], int(binary.BigEndian.Uint16(b[6:])), b[4]&0x01 != 0)
}

func parseMode(b []byte, header int, device byte, descriptor int, long bool) (ModeData, error) {
	d := ModeData{WriteProtected: device&0x80 != 0, DPOFUA: device&0x10 != 0}
	if len(b) < header+descriptor {
		return d, nil // cut before the pages
	}
	bd := b[header : header+descriptor]
	switch {
	case long && descriptor >= 16:
		d.Blocks, d.BlockSize = binary.BigEndian.Uint64(bd), binary.BigEndian.Uint32(bd[12:])
	case !long && descriptor >= 8:
		d.Blocks = uint64(binary.BigEndian.Uint32(bd))
		d.BlockSize = binary.BigEndian.Uint32(bd[4:]) & 0xffffff
	}
	d.Pages = b[header+descriptor:]
	return d, nil
}

// Page is a whole mode page (with its two octets of header) out of the data, nil if it is not there
// or cut short.
func (d ModeData) Page(page byte) []byte {
	for b := d.Pages; len(b) >= 2; {
		n := 2 + int(b[1])
		if b[0]&0x40 != 0 { // a subpage, whose length has two octets
			if len(b) < 4 {
				return nil
			}
			n = 4 + int(binary.BigEndian.Uint16(b[2:]))
		}
		if n > len(b) {
			return nil
		}
		if b[0]&0x7f == page {
			return b[:n]
		}
		b = b[n:]
	}
	return nil
}

// WriteCache tells whether the caching page, if it is there, has the write cache on.
func (d ModeData) WriteCache() (on, known bool) {
	p := d.Page(ModePageCaching)
	if len(p) < 3 {
		return false, false
	}
	return p[2]&pageWCE != 0, true
}
