package initiator

import (
	"context"
	"time"
)

// startFence begins to end what lost sessions have left at the target, if there is another path to do it by. Disk.mu is held.
func (d *Disk) startFence() {
	if d.fencing || d.closed || d.cfg.Fence != FenceReset || len(d.active) == 0 || !d.ghosts() {
		return
	}
	d.fencing = true
	d.wg.Go(d.fence)
}

// fence works until there is nothing left to be ended, or nobody to do it.
func (d *Disk) fence() {
	for {
		d.mu.Lock()
		p := d.choose()
		if p == nil || d.closed || !d.ghosts() {
			d.fencing = false
			d.unlock()
			return
		}
		var same []*diskPath
		all := true
		for _, q := range d.paths {
			if q.ghost == 0 {
				continue
			}
			if q.tag == p.tag && q.cfg.TargetName == p.cfg.TargetName {
				same = append(same, q)
			} else {
				all = false
			}
		}
		s := p.session
		d.unlock()
		for _, q := range same {
			all = d.replace(q, p) && all
		}
		if all {
			continue
		}
		if err := d.resetBy(p, s); err != nil {
			d.log.Warn("scsi logical unit cannot be reset by another path", "target", p.cfg.TargetName, "portal", p.cfg.Addr, "error", err)
			_ = sleep(d.ctx, time.Second) // whose end the next turn sees, too
		}
	}
}

// replace ends the lost session of q by one that takes its place, by the portal of p. If q is about to log in itself it has that effect already.
func (d *Disk) replace(q, p *diskPath) bool {
	select {
	case q.login <- struct{}{}:
		defer func() { <-q.login }()
	default:
		return false
	}
	d.mu.Lock()
	upTo := d.seq
	up := q.up
	d.mu.Unlock()
	if up {
		return true
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.Session.AbortTimeout)
	defer cancel()
	s, err := q.loginBy(ctx, p)
	if err != nil {
		d.log.Debug("iscsi session cannot be replaced by another portal", "target", p.cfg.TargetName, "portal", p.cfg.Addr, "error", err)
		return false
	}
	d.fenced(upTo, q)
	_ = s.Logout(ctx) // it has done what it was for
	s.Close()
	return true
}

// resetBy resets the logical unit.
func (d *Disk) resetBy(p *diskPath, s *Session) error {
	d.mu.Lock()
	upTo := d.seq
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.Session.AbortTimeout)
	defer cancel()
	if err := s.resetLUN(ctx, p.cfg.LUN); err != nil {
		return err
	}
	d.fenced(upTo, d.paths...)
	return nil
}

// fenced notes that what the paths' sessions had left until upTo has been ended.
func (d *Disk) fenced(upTo uint64, paths ...*diskPath) {
	d.mu.Lock()
	d.stats.Fences++
	for _, q := range paths {
		if q.ghost <= upTo {
			q.ghost = 0
		}
	}
	d.dispatch()
	d.unlock()
}
