package tcp

// PoolStats is a snapshot of a Pool.
type PoolStats struct {
	Held  int64 // octets taken from the system
	Lent  int64 // octets of them in use
	Limit int64 // octets at most
}

// Stats takes a snapshot.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PoolStats{Held: int64(len(p.zones)) * zoneSize, Limit: int64(p.limit) * zoneSize}
	for _, z := range p.zones {
		s.Lent += int64(z.used) * page
	}
	return s
}

// SetLimit changes the pool's bound, rounded up as NewPool does, while it is used. What is lent stays lent: a pool that holds more than
// the new bound takes nothing more from the system, and gives back what becomes empty, until it is within it.
func (p *Pool) SetLimit(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = zonesOf(limit)
	keep := p.zones[:0]
	excess := len(p.zones) - p.limit
	for _, z := range p.zones {
		if excess > 0 && z.used == 0 {
			unmapZone(z.mem)
			z.mem = nil
			excess--
			continue
		}
		keep = append(keep, z)
	}
	clear(p.zones[len(keep):])
	p.zones = keep
}
