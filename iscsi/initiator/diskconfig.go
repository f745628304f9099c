package initiator

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// Defaults of DiskConfig.
const (
	DefaultReplacementTimeout = 120 * time.Second
	DefaultCommandTimeout     = 30 * time.Second
	DefaultLoginTimeout       = 15 * time.Second
	DefaultPathCheck          = 5 * time.Second
	DefaultRetryLast          = 8 * time.Second
)

// retryFirst is the pause after the first failed attempt to log in again; it doubles.
const retryFirst = 500 * time.Millisecond

// Policy says which of several equally good paths a command goes by.
type Policy uint8

// The policies.
const (
	// RoundRobin takes the paths in turn.
	RoundRobin Policy = iota
	// LeastQueue takes the path with the fewest commands under way.
	LeastQueue
)

func (p Policy) String() string {
	if p == LeastQueue {
		return "least-queue"
	}
	return "round-robin"
}

// Fence says how writes that a lost session left at the target are kept from being executed later, when other paths are there to go on.
type Fence uint8

// The fences.
const (
	// FenceReset ends them by a path that is up: with a login that replaces the lost session, if the path leads to the same target portal group,
	// else with a LOGICAL UNIT RESET. That also ends the commands of other initiators at the logical unit, which they send again.
	FenceReset Fence = iota
	// FenceWait lets writes wait until the lost path has logged in again, which ends them. Failover is then for reads only.
	FenceWait
	// FenceNone trusts that the target has dropped them. A write that comes late destroys what was written since: for targets that are known to
	// end the tasks of a connection at the moment they lose it.
	FenceNone
)

// DiskConfig is what a Disk needs.
type DiskConfig struct {
	// Session is the template for the sessions. Addr and TargetName come from each path. The ISID of path i is Session.ISID plus i, and stays so, that a login
	// replaces the dead session of the same path; the zero value means a random one. A CommandTimeout of 0 means DefaultCommandTimeout.
	Session Config
	// ReplacementTimeout is how long commands wait for a path before they fail with a *PathError. When it is over they fail at
	// once until a path is there again. 0 means DefaultReplacementTimeout; below 0: they wait for ever.
	ReplacementTimeout time.Duration
	// LoginTimeout bounds one attempt to log in and look at the logical unit; 0 means DefaultLoginTimeout.
	LoginTimeout time.Duration
	// RetryLast is the longest pause between two attempts; 0 means DefaultRetryLast. The first pause is DefaultTime2Wait.
	RetryLast time.Duration
	// PathCheck is how often access states are asked for, where the target has them (ALUA); 0 means DefaultPathCheck.
	PathCheck time.Duration
	// Policy chooses among equally good paths, Fence what happens before writes change paths.
	Policy Policy
	Fence  Fence
	// WriteThrough sets FUA in every WRITE, so that an answered write is on stable storage, and a target that loses its cache loses nothing.
	WriteThrough bool
	// OnPath is told of each change of a path, one at a time and in order; it must not block, nor call the Disk. nil: nobody.
	OnPath func(PathEvent)
}

// PathConfig is one way to the logical unit.
type PathConfig struct {
	Dialer     iscsi.Dialer
	Addr       string // portal, "host:port"
	TargetName string
	// LUN as it stands on the wire: scsi.EncodeLUN, or what ReportLUNs told.
	LUN uint64
}

func (c DiskConfig) withDefaults() (DiskConfig, error) {
	if c.Session.CommandTimeout == 0 {
		c.Session.CommandTimeout = DefaultCommandTimeout
	}
	var err error
	if c.Session, err = c.Session.withDefaults(); err != nil {
		return c, err
	}
	if c.Policy > LeastQueue || c.Fence > FenceNone {
		return c, fmt.Errorf("initiator: policy %d, fence %d: not known", c.Policy, c.Fence)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.ReplacementTimeout, DefaultReplacementTimeout)
	def(&c.LoginTimeout, DefaultLoginTimeout)
	def(&c.RetryLast, DefaultRetryLast)
	def(&c.PathCheck, DefaultPathCheck)
	if c.LoginTimeout < 0 || c.RetryLast < 0 || c.PathCheck < 0 {
		return c, errors.New("initiator: a time below 0")
	}
	return c, nil
}
