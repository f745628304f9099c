package scsi

import (
	"encoding/binary"
	"math"
)

// Mode pages (SPC-4, section 7.5; SBC-3, section 6.4).
const (
	ModePageErrorRecovery = 0x01
	ModePageCaching       = 0x08
	ModePageControl       = 0x0a
	ModePageExceptions    = 0x1c
	ModePageAll           = 0x3f

	subpageProvisioning = 0x02 // of ModePageExceptions
	subpageAll          = 0xff
)

// Page controls of MODE SENSE.
const (
	ModeCurrent    = 0
	ModeChangeable = 1
	ModeDefault    = 2
	ModeSaved      = 3
)

// modePages are the pages in rising order; what is built is nil where a logical unit does not have the page.
var modePages = []struct {
	page, subpage byte
	build         func(l *LU, control byte) []byte
}{
	{ModePageErrorRecovery, 0, (*LU).errorRecoveryPage},
	{ModePageCaching, 0, (*LU).cachingPage},
	{ModePageControl, 0, (*LU).controlPage},
	{ModePageExceptions, 0, (*LU).exceptionsPage},
	{ModePageExceptions, subpageProvisioning, (*LU).provisioningPage},
}

const (
	pageWCE    = 0x04 // octet 2 of the caching page: write cache enable
	pageDSense = 0x04 // octet 2 of the control page: descriptor format sense
	pageTAS    = 0x40 // octet 5 of the control page: task aborted status
	pageSWP    = 0x08 // octet 4 of the control page: software write protect
)

// errorRecoveryPage is the read-write error recovery mode page of 12 octets (SBC-3, section 6.4.8):
// nothing is reassigned, retried or given in part, and an error is told as it is.
func (l *LU) errorRecoveryPage(byte) []byte {
	p := make([]byte, 12)
	p[0], p[1] = ModePageErrorRecovery, byte(len(p)-2)
	return p
}

// exceptionsPage is the informational exceptions control mode page of 12 octets (SPC-4, section
// 7.5.12). Nothing is reported by itself (MRIE 0, DEXCPT): the log page of the same name tells when it is
// asked.
func (l *LU) exceptionsPage(control byte) []byte {
	p := make([]byte, 12)
	p[0], p[1] = ModePageExceptions, byte(len(p)-2)
	if control != ModeChangeable {
		p[2] = 0x08 // DEXCPT
	}
	return p
}

// cachingPage is the caching mode page of 20 octets, of which only WCE means anything here (SBC-3,
// section 6.4.5).
func (l *LU) cachingPage(control byte) []byte {
	p := make([]byte, 20)
	p[0], p[1] = ModePageCaching, byte(len(p)-2)
	switch {
	case control == ModeChangeable,
		control == ModeCurrent && l.wce.Load(),
		control == ModeDefault && !l.cfg.WriteThrough:
		p[2] = pageWCE
	}
	return p
}

// controlPage is the control mode page of 12 octets (SPC-4, section 7.5.10). Tasks may be reordered
// at will (queue algorithm modifier 1), and one task set serves every nexus (TST 0).
func (l *LU) controlPage(control byte) []byte {
	p := make([]byte, 12)
	p[0], p[1] = ModePageControl, byte(len(p)-2)
	if control == ModeChangeable {
		p[2], p[4], p[5] = pageDSense, pageSWP, pageTAS
		return p
	}
	if control == ModeCurrent && l.dsense.Load() {
		p[2] = pageDSense
	}
	if control == ModeCurrent && l.tas.Load() {
		p[5] = pageTAS
	}
	if control == ModeCurrent && l.swp.Load() {
		p[4] = pageSWP
	}
	p[3] = 0x10
	return p
}

// modeSense is MODE SENSE(6) and (10). The mode parameter header, of 4 or 8 octets, states the full
// length whatever the allocation length cuts off.
func (t *task) modeSense() {
	l := t.lu
	long := t.cdb[0] == OpModeSense10
	allocation := int64(t.cdb[4])
	if long {
		allocation = int64(binary.BigEndian.Uint16(t.cdb[7:]))
	}
	control, page, subpage := t.cdb[2]>>6, t.cdb[2]&0x3f, t.cdb[3]
	if control == ModeSaved {
		t.fail(KeyIllegalRequest, CodeSavingNotSupported)
		return
	}
	header := 4
	if long {
		header = 8
	}
	p := t.reply[:header]
	clear(p)
	device := byte(0x10) // DPOFUA
	if l.ReadOnly() || t.nexus.readOnly(l) {
		device |= 0x80 // WP
	}
	if t.cdb[1]&0x08 == 0 { // DBD
		p = l.appendBlockDescriptor(p, long && t.cdb[1]&0x10 != 0)
	}
	descriptor := len(p) - header
	found, wrong := false, 2
	for _, m := range modePages {
		if page != m.page && page != ModePageAll {
			continue
		}
		wrong = 3
		if subpage == m.subpage || subpage == subpageAll {
			built := m.build(l, control)
			p, found = append(p, built...), found || built != nil
		}
	}
	if !found || page == ModePageAll && subpage != 0 && subpage != subpageAll {
		t.badField(wrong)
		return
	}
	if long {
		binary.BigEndian.PutUint16(p, uint16(len(p)-2))
		p[3] = device
		if descriptor == 16 {
			p[4] = 0x01 // LONGLBA
		}
		binary.BigEndian.PutUint16(p[6:], uint16(descriptor))
	} else {
		p[0], p[2], p[3] = byte(len(p)-1), device, byte(descriptor)
	}
	t.answer(p, allocation)
}

// appendBlockDescriptor appends the short or the long LBA mode parameter block descriptor (SBC-3,
// section 6.4.2).
func (l *LU) appendBlockDescriptor(p []byte, long bool) []byte {
	blocks := l.blocks.Load()
	if long {
		p = binary.BigEndian.AppendUint64(p, blocks)
		p = append(p, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint32(p, uint32(l.cfg.BlockSize))
	}
	p = binary.BigEndian.AppendUint32(p, uint32(min(blocks, math.MaxUint32)))
	return binary.BigEndian.AppendUint32(p, uint32(l.cfg.BlockSize))
}

// modeSelect is MODE SELECT(6) and (10). WCE, D_SENSE, SWP and TAS can be changed; every other bit must be
// as MODE SENSE gave it, and nothing is saved (SP is refused). The whole list is checked before anything changes.
func (t *task) modeSelect() {
	long := t.cdb[0] == OpModeSelect10
	length, header := int64(t.cdb[4]), 4
	if long {
		length, header = int64(binary.BigEndian.Uint16(t.cdb[7:])), 8
	}
	if t.cdb[1]&0x10 == 0 { // PF: only vendor-specific pages could follow
		t.badBits(1, 0x10)
		return
	}
	if length == 0 {
		return
	}
	if length > maxReply {
		// Longer than all pages together.
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	list, ok := t.parameterList(t.reply[:], length)
	if !ok {
		return
	}
	if len(list) < header {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	at, ok := t.checkBlockDescriptor(list, header, long)
	if !ok {
		return
	}
	want := modeParameters{wce: t.lu.wce.Load(), dsense: t.lu.dsense.Load(), swp: t.lu.swp.Load(), tas: t.lu.tas.Load()}
	for at < len(list) {
		page, ok := t.checkPage(list, at)
		if !ok {
			return
		}
		switch page[0] & 0x7f {
		case ModePageCaching:
			want.wce = page[2]&pageWCE != 0
		case ModePageControl:
			want.dsense = page[2]&pageDSense != 0
			want.swp = page[4]&pageSWP != 0
			want.tas = page[5]&pageTAS != 0
		}
		at += len(page)
	}
	t.changeMode(want)
}

// checkBlockDescriptor lets a block descriptor pass that changes nothing, and gives the offset of
// the first page.
func (t *task) checkBlockDescriptor(list []byte, header int, long bool) (at int, ok bool) {
	n, lengthAt := int(list[3]), 3
	if long {
		n, lengthAt = int(binary.BigEndian.Uint16(list[6:])), 6
	}
	wantLong := long && list[4]&0x01 != 0
	if n != 0 && n != 8 && !wantLong || n != 0 && n != 16 && wantLong {
		t.badParameter(lengthAt)
		return 0, false
	}
	if len(list) < header+n {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return 0, false
	}
	if n == 0 {
		return header, true
	}
	d, blocks, size := list[header:], uint64(0), uint32(0)
	most := uint64(math.MaxUint32)
	if wantLong {
		blocks, size, most = binary64(d), binary.BigEndian.Uint32(d[12:]), math.MaxUint64
	} else {
		blocks, size = uint64(binary.BigEndian.Uint32(d)), binary.BigEndian.Uint32(d[4:])&0xffffff
	}
	// 0 and the largest number both mean "as it is".
	if blocks != 0 && blocks != most && blocks != t.lu.blocks.Load() {
		t.badParameter(header)
		return 0, false
	}
	if size != uint32(t.lu.cfg.BlockSize) {
		t.badParameter(header + n - 3)
		return 0, false
	}
	return header + n, true
}

// checkPage checks the page at an offset of the list and gives it.
func (t *task) checkPage(list []byte, at int) (page []byte, ok bool) {
	rest := list[at:]
	sub := rest[0]&0x40 != 0 // SPF
	for _, m := range modePages {
		if rest[0]&0x3f != m.page || sub != (m.subpage != 0) || sub && len(rest) > 1 && rest[1] != m.subpage {
			continue
		}
		current, changeable := m.build(t.lu, ModeCurrent), m.build(t.lu, ModeChangeable)
		if current == nil {
			continue
		}
		// A subpage's header has two octets more, and a length of two.
		header := 2
		if sub {
			header = 4
		}
		if len(rest) < header {
			t.fail(KeyIllegalRequest, CodeParameterListLength)
			return nil, false
		}
		length := int(rest[1])
		if sub {
			length = int(binary.BigEndian.Uint16(rest[2:]))
		}
		if len(rest) < header+length {
			t.fail(KeyIllegalRequest, CodeParameterListLength)
			return nil, false
		}
		if header+length != len(current) {
			t.badParameter(at + header - 1)
			return nil, false
		}
		page = rest[:len(current)]
		for i := 2; i < len(page); i++ {
			if (page[i]^current[i])&^changeable[i] != 0 {
				t.badParameter(at + i)
				return nil, false
			}
		}
		return page, true
	}
	t.badParameter(at)
	return nil, false
}

// modeParameters are the parameters that MODE SELECT can change.
type modeParameters struct{ wce, dsense, swp, tas bool }

// changeMode sets the mode parameters and tells the other nexuses. Turning the write cache off
// makes durable what was answered while it was on.
func (t *task) changeMode(want modeParameters) {
	l := t.lu
	changed := l.dsense.Swap(want.dsense) != want.dsense
	changed = l.tas.Swap(want.tas) != want.tas || changed
	if l.swp.Swap(want.swp) != want.swp {
		changed = true
	}
	if l.wce.Swap(want.wce) != want.wce {
		changed = true
		if !want.wce {
			if err := l.flush(); err != nil {
				t.storeError(err, true, 0)
			}
		}
	}
	if changed {
		l.Attention(CodeModeParametersChanged, t.nexus)
	}
}
