package target

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"goiwarp/iscsi/scsi"
)

// Config describes a Server. The zero value serves nothing until AddTarget.
type Config struct {
	// Targets are the target nodes served from the beginning; names are unique without regard to case.
	Targets []Target

	// Discovery says who may ask for targets (SendTargets in a Discovery session), and how they prove who they are; nil: everybody. What
	// they are told of is what each target's own Access lets them log in to.
	Discovery *Access
	// PortalGroups are the portals that SendTargets tells of, by group. Empty: the one that the question came through.
	PortalGroups []PortalGroup

	// Limits bound what peers can make the server hold.
	Limits Limits

	// LoginTimeout bounds the time from Serve to the end of login, a wait for a reinstated
	// session's last tasks included. Default 15 s.
	LoginTimeout time.Duration
	// PingInterval is how long a session may be silent before it is asked for a sign of life by a NOP-In with a valid Target
	// Transfer Tag. Default 30 s; negative: never.
	PingInterval time.Duration
	// PingTimeout is how long a silent peer has, from that NOP-In on, before its connection is dropped. Default 15 s.
	PingTimeout time.Duration
	// AbortWait bounds how long a task management response, or a logout response, waits for aborted commands to
	// leave their store. Default 1 s.
	AbortWait time.Duration
	// LogoutWait is how long Shutdown leaves initiators to log out by themselves. Default 2 s.
	LogoutWait time.Duration

	// Meter has every command timed and counted by operation, for Server.Metrics. Off, nothing is done per command.
	Meter bool

	// Log gets one line per session's begin and end and per refused login; nil: nothing is logged.
	Log *slog.Logger
}

// Target is one iSCSI target node.
type Target struct {
	Name  string // iSCSI name (RFC 7143, section 4.2.7), in either case
	Alias string // TargetAlias, for people; may be empty
	// PortalGroup is the target portal group tag of connections whose PortalInfo has none. Default 1.
	PortalGroup uint16
	// PortalGroups are the tags of the groups through which the target is reached; empty: all.
	PortalGroups []uint16
	// Access says who may log in; nil: everybody. Server.SetAccess replaces it.
	Access *Access
	// Redirect sends logins elsewhere, if it is not nil. Server.SetRedirect replaces it.
	Redirect *Redirect
	// Device has the logical units.
	Device *scsi.Device
}

// Limits bound a Server. Zero fields have the defaults named.
type Limits struct {
	// Window is how many commands a session may have in flight besides immediate ones: the command
	// window that MaxCmdSN announces. Default 128.
	Window int
	// Immediate is how many immediate commands a connection may have in progress. Default 8.
	Immediate int
	// Sessions bounds the sessions, and likewise the logins that are waiting for their session to be opened; beyond it a login is
	// refused with status 0302. Default 1024.
	Sessions int
	// InitiatorSessions bounds the sessions of one initiator name; beyond it a login is refused with status 0302. Default: Sessions.
	InitiatorSessions int
	// Connections bounds the connections in full feature phase, those of all sessions together; beyond it a login is refused with
	// status 0302. Default: twice Sessions.
	Connections int
	// AuthFailures is how many failed proofs in a row of one address (over IPv6, one /64 network) pass before further ones of it are
	// refused for a time, which doubles with each from 1 s to 60 s. Default 5; negative: no limit.
	AuthFailures int
	// Logins bounds the connections that have not yet told who they are and what they want: one more takes the place of
	// the oldest, so that those that stop halfway shut nobody out. Default 256.
	Logins int
	// Commands bounds the SCSI commands in progress in all: one more is answered TASK SET FULL, and its initiator sends it again.
	// 0: as many as the windows of all sessions.
	Commands int
	// Workers is how many commands of one logical unit may be in its store at once. Default 16.
	Workers int
	// Chunk is how many octets of one command's data are in memory at once: larger transfers
	// stream. Rounded down to a multiple of 4096. Default 1 MiB.
	Chunk int
	// RecvDataSegment is the largest data segment taken from an initiator, in octets
	// (MaxRecvDataSegmentLength and TargetRecvDataSegmentLength). Default 256 KiB over TCP, so that a large write comes in few
	// PDUs, and 8 KiB over RDMA, where each receive that is posted has that size.
	RecvDataSegment int
	// MaxBurst and FirstBurst bound MaxBurstLength and FirstBurstLength, in octets. Defaults 1 MiB and 64 KiB.
	MaxBurst, FirstBurst int
	// OutstandingR2T bounds MaxOutstandingR2T. Default 8.
	OutstandingR2T int
	// SessionConnections bounds MaxConnections: the connections of one session. Default 4.
	SessionConnections int
	// ErrorRecoveryLevel is the highest level agreed to, if the initiator asks for one above 0: 1 recovers lost PDUs, 2 keeps what a
	// dropped connection was doing for another one. Default 2; negative: 0.
	ErrorRecoveryLevel int
	// Time2Retain bounds DefaultTime2Retain, how many seconds that is kept. Default 20.
	Time2Retain int
}

// Errors of this package.
var (
	// ErrClosed is what Serve returns once Shutdown has been called.
	ErrClosed = errors.New("target: server closed")
	// ErrLoginTimeout ends a connection whose login took too long.
	ErrLoginTimeout = errors.New("target: login timed out")
	// ErrLoginCrowded ends a connection whose login was the oldest of too many that were under way.
	ErrLoginCrowded = errors.New("target: login took too long while others waited")
	// ErrDeadPeer ends a connection whose peer did not answer a NOP-In.
	ErrDeadPeer = errors.New("target: peer does not answer")
	// ErrReinstated ends a connection whose session was reinstated by a new login.
	ErrReinstated = errors.New("target: session reinstated by a new login")
	// ErrProtocol wraps what a peer did against RFC 7143 that ends its connection.
	ErrProtocol = errors.New("target: protocol error")
)

const minChunk = 4096

// withDefaults checks c and fills what is zero.
func (c Config) withDefaults() (Config, error) {
	c.Targets = append([]Target(nil), c.Targets...)
	seen := make(map[string]bool)
	for i := range c.Targets {
		t := &c.Targets[i]
		given := t.Name
		if err := checkTarget(t); err != nil {
			return c, err
		}
		if seen[t.Name] {
			return c, fmt.Errorf("target: %s is configured twice", given)
		}
		seen[t.Name] = true
	}
	var err error
	if c.PortalGroups, err = checkPortals(c.PortalGroups); err != nil {
		return c, err
	}
	orDuration(&c.LoginTimeout, 15*time.Second)
	orDuration(&c.PingInterval, 30*time.Second)
	orDuration(&c.PingTimeout, 15*time.Second)
	orDuration(&c.AbortWait, time.Second)
	orDuration(&c.LogoutWait, 2*time.Second)
	if c.LoginTimeout < 0 || c.PingTimeout < 0 || c.AbortWait < 0 || c.LogoutWait < 0 {
		return c, errors.New("target: negative timeout")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, c.Limits.setDefaults()
}

func (l *Limits) setDefaults() error {
	orInt(&l.Window, 128)
	orInt(&l.Immediate, 8)
	orInt(&l.Sessions, 1024)
	orInt(&l.InitiatorSessions, l.Sessions)
	orInt(&l.Connections, 2*l.Sessions)
	orInt(&l.AuthFailures, 5)
	orInt(&l.Logins, 256)
	orInt(&l.Workers, 16)
	orInt(&l.Chunk, 1<<20)
	orInt(&l.MaxBurst, 1<<20)
	orInt(&l.FirstBurst, 64<<10)
	orInt(&l.OutstandingR2T, 8)
	orInt(&l.SessionConnections, 4)
	orInt(&l.ErrorRecoveryLevel, 2)
	orInt(&l.Time2Retain, 20)
	l.Chunk &^= minChunk - 1
	switch {
	case l.Window < 1 || l.Window > 1<<16:
		return fmt.Errorf("target: command window %d: want 1 to 65536", l.Window)
	case l.Immediate < 1 || l.Workers < 1 || l.OutstandingR2T < 1:
		return errors.New("target: immediate commands, workers and outstanding R2Ts must be at least 1")
	case l.Workers > maxWorkers:
		return fmt.Errorf("target: %d workers: want at most %d", l.Workers, maxWorkers)
	case l.Sessions < 1 || l.Sessions > 65535:
		return fmt.Errorf("target: %d sessions: want 1 to 65535", l.Sessions)
	case l.InitiatorSessions < 1:
		return fmt.Errorf("target: %d sessions of one initiator: want at least 1", l.InitiatorSessions)
	case l.SessionConnections < 1 || l.SessionConnections > 65535:
		return fmt.Errorf("target: %d connections of a session: want 1 to 65535", l.SessionConnections)
	case l.ErrorRecoveryLevel > 2:
		return fmt.Errorf("target: error recovery level %d: want 0 to 2", l.ErrorRecoveryLevel)
	case l.Time2Retain < 0 || l.Time2Retain > 3600:
		return fmt.Errorf("target: tasks retained for %d s: want 0 to 3600", l.Time2Retain)
	case l.Connections < 1:
		return fmt.Errorf("target: %d connections: want at least 1", l.Connections)
	case l.Logins < 1:
		return fmt.Errorf("target: %d logins at once: want at least 1", l.Logins)
	case l.Commands < 0:
		return fmt.Errorf("target: %d commands: want 0 for no limit, or more", l.Commands)
	case l.Chunk < minChunk || l.Chunk > 1<<24:
		return fmt.Errorf("target: chunk of %d octets: want %d to %d", l.Chunk, minChunk, 1<<24)
	case l.RecvDataSegment != 0 && (l.RecvDataSegment < 512 || l.RecvDataSegment > 1<<24-1):
		return fmt.Errorf("target: data segment limit %d: want 512 to 2^24-1", l.RecvDataSegment)
	case l.MaxBurst < 512 || l.MaxBurst > 1<<24-1 || l.FirstBurst < 512 || l.FirstBurst > l.MaxBurst:
		return fmt.Errorf("target: burst lengths %d and %d: want 512 to 2^24-1, the first not above the other", l.MaxBurst, l.FirstBurst)
	}
	return nil
}

func orInt(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

func orDuration(v *time.Duration, def time.Duration) {
	if *v == 0 {
		*v = def
	}
}
