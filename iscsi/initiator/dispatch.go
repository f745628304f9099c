package initiator

import (
	"errors"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// whereabouts say where a request is that was given to a Disk.
type whereabouts uint8

const (
	nowhere whereabouts = iota // its owner's
	inQueue
	inFlight
)

// journey is what a Disk keeps of a request. Disk.mu guards it.
type journey struct {
	where   whereabouts
	gaveUp  bool // its owner wants it no more
	tried   bool // may have been executed before
	what    effect
	area    extent
	seq     uint64
	path    *diskPath
	session *Session
	flying  int // index among the changes under way, plus 1
	again   uint8
	busy    uint8
	since   time.Time // when it first had to wait
	ready   time.Time // not to be sent before; zero: now
}

// submit implements carrier.
func (d *Disk) submit(_ uint64, reqs []*Request) error {
	for _, r := range reqs {
		if r.Attr != iscsi.AttrSimple && r.Attr != iscsi.AttrUntagged {
			return ErrOrdered
		}
	}
	d.mu.Lock()
	if d.closed {
		err := d.closedError()
		d.unlock()
		return err
	}
	for _, r := range reqs {
		d.seq++
		r.journey = journey{where: inQueue, seq: d.seq}
		r.what, r.area = effectOf(r)
		if d.cfg.WriteThrough && r.what == writes {
			r.forceAccess()
		}
		r.relay = d
		// What went before and could not be sent goes first, unless it only waits for something of its own.
		if !d.send(r) {
			d.park(r)
		}
	}
	if d.parked.head != nil {
		d.plan()
	}
	d.unlock()
	return nil
}

// forceAccess sets FUA where the CDB has it.
func (r *Request) forceAccess() {
	c := r.command()
	switch c[0] {
	case scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16:
		c[1] |= scsi.FUA
	}
}

// send gives r to a path, unless it has to wait. What it ends with an error counts as sent.
func (d *Disk) send(r *Request) bool {
	if err := d.held.lost; err != nil && touchesMedium(r) {
		d.finishLocked(r, err)
		return true
	}
	if r.what != reads && (d.ghosts() || d.conflicts(r)) {
		return false
	}
	for {
		p := d.choose()
		if p == nil {
			return false
		}
		r.where, r.path, r.session = inFlight, p, p.session
		owed, err := p.session.enqueue(p.cfg.LUN, r)
		if err != nil { // it ends, or is to be logged out of
			r.where = inQueue
			p.drop(err)
			continue
		}
		p.load++
		if r.area.end > 0 {
			d.flying = append(d.flying, r)
			r.flying = len(d.flying)
		}
		if owed {
			d.owed = append(d.owed, p.session)
		}
		return true
	}
}

// touchesMedium tells whether a command reads or changes blocks.
func touchesMedium(r *Request) bool {
	switch r.command()[0] {
	case scsi.OpRead6, scsi.OpRead10, scsi.OpRead12, scsi.OpRead16, scsi.OpVerify10, scsi.OpVerify12, scsi.OpVerify16:
		return true
	}
	return r.area.end > 0
}

// conflicts tells whether r changes blocks that a command under way, or one before it that waits, changes as well.
func (d *Disk) conflicts(r *Request) bool {
	if r.area.end == 0 {
		return false
	}
	for _, q := range d.flying {
		if q != r && q.area.overlaps(r.area) {
			return true
		}
	}
	for q := d.parked.head; q != nil && q.seq < r.seq; q = q.next {
		if q != r && q.area.end > 0 && q.area.overlaps(r.area) {
			return true
		}
	}
	return false
}

// choose is the path for the next command; nil if there is none.
func (d *Disk) choose() *diskPath {
	n := len(d.active)
	switch {
	case n == 0:
		return nil
	case n == 1:
		return d.active[0]
	case d.cfg.Policy == LeastQueue:
		best := d.active[d.turn%n]
		for _, p := range d.active {
			if p.load < best.load {
				best = p
			}
		}
		d.turn++
		return best
	}
	d.turn++
	return d.active[d.turn%n]
}

// park lets r wait, in its place by the order of submission.
func (d *Disk) park(r *Request) {
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.where = inQueue
	at := d.parked.tail
	for at != nil && at.seq > r.seq {
		at = at.prev
	}
	d.parked.insert(r, at)
}

// dispatch sends what can be sent of what waits, lets end what has waited for too long, and sets the timer for the rest.
func (d *Disk) dispatch() {
	if d.parked.head == nil || d.closed {
		return
	}
	now := time.Now()
	for r := d.parked.head; r != nil; {
		next := r.next
		switch {
		case d.expired(r, now):
			d.parked.remove(r)
			d.finishLocked(r, d.noPathSince(r, now))
		case !r.ready.After(now):
			d.trySend(r)
		}
		r = next
	}
	d.plan()
}

// trySend takes r out of the queue and sends it, or puts it back in its place.
func (d *Disk) trySend(r *Request) {
	before := r.prev
	d.parked.remove(r)
	if !d.send(r) {
		d.parked.insert(r, before)
	}
}

// expired tells whether r has waited for too long: by itself, or with all others for a path.
func (d *Disk) expired(r *Request, now time.Time) bool {
	limit := d.cfg.ReplacementTimeout
	if limit < 0 {
		return false
	}
	return now.Sub(r.since) >= limit || len(d.active) == 0 && now.Sub(d.downAt) >= limit
}

// noPathSince is the end of a command that has waited for too long.
func (d *Disk) noPathSince(r *Request, now time.Time) error {
	waited := now.Sub(r.since)
	if len(d.active) == 0 {
		waited = max(waited, now.Sub(d.downAt))
	}
	cause := r.Err
	if cause == nil || len(d.active) == 0 && d.lastErr != nil {
		cause = d.lastErr
	}
	if cause == nil {
		cause = errors.New("put off for too long")
	}
	return &PathError{Target: d.node(), Waited: waited, Cause: cause}
}

// noPath is noPathSince for what is not a command.
func (d *Disk) noPath() error {
	return &PathError{Target: d.node(), Waited: time.Since(d.downAt), Cause: d.lastErr}
}

// plan sets the timer to the time when something has to be done about what waits.
func (d *Disk) plan() {
	if d.parked.head == nil || d.closed {
		return
	}
	now, next := time.Now(), time.Duration(-1)
	at := func(t time.Time) {
		if n := max(t.Sub(now), 0); next < 0 || n < next {
			next = n
		}
	}
	for r := d.parked.head; r != nil; r = r.next {
		if !r.ready.IsZero() && r.ready.After(now) {
			at(r.ready)
		}
		if limit := d.cfg.ReplacementTimeout; limit >= 0 {
			at(r.since.Add(limit))
			if len(d.active) == 0 {
				at(d.downAt.Add(limit))
			}
		}
	}
	if next >= 0 {
		d.timer.Reset(next)
	}
}

// wake is the timer's.
func (d *Disk) wake() {
	d.mu.Lock()
	d.dispatch()
	d.unlock()
}

// ended implements relay: a session is done with r.
func (d *Disk) ended(r *Request) {
	d.mu.Lock()
	p := r.path
	p.load--
	if i := r.flying; i > 0 {
		last := len(d.flying) - 1
		d.flying[i-1] = d.flying[last]
		d.flying[i-1].journey.flying = i
		d.flying[last] = nil
		d.flying = d.flying[:last]
		r.flying = 0
	}
	if r.Err == nil && !d.held.watches(r) {
		d.cache.note(r, d.seq)
		d.finishLocked(r, d.cache.verdict(r))
	} else {
		d.judge(r)
	}
	d.dispatch()
	d.unlock()
}

// stop implements carrier.
func (d *Disk) stop(r *Request) {
	d.mu.Lock()
	r.gaveUp = true
	switch r.where {
	case inQueue:
		d.parked.remove(r)
		d.finishLocked(r, ErrAborted)
		d.dispatch()
	case inFlight:
		s := r.session
		d.unlock()
		s.stop(r) // whose end comes to ended, which sends it no more
		return
	case nowhere:
	}
	d.unlock()
}
