// Package config is what iserd serves and how: read from a TOML file, or built from flags, checked as a whole before anything
// of it is put into effect, and written back when somebody asks for that.
package config

import (
	"fmt"
	"strings"
	"time"

	"goiwarp/iscsi/scsi"
)

// Pos is where a part of the configuration was written, for error messages.
type Pos struct {
	File string // or the flag
	Line int    // 0 for a flag
}

func (p Pos) String() string {
	switch {
	case p.File == "":
		return ""
	case p.Line == 0:
		return p.File + " "
	}
	return fmt.Sprintf("%s:%d: ", p.File, p.Line)
}

// Error is one mistake in a configuration.
type Error struct {
	Pos
	Text string
}

func (e *Error) Error() string { return e.Pos.String() + e.Text }

// Errors are all mistakes of a configuration, in the order of their lines.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Config is a whole configuration. New has the defaults.
type Config struct {
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// Control is the path of the unix socket that 'iserd ctl' speaks to; empty: none.
	Control string
	Metrics Metrics
	RDMA    RDMA
	Limits  Limits
	Timers  Timers
	// Discovery says who may ask for targets; without rules everybody may.
	Discovery Access
	Portals   []Portal
	Targets   []Target

	logPos Pos // of LogLevel
}

// Metrics are the figures for Prometheus.
type Metrics struct {
	// Listen is the address:port of the HTTP server with /metrics, /healthz and /readyz; empty: none.
	Listen string
	// Sessions adds figures for each session, which are many series where there are many sessions.
	Sessions bool
	Pos
}

// RDMA is the device that carries iSER.
type RDMA struct {
	Device  string // soft, or verbs[:NAME]
	CRC     bool
	MaxFPDU int // octets
	Pos
}

// Limits bound what peers can make iserd hold.
type Limits struct {
	Sessions          int   // in all
	InitiatorSessions int   // of one initiator name
	Connections       int   // in full feature phase, in all
	Logins            int   // connections that have not logged in
	Commands          int   // in progress in all; 0: as many as the sessions' windows
	Window            int   // commands in progress of one session
	Workers           int   // commands of one logical unit that are in its store at once
	Memory            int64 // octets of command data in all
	SessionMemory     int64 // octets of command data of one connection
	Pos
}

const (
	// LeastMemory is the least that Limits.Memory can be.
	LeastMemory = 32 << 20
	// memoryPiece is what memory for TCP is taken from the system by.
	memoryPiece = 16 << 20
)

// Shares divide Memory: half of it is for command data over TCP, rounded down to whole pieces of 16 MiB, half of the rest for command data over
// iSER, and what is left for iSER's receives. Each bounds one use for certain; together they are no more than Memory.
func (l *Limits) Shares() (tcp, data, receives int64) {
	tcp = max(l.Memory/2/memoryPiece, 1) * memoryPiece
	data = (l.Memory - tcp) / 2
	return tcp, data, l.Memory - tcp - data
}

// Timers say when what is silent or does not end is given up.
type Timers struct {
	Login  time.Duration // to log in
	Ping   time.Duration // silence after which a peer is asked for a sign of life; negative: never
	Dead   time.Duration // to answer that
	Logout time.Duration // to log out when asked to
	Drain  time.Duration // to end what runs when iserd, a target or a logical unit ends
	Pos
}

// Portal is where iserd listens.
type Portal struct {
	// Listen is address:port, or systemd:NAME for a socket that systemd opened (systemd: takes all that have no portal of their own).
	Listen string
	// Advertise is the address:port that discovery tells instead.
	Advertise string
	// Group is the target portal group tag; 0: 1, and discovery tells the portal that the question came through.
	Group int
	// RDMA has the RDMA device itself listen, for iSER alone.
	RDMA bool
	Pos
}

// Target is one target node.
type Target struct {
	Name  string // normalised
	Alias string
	// Groups are the tags of the portal groups that it is reached through; empty: all.
	Groups []int
	// States are the asymmetric access states (ALUA) of its portal groups; those that are not named are active/optimized.
	States   []GroupState
	Redirect Redirect
	Access   Access
	LUNs     []LUN // in the order of their numbers
	Pos
}

// GroupState is the asymmetric access state of a portal group.
type GroupState struct {
	Group int
	State scsi.AccessState
	Pos
}

// Redirect sends logins elsewhere.
type Redirect struct {
	Address   string // empty: not
	Permanent bool
	Groups    []int // portal groups that are redirected; empty: all
	Pos
}

// Access says who may log in.
type Access struct {
	// Algorithms are the CHAP algorithms taken; empty: all.
	Algorithms []string
	// Hidden has who fits no rule told that there is no such target.
	Hidden bool
	// Rules in order; the first that fits decides, and who fits none is refused. No rules: everybody may do everything.
	Rules []Rule
	Pos
}

// Rule is an entry of an access list.
type Rule struct {
	Name       string
	Initiators []string // names or patterns; empty: any
	Networks   []string // empty: any
	CHAP       string   // file with users; empty: no authentication
	MutualCHAP string   // file with the target's own user
	ReadOnly   bool
	// LUNs are those shown; nil: all under their own numbers.
	LUNs []Mapping
	Pos
}

// Mapping shows one logical unit under a number.
type Mapping struct {
	LUN      int // the target's number
	As       int // the initiator's number
	ReadOnly bool
}

// New is a configuration with every default and nothing to serve.
func New() *Config {
	return &Config{
		LogLevel: "warn",
		RDMA:     RDMA{Device: "soft", CRC: true},
		Limits: Limits{
			Sessions: 1024, InitiatorSessions: 64, Connections: 2048, Logins: 256, Commands: 16384, Window: 128, Workers: 16,
			Memory: 1 << 30, SessionMemory: 32 << 20,
		},
		Timers: Timers{
			Login: 15 * time.Second, Ping: 30 * time.Second, Dead: 15 * time.Second, Logout: 2 * time.Second, Drain: 30 * time.Second,
		},
		Metrics: Metrics{Sessions: true},
	}
}

// Target finds a target by its normalised name.
func (c *Config) Target(name string) *Target {
	for i := range c.Targets {
		if c.Targets[i].Name == name {
			return &c.Targets[i]
		}
	}
	return nil
}

// LUN finds a logical unit by its number.
func (t *Target) LUN(number int) *LUN {
	for i := range t.LUNs {
		if t.LUNs[i].Number == number {
			return &t.LUNs[i]
		}
	}
	return nil
}

// Clone is a copy that can be changed: of the lists of portals, targets, group states and logical units, too.
func (c *Config) Clone() *Config {
	n := *c
	n.Portals = append([]Portal(nil), c.Portals...)
	n.Targets = append([]Target(nil), c.Targets...)
	for i := range n.Targets {
		n.Targets[i].LUNs = append([]LUN(nil), n.Targets[i].LUNs...)
		n.Targets[i].States = append([]GroupState(nil), n.Targets[i].States...)
	}
	return &n
}
