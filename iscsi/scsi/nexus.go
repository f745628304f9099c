package scsi

import (
	"sync"
	"sync/atomic"
)

// maxAttentions bounds the unit attentions that wait for one nexus at one logical unit. A newer
// one is dropped when it is full: the initiator will learn by the ones before it that it must look again.
const maxAttentions = 8

// Nexus is the relation of one initiator port with the target port: for iSCSI, a session. It carries what a
// logical unit keeps for each initiator: unit attentions that wait to be told, and who holds
// a reservation. Device.NewNexus makes one; for a logical unit without a Device there is NewNexus with LU.Attach.
type Nexus struct {
	initiator string
	dev       *Device // nil if the nexus stands alone

	// pending counts the unit attentions that wait at all logical units, so that a command looks
	// for its own only if there are any.
	pending atomic.Int32

	mu     sync.Mutex // guards the two below; taken before any LU's
	lus    []*LU
	closed bool
}

// NewNexus makes a nexus that belongs to no Device. The name of the initiator port is for logs.
func NewNexus(initiator string) *Nexus { return &Nexus{initiator: initiator} }

// Initiator is the name of the initiator port.
func (n *Nexus) Initiator() string { return n.initiator }

// Close is the loss of the nexus: its reservations are released and its unit attentions forgotten.
// Commands of the nexus must have ended. Closing twice does nothing.
func (n *Nexus) Close() {
	n.mu.Lock()
	lus := n.lus
	n.lus, n.closed = nil, true
	n.mu.Unlock()
	for _, l := range lus {
		l.detach(n)
	}
	if n.dev != nil {
		n.dev.forget(n)
	}
}

// attention is what one logical unit has to tell one nexus, oldest first.
type attention struct {
	codes [maxAttentions]Code
	n     int
}

// add queues c. It reports by how much the queue grew. A reset (29h) makes everything older of no interest:
// an initiator that is told of it looks at everything anew (SAM-5, section 5.14.3).
func (a *attention) add(c Code) int {
	before := a.n
	if c.ASC() == CodeReset.ASC() {
		keep := 0
		for _, q := range a.codes[:a.n] {
			if q == CodeReportedLUNsChanged {
				a.codes[keep] = q
				keep++
			}
		}
		a.n = keep
	}
	for _, q := range a.codes[:a.n] {
		if q == c {
			return a.n - before
		}
	}
	if a.n < maxAttentions {
		a.codes[a.n] = c
		a.n++
	}
	return a.n - before
}

// drop removes c wherever it stands and reports by how much the queue grew (0 or -1).
func (a *attention) drop(c Code) int {
	for i, q := range a.codes[:a.n] {
		if q == c {
			copy(a.codes[i:], a.codes[i+1:a.n])
			a.n--
			return -1
		}
	}
	return 0
}
