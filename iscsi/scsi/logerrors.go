package scsi

import (
	"encoding/binary"
	"sync/atomic"
)

// tallies count what error counter log pages tell, since the logical unit was made.
type tallies struct {
	read, written, verified atomic.Uint64 // octets
	repeated                atomic.Uint64 // reads that succeeded when repeated

	unread, unwritten, unverified atomic.Uint64 // commands that ended with MEDIUM ERROR
	others                        atomic.Uint64 // errors of the store that say nothing of the medium
}

// errors counts a failure of the store by what the command was about.
func (y *tallies) errors(c *command, cause cause) {
	switch {
	case cause == causeFlush || cause == causeBusy || cause == causeClosed:
		y.others.Add(1)
	case cause != causeMedium:
	case c == nil:
	case c.op == OpVerify10 || c.op == OpVerify12 || c.op == OpVerify16:
		y.unverified.Add(1)
	case c.rule.access == accessRead:
		y.unread.Add(1)
	default:
		y.unwritten.Add(1)
	}
}

// appendErrors appends an error counter page's parameters (SPC-4, section 7.3.8): those that can be known. Delays and corrections are the
// device's below the store.
func appendErrors(p []byte, corrected, octets, uncorrected uint64) []byte {
	for _, c := range []struct {
		code  uint16
		value uint64
	}{{0x0003, corrected}, {0x0005, octets}, {0x0006, uncorrected}} {
		p = appendLog(p, c.code, binary.BigEndian.AppendUint64(nil, c.value)...)
		p[len(p)-8-2] = 0x02 // a data counter instead of a list
	}
	return p
}

func (t *task) logWriteErrors(p []byte) []byte {
	y := &t.lu.tallies
	return appendErrors(p, 0, y.written.Load(), y.unwritten.Load())
}

func (t *task) logReadErrors(p []byte) []byte {
	y := &t.lu.tallies
	return appendErrors(p, y.repeated.Load(), y.read.Load(), y.unread.Load())
}

func (t *task) logVerifyErrors(p []byte) []byte {
	y := &t.lu.tallies
	return appendErrors(p, 0, y.verified.Load(), y.unverified.Load())
}

// logOtherErrors is the non-medium error page (SPC-4, section 7.3.15).
func (t *task) logOtherErrors(p []byte) []byte {
	return appendLog(p, 0x0000, binary.BigEndian.AppendUint64(nil, t.lu.tallies.others.Load())...)
}
