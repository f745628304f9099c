package scsi

import (
	"encoding/binary"
	"math"
)

// Operation codes and service actions of third-party copy (SPC-4, section 5.17).
const (
	OpExtendedCopy       = 0x83
	OpReceiveCopyResults = 0x84

	SAExtendedCopyLID1        = 0x00 // service actions of OpExtendedCopy
	SAExtendedCopyLID4        = 0x01
	SACopyOperationAbort      = 0x1c
	SACopyStatusLID1          = 0x00 // service actions of OpReceiveCopyResults
	SACopyOperatingParameters = 0x03
	SACopyFailedSegment       = 0x04
	SACopyStatusLID4          = 0x05
)

var copyCommands = []command{
	{
		op: OpExtendedCopy, action: SAExtendedCopyLID1, name: "EXTENDED COPY(LID1)", flags: action | medium | waits,
		usage: []byte{OpExtendedCopy, SAExtendedCopyLID1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  parameters(copyListLength), run: (*task).extendedCopy,
	},
	{
		op: OpExtendedCopy, action: SAExtendedCopyLID4, name: "EXTENDED COPY(LID4)", flags: action | medium | waits,
		usage: []byte{OpExtendedCopy, SAExtendedCopyLID4, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  parameters(copyListLength), run: (*task).extendedCopy,
	},
	{
		op: OpExtendedCopy, action: SACopyOperationAbort, name: "COPY OPERATION ABORT", flags: action | waits,
		usage: []byte{OpExtendedCopy, SACopyOperationAbort, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, run: (*task).abortCopy,
	},
	{
		op: OpReceiveCopyResults, action: SACopyStatusLID1, name: "RECEIVE COPY STATUS(LID1)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyStatusLID1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyStatus,
	},
	{
		op: OpReceiveCopyResults, action: SACopyOperatingParameters, name: "RECEIVE COPY OPERATING PARAMETERS", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyOperatingParameters, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyOperatingParameters,
	},
	{
		op: OpReceiveCopyResults, action: SACopyFailedSegment, name: "RECEIVE COPY FAILURE DETAILS(LID1)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyFailedSegment, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyFailedSegment,
	},
	{
		op: OpReceiveCopyResults, action: SACopyStatusLID4, name: "RECEIVE COPY STATUS(LID4)", flags: action,
		usage: []byte{OpReceiveCopyResults, SACopyStatusLID4, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		plan:  allocation32(10), run: (*task).copyStatusLID4,
	},
}

func copyListLength(cdb []byte) int64 { return int64(binary.BigEndian.Uint32(cdb[10:])) }

// copyOperatingParameters is RECEIVE COPY OPERATING PARAMETERS (SPC-4, section 6.19).
func (t *task) copyOperatingParameters() {
	p := t.reply[:44]
	clear(p)
	p[4] = 0x01 // SNLID: a list needs no identifier
	binary.BigEndian.PutUint16(p[8:], maxCopyTargets)
	binary.BigEndian.PutUint16(p[10:], maxCopySegments)
	binary.BigEndian.PutUint32(p[12:], maxCopyList)
	// Segments have no bound but their 16 bits of blocks; inline, held and stream data do not exist.
	binary.BigEndian.PutUint16(p[34:], math.MaxUint16) // in all: those without an identifier have no bound of their own
	p[36] = maxCopiesRunning
	p[37] = 9 // data segment granularity: 512 octets
	p[43] = 2
	p = append(p, segmentBlockBlock, cscdIdentification)
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	t.answer(p, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}

// vpdThirdPartyCopy appends the third-party copy page's descriptors (SPC-4, section 7.8.17): the commands,
// the limits, the descriptor types, the one CSCD descriptor ID without a descriptor, and the general limits.
func (t *task) vpdThirdPartyCopy(p []byte) []byte {
	commands := []byte{
		OpExtendedCopy, 3, SAExtendedCopyLID1, SAExtendedCopyLID4, SACopyOperationAbort,
		OpReceiveCopyResults, 4, SACopyStatusLID1, SACopyOperatingParameters, SACopyFailedSegment, SACopyStatusLID4,
	}
	p = appendCopyDescriptor(p, 0x0001, append([]byte{byte(len(commands))}, commands...))

	limits := make([]byte, 28)
	binary.BigEndian.PutUint16(limits[4:], maxCopyTargets)
	binary.BigEndian.PutUint16(limits[6:], maxCopySegments)
	binary.BigEndian.PutUint32(limits[8:], maxCopyList)
	p = appendCopyDescriptor(p, 0x0004, limits)

	p = appendCopyDescriptor(p, 0x0008, []byte{2, segmentBlockBlock, cscdIdentification})
	p = appendCopyDescriptor(p, 0x000c, []byte{0, 2, cscdSelf >> 8, cscdSelf & 0xff})

	general := make([]byte, 32)
	binary.BigEndian.PutUint32(general, math.MaxUint16)
	binary.BigEndian.PutUint32(general[4:], maxCopiesRunning)
	general[12] = 9
	return appendCopyDescriptor(p, 0x8001, general)
}

// appendCopyDescriptor appends a third-party copy descriptor, padded to four octets.
func appendCopyDescriptor(p []byte, kind uint16, body []byte) []byte {
	n := (len(body) + 3) &^ 3
	p = binary.BigEndian.AppendUint16(p, kind)
	p = binary.BigEndian.AppendUint16(p, uint16(n))
	p = append(p, body...)
	for range n - len(body) {
		p = append(p, 0)
	}
	return p
}
