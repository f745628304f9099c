package target

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

const (
	// guardMax bounds the addresses remembered; the one that failed longest ago is forgotten first.
	guardMax = 4096
	// guardForget is how long after its last failure an address starts anew.
	guardForget = 10 * time.Minute
	// guardLongest is the longest time that an address is shut out.
	guardLongest = time.Minute
)

// guard slows guessing of secrets down: it counts the failed proofs of each address and shuts one out for a time once there were too
// many in a row. Only authentication is shut out; what is open to everybody stays so.
type guard struct {
	limit int // failures before it shuts out; negative: never

	mu    sync.Mutex // guards what follows
	known map[netip.Prefix]*list.Element
	order list.List // of *suspect, the last failure at the back
}

type suspect struct {
	from     netip.Prefix
	failures int
	last     time.Time
	until    time.Time
}

// guardKey is what is counted by: an IPv4 address, or an IPv6 network of 64 bits, since a host has all of its addresses to itself.
func guardKey(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for an address that is none: those share one count
	return p
}

// blocked tells whether proofs of an address are refused now, and for how long.
func (g *guard) blocked(a netip.Addr, now time.Time) (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.known[guardKey(a)]
	if e == nil {
		return 0, false
	}
	left := e.Value.(*suspect).until.Sub(now)
	return left, left > 0
}

// failed counts a failed proof.
func (g *guard) failed(a netip.Addr, now time.Time) {
	if g.limit < 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := guardKey(a)
	e := g.known[key]
	if e == nil {
		if g.known == nil {
			g.known = make(map[netip.Prefix]*list.Element)
		}
		if g.order.Len() >= guardMax {
			delete(g.known, g.order.Remove(g.order.Front()).(*suspect).from)
		}
		e = g.order.PushBack(&suspect{from: key})
		g.known[key] = e
	}
	g.order.MoveToBack(e)
	s := e.Value.(*suspect)
	if now.Sub(s.last) > guardForget {
		s.failures = 0
	}
	s.last = now
	s.failures++
	if over := s.failures - g.limit; over >= 0 {
		s.until = now.Add(min(time.Second<<min(over, 10), guardLongest))
	}
}

// passed forgets the failures of an address that has proven itself.
func (g *guard) passed(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.known[guardKey(a)]; e != nil {
		delete(g.known, g.order.Remove(e).(*suspect).from)
	}
}
