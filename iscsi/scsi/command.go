package scsi

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Operation codes (SPC-4, SBC-3).
const (
	OpTestUnitReady         = 0x00
	OpRequestSense          = 0x03
	OpRead6                 = 0x08
	OpWrite6                = 0x0a
	OpInquiry               = 0x12
	OpModeSelect6           = 0x15
	OpReserve6              = 0x16
	OpRelease6              = 0x17
	OpModeSense6            = 0x1a
	OpStartStopUnit         = 0x1b
	OpPreventAllow          = 0x1e
	OpReadCapacity10        = 0x25
	OpRead10                = 0x28
	OpWrite10               = 0x2a
	OpVerify10              = 0x2f
	OpPreFetch10            = 0x34
	OpSynchronizeCache10    = 0x35
	OpWriteSame10           = 0x41
	OpUnmap                 = 0x42
	OpModeSelect10          = 0x55
	OpReserve10             = 0x56
	OpRelease10             = 0x57
	OpModeSense10           = 0x5a
	OpPersistentReserveIn   = 0x5e
	OpPersistentReserveOut  = 0x5f
	OpRead16                = 0x88
	OpCompareAndWrite       = 0x89
	OpWrite16               = 0x8a
	OpVerify16              = 0x8f
	OpPreFetch16            = 0x90
	OpSynchronizeCache16    = 0x91
	OpWriteSame16           = 0x93
	OpServiceActionIn16     = 0x9e
	OpReportLUNs            = 0xa0
	OpMaintenanceIn         = 0xa3
	OpMaintenanceOut        = 0xa4
	OpRead12                = 0xa8
	OpWrite12               = 0xaa
	OpVerify12              = 0xaf
	SAReadCapacity16        = 0x10 // service action of OpServiceActionIn16
	SAGetLBAStatus          = 0x12 // service action of OpServiceActionIn16
	SAReportSupportedOpcode = 0x0c // service action of OpMaintenanceIn

	SAReportTargetPortGroups       = 0x0a // service action of OpMaintenanceIn
	SAReportSupportedTaskFunctions = 0x0d // service action of OpMaintenanceIn
	SASetTargetPortGroups          = 0x0a // service action of OpMaintenanceOut
)

// flags of a command.
type flags uint8

const (
	// medium commands may wait for the store.
	medium flags = 1 << iota
	// despiteAttention commands run while a unit attention waits (SAM-5, section 5.14.4).
	despiteAttention
	// despiteReservation commands run while another nexus holds a reservation (SPC-2, section
	// 5.5.1).
	despiteReservation
	// anyLUN commands have an answer where there is no logical unit.
	anyLUN
	// action commands have a service action in the low five bits of octet 1.
	action
	// waits commands may wait for something else than the store, or for long whatever the store is.
	waits
)

// command is one row of the table: all that the device server knows of an operation.
type command struct {
	op     byte
	action uint8 // service action, for rows with the flag
	flags  flags
	name   string
	// usage has a bit for each bit of the CDB that is evaluated, as REPORT SUPPORTED OPERATION
	// CODES tells it; its length is the CDB's. Octet 0 is the operation code itself.
	usage []byte
	// zero has a bit for each bit of octet 1 that must be 0, because what it asks for is not
	// offered and the command would do something else without it.
	zero byte
	// anchor is the bit in zero that is ANCHOR, which some logical units offer.
	anchor byte
	// when tells whether a logical unit offers the command; nil is always.
	when func(l *LU) bool
	// plan says what the CDB asks to move; nil is nothing. l is nil at a LUN that is not there.
	plan func(l *LU, cdb []byte) (in, out int64)
	run  func(t *task)

	rule rule // found when the table is made
}

// protect is RDPROTECT, WRPROTECT or VRPROTECT: there is no protection information here.
const protect = 0xe0

var commands = []command{
	{
		op: OpTestUnitReady, name: "TEST UNIT READY",
		usage: []byte{OpTestUnitReady, 0, 0, 0, 0, 0}, run: (*task).testUnitReady,
	},
	{
		op: OpRequestSense, name: "REQUEST SENSE", flags: despiteAttention | despiteReservation | anyLUN,
		usage: []byte{OpRequestSense, 0x01, 0, 0, 0xff, 0},
		plan:  allocation8(4), run: (*task).requestSense,
	},
	{
		op: OpRead6, name: "READ(6)", flags: medium,
		usage: []byte{OpRead6, 0x1f, 0xff, 0xff, 0xff, 0},
		plan:  planRead, run: (*task).read,
	},
	{
		op: OpWrite6, name: "WRITE(6)", flags: medium,
		usage: []byte{OpWrite6, 0x1f, 0xff, 0xff, 0xff, 0},
		plan:  planWrite, run: (*task).write,
	},
	{
		op: OpInquiry, name: "INQUIRY", flags: despiteAttention | despiteReservation | anyLUN, zero: 0x02,
		usage: []byte{OpInquiry, 0x01, 0xff, 0xff, 0xff, 0},
		plan:  allocation16(3), run: (*task).inquiry,
	},
	{
		op: OpModeSelect6, name: "MODE SELECT(6)", flags: medium, zero: 0x01,
		usage: []byte{OpModeSelect6, 0x10, 0, 0, 0xff, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(cdb[4]) }), run: (*task).modeSelect,
	},
	{
		op: OpReserve6, name: "RESERVE(6)", zero: 0x1f,
		usage: []byte{OpReserve6, 0, 0, 0, 0, 0}, run: (*task).reserve,
	},
	{
		op: OpRelease6, name: "RELEASE(6)", flags: despiteReservation, zero: 0x1f,
		usage: []byte{OpRelease6, 0, 0, 0, 0, 0}, run: (*task).release,
	},
	{
		op: OpModeSense6, name: "MODE SENSE(6)",
		usage: []byte{OpModeSense6, 0x08, 0xff, 0xff, 0xff, 0},
		plan:  allocation8(4), run: (*task).modeSense,
	},
	{
		op: OpStartStopUnit, name: "START STOP UNIT", flags: medium,
		usage: []byte{OpStartStopUnit, 0x01, 0, 0, 0xf7, 0}, run: (*task).startStop,
	},
	{
		op: OpReadCapacity10, name: "READ CAPACITY(10)", flags: despiteReservation,
		usage: []byte{OpReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		plan:  func(*LU, []byte) (int64, int64) { return 8, 0 }, run: (*task).readCapacity10,
	},
	{
		op: OpRead10, name: "READ(10)", flags: medium, zero: protect,
		usage: []byte{OpRead10, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0},
		plan:  planRead, run: (*task).read,
	},
	{
		op: OpWrite10, name: "WRITE(10)", flags: medium, zero: protect,
		usage: []byte{OpWrite10, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0},
		plan:  planWrite, run: (*task).write,
	},
	{
		op: OpVerify10, name: "VERIFY(10)", flags: medium, zero: protect,
		usage: []byte{OpVerify10, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0},
		plan:  planVerify, run: (*task).verify,
	},
	{
		op: OpPreFetch10, name: "PRE-FETCH(10)",
		usage: []byte{OpPreFetch10, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0}, run: (*task).preFetch,
	},
	{
		op: OpSynchronizeCache10, name: "SYNCHRONIZE CACHE(10)", flags: medium,
		usage: []byte{OpSynchronizeCache10, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0}, run: (*task).synchronizeCache,
	},
	{
		op: OpWriteSame10, name: "WRITE SAME(10)", flags: medium | waits, zero: protect | 0x16, anchor: 0x10,
		usage: []byte{OpWriteSame10, 0x08, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0},
		plan:  planWriteSame, run: (*task).writeSame,
	},
	{
		op: OpUnmap, name: "UNMAP", flags: medium, zero: 0x01, anchor: 0x01, when: (*LU).Thin,
		usage: []byte{OpUnmap, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(binary.BigEndian.Uint16(cdb[7:])) }), run: (*task).unmap,
	},
	{
		op: OpModeSelect10, name: "MODE SELECT(10)", flags: medium, zero: 0x01,
		usage: []byte{OpModeSelect10, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(binary.BigEndian.Uint16(cdb[7:])) }), run: (*task).modeSelect,
	},
	{
		op: OpModeSense10, name: "MODE SENSE(10)",
		usage: []byte{OpModeSense10, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0},
		plan:  allocation16(7), run: (*task).modeSense,
	},
	{
		op: OpRead16, name: "READ(16)", flags: medium, zero: protect,
		usage: []byte{OpRead16, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planRead, run: (*task).read,
	},
	{
		op: OpCompareAndWrite, name: "COMPARE AND WRITE", flags: medium, zero: protect,
		usage: []byte{OpCompareAndWrite, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0, 0},
		plan:  planCompareAndWrite, run: (*task).compareAndWrite,
	},
	{
		op: OpWrite16, name: "WRITE(16)", flags: medium, zero: protect,
		usage: []byte{OpWrite16, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWrite, run: (*task).write,
	},
	{
		op: OpVerify16, name: "VERIFY(16)", flags: medium, zero: protect,
		usage: []byte{OpVerify16, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planVerify, run: (*task).verify,
	},
	{
		op: OpPreFetch16, name: "PRE-FETCH(16)",
		usage: []byte{OpPreFetch16, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}, run: (*task).preFetch,
	},
	{
		op: OpSynchronizeCache16, name: "SYNCHRONIZE CACHE(16)", flags: medium,
		usage: []byte{OpSynchronizeCache16, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}, run: (*task).synchronizeCache,
	},
	{
		op: OpWriteSame16, name: "WRITE SAME(16)", flags: medium | waits, zero: protect | 0x16, anchor: 0x10,
		usage: []byte{OpWriteSame16, 0x09, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWriteSame, run: (*task).writeSame,
	},
	{
		op: OpServiceActionIn16, action: SAReadCapacity16, name: "READ CAPACITY(16)", flags: action | despiteReservation,
		usage: []byte{OpServiceActionIn16, SAReadCapacity16, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).readCapacity16,
	},
	{
		op: OpServiceActionIn16, action: SAGetLBAStatus, name: "GET LBA STATUS", flags: action | medium, when: (*LU).Thin,
		usage: []byte{OpServiceActionIn16, SAGetLBAStatus, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).getLBAStatus,
	},
	{
		op: OpReportLUNs, name: "REPORT LUNS", flags: despiteAttention | despiteReservation | anyLUN,
		usage: []byte{OpReportLUNs, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(6), run: (*task).reportLUNs,
	},
	{
		op: OpMaintenanceIn, action: SAReportSupportedOpcode, name: "REPORT SUPPORTED OPERATION CODES", flags: action | despiteReservation,
		usage: []byte{OpMaintenanceIn, SAReportSupportedOpcode, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(6),
	},
	{
		op: OpRead12, name: "READ(12)", flags: medium, zero: protect,
		usage: []byte{OpRead12, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planRead, run: (*task).read,
	},
	{
		op: OpWrite12, name: "WRITE(12)", flags: medium, zero: protect,
		usage: []byte{OpWrite12, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWrite, run: (*task).write,
	},
	{
		op: OpVerify12, name: "VERIFY(12)", flags: medium, zero: protect,
		usage: []byte{OpVerify12, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planVerify, run: (*task).verify,
	},
}

// byOpcode finds rows by operation code: one, or several with service actions.
var byOpcode [256][]*command

func init() {
	commands = append(commands, reservationCommands...)
	commands = append(commands, pathCommands...)
	commands = append(commands, removableCommands...)
	commands = append(commands, blockCommands...)
	commands = append(commands, copyCommands...)
	commands = append(commands, diagnosticCommands...)
	slices.SortStableFunc(commands, func(a, b command) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.action, b.action))
	})
	for i := range commands {
		c := &commands[i]
		c.rule = ruleOf(c.op, c.action)
		if c.op == OpMaintenanceIn && c.action == SAReportSupportedOpcode {
			c.run = (*task).reportOpcodes // it reads the table, which cannot name it therefore
		}
		byOpcode[c.op] = append(byOpcode[c.op], c)
	}
}

// find gives the row of a CDB; nil if the operation is unknown or the CDB shorter than it must be.
func find(cdb []byte) *command {
	if len(cdb) == 0 {
		return nil
	}
	for _, c := range byOpcode[cdb[0]] {
		if len(cdb) < len(c.usage) {
			return nil
		}
		if c.flags&action == 0 || cdb[1]&0x1f == c.action {
			return c
		}
	}
	return nil
}

// OpcodeName is the name of a CDB's operation, for logs; "operation 7fh" if it has none here.
func OpcodeName(cdb []byte) string {
	if c := find(cdb); c != nil {
		return c.name
	}
	if len(cdb) == 0 {
		return "empty CDB"
	}
	const hex = "0123456789abcdef"
	return "operation " + string([]byte{hex[cdb[0]>>4], hex[cdb[0]&0xf], 'h'})
}

func allocation8(at int) func(*LU, []byte) (int64, int64) {
	return func(_ *LU, cdb []byte) (int64, int64) { return int64(cdb[at]), 0 }
}

func allocation16(at int) func(*LU, []byte) (int64, int64) {
	return func(_ *LU, cdb []byte) (int64, int64) { return int64(binary.BigEndian.Uint16(cdb[at:])), 0 }
}

func allocation32(at int) func(*LU, []byte) (int64, int64) {
	return func(_ *LU, cdb []byte) (int64, int64) { return int64(binary.BigEndian.Uint32(cdb[at:])), 0 }
}

func parameters(length func(cdb []byte) int64) func(*LU, []byte) (int64, int64) {
	return func(_ *LU, cdb []byte) (int64, int64) { return 0, length(cdb) }
}

func planRead(l *LU, cdb []byte) (in, out int64) {
	_, n := extent(cdb)
	return int64(n) * int64(l.cfg.BlockSize), 0
}

func planWrite(l *LU, cdb []byte) (in, out int64) {
	in, out = planRead(l, cdb)
	return out, in
}

func planVerify(l *LU, cdb []byte) (in, out int64) {
	_, n := extent(cdb)
	switch {
	case cdb[1]>>1&3 == 1:
		return 0, int64(n) * int64(l.cfg.BlockSize)
	case cdb[1]>>1&3 == 3 && n > 0:
		return 0, int64(l.cfg.BlockSize)
	}
	return 0, 0
}

func planWriteSame(l *LU, cdb []byte) (in, out int64) {
	if cdb[0] == OpWriteSame16 && cdb[1]&0x01 != 0 { // NDOB
		return 0, 0
	}
	return 0, int64(l.cfg.BlockSize)
}

func planCompareAndWrite(l *LU, cdb []byte) (in, out int64) {
	return 0, 2 * int64(cdb[13]) * int64(l.cfg.BlockSize)
}

// extent gives the logical block address and the number of blocks of a CDB of the READ kind in any
// length. In READ(6) and WRITE(6) a length of 0 is 256 blocks.
func extent(cdb []byte) (lba uint64, n uint32) {
	switch cdb[0] >> 5 {
	case 0:
		lba, n = uint64(cdb[1]&0x1f)<<16|uint64(binary.BigEndian.Uint16(cdb[2:])), uint32(cdb[4])
		if n == 0 {
			n = 256
		}
	case 1, 2:
		lba, n = uint64(binary.BigEndian.Uint32(cdb[2:])), uint32(binary.BigEndian.Uint16(cdb[7:]))
	case 4:
		lba, n = binary.BigEndian.Uint64(cdb[2:]), binary.BigEndian.Uint32(cdb[10:])
	case 5:
		lba, n = uint64(binary.BigEndian.Uint32(cdb[2:])), binary.BigEndian.Uint32(cdb[6:])
	}
	return lba, n
}
