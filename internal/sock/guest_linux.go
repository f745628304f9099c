package sock

import (
	"net"
	"sync/atomic"
)

// Guest is a connection that is visited by who polls, while its own goroutine waits in Await. Its other methods are that goroutine's, as
// those of any Socket.
type Guest struct {
	*tcpSocket
	b       *bare
	poller  *Poller
	visitor Visitor
	state   atomic.Int32
	woken   atomic.Bool   // events may be left in the gate: its goroutine has been woken
	stirred atomic.Bool   // an event came while somebody visited
	back    chan struct{} // takes the token for guestWanted

	await func(ep uintptr) bool
	into  Scatter // Await's, and what came of it
	n     int
	err   error
}

// States of a Guest: who may use its reading half. The gate is shut while it is visited or wanted.
//
//	own <--> waits <--> visited --> called --> own
//	                       '------> wanted ----^
const (
	guestOwn     = iota // its goroutine, which is not in Await
	guestWaits          // nobody: its goroutine sleeps in Await
	guestVisited        // who polls
	guestCalled         // its goroutine, which is to leave Await
	guestWanted         // who polls; its goroutine waits for a token in back, to leave Await
)

// Join makes a Guest of c, for v's visits. c is the Guest's from then on. It is nil if p is nil or c is not a TCP or a Unix connection; c
// is as it was then.
func (p *Poller) Join(c net.Conn, v Visitor) *Guest {
	if p == nil {
		return nil
	}
	b := takeOver(c)
	if b == nil {
		return nil
	}
	g := &Guest{tcpSocket: newStreamSocket(b, b), b: b, poller: p, visitor: v, back: make(chan struct{}, 1)}
	g.await = g.attempt
	p.join(g)
	return g
}

// Leave ends the visits. It is not called within Await.
func (g *Guest) Leave() { g.poller.leave(g) }

// Begun and Ended say that a request has come and that it was answered: what a leader waits for.
func (g *Guest) Begun() { g.poller.begun() }

// Ended is said of each request that was Begun.
func (g *Guest) Ended() { g.poller.ended() }

// TryRead reads without waiting: (0, nil) if there is nothing.
func (g *Guest) TryRead(into Scatter) (int, error) {
	g.rd.into, g.rd.n, g.rd.err = into, 0, nil
	_, err := g.b.attempt(g.rd.attempt)
	g.rd.into = nil
	if g.rd.err != nil {
		err = g.rd.err
	}
	return g.rd.n, err
}

// Await is Read with visits while it waits. It returns (0, nil) when a Visit has said that this goroutine is to go on. What into acquires may
// be another place after a visit.
func (g *Guest) Await(into Scatter) (int, error) {
	g.into, g.n, g.err = into, 0, nil
	rung, err := g.b.in.wait(g.await)
	if rung || err != nil {
		g.reclaim()
		return 0, err
	}
	return g.n, g.err
}

// attempt is what Await waits for. Between two calls anyone may visit.
func (g *Guest) attempt(uintptr) bool {
	g.woken.Store(true)
	for {
		switch s := g.state.Load(); s {
		case guestVisited:
			// The event is the visitor's, but may be one that comes only once, too late for the visits.
			g.stirred.Store(true)
			if g.state.Load() == guestVisited {
				return false
			}
		case guestWaits, guestCalled:
			if !g.state.CompareAndSwap(s, guestOwn) {
				continue
			}
			if s == guestCalled {
				return true
			}
		case guestOwn:
			if g.n, g.err = g.TryRead(g.into); g.n > 0 || g.err != nil {
				return true
			}
			g.state.Store(guestWaits)
			return false
		}
	}
}

// reclaim makes the Guest its goroutine's, which has been told to leave Await.
func (g *Guest) reclaim() {
	for {
		switch s := g.state.Load(); s {
		case guestOwn:
			return
		case guestVisited:
			if g.state.CompareAndSwap(s, guestWanted) {
				<-g.back
				g.state.Store(guestOwn)
			}
		default:
			g.state.CompareAndSwap(s, guestOwn)
		}
	}
}

// invite makes the caller, who polls, the Guest's visitor, if nobody has it.
func (g *Guest) invite() bool {
	if !g.state.CompareAndSwap(guestWaits, guestVisited) {
		return false
	}
	g.b.in.shut()
	if g.woken.Swap(false) {
		g.b.in.clear()
	}
	return true
}

// visit visits. The Guest is its goroutine's again if there is no more to do here, or if that wants it.
func (g *Guest) visit() (did, more bool) {
	did, more = g.visitor.Visit()
	if more && g.state.Load() == guestVisited {
		return did, true
	}
	g.b.in.open()
	if g.state.CompareAndSwap(guestVisited, guestCalled) {
		g.b.in.ring()
	} else {
		g.back <- struct{}{}
	}
	return did, false
}

// part ends the visits of who polls no more.
func (g *Guest) part() {
	if !g.state.CompareAndSwap(guestVisited, guestWaits) {
		g.b.in.open()
		g.back <- struct{}{}
		return
	}
	g.b.in.open()
	if g.stirred.Swap(false) {
		g.b.in.ring()
	}
}
