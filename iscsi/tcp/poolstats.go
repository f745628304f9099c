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
