package scsi

import (
	"context"
	"sync"
)

// maxReply is the most octets of parameter data that are built in a task's own memory.
const maxReply = 512

// task is one command while it runs. Handlers are its methods; they leave the answer in res, whose
// zero value is GOOD.
type task struct {
	ctx   context.Context
	dev   *Device // nil for a logical unit that is used alone
	lu    *LU     // nil at a LUN that is not there
	nexus *Nexus  // may be nil
	cdb   []byte
	x     Transfer
	res   Result

	reply [maxReply]byte
}

var tasks = sync.Pool{New: func() any { return new(task) }}

func newTask(ctx context.Context, d *Device, l *LU, n *Nexus, cdb []byte, x Transfer) *task {
	if x == nil {
		x = noTransfer{}
	}
	t := tasks.Get().(*task)
	t.ctx, t.dev, t.lu, t.nexus, t.cdb, t.x, t.res = ctx, d, l, n, cdb, x, Result{}
	return t
}

func (l *LU) execute(ctx context.Context, d *Device, n *Nexus, cdb []byte, x Transfer) Result {
	t := newTask(ctx, d, l, n, cdb, x)
	t.execute()
	return t.end()
}

// end gives the result and the task's memory back.
func (t *task) end() Result {
	res := t.res
	t.ctx, t.dev, t.lu, t.nexus, t.cdb, t.x = nil, nil, nil, nil, nil, nil
	tasks.Put(t)
	return res
}

// execute makes the checks that all commands share, in their order of precedence (SAM-5, sections
// 5.3.3 and 5.14), and runs the handler.
func (t *task) execute() {
	c := find(t.cdb)
	if c != nil && c.when != nil && !c.when(t.lu) {
		c = nil
	}
	if t.lu.space.threshold > 0 {
		t.lu.lookAtSpace()
	}
	if t.nexus != nil && t.nexus.pending.Load() > 0 && (c == nil || c.flags&despiteAttention == 0) {
		if code, ok := t.lu.takeAttention(t.nexus); ok {
			t.fail(KeyUnitAttention, code)
			return
		}
	}
	if t.lu.paths.Load() != nil && t.inaccessible(c) || t.reserved(c) {
		return
	}
	if c == nil {
		t.unknown()
		return
	}
	if s := t.lu.sanitizing.Load(); s != nil && !s.lets(c) {
		t.sense(s.condition())
		return
	}
	control := len(c.usage) - 1
	if t.cdb[control]&0x04 != 0 { // NACA: there is no ACA here
		t.badBits(control, 0x04)
		return
	}
	if bad := t.cdb[1] & c.zero; bad != 0 {
		if t.lu.anchors {
			bad &^= c.anchor
		}
		if bad != 0 {
			t.badBits(1, bad)
			return
		}
	}
	if err := t.ctx.Err(); err != nil {
		t.res.Err = err
		return
	}
	if t.absentMedium(c) {
		return
	}
	c.run(t)
}

// unknown answers a CDB that no row of the table fits: the operation is unknown, or only its
// service action is, or the CDB is cut short.
func (t *task) unknown() {
	if len(t.cdb) > 1 {
		for _, c := range byOpcode[t.cdb[0]] {
			if c.flags&action != 0 && len(t.cdb) >= len(c.usage) {
				t.sense(&Sense{
					Key: KeyIllegalRequest, Code: CodeInvalidFieldInCDB,
					FieldValid: true, InCDB: true, Field: 1, BitValid: true, Bit: 4,
				})
				return
			}
		}
	}
	t.fail(KeyIllegalRequest, CodeInvalidOpcode)
}

// executeAbsent runs a command at a LUN that is not there.
func (d *Device) executeAbsent(ctx context.Context, n *Nexus, cdb []byte, x Transfer) Result {
	t := newTask(ctx, d, nil, n, cdb, x)
	if c := find(cdb); c != nil && c.flags&anyLUN != 0 {
		c.run(t)
	} else {
		t.fail(KeyIllegalRequest, CodeLUNotSupported)
	}
	return t.end()
}

// sense ends the command with CHECK CONDITION.
func (t *task) sense(s *Sense) {
	t.res.SetSense(s, t.lu != nil && t.lu.dsense.Load())
}

func (t *task) fail(key Key, code Code) { t.sense(&Sense{Key: key, Code: code}) }

// badField ends the command with INVALID FIELD IN CDB, pointing to an octet.
func (t *task) badField(octet int) {
	t.sense(&Sense{
		Key: KeyIllegalRequest, Code: CodeInvalidFieldInCDB,
		FieldValid: true, InCDB: true, Field: uint16(octet),
	})
}

// badBits is badField that points to the highest of the bits.
func (t *task) badBits(octet int, bits byte) {
	bit := uint8(7)
	for bits&(1<<bit) == 0 {
		bit--
	}
	t.sense(&Sense{
		Key: KeyIllegalRequest, Code: CodeInvalidFieldInCDB,
		FieldValid: true, InCDB: true, Field: uint16(octet), BitValid: true, Bit: bit,
	})
}

// badParameter ends the command with INVALID FIELD IN PARAMETER LIST, pointing to an octet of it.
func (t *task) badParameter(octet int) {
	t.sense(&Sense{
		Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters,
		FieldValid: true, Field: uint16(octet),
	})
}

// answer sends parameter data, cut to the allocation length. A length field within it keeps the
// full size: an initiator asks again with it (SPC-4, section 4.3.5.6).
func (t *task) answer(data []byte, allocation int64) {
	n := min(int64(len(data)), allocation)
	t.res.In = n
	if n == 0 {
		return
	}
	n = min(n, t.x.InLength())
	for off := int64(0); off < n; {
		b, err := t.x.Buffer(int(min(n-off, int64(t.x.Chunk()))))
		if err != nil {
			t.res.Err = err
			return
		}
		part := copy(b.Bytes(), data[off:n])
		if err := t.x.In(b, off, part); err != nil {
			t.res.Err = err
			return
		}
		off += int64(part)
	}
}

// parameterList fetches a parameter list of at most length octets into dst. An initiator that sends
// less than the CDB says gets PARAMETER LIST LENGTH ERROR; ok is then false.
func (t *task) parameterList(dst []byte, length int64) (list []byte, ok bool) {
	if t.x.OutLength() < length {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return nil, false
	}
	n := min(length, int64(len(dst)))
	if !t.fetch(dst[:n], 0) {
		return nil, false
	}
	t.res.Out = length
	return dst[:n], true
}

// fetch copies data-out from off on into dst.
func (t *task) fetch(dst []byte, off int64) bool {
	for len(dst) > 0 {
		b, err := t.x.Out(off, min(len(dst), t.x.Chunk()))
		if err != nil {
			t.res.Err = err
			return false
		}
		n := copy(dst, b.Bytes())
		b.Release()
		dst, off = dst[n:], off+int64(n)
	}
	return true
}
