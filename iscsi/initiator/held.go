package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// reservations are what the Disk's users have taken, as far as the answers to their commands tell. Disk.mu guards it.
type reservations struct {
	key      uint64 // 0: not registered
	reserved bool   // persistently, of this kind
	kind     ReservationType
	classic  *diskPath // holds a RESERVE(6)
	lost     error
}

// watches tells whether r, which has succeeded, changes reservations.
func (h *reservations) watches(r *Request) bool {
	switch r.command()[0] {
	case scsi.OpPersistentReserveOut, scsi.OpReserve6, scsi.OpRelease6:
		return true
	}
	return false
}

// noteReservation follows a command that watches has picked.
func (d *Disk) noteReservation(r *Request) {
	h, c := &d.held, r.command()
	switch c[0] {
	case scsi.OpReserve6:
		h.classic, h.lost = r.path, nil
		return
	case scsi.OpRelease6:
		h.classic = nil
		return
	}
	if r.Out == nil || r.OutLen < 16 || len(c) < 3 {
		return
	}
	list := r.Out.Bytes()
	h.note(c[1]&0x1f, ReservationType(c[2]&0xf), binary.BigEndian.Uint64(list[8:]))
	if action := c[1] & 0x1f; action == scsi.SARegister || action == scsi.SARegisterAndIgnore {
		r.path.registered = h.key != 0
	}
}

// note takes over that a PERSISTENT RESERVE OUT has succeeded.
func (h *reservations) note(action byte, kind ReservationType, key uint64) {
	switch action {
	case scsi.SARegister, scsi.SARegisterAndIgnore:
		h.key, h.lost = key, nil
		h.reserved = h.reserved && key != 0
	case scsi.SAReserve:
		h.reserved, h.kind = true, kind
	case scsi.SARelease:
		h.reserved = false
	case scsi.SAClear:
		h.key, h.reserved = 0, false
	}
}

// Register registers a key by every path, because a registration is of one I_T nexus; paths that come up later register themselves. See
// LUN.Register. With several paths a reservation should be of a kind for registrants, or the other paths are shut out by it.
func (d *Disk) Register(ctx context.Context, old, key uint64, o RegisterOptions) error {
	return d.everyPath(ctx, func(p *diskPath, l *LUN) error {
		d.mu.Lock()
		was, fresh := old, !p.registered
		if fresh && d.held.key != 0 && old == d.held.key {
			was = 0
		}
		d.mu.Unlock()
		if err := l.Register(ctx, was, key, o); err != nil {
			return err
		}
		d.mu.Lock()
		p.registered, p.doubt = key != 0, false
		d.mu.Unlock()
		return nil
	}, func() {
		d.held.note(scsi.SARegister, 0, key)
		d.dispatch()
	})
}

// Release gives a persistent reservation back, by every path: it is the holder's that does it. See LUN.Release.
func (d *Disk) Release(ctx context.Context, key uint64, t ReservationType) error {
	return d.everyPath(ctx, func(_ *diskPath, l *LUN) error { return l.Release(ctx, key, t) }, func() { d.held.note(scsi.SARelease, 0, 0) })
}

// everyPath runs f by every path that is up, and then done under mu if it has succeeded by one. A path that is lost meanwhile does not count.
func (d *Disk) everyPath(ctx context.Context, f func(*diskPath, *LUN) error, done func()) error {
	d.mu.Lock()
	if err := d.awaitPath(ctx); err != nil {
		d.unlock()
		return err
	}
	type unit struct {
		p *diskPath
		l *LUN
	}
	var units []unit
	for _, p := range d.paths {
		if p.up {
			units = append(units, unit{p, p.session.LUNOf(p.cfg.LUN)})
		}
	}
	err := d.noPath()
	d.mu.Unlock()
	worked := false
	for _, u := range units {
		switch ferr := f(u.p, u.l); {
		case ferr == nil:
			worked = true
		case errors.Is(ferr, iscsi.ErrConnection):
			err = ferr
		default:
			return ferr
		}
	}
	if !worked {
		return err
	}
	d.mu.Lock()
	done()
	d.unlock()
	return ctx.Err()
}

// checkReservations finds out, for a path that has just logged in or is in doubt, whether what was taken is still held. It may register the path.
func (p *diskPath) checkReservations(ctx context.Context, l *LUN) error {
	d := p.d
	d.mu.Lock()
	h, registered := d.held, p.registered
	if h.classic == p && p.fresh {
		d.held.classic = nil
		d.lose("RESERVE(6) ended with the session")
	}
	d.unlock()
	if h.key == 0 || h.lost != nil {
		return nil
	}
	why := ""
	if registered {
		// Registering the same key in the place of itself succeeds only if this nexus is registered with it.
		err := l.Register(ctx, h.key, h.key, RegisterOptions{})
		var e *scsi.Error
		switch {
		case errors.As(err, &e) && e.Status == scsi.StatusReservationConflict:
			why = fmt.Sprintf("key %#x is not registered any more", h.key)
		case err != nil:
			return err
		}
	}
	if why == "" && h.reserved {
		r, err := l.Reservation(ctx)
		switch {
		case err != nil:
			return err
		case !r.Held:
			why = "nobody holds it"
		case r.Type != h.kind:
			why = "it is " + r.Type.String() + " now"
		case r.Type != WriteExclusiveAllRegistrants && r.Type != ExclusiveAccessAllRegistrants && r.Key != h.key:
			why = fmt.Sprintf("key %#x holds it", r.Key)
		}
	}
	if why == "" && !registered {
		if err := l.Register(ctx, 0, h.key, RegisterOptions{Ignore: true}); err != nil {
			return err
		}
	}
	d.mu.Lock()
	if why != "" {
		d.lose(why)
		p.registered = false
	} else {
		p.registered = true
	}
	p.doubt = false
	d.unlock()
	return nil
}

// lose lets commands to the medium fail from now on.
func (d *Disk) lose(why string) {
	d.held.lost = &ReservationError{Why: why}
	d.held.reserved = false
	d.log.Error("scsi reservation lost", "target", d.node(), "why", why)
	d.dispatch()
}
