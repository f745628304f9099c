package scsi

import (
	"context"
	"sync"
	"sync/atomic"
)

// Nexus is the relation of one initiator port with the target port: for iSCSI, a session. It
// carries what a logical unit keeps for each initiator: unit attentions that wait to be told, and
// who holds a reservation. Device.NewNexus makes one; for a logical unit without a Device there is
// NewNexus with LU.Attach.
type Nexus struct {
	initiator string
	dev       *Device // nil if the nexus stands alone
	port      Port    // the target port that it goes through

	// pending counts the unit attentions that wait at all logical units, so that a command looks
	// for its own only if there are any.
	pending atomic.Int32

	view atomic.Pointer[View] // nil: the whole Device

	mu     sync.Mutex // guards the two below; taken before any LU's
	lus    []*LU
	closed bool
}

// NewNexus makes a nexus that belongs to no Device. The name of the initiator port is for logs.
func NewNexus(initiator string) *Nexus { return &Nexus{initiator: initiator} }

// id names the nexus beyond its life; a nil one has no name.
func (n *Nexus) id() nexusID {
	if n == nil {
		return nexusID{}
	}
	return nexusID{n.initiator, n.port.Relative}
}

// Port is the target port that the nexus goes through.
func (n *Nexus) Port() Port { return n.port }

// Initiator is the name of the initiator port.
func (n *Nexus) Initiator() string { return n.initiator }

// Close is the loss of the nexus: its reservations are released and its unit attentions forgotten.
// Commands of the nexus must have ended. Closing twice does nothing.
func (n *Nexus) Close() {
	n.mu.Lock()
	lus := n.lus
	n.lus, n.closed = nil, true
	n.mu.Unlock()
	var copies []*copyResult
	for _, l := range lus {
		copies = append(copies, l.detach(n)...)
	}
	_ = awaitCopies(context.Background(), copies) // that has no end
	if n.dev != nil {
		n.dev.forget(n)
	}
}
