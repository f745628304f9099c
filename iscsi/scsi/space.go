package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"goiwarp/iscsi/store"
)

// spaceInterval is how often a logical unit with a threshold looks at its store's space, at most.
const spaceInterval = time.Second

// space is what a thin logical unit knows of its store's space. The zero value is one that knows nothing.
//
// Resources are counted in threshold sets of 2^exponent blocks (SBC-3, section 4.7.3.8), which hold 1 MiB unless the capacity then does not fit
// into 32 bits.
type space struct {
	of        store.Spacer // nil: not known
	threshold int64        // octets; 0 is none
	next      atomic.Int64 // when to look again, in nanoseconds since the epoch
	reached   atomic.Bool
}

// findSpace looks whether the store tells of its space.
func (l *LU) findSpace() error {
	s, ok := l.store.(store.Spacer)
	if ok && l.thin {
		if _, _, err := s.Space(); err == nil {
			l.space.of = s
		}
	}
	l.space.threshold = l.cfg.SpaceThreshold
	switch {
	case l.cfg.SpaceThreshold < 0:
		return errors.New("scsi: a threshold may not be negative")
	case l.cfg.SpaceThreshold > 0 && l.space.of == nil:
		return fmt.Errorf("scsi: %s: a threshold needs thin provisioning in a file", l.info.Name)
	}
	return nil
}

// thresholdExponent is the power of two of blocks in a threshold set; 0 if resources are not counted.
func (l *LU) thresholdExponent() byte {
	if l.space.of == nil {
		return 0
	}
	exponent := byte(0)
	for size := l.cfg.BlockSize; size < 1<<20; size <<= 1 {
		exponent++
	}
	for l.blocks.Load()>>exponent > math.MaxUint32 {
		exponent++
	}
	return exponent
}

// lookAtSpace tells operator and initiators when the space falls to the threshold, once until it has risen above it by an eighth. It looks
// when commands come, since without commands the logical unit takes no space.
func (l *LU) lookAtSpace() {
	now := time.Now().UnixNano()
	next := l.space.next.Load()
	if now < next || !l.space.next.CompareAndSwap(next, now+int64(spaceInterval)) {
		return
	}
	used, available, err := l.space.of.Space()
	if err != nil {
		return
	}
	attrs := []any{"lun", l.cfg.Identity, "store", l.info.Name, "available", available, "used", used, "threshold", l.space.threshold}
	switch {
	case available <= l.space.threshold:
		if !l.space.reached.Swap(true) {
			l.log.Warn("space for the thin logical unit runs out", attrs...)
			l.Attention(CodeThresholdReached, nil)
		}
	case available > l.space.threshold+l.space.threshold/8:
		if l.space.reached.Swap(false) {
			l.log.Info("space for the thin logical unit is above its threshold again", attrs...)
		}
	}
}

// Scopes of resource counts.
const (
	scopeUnit   = 1 // this logical unit's alone
	scopeShared = 2
)

// logProvisioning is the logical block provisioning log page (SBC-3, section 6.3.4): what is available, which others may take, and what is
// used.
//
//	 0       2     3      4              8      9        12
//	+-------+-----+------+--------------+------+--------+---
//	| code  | 03h | 08h  |    count     |scope |   0    | ...
//	+-------+-----+------+--------------+------+--------+---
func (t *task) logProvisioning(p []byte) []byte {
	l := t.lu
	used, available, err := l.space.of.Space()
	if err != nil {
		t.storeError(err, false, 0)
		return p
	}
	set := int64(l.cfg.BlockSize) << l.thresholdExponent()
	count := func(code uint16, octets int64, scope byte) {
		var v [8]byte
		binary.BigEndian.PutUint32(v[:], uint32(min(octets/set, math.MaxUint32)))
		v[4] = scope
		p = appendLog(p, code, v[:]...)
	}
	count(0x0001, available, scopeShared)
	count(0x0002, used+set-1, scopeUnit)
	return p
}

// provisioningPage is the logical block provisioning mode page (SBC-3, section 6.4.7), a header and one threshold: soft, armed while the
// available resources fall. The operator sets it.
//
//	 0     1     2         4       5      16       17       18      20           24
//	+-----+-----+---------+-------+------+--------+--------+-------+------------+
//	| 5Ch | 02h |   14h   | SITUA |  0   | E T A  |  01h   |   0   |   count    |
//	+-----+-----+---------+-------+------+--------+--------+-------+------------+
func (l *LU) provisioningPage(control byte) []byte {
	if l.space.of == nil {
		return nil
	}
	p := make([]byte, 24)
	p[0], p[1] = 0x40|ModePageExceptions, subpageProvisioning
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)-4))
	if control == ModeChangeable {
		return p
	}
	p[17] = 0x01 // available resources
	if l.space.threshold > 0 {
		p[16] = 0x80 // ENABLED, soft, decreasing
		sets := l.space.threshold / (int64(l.cfg.BlockSize) << l.thresholdExponent())
		binary.BigEndian.PutUint32(p[20:], uint32(min(sets, math.MaxUint32)))
	}
	return p
}
