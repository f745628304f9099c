package scsi

import "encoding/binary"

// OpSendDiagnostic is SEND DIAGNOSTIC's operation code.
const OpSendDiagnostic = 0x1d

var diagnosticCommands = []command{
	{
		op: OpSendDiagnostic, name: "SEND DIAGNOSTIC", flags: medium, zero: 0xe3,
		usage: []byte{OpSendDiagnostic, 0x14, 0, 0xff, 0xff, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(binary.BigEndian.Uint16(cdb[3:])) }), run: (*task).sendDiagnostic,
	},
}

// sendDiagnostic is SEND DIAGNOSTIC (SPC-4, section 6.42) with the default self-test alone: the first and the last block can be read, and no
// flush has failed. There are no diagnostic pages, and no self-tests that would go on by themselves.
func (t *task) sendDiagnostic() {
	l := t.lu
	switch length := binary.BigEndian.Uint16(t.cdb[3:]); {
	case length != 0:
		t.badField(3)
		return
	case t.cdb[1]&0x04 == 0: // SELFTEST
		return
	}
	if l.broken.Load() != nil {
		t.fail(KeyHardwareError, CodeSelfTestFailed)
		return
	}
	if l.Ejected() {
		return
	}
	buf := scratches.Get().(*[scratchSize]byte)
	defer scratches.Put(buf)
	bs := int64(l.cfg.BlockSize)
	for _, lba := range [...]uint64{0, l.blocks.Load() - 1} {
		if _, err := l.store.ReadAt(buf[:bs], int64(lba)*bs); err != nil {
			t.fault("store failed the self-test", err, false, lba)
			t.fail(KeyHardwareError, CodeSelfTestFailed)
			return
		}
	}
}
