package scsi

import (
	"encoding/binary"
	"math"
)

// copyStatus is RECEIVE COPY STATUS(LID1) (SPC-4, section 6.23). A copy that has failed is kept for the
// failure's details.
//
//	 0               4                5          7      8               12
//	+---------------+----------------+----------+------+---------------+
//	| available data|HDD status      | segments | units| count         |
//	+---------------+----------------+----------+------+---------------+
func (t *task) copyStatus() {
	g := &t.lu.copies
	r := g.find(t.nexus, uint32(t.cdb[2]), false)
	if r == nil {
		t.badField(2)
		return
	}
	p := t.reply[:12]
	clear(p)
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	ended, _, failed := g.state(r)
	switch {
	case !ended:
	case failed == nil:
		p[4] = 0x01
	default:
		p[4] = 0x02
	}
	binary.BigEndian.PutUint16(p[5:], uint16(r.segments.Load()))
	units, count := copyUnits(r.moved.Load(), math.MaxUint32)
	p[7] = units
	binary.BigEndian.PutUint32(p[8:], uint32(count))
	if ended && failed == nil {
		g.drop(func(o *copyResult) bool { return o == r })
	}
	t.answer(p, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}

// copyUnits gives a count in the smallest unit (0 octets, 1 KiB, 2 MiB ...) in which it fits.
func copyUnits(octets, most uint64) (units byte, count uint64) {
	for octets > most {
		octets >>= 10
		units++
	}
	return units, octets
}

// copyFailedSegment is RECEIVE COPY FAILURE DETAILS(LID1) (SPC-4, section 6.20): status and sense data
// of the copy that failed. Reading them forgets it.
func (t *task) copyFailedSegment() {
	g := &t.lu.copies
	r := g.find(t.nexus, uint32(t.cdb[2]), false)
	if r == nil {
		t.badField(2)
		return
	}
	ended, _, failed := g.state(r)
	if !ended || failed == nil {
		t.badField(2)
		return
	}
	p := t.reply[:60]
	clear(p)
	p[56] = byte(StatusCheckCondition)
	p = failed.AppendFixed(p)
	binary.BigEndian.PutUint16(p[58:], uint16(len(p)-60))
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	g.drop(func(o *copyResult) bool { return o == r })
	t.answer(p, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}

// Copy operation statuses of RECEIVE COPY STATUS(LID4).
const (
	copySucceeded  = 0x01
	copyFailed     = 0x02
	copyForeground = 0x11 // in progress, as long as its command
	copyBackground = 0x12 // in progress, after its command
	copyTerminated = 0x60
)

// copyStatusLID4 is RECEIVE COPY STATUS(LID4) (SPC-4, section 6.24).
//
//	 0               4     5        6       8         12      13    14     15     16        24        26    32
//	+---------------+-----+--------+-------+---------+-------+-----+------+------+---------+---------+-----+-------
//	| available data| SA  | status | count.| delay   |SCSI st|field|sense | units| count   | segments|  0  | sense
//	+---------------+-----+--------+-------+---------+-------+-----+------+------+---------+---------+-----+-------
func (t *task) copyStatusLID4() {
	g := &t.lu.copies
	r := g.find(t.nexus, binary.BigEndian.Uint32(t.cdb[2:]), true)
	if r == nil {
		t.badField(2)
		return
	}
	p := t.reply[:32]
	clear(p)
	p[4] = r.action
	ended, aborted, failed := g.state(r)
	switch {
	case !ended:
		p[5] = copyForeground
		if r.background {
			p[5] = copyBackground
		}
		binary.BigEndian.PutUint32(p[8:], 1000) // look again in a second
	case aborted:
		p[5] = copyTerminated
	case failed != nil:
		p[5] = copyFailed
	default:
		p[5] = copySucceeded
	}
	units, count := copyUnits(r.moved.Load(), math.MaxUint64)
	p[15] = units
	binary.BigEndian.PutUint64(p[16:], count)
	binary.BigEndian.PutUint16(p[24:], uint16(r.segments.Load()))
	if ended && !aborted && failed != nil {
		p[12] = byte(StatusCheckCondition)
		p = failed.AppendFixed(p)
		p[13], p[14] = byte(len(p)-32), byte(len(p)-32)
	}
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	if ended {
		g.drop(func(o *copyResult) bool { return o == r })
	}
	t.answer(p, int64(binary.BigEndian.Uint32(t.cdb[10:])))
}
