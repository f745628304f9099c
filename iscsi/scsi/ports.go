package scsi

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of a Device's ports.
var (
	ErrPortTaken = errors.New("scsi: target port already in use")
	ErrNoPort    = errors.New("scsi: no such target port")
)

// maxPorts bounds the target ports of a Device, so that what names them all stays short.
const maxPorts = 64

// Ports are the target ports, the first one first.
func (d *Device) Ports() []Port { return slices.Clone(*d.ports.Load()) }

// AddPort gives the device a further target port, whose relative identifier is its own.
func (d *Device) AddPort(p Port) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.ports.Load()
	if p.Relative == 0 || len(old) >= maxPorts {
		return fmt.Errorf("%w: %d (of at most %d ports)", ErrNoPort, p.Relative, maxPorts)
	}
	if _, taken := d.port(p.Relative); taken {
		return fmt.Errorf("%w: %d", ErrPortTaken, p.Relative)
	}
	next := append(slices.Clone(old), p)
	d.ports.Store(&next)
	return nil
}

// EnsurePort gives the device a target port, or the port with that relative identifier what p says. Nexuses that are open keep the
// port that they came through.
func (d *Device) EnsurePort(p Port) error {
	d.mu.Lock()
	ports := slices.Clone(*d.ports.Load())
	i := slices.IndexFunc(ports, func(q Port) bool { return q.Relative == p.Relative })
	if i >= 0 {
		ports[i] = p
		d.ports.Store(&ports)
	}
	d.mu.Unlock()
	if i >= 0 {
		return nil
	}
	return d.AddPort(p)
}

func (d *Device) port(relative uint16) (Port, bool) {
	ports := *d.ports.Load()
	i := slices.IndexFunc(ports, func(p Port) bool { return p.Relative == relative })
	if i < 0 {
		return Port{}, false
	}
	return ports[i], true
}

// NewNexusOn is NewNexus through the target port with that relative identifier; the first port if there is none such.
func (d *Device) NewNexusOn(relative uint16, initiator string) *Nexus {
	p, ok := d.port(relative)
	if !ok {
		p = d.Port()
	}
	return d.nexus(initiator, p)
}

// SetTaskAborter names who aborts commands for PREEMPT AND ABORT: the target that serves the device.
func (d *Device) SetTaskAborter(a TaskAborter) { d.aborter.Store(&a) }
