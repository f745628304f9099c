package scsi

import (
	"encoding/binary"
	"math"
)

func binary64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// testUnitReady: a logical unit here is always ready.
func (t *task) testUnitReady() {}

// requestSense answers with a unit attention that waits, or with NO SENSE: the sense of a command
// that failed has come with its status already (SPC-4, section 6.39).
func (t *task) requestSense() {
	s := Sense{}
	switch {
	case t.lu == nil:
		s = Sense{Key: KeyIllegalRequest, Code: CodeLUNotSupported}
	case t.nexus != nil && t.nexus.pending.Load() > 0:
		if code, ok := t.lu.takeAttention(t.nexus); ok {
			s = Sense{Key: KeyUnitAttention, Code: code}
		}
	}
	if t.lu != nil && s.Key == KeyNoSense {
		if z := t.lu.sanitizing.Load(); z != nil {
			s = *z.condition()
		}
	}
	data := t.reply[:0]
	if t.cdb[1]&0x01 != 0 { // DESC
		data = s.AppendDescriptor(data)
	} else {
		data = s.AppendFixed(data)
	}
	t.answer(data, int64(t.cdb[4]))
}

// reportLUNs is REPORT LUNS: a header with the list's length, then 8 octets for each (SPC-4,
// section 6.33).
func (t *task) reportLUNs() {
	allocation := int64(binary.BigEndian.Uint32(t.cdb[6:]))
	if allocation < 16 {
		t.badField(6)
		return
	}
	data := append(t.reply[:0], 0, 0, 0, 0, 0, 0, 0, 0)
	switch t.cdb[2] {
	case 0x00, 0x02:
		if t.dev == nil {
			data = binary.BigEndian.AppendUint64(data, 0)
			break
		}
		for _, n := range t.luns() {
			data = binary.BigEndian.AppendUint64(data, EncodeLUN(n))
		}
	case 0x01: // well known logical units: none
	default:
		t.badField(2)
		return
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-8))
	if t.dev != nil && t.nexus != nil && t.nexus.pending.Load() > 0 {
		// The initiator knows now.
		for _, l := range *t.dev.luns.Load() {
			l.dropAttention(t.nexus, CodeReportedLUNsChanged)
		}
	}
	t.answer(data, allocation)
}

// luns are the numbers that the initiator sees.
func (t *task) luns() []int {
	if t.nexus != nil && t.nexus.dev == t.dev {
		return t.nexus.LUNs()
	}
	return t.dev.LUNs()
}

// readCapacity10 answers FFFFFFFFh when the last block's address does not fit; the initiator then
// asks with (16).
func (t *task) readCapacity10() {
	last := t.lu.blocks.Load() - 1
	data := t.reply[:8]
	binary.BigEndian.PutUint32(data, uint32(min(last, math.MaxUint32)))
	binary.BigEndian.PutUint32(data[4:], uint32(t.lu.cfg.BlockSize))
	t.answer(data, 8)
}

// readCapacity16 is READ CAPACITY(16), 32 octets (SBC-3, section 5.16):
//
//	 0               8             12       13        14                16              32
//	+---------------+-------------+--------+---------+-----------------+---------------+
//	|   last LBA    | block size  |  PROT  | exponent|LBPME LBPRZ align|      0...     |
//	+---------------+-------------+--------+---------+-----------------+---------------+
func (t *task) readCapacity16() {
	l := t.lu
	data := t.reply[:32]
	clear(data)
	binary.BigEndian.PutUint64(data, l.blocks.Load()-1)
	binary.BigEndian.PutUint32(data[8:], uint32(l.cfg.BlockSize))
	data[13] = byte(l.cfg.PhysicalExponent)
	if l.thin {
		data[14] = 0x80 | 0x40
	}
	t.answer(data, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}

// reportOpcodes is REPORT SUPPORTED OPERATION CODES (SPC-4, section 6.35): the table of commands,
// all or one of them, with the timeouts descriptor (which states no timeouts) if RCTD asks for it.
func (t *task) reportOpcodes() {
	allocation := int64(binary.BigEndian.Uint32(t.cdb[6:]))
	timeouts := t.cdb[2]&0x80 != 0
	if options := t.cdb[2] & 0x07; options != 0 {
		t.reportOpcode(options, timeouts, allocation)
		return
	}
	data := make([]byte, 4, 4+20*len(commands))
	for i := range commands {
		c := &commands[i]
		if c.when != nil && !c.when(t.lu) {
			continue
		}
		bits := byte(0)
		if timeouts {
			bits |= 0x02 // CTDP
		}
		if c.flags&action != 0 {
			bits |= 0x01 // SERVACTV
		}
		data = append(data, c.op, 0, 0, c.action, 0, bits, 0, byte(len(c.usage)))
		if timeouts {
			data = appendTimeouts(data, c)
		}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	t.answer(data, allocation)
}

// reportOpcode answers for one operation. Options: 1 is by operation code alone, 2 by operation
// code with service action, 3 either as the operation needs it.
func (t *task) reportOpcode(options byte, timeouts bool, allocation int64) {
	op, act := t.cdb[3], binary.BigEndian.Uint16(t.cdb[4:])
	var c *command
	rows := byOpcode[op]
	hasActions := len(rows) > 0 && rows[0].flags&action != 0
	switch {
	case options > 3:
		t.badBits(2, options&0x04)
		return
	case options == 1 && hasActions, options == 2 && len(rows) > 0 && !hasActions:
		t.badBits(2, options)
		return
	}
	for _, r := range rows {
		if (hasActions && act == uint16(r.action) || !hasActions && (options == 1 || act == 0)) && (r.when == nil || r.when(t.lu)) {
			c = r
		}
	}
	support, size := byte(0x01), 0 // not supported
	if c != nil {
		support, size = 0x03, len(c.usage)
		if timeouts {
			support |= 0x80 // CTDP
		}
	}
	data := append(t.reply[:0], 0, support, 0, byte(size))
	if c != nil {
		data = append(data, c.usage...)
		if t.lu.anchors {
			data[4+1] |= c.anchor
		}
		if timeouts {
			data = appendTimeouts(data, c)
		}
	}
	t.answer(data, allocation)
}

// Recommended timeouts of REPORT SUPPORTED OPERATION CODES, in seconds: what an initiator should wait
// for before it takes a command for lost. The store decides how long it takes in fact.
const (
	timeoutMemory = 10  // answered from memory
	timeoutMedium = 60  // a transfer of bounded length
	timeoutLong   = 600 // changes as many blocks as it is asked to
)

// appendTimeouts appends a command timeouts descriptor of 12 octets (SPC-4, section 6.35.4): no nominal processing time,
// and the recommended timeout. SANITIZE has none: it takes as long as the medium is large.
func appendTimeouts(p []byte, c *command) []byte {
	recommended := uint32(timeoutMemory)
	switch {
	case c.op == OpSanitize:
		recommended = 0
	case c.op == OpWriteSame10, c.op == OpWriteSame16, c.op == OpUnmap, c.op == OpExtendedCopy,
		c.op == OpSynchronizeCache10, c.op == OpSynchronizeCache16, c.op == OpStartStopUnit:
		recommended = timeoutLong
	case c.flags&medium != 0:
		recommended = timeoutMedium
	}
	p = append(p, 0, 0x0a, 0, 0, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(p, recommended)
}
