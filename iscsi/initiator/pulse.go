package initiator

import "time"

// pulse is how a silent connection of several is found: the others are heard of, so that alive takes no notice. Session.mu guards it.
type pulse struct {
	pdus  uint64 // that came by it
	last  counts // at the last beat
	asked time.Time
}

// feel looks at the further connections, and pings one that is silent while commands wait for it, as beat does for the session. It is
// called at each beat.
func (s *Session) feel() {
	now := time.Now()
	for i := 0; i < len(s.branches) && !s.ending(); i++ {
		b := s.branches[i]
		was := b.last
		b.last = counts{pdus: b.pdus}
		b.last.count(b.dm)
		switch {
		case b.load == 0 && b.asked.IsZero(), b.last.pdus != was.pdus, b.last.received != was.received:
			b.asked = time.Time{}
		case b.last.sent-was.sent > sendSlack: // waits its turn
		case b.asked.IsZero():
			if _, err := s.sendPingBy(b); err == nil {
				b.asked = now
			}
		case now.Sub(b.asked) >= s.cfg.PingTimeout:
			s.lose(b, &DeadTargetError{Silence: s.cfg.PingInterval + s.cfg.PingTimeout})
		}
		if b.lost {
			i--
		}
	}
}
