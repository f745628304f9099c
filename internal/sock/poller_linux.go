package sock

import (
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Poller is busy polling by the readers of some connections, for their own and for guests. Of several only one polls at a time. A nil *Poller
// polls nothing.
type Poller struct {
	limit time.Duration
	start time.Time

	under    atomic.Int32 // guests' requests under way
	crowded  atomic.Int32 // above 0: there were too many, and so many more have to come and go
	last     atomic.Int64 // when a request began or ended, since start
	idleWait brevity      // from the end of the last request to the next
	workWait brevity      // from a request to its answer
	pays     trial

	leading atomic.Bool // somebody polls, and has what follows
	visited []*Guest

	mu     sync.Mutex // of changes of guests
	guests atomic.Pointer[[]*Guest]
}

// brevity tells whether waits of a kind are short: one of the last two was.
type brevity struct{ left atomic.Int32 }

func (b *brevity) note(short bool) {
	if short {
		b.left.Store(2)
	} else if n := b.left.Load(); n > 0 {
		b.left.Store(n - 1)
	}
}

func (b *brevity) holds() bool { return b.left.Load() > 0 }

// NewPoller makes a Poller that polls for at most limit before it sleeps. It is nil if the limit is not above 0, or if there is one
// processor only, which others need meanwhile.
func NewPoller(limit time.Duration) *Poller {
	if limit <= 0 || min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) < 2 {
		return nil
	}
	return newPoller(limit)
}

func newPoller(limit time.Duration) *Poller {
	p := &Poller{limit: limit, start: time.Now()}
	p.guests.Store(new([]*Guest))
	p.pays.again()
	return p
}

// Lead makes a leader of c's reader: of who calls Read of the Socket that NewSocket makes of what Lead returns. c is the Poller's from then on. A
// connection that is not a TCP or a Unix one is returned as it is.
func (p *Poller) Lead(c net.Conn) net.Conn {
	if p == nil {
		return c
	}
	b := takeOver(c)
	if b == nil {
		return c
	}
	b.poller = p
	return NewConn(newStreamSocket(b, b))
}

// takeOver takes the descriptor out of a connection. It is nil where that cannot be done; the connection is as it was then.
func takeOver(c net.Conn) *bare {
	var raw syscall.RawConn
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		_ = c.SetNoDelay(true)
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	b, err := newBare(raw, c.LocalAddr(), c.RemoteAddr())
	if err != nil {
		return nil
	}
	_ = c.Close() // b has a descriptor of its own
	return b
}

// begun notes that a request is under way.
func (p *Poller) begun() {
	now := p.now()
	waited := now - p.last.Load()
	switch n := p.under.Add(1); {
	case n > maxPolled:
		p.crowded.Store(calmDown)
	case n == 1:
		p.idleWait.note(waited < int64(p.limit))
	}
	p.pays.next(now, waited >= int64(p.limit) || p.crowded.Load() > 0)
	if p.crowded.Load() > 0 {
		p.crowded.Add(-1)
	}
	p.last.Store(now)
}

// ended notes that a request has ended.
func (p *Poller) ended() {
	now := p.now()
	p.workWait.note(now-p.last.Load() < int64(p.limit))
	p.last.Store(now)
	p.under.Add(-1)
}

func (p *Poller) now() int64 { return int64(time.Since(p.start)) }

// worth tells whether to poll.
func (p *Poller) worth() bool {
	switch {
	case p.crowded.Load() > 0 || !p.pays.on.Load():
		return false
	case p.under.Load() == 0:
		return p.idleWait.holds()
	}
	return p.workWait.holds()
}

// poll is the leader's waiting: it attempts f, and visits guests, until f is done or has failed, or there is no more use in it.
func (p *Poller) poll(b *bare, f func(fd uintptr) bool) (done bool, err error) {
	if !p.worth() || !p.leading.CompareAndSwap(false, true) {
		return false, nil
	}
	if !b.shut {
		b.shut = true
		b.in.shut()
	}
	p.invite()
	defer func() {
		p.takeLeave()
		p.leading.Store(false)
	}()
	until := p.now() + int64(p.limit)
	for {
		const rounds = 8 // to one look at the clock
		for range rounds {
			if done, err := b.attempt(f); done || err != nil {
				return done, err
			}
			if p.visit() {
				if !p.worth() {
					return false, nil
				}
				until = p.now() + int64(p.limit)
			}
		}
		if p.now() > until {
			return false, nil
		}
		p.invite()
	}
}

// invite takes the guests that wait.
func (p *Poller) invite() {
	for _, g := range *p.guests.Load() {
		if g.invite() {
			p.visited = append(p.visited, g)
		}
	}
}

// visit visits all guests, and tells whether one of them did anything.
func (p *Poller) visit() bool {
	did := false
	p.visited = slices.DeleteFunc(p.visited, func(g *Guest) bool {
		d, more := g.visit()
		did = did || d
		return !more
	})
	return did
}

// takeLeave lets the guests wait for themselves.
func (p *Poller) takeLeave() {
	for _, g := range p.visited {
		g.part()
	}
	clear(p.visited)
	p.visited = p.visited[:0]
}

// join and leave change the list of guests, which leaders read at any time.
func (p *Poller) join(g *Guest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append(slices.Clone(*p.guests.Load()), g)
	p.guests.Store(&list)
}

func (p *Poller) leave(g *Guest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.guests.Load()), func(x *Guest) bool { return x == g })
	p.guests.Store(&list)
}
