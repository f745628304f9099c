package iser

import "errors"

// SetMemory changes DomainConfig.BufferMemory and ReceiveMemory, in octets, while the domain is used; 0 leaves that bound as it is. What is
// lent stays lent, and receives that connections reserved stay theirs: a domain that has more than its new bound takes nothing more from the
// device, gives back the data buffers that nobody uses, and refuses connections that need more receives, until it is within it. The error is
// about the arguments, and nothing was changed then.
func (d *Domain) SetMemory(buffers, receives int) error {
	if buffers < 0 || receives < 0 {
		return errors.New("iser: negative size of a domain's memory")
	}
	if buffers > 0 {
		d.buffers.setMax(buffers)
	}
	if receives > 0 {
		d.receives.setMax(receives)
	}
	return nil
}

func (p *bufferPool) setMax(octets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.max = octets
	if p.octets > p.max {
		p.trim(p.octets - p.max)
	}
}

// setMax changes the bound. Slots are registered as they are needed, and stay: fewer are reserved from now on.
func (p *receivePool) setMax(octets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promised = p.most()
	p.max = octets / p.size
}

// most is how many slots there may be: p.max, but what was reserved when that was more can still be registered, with what the
// reservations leave alone. p.mu is held.
func (p *receivePool) most() int {
	return max(p.max, min(p.promised, p.reserved+spareReceives))
}
