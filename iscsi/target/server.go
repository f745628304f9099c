package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Server serves target nodes over connections that others accept and hand in.
type Server struct {
	cfg  Config // as it was at first; what can be changed is in live
	live atomic.Pointer[Settings]
	log  *slog.Logger

	changing sync.Mutex // one Change at a time

	// Replaced as a whole, nodes with mu held, so that readers need no lock.
	nodes     atomic.Pointer[[]*node]
	discovery atomic.Pointer[access]
	portals   atomic.Pointer[[]PortalGroup]
	guard     guard

	commands atomic.Int64 // in progress, of all sessions, while Limits.Commands bounds them
	stopping atomic.Bool  // nothing of a lost connection is kept any more

	work sync.WaitGroup // goroutines besides Serve's: task management

	mu       sync.Mutex // guards what follows
	closing  bool
	logins   loginCrowd
	opening  int // logins that have left the crowd and wait for their session
	conns    map[*conn]struct{}
	sessions map[uint16]*session
	byKey    map[sessionKey]*session
	lastTSIH uint16
	refused  refusals
	empty    chan struct{} // closed when the last session and connection are gone, while closing
}

// unit is the task set behind a LUN as the Device numbers it.
func (n *node) unit(lun uint64) *unit {
	number, ok := scsi.DecodeLUN(lun)
	if !ok {
		return n.absent
	}
	lu := n.Device.LU(number)
	if lu == nil {
		return n.absent
	}
	return n.unitOf(lu)
}

// unitOf is the task set of a logical unit.
func (n *node) unitOf(lu *scsi.LU) *unit {
	n.mu.RLock()
	u := n.units[lu]
	n.mu.RUnlock()
	if u != nil {
		return u
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if u = n.units[lu]; u == nil {
		u = newUnit(n.limit)
		u.limiter = lu.Limiter()
		n.units[lu] = u
	}
	return u
}

// all are the task sets that have been used.
func (n *node) all() []*unit {
	n.mu.RLock()
	defer n.mu.RUnlock()
	us := []*unit{n.absent}
	for _, u := range n.units {
		us = append(us, u)
	}
	return us
}

// New makes a server. It starts nothing; errors are about cfg.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Log,
		conns:    make(map[*conn]struct{}),
		sessions: make(map[uint16]*session),
		byKey:    make(map[sessionKey]*session),
	}
	s.live.Store(cfg.settings())
	s.guard.limit = cfg.Limits.AuthFailures
	var nodes []*node
	for _, t := range cfg.Targets {
		n, err := newNode(t, cfg.Limits.Workers)
		if err != nil {
			return nil, err
		}
		t.Device.SetTaskAborter(preemptor{s, n})
		n.setPorts(cfg.PortalGroups)
		s.warnWeak(n.Name, n.access.Load())
		nodes = append(nodes, n)
	}
	s.nodes.Store(&nodes)
	s.portals.Store(&cfg.PortalGroups)
	a, err := cfg.Discovery.compile()
	if err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	s.discovery.Store(a)
	s.warnWeak("discovery", a)
	return s, nil
}

// Serve runs a connection from its first Login Request on. It calls dm.Start, blocks, and returns once dm.Done is closed:
// nil after an orderly end (logout, or the peer closed it), else what ended it. The caller gives each connection a goroutine.
// Commands that are still in a store at that time are not waited for.
func (s *Server) Serve(dm iscsi.Datamover, portal PortalInfo) error {
	c := newConn(s, dm, portal)
	c.beginLogin()
	if !s.enlist(c) {
		dm.ConnectionTerminate(false)
		return ErrClosed
	}
	defer s.discharge(c)
	timer := time.AfterFunc(c.set.LoginTimeout, c.loginTimeout)
	defer timer.Stop()
	dm.Start(c)
	c.watch()
	c.finish()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// enlist counts a connection in, if the server is open. Where too many are logging in the oldest makes room for it.
func (s *Server) enlist(c *conn) bool {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return false
	}
	s.conns[c] = struct{}{}
	oldest, dropped := s.logins.enter(c, s.live.Load().Logins)
	s.mu.Unlock()
	if oldest != nil {
		oldest.crowdedOut(dropped)
	}
	return true
}

// discharge counts a connection out.
func (s *Server) discharge(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.leaveLogin(c)
	s.checkEmpty()
}

// checkEmpty tells Shutdown when nothing is left. s.mu is held.
func (s *Server) checkEmpty() {
	if s.empty != nil && len(s.conns) == 0 && len(s.sessions) == 0 {
		close(s.empty)
		s.empty = nil
	}
}

// connections are all that there are, or of a node one of each session that has some in full feature phase: they share
// their tasks.
func (s *Server) connections(n *node) []*conn {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	if n == nil {
		return all
	}
	keep := all[:0]
	seen := make(map[*session]bool)
	for _, c := range all {
		c.mu.Lock()
		if c.node == n && c.state == stateFull && !seen[c.sess] {
			seen[c.sess] = true
			keep = append(keep, c)
		}
		c.mu.Unlock()
	}
	return keep
}

// Shutdown ends the server: no connection is taken any more, initiators are asked to log out and have
// Config.LogoutWait to do so, commands that were accepted are finished and answered, the connections are closed, and
// every logical unit is made durable. When ctx ends, what is left is aborted. The error tells of that, and of
// logical units that could not be made durable; stores stay open, they are the caller's.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closing = true
	empty := make(chan struct{})
	s.empty = empty
	s.checkEmpty()
	s.mu.Unlock()

	for _, c := range s.connections(nil) {
		c.askLogout(ErrClosed)
	}
	s.stopping.Store(true) // first: connections are lost at any time
	s.expireAll()
	var errs []error
	grace := time.NewTimer(s.live.Load().LogoutWait)
	defer grace.Stop()
	select {
	case <-empty:
	case <-ctx.Done():
	case <-grace.C:
		for _, c := range s.connections(nil) {
			c.drain(ErrClosed)
		}
		select {
		case <-empty:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		for _, c := range s.connections(nil) {
			c.mu.Lock()
			c.lose(ErrClosed)
			c.unlock()
		}
		// With their connections gone, only commands that hang in a store keep sessions.
		settle := time.NewTimer(s.cfg.AbortWait)
		defer settle.Stop()
		select {
		case <-empty:
		case <-settle.C:
			errs = append(errs, fmt.Errorf("target: commands did not end: %w", ctx.Err()))
		}
	}
	errs = append(errs, s.flush(ctx))
	for _, n := range s.all() {
		for _, u := range n.all() {
			u.close()
		}
	}
	if len(errs) == 1 && errs[0] == nil { // all has ended: leave no goroutine behind
		s.work.Wait()
		for _, n := range s.all() {
			for _, u := range n.all() {
				u.finished.Wait()
			}
		}
	}
	return errors.Join(errs...)
}

// flush makes all logical units durable. One that stalls is given up when ctx ends, or a little later if it has already.
func (s *Server) flush(ctx context.Context) error {
	type outcome struct {
		node *node
		lun  int
		err  error
	}
	n := 0
	done := make(chan outcome, 16)
	pending := make(map[string]struct{})
	for _, nd := range s.all() {
		for _, lun := range nd.Device.LUNs() {
			lu := nd.Device.LU(lun)
			if lu == nil {
				continue
			}
			n++
			pending[fmt.Sprintf("%s LUN %d", nd.Name, lun)] = struct{}{}
			go func() { done <- outcome{nd, lun, lu.Sync()} }()
		}
	}
	var errs []error
	limit := time.NewTimer(s.cfg.AbortWait)
	defer limit.Stop()
	for ; n > 0; n-- {
		var o outcome
		select {
		case o = <-done:
		case <-ctx.Done():
			select {
			case o = <-done:
			case <-limit.C:
				for name := range pending {
					errs = append(errs, fmt.Errorf("target: %s was not flushed: %w", name, ctx.Err()))
				}
				go func() { // let the late ones go
					for ; n > 0; n-- {
						<-done
					}
				}()
				return errors.Join(errs...)
			}
		}
		name := fmt.Sprintf("%s LUN %d", o.node.Name, o.lun)
		delete(pending, name)
		if o.err != nil {
			errs = append(errs, fmt.Errorf("target: flushing %s: %w", name, o.err))
		}
	}
	return errors.Join(errs...)
}

// askLogout asks a session's initiator to log out, and ends a login that is under way because of cause.
func (c *conn) askLogout(cause error) {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case c.state == stateLogin, c.state == stateFull && c.discovery:
		c.terminate(cause, true)
	case c.state == stateClosed:
		c.expire()
	case c.state == stateFull:
		c.keepNothing = true
		c.async(iscsi.AsyncLogout, uint16((c.srv.live.Load().LogoutWait+time.Second-1)/time.Second))
	}
}

// drain lets a session finish what it has accepted, takes no new commands, and closes the connection then because of cause.
func (c *conn) drain(cause error) {
	c.mu.Lock()
	c.draining, c.drainCause = true, cause
	if c.live() == 0 {
		c.loseSession(cause) // what was kept of it
	} else if len(c.tasks) == 0 {
		c.finishDrain()
	}
	c.unlock()
}

// finishDrain ends a session that has nothing more to do. c.mu is held.
func (c *conn) finishDrain() {
	if !c.ending {
		c.dropSession(c.drainCause)
	}
}

// async sends an Asynchronous Message (RFC 7143, section 11.9). c.mu is held.
func (c *conn) async(e iscsi.AsyncEvent, seconds uint16) {
	if !c.allowUnexpected(false) {
		return
	}
	p := c.pdus.get()
	h := iscsi.AsyncMessage(p.BHS[:])
	h.Init()
	h.SetEvent(e)
	switch e {
	case iscsi.AsyncLogout:
		h.SetParameter3(seconds)
	case iscsi.AsyncDropSession:
		h.SetParameter2(uint16(c.params.DefaultTime2Wait))
	}
	c.countUnexpected()
	c.respond(p)
}
