package scsi

import "encoding/binary"

// Operation codes of block devices beyond reading and writing, and of logs (SBC-4, SPC-4).
const (
	OpWriteAndVerify10 = 0x2e
	OpReadDefectData10 = 0x37
	OpSanitize         = 0x48
	OpLogSense         = 0x4d
	OpORWrite16        = 0x8b
	OpWriteAndVerify16 = 0x8e
	OpWriteAtomic16    = 0x9c
	OpWriteAndVerify12 = 0xae
	OpReadDefectData12 = 0xb7

	SASanitizeOverwrite       = 0x01 // service actions of OpSanitize
	SASanitizeBlockErase      = 0x02
	SASanitizeExitFailureMode = 0x1f
)

var blockCommands = []command{
	{
		op: OpWriteAndVerify10, name: "WRITE AND VERIFY(10)", flags: medium, zero: protect,
		usage: []byte{OpWriteAndVerify10, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0},
		plan:  planWrite, run: (*task).writeAndVerify,
	},
	{
		op: OpReadDefectData10, name: "READ DEFECT DATA(10)",
		usage: []byte{OpReadDefectData10, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0},
		plan:  allocation16(7), run: (*task).readDefectData,
	},
	{
		op: OpSanitize, action: SASanitizeOverwrite, name: "SANITIZE(OVERWRITE)", flags: action | medium | waits, zero: 0x40,
		usage: []byte{OpSanitize, 0xa0 | SASanitizeOverwrite, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
		plan:  parameters(sanitizeLength), run: (*task).sanitizeOverwrite,
	},
	{
		op: OpSanitize, action: SASanitizeBlockErase, name: "SANITIZE(BLOCK ERASE)", flags: action | medium | waits, zero: 0x40, when: (*LU).Thin,
		usage: []byte{OpSanitize, 0xa0 | SASanitizeBlockErase, 0, 0, 0, 0, 0, 0, 0, 0},
		plan:  parameters(sanitizeLength), run: (*task).sanitizeBlockErase,
	},
	{
		op: OpSanitize, action: SASanitizeExitFailureMode, name: "SANITIZE(EXIT FAILURE MODE)", flags: action | waits, zero: 0x40,
		usage: []byte{OpSanitize, SASanitizeExitFailureMode, 0, 0, 0, 0, 0, 0, 0, 0},
		plan:  parameters(sanitizeLength), run: (*task).sanitizeExitFailureMode,
	},
	{
		op: OpLogSense, name: "LOG SENSE", zero: 0x03,
		usage: []byte{OpLogSense, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0},
		plan:  allocation16(7), run: (*task).logSense,
	},
	{
		op: OpORWrite16, name: "ORWRITE(16)", flags: medium, zero: protect,
		usage: []byte{OpORWrite16, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWrite, run: (*task).orWrite,
	},
	{
		op: OpWriteAndVerify16, name: "WRITE AND VERIFY(16)", flags: medium, zero: protect,
		usage: []byte{OpWriteAndVerify16, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWrite, run: (*task).writeAndVerify,
	},
	{
		op: OpWriteAtomic16, name: "WRITE ATOMIC(16)", flags: medium, zero: protect, when: (*LU).atomicWrites,
		usage: []byte{OpWriteAtomic16, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWriteAtomic, run: (*task).writeAtomic,
	},
	{
		op: OpWriteAndVerify12, name: "WRITE AND VERIFY(12)", flags: medium, zero: protect,
		usage: []byte{OpWriteAndVerify12, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  planWrite, run: (*task).writeAndVerify,
	},
	{
		op: OpReadDefectData12, name: "READ DEFECT DATA(12)",
		usage: []byte{OpReadDefectData12, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(6), run: (*task).readDefectData,
	},
}

func sanitizeLength(cdb []byte) int64 { return int64(binary.BigEndian.Uint16(cdb[7:])) }

// readDefectData is READ DEFECT DATA(10) and (12) (SBC-3, sections 5.12 and 5.13). A store hides its
// defects, so that both lists are empty in every format that has addresses of blocks; in another one the long block
// format is the answer, with RECOVERED ERROR as the standard asks.
func (t *task) readDefectData() {
	at, allocation := 2, int64(binary.BigEndian.Uint16(t.cdb[7:]))
	if t.cdb[0] == OpReadDefectData12 {
		at, allocation = 1, int64(binary.BigEndian.Uint32(t.cdb[6:]))
	}
	const shortBlock, longBlock = 0, 3
	lists, format := t.cdb[at]&0x18, t.cdb[at]&0x07
	given := format
	if format != shortBlock && format != longBlock {
		given = longBlock
	}
	data := append(t.reply[:0], 0, lists|given)
	if t.cdb[0] == OpReadDefectData12 {
		data = append(data, 0, 0, 0, 0, 0, 0) // generation code 0: the lists never change; length 0
	} else {
		data = append(data, 0, 0)
	}
	t.answer(data, allocation)
	if given != format && t.res.Err == nil {
		t.fail(KeyRecoveredError, CodeDefectListNotFound)
	}
}
