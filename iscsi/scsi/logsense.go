package scsi

import "encoding/binary"

// Log pages (SPC-4, section 7.3; SBC-3, section 6.2).
const (
	LogPageSupported    = 0x00
	LogPageWriteErrors  = 0x02
	LogPageReadErrors   = 0x03
	LogPageVerifyErrors = 0x05
	LogPageOtherErrors  = 0x06
	LogPageProvisioning = 0x0c
	LogPageTemperature  = 0x0d
	LogPageExceptions   = 0x2f
)

// logPage is a page, what appends its parameters, and which logical units have it; nil is all.
type logPage struct {
	page  byte
	build func(t *task, p []byte) []byte
	when  func(l *LU) bool
}

// logPages are the pages in rising order.
var logPages = []logPage{
	{LogPageSupported, nil, nil},
	{LogPageWriteErrors, (*task).logWriteErrors, nil},
	{LogPageReadErrors, (*task).logReadErrors, nil},
	{LogPageVerifyErrors, (*task).logVerifyErrors, nil},
	{LogPageOtherErrors, (*task).logOtherErrors, nil},
	{LogPageProvisioning, (*task).logProvisioning, func(l *LU) bool { return l.space.of != nil }},
	{LogPageTemperature, (*task).logTemperature, nil},
	{LogPageExceptions, (*task).logExceptions, nil},
}

func (g *logPage) offered(l *LU) bool { return g.when == nil || g.when(l) }

// logSense is LOG SENSE (SPC-4, section 6.10): current values alone, since nothing is counted against a
// threshold, and none of them can be set or saved (SP and PPC are refused).
//
//	 0         1         2             4
//	+---------+---------+-------------+------------------------
//	|DS SPF pg| subpage | page length | parameters ...
//	+---------+---------+-------------+------------------------
func (t *task) logSense() {
	control, page, subpage := t.cdb[2]>>6, t.cdb[2]&0x3f, t.cdb[3]
	if control != 1 { // cumulative values; the others are thresholds and defaults
		t.badBits(2, 0xc0)
		return
	}
	p := append(t.reply[:0], 0x80|page, 0, 0, 0) // DS: nothing is saved
	switch {
	case page == LogPageSupported && subpage == 0:
		for _, g := range logPages {
			if g.offered(t.lu) {
				p = append(p, g.page)
			}
		}
	case page == LogPageSupported && subpage == 0xff:
		p[0], p[1] = p[0]|0x40, 0xff
		for _, g := range logPages {
			if !g.offered(t.lu) {
				continue
			}
			p = append(p, g.page, 0)
			if g.page == LogPageSupported {
				p = append(p, g.page, 0xff)
			}
		}
	case subpage != 0:
		t.badField(3)
		return
	default:
		found := false
		for _, g := range logPages {
			if g.page == page && g.build != nil && g.offered(t.lu) {
				found = true
				p = g.build(t, p)
			}
		}
		if !found {
			t.badBits(2, 0x3f)
			return
		}
		p = t.fromParameter(p)
	}
	if t.res.Status != StatusGood || t.res.Err != nil {
		return
	}
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)-4))
	t.answer(p, int64(binary.BigEndian.Uint16(t.cdb[7:])))
}

// fromParameter leaves out the parameters before the one that PARAMETER POINTER names. A pointer
// beyond the last one is refused.
func (t *task) fromParameter(p []byte) []byte {
	first := binary.BigEndian.Uint16(t.cdb[5:])
	for at := 4; at < len(p); at += 4 + int(p[at+3]) {
		if binary.BigEndian.Uint16(p[at:]) >= first {
			return append(p[:4], p[at:]...)
		}
	}
	if first > 0 {
		t.badField(5)
	}
	return p
}

// appendLog appends a parameter in the binary format of a list (SPC-4, section 7.3.2).
func appendLog(p []byte, code uint16, value ...byte) []byte {
	p = binary.BigEndian.AppendUint16(p, code)
	p = append(p, 0x03, byte(len(value)))
	return append(p, value...)
}

// logTemperature: a store has no thermometer (FFh).
func (t *task) logTemperature(p []byte) []byte {
	p = appendLog(p, 0x0000, 0, 0xff)
	return appendLog(p, 0x0001, 0, 0xff)
}

// logExceptions tells of a flush that failed, since which the logical unit refuses writes, and of no
// temperature.
func (t *task) logExceptions(p []byte) []byte {
	code := CodeNone
	if t.lu.broken.Load() != nil {
		code = CodeWriteError
	}
	return appendLog(p, 0x0000, code.ASC(), code.ASCQ(), 0xff, 0)
}
