package target

import "time"

// Settings are what a Server can change while it serves. The fields mean what those of Config and Limits with the same names do.
//
//	at once:         Sessions, InitiatorSessions, Connections, Logins, Commands, Workers, LogoutWait
//	new connections: LoginTimeout, PingInterval, PingTimeout
//	new sessions:    Window, Meter
type Settings struct {
	// Window stays what it was for sessions that are open: what their initiators were promised, and over RDMA the receives that are
	// reserved for it, cannot be taken back.
	Window int
	// Sessions, InitiatorSessions, Connections and Logins hold for who comes next: who is there stays, however many that are.
	Sessions, InitiatorSessions, Connections, Logins int
	// Commands and Workers hold for commands that come next.
	Commands, Workers int

	LoginTimeout, PingInterval, PingTimeout, LogoutWait time.Duration

	// Meter has the commands of sessions counted that begin from now on.
	Meter bool
}

// maxWorkers bounds Limits.Workers.
const maxWorkers = 1 << 16

// settings are those of a checked configuration.
func (c *Config) settings() *Settings {
	l := &c.Limits
	return &Settings{
		Window: l.Window, Sessions: l.Sessions, InitiatorSessions: l.InitiatorSessions, Connections: l.Connections, Logins: l.Logins,
		Commands: l.Commands, Workers: l.Workers,
		LoginTimeout: c.LoginTimeout, PingInterval: c.PingInterval, PingTimeout: c.PingTimeout, LogoutWait: c.LogoutWait, Meter: c.Meter,
	}
}

// set puts s into c.
func (c *Config) set(s Settings) {
	l := &c.Limits
	l.Window, l.Sessions, l.InitiatorSessions, l.Connections, l.Logins = s.Window, s.Sessions, s.InitiatorSessions, s.Connections, s.Logins
	l.Commands, l.Workers = s.Commands, s.Workers
	c.LoginTimeout, c.PingInterval, c.PingTimeout, c.LogoutWait, c.Meter = s.LoginTimeout, s.PingInterval, s.PingTimeout, s.LogoutWait, s.Meter
}

// Settings are those in force.
func (s *Server) Settings() Settings { return *s.live.Load() }

// Change puts other settings in force, all of them or, with an error, none. Zero fields have the defaults of New. No session ends by it.
func (s *Server) Change(next Settings) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	c := s.cfg
	c.Targets = nil
	c.set(next)
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	set := c.settings()
	// Nodes that are added later find the new settings; those that are being added are in neither list, which AddTarget sees to.
	s.mu.Lock()
	s.live.Store(set)
	nodes := s.all()
	s.mu.Unlock()
	for _, n := range nodes {
		n.setWorkers(set.Workers)
	}
	return nil
}

// setWorkers changes how many commands of each logical unit may be in its store at once.
func (n *node) setWorkers(limit int) {
	n.mu.Lock()
	n.limit = limit
	units := []*unit{n.absent}
	for _, u := range n.units {
		units = append(units, u)
	}
	n.mu.Unlock()
	for _, u := range units {
		u.setLimit(limit)
	}
}

// setLimit changes the number of workers. Those in excess end when they are through with what they are doing; more begin at once if there
// is something to do.
func (u *unit) setLimit(limit int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	more := limit - u.limit
	u.limit = limit
	if u.closed || u.turns.next() == nil {
		return
	}
	for more = min(more, u.count); more > 0; more-- {
		u.start()
	}
}
