package initiator

import (
	"errors"
	"slices"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// judge decides what becomes of a command that did not simply succeed: it is its owner's, or is sent again. Disk.mu is held.
func (d *Disk) judge(r *Request) {
	var status *scsi.Error
	var reject *RejectError
	switch err := r.Err; {
	case err == nil:
		d.noteReservation(r)
		d.finishLocked(r, nil)
	case errors.Is(err, iscsi.ErrConnection):
		if r.sent {
			r.tried = true
			if r.what != reads && d.cfg.Fence != FenceNone {
				r.path.haunt()
			}
		}
		if r.session == r.path.session {
			r.path.drop(err)
		}
		d.resend(r)
	case errors.Is(err, ErrAborted): // by a reset, or by its deadline; the target has confirmed it
		r.tried = true
		d.resend(r)
	case r.gaveUp || d.closed:
		d.finishLocked(r, err)
	case errors.As(err, &status):
		d.judgeStatus(r, status)
	case errors.As(err, &reject) && reject.Reason == iscsi.RejectDataDigest:
		d.tryAgain(r)
	default:
		d.finishLocked(r, err)
	}
}

// resend lets a command wait for its next sending, if there is to be one.
func (d *Disk) resend(r *Request) {
	switch {
	case d.closed:
		d.finishLocked(r, d.closedError())
	case r.gaveUp:
		d.finishLocked(r, ErrAborted)
	case r.what == once && r.tried:
		d.finishLocked(r, uncertain(r))
	default:
		d.stats.Resent++
		d.park(r)
	}
}

// tryAgain is resend within bounds, for what should not happen often.
func (d *Disk) tryAgain(r *Request) {
	if r.again++; r.again > maxAttentions {
		d.finishLocked(r, r.Err)
		return
	}
	d.resend(r)
}

// tryLater is resend after a pause, which grows.
func (d *Disk) tryLater(r *Request) {
	r.busy = min(r.busy+1, maxBusy)
	r.ready = time.Now().Add(min(busyFirst<<(r.busy-1), busyLast))
	d.resend(r)
}

// judgeStatus is judge for a status other than GOOD. Statuses that say that the command was not executed are waited out.
func (d *Disk) judgeStatus(r *Request, e *scsi.Error) {
	switch {
	case e.UnitAttention():
		d.attention(r.path, e.Sense.Code)
		d.tryAgain(r)
	case e.Status == scsi.StatusTaskAborted, e.HasSense && e.Sense.Key == scsi.KeyAbortedCommand:
		r.tried = true
		d.tryAgain(r)
	case e.Status == scsi.StatusBusy, e.Status == scsi.StatusTaskSetFull:
		if r.busy >= maxBusy {
			d.finishLocked(r, e)
			return
		}
		d.tryLater(r)
	case e.HasSense && e.Sense.Key == scsi.KeyNotReady:
		switch e.Sense.Code {
		case scsi.CodeNotAccessibleTransition:
			d.access(r.path, Transitioning)
		case scsi.CodeNotAccessibleStandby:
			d.access(r.path, Standby)
		case scsi.CodeNotAccessibleUnavailable:
			d.access(r.path, Unavailable)
		case scsi.CodeBecomingReady:
			d.tryLater(r)
			return
		default:
			d.finishLocked(r, e)
			return
		}
		d.resend(r) // by another path, or by this one when it is there again
	default:
		d.finishLocked(r, e)
	}
}

// access takes over that a path has another access state than was known, and has it asked for.
func (d *Disk) access(p *diskPath, a AccessState) {
	p.access, p.alua = a, true
	p.poke()
	d.review(p, nil)
}

// Unit attentions that Disks act on and scsi does not name.
const (
	codeAccessStateChanged scsi.Code = 0x2a06
	codeImplicitTransition scsi.Code = 0x2a07
)

// attention acts on a unit attention. Disk.mu is held.
func (d *Disk) attention(p *diskPath, c scsi.Code) {
	switch c {
	case scsi.CodePowerOn, scsi.CodeInternalReset:
		d.cache.reset()
	case scsi.CodeCapacityChanged, scsi.CodeInquiryDataChanged, scsi.CodeMediumMayHaveChanged, scsi.CodeModeParametersChanged:
		d.geo.Store(nil)
		p.poke()
	case codeAccessStateChanged, codeImplicitTransition, scsi.CodeTargetConditionsChanged:
		p.poke()
	case scsi.CodeReservationsPreempted, scsi.CodeRegistrationsPreempted, scsi.CodeReservationsReleased:
		if p.registered || d.held.reserved {
			p.doubt = true
			p.poke()
		}
	}
}

// cacheState is what is known of the target's write cache.
type cacheState struct {
	volatile bool
	dirty    bool   // there are writes that were answered and not flushed
	dirtyAt  uint64 // the last of them was answered when so many commands had been submitted
	lost     bool   // to be told by the next flush
}

// note follows the cache by a command that has succeeded.
func (c *cacheState) note(r *Request, seq uint64) {
	switch {
	case r.area.end > 0:
		if c.volatile && !r.fua() {
			c.dirty, c.dirtyAt = true, seq
		}
	case r.flushesAll() && r.seq > c.dirtyAt:
		c.dirty = false
	}
}

// flushesAll tells whether r is a SYNCHRONIZE CACHE of the whole logical unit.
func (r *Request) flushesAll() bool {
	c := r.command()
	switch c[0] {
	case scsi.OpSynchronizeCache10, scsi.OpSynchronizeCache16:
		return !slices.ContainsFunc(c[2:min(len(c), 14)], func(b byte) bool { return b != 0 })
	}
	return false
}

// reset is the loss of the cache.
func (c *cacheState) reset() {
	c.lost = c.lost || c.dirty
	c.dirty = false
}

// verdict is how a flush that has succeeded really ended.
func (c *cacheState) verdict(r *Request) error {
	if !c.lost || r.command()[0] != scsi.OpSynchronizeCache10 && r.command()[0] != scsi.OpSynchronizeCache16 {
		return nil
	}
	c.lost = false
	return ErrCacheLost
}
