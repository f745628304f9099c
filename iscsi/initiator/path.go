package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"goiwarp/iscsi/scsi"
)

// diskPath is one way of a Disk to its logical unit: a session that is made again whenever it is lost.
//
//	down --login, look at the logical unit--> up --session lost--> down
//	 ^  \--failed: pause, doubled each time--/       (pause: DefaultTime2Wait)
type diskPath struct {
	d       *Disk
	cfg     PathConfig
	index   int
	recheck chan struct{} // something may have changed

	// login holds a token while somebody logs in with the path's ISID.
	login chan struct{}

	// Disk.mu guards all below.
	up         bool
	fresh      bool // has logged in and was not looked at yet
	session    *Session
	err        error // why it is not up; nil if it never was tried
	access     AccessState
	alua       bool // the target tells access states
	explicit   bool // and lets initiators change them
	preferred  bool
	group      uint16
	load       int // commands under way
	ghost      uint64
	tag        uint16 // target portal group of the last session
	registered bool   // with Disk.held.key
	doubt      bool   // reservations have to be looked at
	told       PathInfo
}

// PathInfo is a path's state.
type PathInfo struct {
	Index  int
	Addr   string
	Target string
	Up     bool
	// Active tells that commands go by it: it is up, and no other is better.
	Active bool
	Access AccessState
	Err    error // why it is not up
}

// PathEvent is a change of a path, and how many are active after it.
type PathEvent struct {
	PathInfo
	ActivePaths int
}

// Paths tells the state of all paths.
func (d *Disk) Paths() []PathInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]PathInfo, len(d.paths))
	for i, p := range d.paths {
		list[i] = p.info()
	}
	return list
}

func (p *diskPath) info() PathInfo {
	i := PathInfo{Index: p.index, Addr: p.cfg.Addr, Target: p.cfg.TargetName, Up: p.up, Access: p.access, Err: p.err}
	for _, q := range p.d.active {
		i.Active = i.Active || q == p
	}
	return i
}

// DiskStats counts what happened to a Disk.
type DiskStats struct {
	Resent uint64 // commands that were sent again
	Lost   uint64 // sessions
	Fences uint64 // logical unit resets that made sure of what lost sessions had left
}

// Stats are the counts so far.
func (d *Disk) Stats() DiskStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// run is the path's goroutine.
func (p *diskPath) run() {
	pause := time.Duration(0)
	for {
		s, err := p.connect()
		if err != nil {
			p.failed(err)
			pause = min(max(2*pause, retryFirst), p.d.cfg.RetryLast)
		} else {
			p.serve(s)
			s.Close()
			pause = max(time.Duration(s.Params().DefaultTime2Wait)*time.Second, time.Millisecond)
		}
		if sleep(p.d.ctx, pause+p.jitter(pause)) != nil {
			return
		}
		if err == nil {
			pause = 0
		}
	}
}

// jitter spreads the attempts of many initiators, by up to a quarter: each has its own, the same each time.
func (p *diskPath) jitter(pause time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write(append(p.d.cfg.Session.ISID[:], byte(p.index)))
	return pause / 4 * time.Duration(h.Sum32()%256) / 256
}

// isid is the path's own ISID: the qualifier moves on.
func (p *diskPath) isid() [6]byte {
	id := p.d.cfg.Session.ISID
	q := binary.BigEndian.Uint16(id[4:]) + uint16(p.index)
	binary.BigEndian.PutUint16(id[4:], q)
	return id
}

// connect logs in, and looks whether it is the logical unit that it was.
func (p *diskPath) connect() (*Session, error) {
	d := p.d
	p.login <- struct{}{} // another's use of it ends by itself
	defer func() { <-p.login }()
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.LoginTimeout)
	defer cancel()
	s, err := p.loginBy(ctx, p)
	if err != nil {
		return nil, err
	}
	// The target has ended what a session of this ISID had left.
	d.mu.Lock()
	p.ghost, p.fresh = 0, true
	d.mu.Unlock()
	if err := p.inspect(ctx, s); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// loginBy logs in with the ISID of p, by the portal of q.
func (p *diskPath) loginBy(ctx context.Context, q *diskPath) (*Session, error) {
	cfg := p.d.cfg.Session
	cfg.Addr, cfg.TargetName, cfg.ISID = q.cfg.Addr, q.cfg.TargetName, p.isid()
	return Login(ctx, q.cfg.Dialer, cfg)
}

// inspect looks at the logical unit and lets the path be used.
func (p *diskPath) inspect(ctx context.Context, s *Session) error {
	d := p.d
	l := s.LUNOf(p.cfg.LUN)
	l.told = func(c scsi.Code) {
		d.mu.Lock()
		d.attention(p, c)
		d.mu.Unlock()
	}
	f, err := look(ctx, l)
	if err != nil {
		return err
	}
	d.mu.Lock()
	err = d.ident.accept(f)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := p.checkReservations(ctx, l); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.unlock()
	if f.hasCapacity {
		d.setCapacity(f.capacity)
		d.cache.volatile = f.volatile
	}
	p.up, p.fresh, p.session, p.err, p.tag = true, false, s, nil, s.Params().PortalGroup
	p.access, p.alua, p.explicit, p.preferred, p.group = f.access, f.alua, f.explicit, f.preferred, f.group
	d.review(p, nil)
	d.dispatch()
	return nil
}

// serve lets the path be until its session has ended or the Disk is closed.
func (p *diskPath) serve(s *Session) {
	d := p.d
	tick := time.NewTicker(d.cfg.PathCheck)
	defer tick.Stop()
	for {
		select {
		case <-s.Done():
			d.mu.Lock()
			d.stats.Lost++
			p.drop(s.Err())
			d.dispatch()
			d.unlock()
			return
		case <-d.ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			_ = s.Logout(ctx) // Close follows
			cancel()
			return
		case <-p.recheck:
			p.refresh(s)
		case <-tick.C:
			d.mu.Lock()
			alua := p.alua
			d.mu.Unlock()
			if alua {
				p.refresh(s)
			}
		}
	}
}

// closeTimeout is how long commands under way have to end, and a target to answer a logout, when a Disk is closed.
const closeTimeout = 2 * time.Second

// refresh asks again for what may have changed. If it cannot the session ends, which is where what is wrong with it comes to light. Each
// question has a command's time, and all of them no limit of their own: at a target that is busy with large transfers they wait behind these.
func (p *diskPath) refresh(s *Session) {
	d, ctx := p.d, p.d.ctx
	d.mu.Lock()
	awake := p.explicit && p.access == Standby && len(d.active) == 0
	group, doubt := p.group, p.doubt
	d.mu.Unlock()
	l := s.LUNOf(p.cfg.LUN)
	if awake {
		// Nobody else can serve: the target is asked to let this port do it.
		if err := l.SetPortGroup(ctx, group, ActiveOptimized); err != nil {
			d.log.Warn("scsi target port group stays in standby", "target", p.cfg.TargetName, "group", group, "error", err)
		}
	}
	if doubt {
		if err := p.checkReservations(ctx, l); err != nil {
			d.log.Warn("scsi reservation cannot be looked at", "target", p.cfg.TargetName, "error", err)
		}
	}
	f, err := look(ctx, l)
	d.mu.Lock()
	if err == nil {
		err = d.ident.accept(f)
	}
	if err == nil && p.up {
		if f.hasCapacity {
			d.setCapacity(f.capacity)
			d.cache.volatile = f.volatile
		}
		p.access, p.alua, p.explicit, p.preferred, p.group = f.access, f.alua, f.explicit, f.preferred, f.group
		d.review(p, nil)
		d.dispatch()
	}
	d.unlock()
	if err == nil || d.ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	p.drop(err)
	d.unlock()
	s.fail(err)
}

// failed notes that an attempt to come up has failed.
func (p *diskPath) failed(err error) {
	d := p.d
	d.mu.Lock()
	if d.ctx.Err() == nil {
		if p.err == nil || p.err.Error() != err.Error() {
			d.log.Warn("iscsi path is down", "target", p.cfg.TargetName, "portal", p.cfg.Addr, "error", err)
		}
		p.err, d.lastErr = err, err
		d.review(p, err)
	}
	d.unlock()
}

// drop takes a path out of use; Disk.mu is held.
func (p *diskPath) drop(err error) {
	if !p.up {
		return
	}
	if err == nil {
		err = errors.New("initiator: session ended")
	}
	p.up, p.err, p.d.lastErr = false, err, err
	p.d.review(p, err)
}

// haunt notes that the target may still execute a write of the path's last session.
func (p *diskPath) haunt() {
	p.d.seq++
	p.ghost = p.d.seq
	p.d.startFence()
}

// ghosts tells whether there are such writes, by any path.
func (d *Disk) ghosts() bool {
	for _, p := range d.paths {
		if p.ghost != 0 {
			return true
		}
	}
	return false
}

// poke lets the path's goroutine look again.
func (p *diskPath) poke() {
	select {
	case p.recheck <- struct{}{}:
	default:
	}
}

// rank orders paths: lower is better; a path that cannot be used has none.
func (p *diskPath) rank() (int, bool) {
	if !p.up {
		return 0, false
	}
	switch {
	case !p.alua, p.access == ActiveOptimized:
		return 0, true
	case p.access == ActiveNonOptimized, p.access == BlockDependent:
		return 1, true
	}
	return 0, false
}

// review finds the paths that commands go by, after a change of p: all of the best rank, so that a better one that comes back is used at
// once. Disk.mu is held.
func (d *Disk) review(p *diskPath, _ error) {
	best := -1
	for _, q := range d.paths {
		if n, ok := q.rank(); ok && (best < 0 || n < best) {
			best = n
		}
	}
	was := len(d.active)
	d.active = d.active[:0]
	for _, q := range d.paths {
		if n, ok := q.rank(); ok && n == best {
			d.active = append(d.active, q)
		}
	}
	switch {
	case len(d.active) == 0 && was > 0:
		d.downAt = time.Now()
		for _, q := range d.paths {
			if q.up && q.explicit {
				q.poke()
			}
		}
	case len(d.active) > 0 && was == 0:
		d.log.Info("scsi disk is there", "target", d.node(), "paths", len(d.active))
	}
	d.tell(p)
	d.startFence()
	d.cond.Broadcast()
}

// tell reports what has changed to DiskConfig.OnPath, of all paths: a better one makes others inactive.
func (d *Disk) tell(first *diskPath) {
	if d.cfg.OnPath == nil {
		return
	}
	report := func(p *diskPath) {
		if i := p.info(); !i.same(p.told) {
			p.told = i
			d.cfg.OnPath(PathEvent{PathInfo: i, ActivePaths: len(d.active)})
		}
	}
	report(first)
	for _, p := range d.paths {
		report(p)
	}
}

// same compares without looking into errors.
func (i PathInfo) same(j PathInfo) bool {
	return i.Up == j.Up && i.Active == j.Active && i.Access == j.Access && (i.Err == nil) == (j.Err == nil)
}

// String names the path for people.
func (i PathInfo) String() string {
	state := "down"
	switch {
	case i.Active:
		state = "active"
	case i.Up:
		state = "up"
	}
	return fmt.Sprintf("path %d: %s at %s: %s, %v", i.Index, i.Target, i.Addr, state, i.Access)
}
