package scsi

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// maxCopies bounds the copies that a logical unit remembers or has under way with a list identifier. Beyond
// it the oldest that has ended is forgotten.
const maxCopies = 64

// copyResult is what RECEIVE COPY STATUS tells of a copy.
type copyResult struct {
	nexus  *Nexus
	list   uint32
	lid4   bool
	action byte // service action of the command

	moved    atomic.Uint64 // octets written
	segments atomic.Uint32 // segments copied

	// copyLog.mu guards the rest.
	ended   bool
	aborted bool
	sense   *Sense // of a failure
}

func (r *copyResult) segment() { r.segments.Add(1) }

// copyLog holds the results of a logical unit's copies, oldest first, until they are asked for, their nexus is
// gone, or a reset (SPC-4, section 5.17.4.3). Its zero value is empty.
type copyLog struct {
	mu   sync.Mutex // guards list
	list []*copyResult
}

// begin adds a copy. It fails if one with that identifier of the same nexus is under way, or too many
// are.
func (g *copyLog) begin(n *Nexus, r *copyResult) bool {
	r.nexus = n
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.index(n, r.list, r.lid4); i >= 0 {
		if !g.list[i].ended {
			return false
		}
		g.list = slices.Delete(g.list, i, i+1)
	}
	if len(g.list) == maxCopies {
		i := slices.IndexFunc(g.list, func(r *copyResult) bool { return r.ended })
		if i < 0 {
			return false
		}
		g.list = slices.Delete(g.list, i, i+1)
	}
	g.list = append(g.list, r)
	return true
}

func (g *copyLog) index(n *Nexus, list uint32, lid4 bool) int {
	return slices.IndexFunc(g.list, func(r *copyResult) bool { return r.nexus == n && r.list == list && r.lid4 == lid4 })
}

// end notes how a copy has ended.
func (g *copyLog) end(r *copyResult, failed *Sense, aborted bool) {
	g.mu.Lock()
	r.ended, r.sense, r.aborted = true, failed, aborted
	g.mu.Unlock()
}

// find gives a copy of a nexus.
func (g *copyLog) find(n *Nexus, list uint32, lid4 bool) *copyResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.index(n, list, lid4); i >= 0 {
		return g.list[i]
	}
	return nil
}

// state gives what a copy has come to.
func (g *copyLog) state(r *copyResult) (ended, aborted bool, failed *Sense) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return r.ended, r.aborted, r.sense
}

func (g *copyLog) drop(which func(r *copyResult) bool) {
	g.mu.Lock()
	g.list = slices.DeleteFunc(g.list, which)
	g.mu.Unlock()
}

// forget drops the results of a nexus that is gone.
func (g *copyLog) forget(n *Nexus) { g.drop(func(r *copyResult) bool { return r.nexus == n }) }

// clear drops the results of all copies that have ended.
func (g *copyLog) clear() { g.drop(func(r *copyResult) bool { return r.ended }) }

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
	copyInProgress = 0x11 // in the foreground
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
		p[5] = copyInProgress
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
