package main

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi/target"
)

// settings are the part of a configuration that the server itself has.
func settings(c *config.Config) target.Settings {
	l, t := &c.Limits, &c.Timers
	return target.Settings{
		Window: l.Window, Sessions: l.Sessions, InitiatorSessions: min(l.InitiatorSessions, l.Sessions), Connections: l.Connections,
		Logins: l.Logins, Commands: l.Commands, Workers: l.Workers,
		LoginTimeout: t.Login, PingInterval: t.Ping, PingTimeout: t.Dead, LogoutWait: t.Logout, Meter: c.Metrics.Listen != "",
	}
}

// refuseFixed refuses what a running iserd cannot change: to go on with everything else would leave a file that says one thing and an iserd
// that does another.
func (p *plan) refuseFixed() {
	was, next := p.d.cfg, p.next
	if was == nil {
		return
	}
	fail := func(format string, args ...any) {
		p.fail(&config.Error{Pos: next.RDMA.Pos, Text: fmt.Sprintf(format, args...)})
	}
	if was.RDMA.Device != next.RDMA.Device {
		fail("rdma.device cannot become %s while iserd serves with %s: all connections are on that device; restart iserd for it", next.RDMA.Device, was.RDMA.Device)
		return
	}
	if next.RDMA.Device != "soft" {
		return // the driver's business
	}
	for i, k := range portalKeys(next.Portals) {
		if !next.Portals[i].RDMA || p.d.portals[k] == nil {
			continue
		}
		const why = "%s cannot change for the portal %s with rdma = true, which is open; restart iserd for it, or reload without that portal first"
		if was.RDMA.CRC != next.RDMA.CRC {
			fail(why, "rdma.crc", next.Portals[i].Listen)
		}
		if was.RDMA.MaxFPDU != next.RDMA.MaxFPDU {
			fail(why, "rdma.max-fpdu", next.Portals[i].Listen)
		}
	}
}

// Whom a setting concerns when it changes.
const (
	atOnce         = ""
	newConnections = ", for connections from now on"
	newSessions    = ", for sessions from now on"
)

// commitSettings changes limits, timers and what lies below iSER.
func (p *plan) commitSettings(was *config.Config, r *report) error {
	d, next := p.d, p.next
	var errs []error
	if set := settings(next); set != d.server.Settings() {
		errs = append(errs, d.server.Change(set))
	}
	if was.Limits.Memory != next.Limits.Memory {
		overTCP, overISER, receives := next.Limits.Shares()
		d.pool.SetLimit(int(overTCP))
		errs = append(errs, d.fabric.domain.SetMemory(int(overISER), int(receives)))
	}
	d.fabric.shape.Store(shapeOf(next))

	tell := func(name string, was, next any, whom string) {
		if was != next {
			r.changef("%s is %v%s", name, next, whom)
		}
	}
	a, b := &was.Limits, &next.Limits
	tell("limits.sessions", a.Sessions, b.Sessions, atOnce)
	tell("limits.initiator-sessions", a.InitiatorSessions, b.InitiatorSessions, atOnce)
	tell("limits.connections", a.Connections, b.Connections, atOnce)
	tell("limits.logins", a.Logins, b.Logins, atOnce)
	tell("limits.commands", a.Commands, b.Commands, atOnce)
	tell("limits.window", a.Window, b.Window, newSessions)
	tell("limits.workers", a.Workers, b.Workers, atOnce)
	tell("limits.memory", a.Memory, b.Memory, atOnce)
	tell("limits.session-memory", a.SessionMemory, b.SessionMemory, newConnections)
	timer := func(name string, was, next time.Duration, whom string) { tell("timers."+name, was, next, whom) }
	x, y := &was.Timers, &next.Timers
	timer("login", x.Login, y.Login, newConnections)
	timer("ping", x.Ping, y.Ping, newConnections)
	timer("dead", x.Dead, y.Dead, newConnections)
	timer("logout", x.Logout, y.Logout, atOnce)
	timer("drain", x.Drain, y.Drain, atOnce)
	tell("rdma.crc", was.RDMA.CRC, next.RDMA.CRC, newConnections)
	tell("rdma.max-fpdu", was.RDMA.MaxFPDU, next.RDMA.MaxFPDU, newConnections)
	tell("metrics.sessions", was.Metrics.Sessions, next.Metrics.Sessions, atOnce)
	return errors.Join(errs...)
}
