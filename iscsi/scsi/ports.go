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

// AddPort gives the device a further target port, whose relative identifier is its own. Every nexus is told that what INQUIRY and REPORT
// TARGET PORT GROUPS say has changed.
func (d *Device) AddPort(p Port) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.port(p.Relative); taken {
		return fmt.Errorf("%w: %d", ErrPortTaken, p.Relative)
	}
	return d.ensurePort(p)
}

// EnsurePort gives the device a target port, or the port with that relative identifier what p says; one that RemovePort has marked stays.
// Nexuses that are open keep the port that they came through, and are told of the change.
func (d *Device) EnsurePort(p Port) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ensurePort(p)
}

// ensurePort is EnsurePort while d.mu is held.
func (d *Device) ensurePort(p Port) error {
	delete(d.leaving, p.Relative)
	ports := slices.Clone(*d.ports.Load())
	switch i := slices.IndexFunc(ports, func(q Port) bool { return q.Relative == p.Relative }); {
	case i >= 0 && ports[i] == p:
		return nil
	case i >= 0:
		ports[i] = p
	case p.Relative == 0 || len(ports) >= maxPorts:
		return fmt.Errorf("%w: %d (of at most %d ports)", ErrNoPort, p.Relative, maxPorts)
	default:
		ports = append(ports, p)
	}
	d.ports.Store(&ports)
	d.portsChanged(p.Group != 0)
	return nil
}

// RemovePort takes a target port away, with the states of its group if it was the last one in it. Every nexus is told that what INQUIRY and
// REPORT TARGET PORT GROUPS say has changed. As long as nexuses go through the port it is there, and leaves with the last one of them. The
// last port of a device stays: the error wraps ErrNoPort, as it does if there is no such port.
func (d *Device) RemovePort(relative uint16) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.port(relative); !ok || len(*d.ports.Load()) == 1 {
		return fmt.Errorf("%w, or the only one: %d", ErrNoPort, relative)
	}
	if d.leaving == nil {
		d.leaving = make(map[uint16]struct{})
	}
	d.leaving[relative] = struct{}{}
	d.dropPort(relative)
	return nil
}

// dropPort takes a port away that is marked and that no nexus goes through. d.mu is held.
func (d *Device) dropPort(relative uint16) {
	if _, marked := d.leaving[relative]; !marked || len(*d.ports.Load()) == 1 {
		return
	}
	for n := range d.nexuses {
		if n.port.Relative == relative {
			return
		}
	}
	delete(d.leaving, relative)
	gone, _ := d.port(relative)
	ports := slices.DeleteFunc(slices.Clone(*d.ports.Load()), func(p Port) bool { return p.Relative == relative })
	d.ports.Store(&ports)
	if !slices.ContainsFunc(ports, func(p Port) bool { return p.Group == gone.Group }) {
		delete(d.states, gone.Group)
		for _, l := range *d.luns.Load() {
			l.forgetPath(gone.Group)
		}
	}
	d.portsChanged(gone.Group != 0)
}

// portsChanged tells every nexus that the SCSI Ports page (SPC-4, section 7.8.14) is another one, and, if the port has a group, REPORT TARGET
// PORT GROUPS. d.mu is held.
func (d *Device) portsChanged(grouped bool) {
	for n := range d.nexuses {
		for _, l := range *d.luns.Load() {
			l.attend(n, CodeInquiryDataChanged)
			if grouped {
				l.attend(n, CodeAsymmetricAccessChanged)
			}
		}
	}
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
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.port(relative)
	if !ok {
		p = d.Port()
	}
	return d.nexus(initiator, p)
}

// NewNexusThrough is EnsurePort and NewNexusOn in one: nobody removes the port in between. Where the device has no room for the port the
// nexus goes through the first one.
func (d *Device) NewNexusThrough(p Port, initiator string) *Nexus {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ensurePort(p) != nil {
		p = d.Port()
	}
	return d.nexus(initiator, p)
}

// SetTaskAborter names who aborts commands for PREEMPT AND ABORT: the target that serves the device.
func (d *Device) SetTaskAborter(a TaskAborter) { d.aborter.Store(&a) }
