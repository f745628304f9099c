package target

import (
	"fmt"
	"sort"
	"time"

	"goiwarp/iscsi"
)

// Status is a snapshot of a Server, for people.
type Status struct {
	Targets  []TargetStatus
	Sessions []SessionStatus // by TSIH
	// LoggingIn is how many connections have not finished their login.
	LoggingIn int
}

// TargetStatus is one target node.
type TargetStatus struct {
	Name, Alias string
	PortalGroup uint16
	Sessions    int  // Normal sessions
	Draining    bool // takes no new sessions
}

// SessionStatus is one session.
type SessionStatus struct {
	Params        iscsi.Params // as negotiated
	Transport     string       // of the connection: "tcp", "iser"
	Local, Remote string       // addresses of the connection
	Since         time.Time    // end of login
	User          string       // who the initiator has proven to be by CHAP; empty: nobody was asked
	InFlight      int          // commands accepted and not answered
	Connections   int          // in full feature phase; none while their tasks are kept for recovery
	Ending        bool         // the connection is gone; its last commands have not left the store
	Counters      Counters
	Facts         []iscsi.Fact // what the Datamover tells of itself
}

// Counters count what a session has done.
type Counters struct {
	Commands   uint64 // SCSI commands answered
	Failed     uint64 // those with another status than GOOD
	Inline     uint64 // those that ran on the connection's own goroutine
	Aborted    uint64 // commands that ended by task management or the session's end
	OctetsIn   uint64 // data sent to the initiator
	OctetsOut  uint64 // data received from the initiator
	Rejects    uint64 // Reject PDUs sent
	Management uint64 // task management requests
}

// String is one line about the session.
func (s *SessionStatus) String() string {
	kind := "to " + s.Params.TargetName
	if s.Params.Discovery {
		kind = "discovery"
	}
	return fmt.Sprintf("%d %s %s over %s from %s: %d commands, %d octets in, %d octets out, %d in flight",
		s.Params.TSIH, s.Params.InitiatorName, kind, s.Transport, s.Remote,
		s.Counters.Commands, s.Counters.OctetsIn, s.Counters.OctetsOut, s.InFlight)
}

// Status takes a snapshot.
func (s *Server) Status() Status {
	var st Status
	s.mu.Lock()
	sessions := make([]*session, 0, len(s.sessions))
	count := make(map[*node]int)
	for _, ss := range s.sessions {
		sessions = append(sessions, ss)
		if ss.normal {
			count[ss.node]++
		}
	}
	st.LoggingIn = s.logins.conns.Len() + s.opening
	s.mu.Unlock()
	for _, n := range s.all() {
		st.Targets = append(st.Targets, TargetStatus{Name: n.Name, Alias: *n.alias.Load(), PortalGroup: n.PortalGroup, Sessions: count[n], Draining: n.draining.Load()})
	}
	sort.Slice(sessions, func(i, j int) bool { return sessions[i].tsih < sessions[j].tsih })
	for _, ss := range sessions {
		st.Sessions = append(st.Sessions, ss.current().status())
	}
	return st
}

func (c *conn) status() SessionStatus {
	info := c.dm.Info()
	st := SessionStatus{Transport: info.Transport, Facts: info.Facts}
	if info.LocalAddr != nil {
		st.Local = info.LocalAddr.String()
	}
	if info.RemoteAddr != nil {
		st.Remote = info.RemoteAddr.String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sess != nil {
		st.Params, st.Since, st.User = *c.sess.params, c.sess.since, c.sess.user
	}
	st.InFlight = c.depth()
	st.Connections = c.live()
	st.Ending = c.state == stateClosed
	st.Counters = c.counters
	return st
}
